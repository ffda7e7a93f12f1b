package dense

import (
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
	for _, lot := range l.lots {
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
