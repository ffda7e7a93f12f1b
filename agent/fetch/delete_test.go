package fetch

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/levelrail/levelrail"
)

// TestDelete: a deleted set frees what no other set shares, and says how much; files that are shared, or being brought, stay.
func TestDelete(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	if err := s.prepare(); err != nil {
		t.Fatal(err)
	}
	a, b, c := "aa", "bb", "cc"
	for _, sum := range []string{a, b, c} {
		if err := os.WriteFile(s.blob(sum), []byte("12345"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	set := func(model string, sums ...string) {
		dir, err := s.begin(model)
		if err != nil {
			t.Fatal(err)
		}
		var m Manifest
		for _, sum := range sums {
			if err := s.link(sum, dir, "sub/"+sum+".gguf"); err != nil {
				t.Fatal(err)
			}
			m.Files = append(m.Files, levelrail.WeightsFile{Path: "sub/" + sum + ".gguf", SHA256: sum, Bytes: 5})
		}
		if err := s.finish(model, m); err != nil {
			t.Fatal(err)
		}
	}
	set("chat", a, b, c)
	set("other", b)
	unlock, err := s.lock(t.Context(), key(c, ""), func() {})
	if err != nil {
		t.Fatal(err)
	}
	if freed, err := s.Delete("chat"); err != nil || freed != 5 {
		t.Errorf("freed %d, %v", freed, err)
	}
	unlock()
	for sum, stays := range map[string]bool{a: false, b: true, c: true} {
		if _, err := os.Stat(s.blob(sum)); (err == nil) != stays {
			t.Errorf("%s: %v", sum, err)
		}
	}
	if sets, err := s.Sets(); err != nil || len(sets) != 1 || sets["other"].Files == nil {
		t.Errorf("the sets are %v, %v", sets, err)
	}
	if freed, err := s.Delete("chat"); err != nil || freed != 0 {
		t.Errorf("again: freed %d, %v", freed, err)
	}
	if freed, err := s.Delete("other"); err != nil || freed != 5 {
		t.Errorf("the last: freed %d, %v", freed, err)
	}
	if left, _ := filepath.Glob(filepath.Join(s.Dir, "[^.]*")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}
