package route

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail/client/wire"
)

func hashOf(n int) Hash { return sha256.Sum256(fmt.Appendf(nil, "key %d", n)) }

func wireKey(n int) wire.RouteKey {
	h := hashOf(n)
	return wire.RouteKey{ID: fmt.Sprintf("key_%d", n), SHA256: hex.EncodeToString(h[:]), Prefix: "lr-12345", Models: []string{"chat"}}
}

func fill(t testing.TB, from *Table, n int) *Table {
	t.Helper()
	e := from.Edit()
	for i := range n {
		if _, err := e.PutKey(wireKey(i)); err != nil {
			t.Fatal(err)
		}
	}
	return e.Table()
}

// TestTablesAreImmutable: a table stays what it was, whatever is made from it, in any order of changes.
func TestTablesAreImmutable(t *testing.T) {
	const n = 2000
	var tables []*Table
	table := new(Table)
	for i := range n { // one edit each, as a watch brings them
		e := table.Edit()
		if _, err := e.PutKey(wireKey(i)); err != nil {
			t.Fatal(err)
		}
		if i >= 10 && i%3 == 0 {
			e.DropKey(hashOf(i - 10))
		}
		table = e.Table()
		tables = append(tables, table)
	}
	dropped := func(i, at int) bool { return (i+10)%3 == 0 && i+10 <= at }
	for _, at := range []int{0, 1, 9, 10, 500, n - 1} {
		_, keys := tables[at].Len()
		count := 0
		tables[at].Keys(func(*Key) bool { count++; return true })
		want := 0
		for i := range n {
			k, ok := tables[at].Key(hashOf(i))
			if there := i <= at && !dropped(i, at); ok != there {
				t.Fatalf("table %d: key %d found %v, want %v", at, i, ok, there)
			} else if there {
				want++
				if k.ID != fmt.Sprintf("key_%d", i) {
					t.Fatalf("table %d: key %d is %s", at, i, k.ID)
				}
			}
		}
		if keys != want || count != want {
			t.Errorf("table %d says %d keys and lists %d, want %d", at, keys, count, want)
		}
	}
}

// TestKeysReplace: a key put again replaces itself and counts once; one dropped twice is gone once.
func TestKeysReplace(t *testing.T) {
	table := fill(t, new(Table), 100)
	e := table.Edit()
	k := wireKey(7)
	k.Name = "renamed"
	e.PutKey(k)
	e.DropKey(hashOf(8))
	e.DropKey(hashOf(8))
	e.DropKey(hashOf(1000))
	next := e.Table()
	if _, n := next.Len(); n != 99 {
		t.Errorf("%d keys, want 99", n)
	}
	if k, _ := next.Key(hashOf(7)); k.Name != "renamed" {
		t.Errorf("key 7 is called %q", k.Name)
	}
	if k, _ := table.Key(hashOf(7)); k.Name != "" {
		t.Errorf("in the old table key 7 is called %q", k.Name)
	}
	for _, bad := range []string{"", "ab", strings.Repeat("z", 64), strings.Repeat("a", 66)} {
		if _, err := table.Edit().PutKey(wire.RouteKey{ID: "x", SHA256: bad}); err == nil {
			t.Errorf("the hash %q was taken", bad)
		}
	}
	if _, err := table.Edit().PutKey(wire.RouteKey{ID: strings.Repeat("x", 48), SHA256: strings.Repeat("a", 64)}); err == nil {
		t.Error("an id was taken that has no room in a counter")
	}
}

// TestKeyKeepsItsWords: what the control plane said of a key is what goes to disk.
func TestKeyKeepsItsWords(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	w := wireKey(1)
	w.Name, w.AllowPaths, w.AllowModels, w.ExpiresAt, w.Tags = "ci", []string{"/v1/"}, []string{"a"}, &at, []string{"team=x"}
	k, err := newKey(w)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("%+v", k.Wire()); got != fmt.Sprintf("%+v", w) && k.Wire().ExpiresAt.Equal(at) {
		g, want := k.Wire(), w
		g.ExpiresAt, want.ExpiresAt = nil, nil
		if fmt.Sprint(g) != fmt.Sprint(want) {
			t.Errorf("%+v, want %+v", g, want)
		}
	}
	if k.Live(at) || !k.Live(at.Add(-time.Nanosecond)) || !(&Key{}).Live(at) {
		t.Error("a key lives up to its expiry, and for ever without one")
	}
}

