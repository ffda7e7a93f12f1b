package engine

import (
	"os"
	"slices"
	"testing"
)

// TestBody: the fields that beat a checked one are refused on every engine, each length is one that some route reads or is
// written where it does, and no field has two rules.
func TestBody(t *testing.T) {
	for _, name := range Names() {
		b := get(t, name).Body()
		if len(b.Length) != 3 || !slices.Contains(b.Count, "n") {
			t.Errorf("%s: lengths %v, counts %v", name, b.Length, b.Count)
		}
		for _, r := range get(t, name).Routes() {
			reads := b.Reads[r.Kind]
			if generates := r.Kind == "chat" || r.Kind == "completions" || r.Kind == "responses"; generates != (len(reads) > 0) {
				t.Errorf("%s: on %s the engine reads the lengths %v", name, r.Path, reads)
			}
			for _, f := range reads {
				if !slices.Contains(b.Length, f) {
					t.Errorf("%s reads %s on %s, which nobody checks", name, f, r.Path)
				}
			}
		}
		seen := map[string]bool{}
		for _, f := range slices.Concat(b.Length, b.Count) {
			seen[f] = true
		}
		for _, r := range b.Refuse {
			if seen[r.Name] || r.Next == "" {
				t.Errorf("%s: %s has two rules, or no word on what to do", name, r.Name)
			}
			seen[r.Name] = true
		}
		for _, f := range b.Fields {
			if seen[f.Name] || f.Forms == 0 {
				t.Errorf("%s: %s has two rules, or no form", name, f.Name)
			}
			seen[f.Name] = true
			if f.Forms&(Whole|Real) != 0 && f.Forms&Whole != 0 && f.Min >= f.Max {
				t.Errorf("%s: %s goes from %g to %g", name, f.Name, f.Min, f.Max)
			}
		}
		for _, f := range []string{"n_predict", "num_predict", "n_cmpl", "options", "num_ctx", "keep_alive"} {
			if !slices.ContainsFunc(b.Refuse, func(r Refusal) bool { return r.Name == f }) {
				t.Errorf("%s lets %s through", name, f)
			}
		}
	}
}

// TestBodyReference: docs/reference/bodies.md says what the tables say. WRITE=1 writes it.
func TestBodyReference(t *testing.T) {
	const file = "../docs/reference/bodies.md"
	want := BodyReference()
	if os.Getenv("WRITE") != "" {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != want {
		t.Errorf("%s is out of date (%v); run: WRITE=1 go test -run TestBodyReference ./engine", file, err)
	}
}
