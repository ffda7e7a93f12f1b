package durable

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// TestReplace: a file is there whole or as it was, and nobody else can read it.
func TestReplace(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	put := func(text string, err error) error {
		return Replace(dir, "x", func(w io.Writer) error { io.WriteString(w, text); return err })
	}
	if err := put("first", nil); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	if err := put("second", broken); !errors.Is(err, broken) {
		t.Errorf("the error is %v", err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "x")); string(b) != "first" {
		t.Errorf("after a failed write the file holds %q, %v", b, err)
	}
	if err := put("third", nil); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "x")); string(b) != "third" {
		t.Errorf("the file holds %q, %v", b, err)
	}
	info, err := os.Stat(filepath.Join(dir, "x"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if all, _ := os.ReadDir(dir); len(all) != 1 {
		t.Errorf("%d files are left", len(all))
	}
}

// TestSweep takes away what a crash has left of one file, and nothing else.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"x", "x.new1", "x.new22", "y.new1", "x.broken"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := Sweep(dir, "x"); err != nil {
		t.Fatal(err)
	}
	left, _ := os.ReadDir(dir)
	var names []string
	for _, e := range left {
		names = append(names, e.Name())
	}
	if len(names) != 3 || names[0] != "x" || names[1] != "x.broken" || names[2] != "y.new1" {
		t.Errorf("left are %v", names)
	}
}