// TestHosts: a model's domain is found by any spelling of a Host header; two models of one domain are settled the same way
// in every table.
func TestHosts(t *testing.T) {
	e := new(Table).Edit()
	for _, name := range []string{"b", "a", "plain"} {
		r := wire.Route{Model: name, Engine: "llamacpp"}
		if name != "plain" {
			r.Domain = "LLM.example.com"
		}
		if err := e.PutModel(r); err != nil {
			t.Fatal(err)
		}
	}
	table := e.Table()
	for host, want := range map[string]string{"llm.example.com": "a", "LLM.Example.COM:443": "a", "llm.example.com.": "a", "llm.example.com.:80": "a", "example.com": "", "": "",
		"127.0.0.1:7421": "", "[::1]:7421": "", "[::1]": "", "xllm.example.com": ""} {
		got := ""
		if m := table.Host(host); m != nil {
			got = m.Name
		}
		if got != want {
			t.Errorf("%q is %q, want %q", host, got, want)
		}
	}
	if new(Table).Host("llm.example.com") != nil {
		t.Error("an empty table has a host")
	}
	if err := table.Edit().PutModel(wire.Route{Model: "x", Engine: "nothing"}); err == nil {
		t.Error("a route of an unknown engine was taken")
	}
	e = table.Edit()
	e.DropModel("a")
	if m := e.Table().Host("llm.example.com"); m == nil || m.Name != "b" {
		t.Errorf("without a, the domain is %v", m)
	}
	if m := table.Host("llm.example.com"); m.Name != "a" {
		t.Error("the old table changed")
	}
}

// TestOrder: targets are tried by their share; those of weight 0 come last, those that do not serve not at all.
func TestOrder(t *testing.T) {
	target := func(id string, weight int, serving bool) wire.RouteTarget {
		return wire.RouteTarget{ID: id, Weight: weight, Serving: serving}
	}
	m := &Model{Targets: []wire.RouteTarget{target("a", 1, true), target("off", 100, false), target("b", 3, true), target("spare", 0, true)}}
	first := map[string]int{}
	for i := range 100 {
		got := m.Order(float64(i) / 100)
		ids := make([]string, len(got))
		for i, t := range got {
			ids[i] = t.ID
		}
		first[ids[0]]++
		sorted := slices.Sorted(slices.Values(ids))
		if len(ids) != 3 || ids[2] != "spare" || !slices.Equal(sorted, []string{"a", "b", "spare"}) {
			t.Fatalf("order %v", ids)
		}
	}
	if first["a"] != 25 || first["b"] != 75 {
		t.Errorf("first were %v, want 25 and 75 of 100", first)
	}
	one := &Model{Targets: []wire.RouteTarget{target("only", 0, false)}}
	if got := one.Order(0.5); len(got) != 1 || got[0].ID != "only" {
		t.Errorf("a single target is tried whatever it says: %v", got)
	}
	if got := (&Model{}).Order(0); len(got) != 0 {
		t.Errorf("no targets: %v", got)
	}
}

// BenchmarkAuthorize is what a key costs a request: its hash and its look-up. Keys are looked up in an order that defeats
// the processor's cache, as many clients do.
func BenchmarkAuthorize(b *testing.B) {
	for _, n := range []int{10, 1_000, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			table := fill(b, new(Table), n)
			texts := make([][]byte, min(n, 65536))
			for i := range texts {
				texts[i] = fmt.Appendf(nil, "key %d", i*(n/len(texts)))
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if _, ok := table.Key(sha256.Sum256(texts[i])); !ok {
					b.Fatal("a key is missing")
				}
				if i += 7919; i >= len(texts) {
					i %= len(texts)
				}
			}
		})
	}
}

// BenchmarkChangeKey is what one key's change costs the link, in a table of each size.
func BenchmarkChangeKey(b *testing.B) {
	for _, n := range []int{10, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			table := fill(b, new(Table), n)
			k := wireKey(n / 2)
			b.ReportAllocs()
			for b.Loop() {
				e := table.Edit()
				if _, err := e.PutKey(k); err != nil {
					b.Fatal(err)
				}
				table = e.Table()
			}
		})
	}
}

// BenchmarkFill is a first synchronisation of a million keys, and what they take in memory.
func BenchmarkFill(b *testing.B) {
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		table := fill(b, new(Table), 1_000_000)
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/1e6, "bytes/key")
		runtime.KeepAlive(table)
	}
}
