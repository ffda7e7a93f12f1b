package route

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// TestKeysAgainstMap: after any changes a table has the keys that a plain map has, by hash and by id, in every word; hashes
// that share their first bytes, and ids that move to another hash, included. Older tables stay what they were.
func TestKeysAgainstMap(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	lists := [][]string{nil, {"chat"}, {"chat", "embed"}, {"", "x"}}
	type version struct {
		table *Table
		want  map[string]wire.RouteKey // by id
	}
	versions := []version{{new(Table), map[string]wire.RouteKey{}}}
	for range 400 {
		from := versions[r.IntN(len(versions))]
		want := map[string]wire.RouteKey{}
		for id, k := range from.want {
			want[id] = k
		}
		e := from.table.Edit()
		dropHash := func(hash string) {
			for id, k := range want {
				if k.SHA256 == hash {
					delete(want, id)
				}
			}
		}
		for range 1 + r.IntN(30) {
			var h Hash // few beginnings, so that leaves are long and tags alike
			h[0], h[2], h[9], h[10], h[31] = byte(r.IntN(2)), byte(r.IntN(2)), byte(r.IntN(2)), byte(r.IntN(2)), byte(r.IntN(3))
			k := wire.RouteKey{ID: fmt.Sprint("key_", r.IntN(40)), Name: []string{"", "default", "łódź"}[r.IntN(3)], SHA256: hex.EncodeToString(h[:]), Prefix: "lr-12345",
				Models: lists[r.IntN(4)], AllowPaths: lists[r.IntN(4)], AllowModels: lists[r.IntN(4)], Tags: lists[r.IntN(4)],
				Limits: levelrail.KeyLimits{RPM: r.Int64N(3) - 1, TPM: r.Int64(), TPD: -r.Int64(), MaxParallel: r.Int64N(300)},
				Owner:  levelrail.Owner{Organisation: []string{"", "default"}[r.IntN(2)], Project: fmt.Sprint(r.IntN(3))}}
			if r.IntN(2) == 0 {
				at := time.Unix(r.Int64N(1<<36)-1<<35, r.Int64N(1e9)).UTC()
				k.ExpiresAt = &at
			}
			switch r.IntN(4) {
			case 0:
				e.DropKey(h)
				dropHash(k.SHA256)
			case 1:
				e.DropKeyByID(k.ID)
				delete(want, k.ID)
			default:
				if _, err := e.PutKey(k); err != nil {
					t.Fatal(err)
				}
				dropHash(k.SHA256)
				want[k.ID] = k
			}
		}
		versions = append(versions, version{e.Table(), want})
	}
	for i, v := range versions {
		if _, n := v.table.Len(); n != len(v.want) {
			t.Fatalf("table %d says %d keys, want %d", i, n, len(v.want))
		}
		listed := 0
		v.table.Keys(func(k *Key) bool {
			listed++
			if !reflect.DeepEqual(k.Wire(), v.want[k.ID]) {
				t.Fatalf("table %d lists\n%+v, want\n%+v", i, k.Wire(), v.want[k.ID])
			}
			if byHash, ok := v.table.Key(k.Hash); !ok || !reflect.DeepEqual(byHash, k) {
				t.Fatalf("table %d has by hash %+v, want %+v", i, byHash, k)
			}
			return true
		})
		if listed != len(v.want) {
			t.Fatalf("table %d lists %d keys, want %d", i, listed, len(v.want))
		}
		for id := range 40 {
			id := fmt.Sprint("key_", id)
			want, there := v.want[id]
			if k, ok := v.table.KeyByID(id); ok != there || ok && !reflect.DeepEqual(k.Wire(), want) {
				t.Fatalf("table %d has %s: %v %+v, want %v %+v", i, id, ok, k, there, want)
			}
		}
	}
}

// TestKeysShareWords: what many keys have in common is held once, and no longer than a table has it.
func TestKeysShareWords(t *testing.T) {
	e := new(Table).Edit()
	for i := range 1000 {
		k := wireKey(i)
		k.Models = []string{fmt.Sprint("shared by ", i%2)}
		if _, err := e.PutKey(k); err != nil {
			t.Fatal(err)
		}
	}
	table := e.Table()
	a, _ := table.Key(hashOf(0))
	b, _ := table.Key(hashOf(2))
	if &a.Models[0] != &b.Models[0] {
		t.Error("two keys of one model have a list each")
	}
	held := func() int {
		interned.Lock()
		defer interned.Unlock()
		n := 0
		for _, s := range interned.by {
			if s := s.Value(); s != nil && len(s.models) == 1 && s.models[0][:4] == "shar" {
				n++
			}
		}
		return n
	}
	if n := held(); n != 2 {
		t.Errorf("%d scopes are held, want 2", n)
	}
	runtime.KeepAlive(table)
	for deadline := time.Now().Add(10 * time.Second); held() > 0; runtime.GC() {
		if time.Now().After(deadline) {
			t.Fatalf("%d scopes outlive their table", held())
		}
	}
}

// TestLookUpAllocates: a look-up with a place for the key leaves nothing to collect.
func TestLookUpAllocates(t *testing.T) {
	table, k := fill(t, new(Table), 1000), new(Key)
	h := hashOf(7)
	if n := testing.AllocsPerRun(100, func() {
		if !table.FindKey(&h, k) {
			t.Error("a key is missing")
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkCollect is what a collection costs beside a table of a million keys, against one beside none.
func BenchmarkCollect(b *testing.B) {
	for _, n := range []int{10, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			table := fill(b, new(Table), n)
			runtime.GC()
			for b.Loop() {
				runtime.GC()
			}
			runtime.KeepAlive(table)
		})
	}
}
