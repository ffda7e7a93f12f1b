package dense

import (
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestID(t *testing.T) {
	for _, text := range []string{"", "key_a", strings.Repeat("x", MaxID), "\x00\x00"} {
		if id := NewID(text); id.String() != text {
			t.Errorf("%q became %q", text, id.String())
		}
	}
	if NewID("a") == NewID("a\x00") || NewID("b") != NewID("b") {
		t.Error("ids are not their texts")
	}
	if id := NewID(strings.Repeat("y", 100)); id.String() != strings.Repeat("y", MaxID) {
		t.Errorf("%q", id.String())
	}
}

// TestLots: a record is nobody else's until it is given back, keeps its place, and memory goes when nothing of it is taken.
func TestLots(t *testing.T) {
	var l Lots[int]
	taken := map[uint32]*int{}
	random := rand.New(rand.NewPCG(1, 2))
	for step := range 200_000 {
		if wave := step / 20_000 % 2; len(taken) == 0 || random.IntN(3) > wave { // more is taken than given back, then the other way
			r, n := l.Take()
			if taken[n] != nil {
				t.Fatalf("record %d is taken twice", n)
			}
			*r, taken[n] = int(n), r
		} else {
			for n := range taken {
				l.Give(n)
				delete(taken, n)
				break
			}
		}
		if l.Len() != len(taken) {
			t.Fatalf("%d are taken, it says %d", len(taken), l.Len())
		}
	}
	all := map[*int]bool{}
	for _, lot := range l.All() {
		for i := range lot {
			all[&lot[i]] = true
		}
	}
	for n, r := range taken {
		if !all[r] {
			t.Fatalf("record %d is not among all", n)
		}
		if l.At(n) != r || *r != int(n) {
			t.Fatalf("record %d has moved or changed", n)
		}
		l.Give(n)
	}
	held := 0
	for _, lot := range l.all() {
		if lot != nil {
			held++
		}
	}
	if held != 0 || len(l.free) != 0 {
		t.Errorf("%d lots are held, and %d records of them", held, len(l.free))
	}
	if _, n := l.Take(); n/lotSize >= uint32(len(l.gone)+1) {
		t.Errorf("record %d lies in a new lot while old ones are gone", n)
	}
}

func TestPointers(t *testing.T) {
	type flat struct {
		a [3]struct{ b uint8 }
		c float64
		d time.Duration
		ID
	}
	for _, c := range []struct {
		of   any
		want bool
	}{{flat{}, false}, {"", true}, {[]int{}, true}, {[0]string{}, false}, {[1]string{}, true}, {time.Time{}, true}, {struct{ f func() }{}, true}, {new(int), true}, {map[int]int{}, true}, {complex64(0), false}} {
		if got := Pointers(reflect.TypeOf(c.of)); got != c.want {
			t.Errorf("%T: %v", c.of, got)
		}
	}
}

// TestTable: a table says what a map says, whatever the hashes are, and records stay where they are.
func TestTable(t *testing.T) {
	for _, mask := range []uint32{0, 7, 1<<20 - 1, ^uint32(0)} {
		var table Table[ID, int]
		model := map[string]*Record[ID, int]{}
		random := rand.New(rand.NewPCG(3, uint64(mask)))
		for step := range 60_000 {
			text := fmt.Sprint("key_", random.IntN(3000>>(step/10_000%3*4)))
			id := NewID(text)
			hash := crc32.ChecksumIEEE(id.Text()) & mask
			if mask == 0 && len(model) > 100 && model[text] == nil {
				continue
			}
			switch r := table.Find(hash, &id); {
			case r != model[text]:
				t.Fatalf("step %d: %s is at %p, want %p", step, text, r, model[text])
			case r == nil:
				r = table.Make(hash, &id)
				r.Value, model[text] = step, r
			case random.IntN(3) == 0:
				table.Remove(r)
				delete(model, text)
			}
			if step%5000 == 0 {
				table.Reserve(random.IntN(5000))
			}
			if table.Len() != len(model) || table.records.Len() != len(model) {
				t.Fatalf("step %d: %d and %d records, want %d", step, table.Len(), table.records.Len(), len(model))
			}
		}
		n := 0
		table.All(func(r *Record[ID, int]) bool {
			if n++; model[r.Key.String()] != r {
				t.Errorf("%s is not there", r.Key.String())
			}
			return true
		})
		if n != len(model) {
			t.Errorf("%d of %d records", n, len(model))
		}
		for _, r := range model {
			table.Remove(r)
		}
		if table.Len() != 0 || len(table.slots) != 0 || len(table.Places()) != 0 {
			t.Errorf("an empty table holds %d slots and %d lots", len(table.slots), len(table.Places()))
		}
	}
}
