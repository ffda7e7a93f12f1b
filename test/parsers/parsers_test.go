package parsers

import (
	"bufio"
	"fmt"
	"math/big"
	"os"
	"strings"
	"testing"
)

// golden is what an original said, a line for each of its corpus.
func golden(t *testing.T, name string) []string {
	t.Helper()
	f, err := os.Open("testdata/" + name + ".golden")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var lines []string
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		lines = append(lines, s.Text())
	}
	if s.Err() != nil || len(lines) < 2 || !strings.HasPrefix(lines[0], "# ") {
		t.Fatalf("%s: %d lines, %v", f.Name(), len(lines), s.Err())
	}
	return lines[1:]
}

// answer writes one body's reading as the originals do.
func answer(v any, err error, number, boolean, text func(any) (any, bool, error)) string {
	if err != nil {
		return "refused"
	}
	out := []string{Show(v)}
	for _, m := range []struct {
		name string
		read func(any) (any, bool, error)
	}{{"n", number}, {"stream", boolean}, {"model", text}} {
		o, isObject := v.(*Object)
		if !isObject {
			out = append(out, "-")
			continue
		}
		member, there := o.Values[m.name]
		if !there {
			out = append(out, "-")
			continue
		}
		switch r, set, err := m.read(member); {
		case err != nil:
			out = append(out, "refused")
		case !set:
			out = append(out, "null")
		default:
			out = append(out, Show(r))
		}
	}
	return strings.Join(out, "\t")
}

// TestJSON: the models take, refuse and read each body of the corpus as the parsers do that they are models of.
func TestJSON(t *testing.T) {
	asAny := func(set bool, v any, err error) (any, bool, error) { return v, set, err }
	for name, model := range map[string]func([]byte) string{
		"bodies.cpp": func(b []byte) string {
			v, err := NlohmannJSON(b)
			return answer(v, err,
				func(v any) (any, bool, error) { n, set, err := NlohmannInt(v); return asAny(set, big.NewInt(n), err) },
				func(v any) (any, bool, error) { b, set, err := NlohmannBool(v); return asAny(set, b, err) },
				func(v any) (any, bool, error) { s, set, err := NlohmannText(v); return asAny(set, s, err) })
		},
		"bodies.py": func(b []byte) string {
			v, err := PythonJSON(b)
			return answer(v, err,
				func(v any) (any, bool, error) { n, set, err := PydanticInt(v); return asAny(set, n, err) },
				func(v any) (any, bool, error) { b, set, err := PydanticBool(v); return asAny(set, b, err) },
				func(v any) (any, bool, error) { s, set, err := PydanticText(v); return asAny(set, s, err) })
		},
	} {
		want, bodies := golden(t, name), Bodies()
		if len(want) != len(bodies) {
			t.Fatalf("%s has %d answers for %d bodies: run golden", name, len(want), len(bodies))
		}
		for i, b := range bodies {
			if got := model(b); got != want[i] {
				t.Errorf("%.80q: the model of %s says %.200s, the original said %.200s", b, name, got, want[i])
			}
		}
	}
}

// TestForms: the models take, refuse and read each form of the corpus as the parsers do that they are models of.
func TestForms(t *testing.T) {
	for name, model := range map[string]func(string, []byte) ([]Part, error){"forms.cpp": HttplibForm, "forms.py": PythonForm} {
		want, forms := golden(t, name), Forms()
		if len(want) != len(forms) {
			t.Fatalf("%s has %d answers for %d forms: run golden", name, len(want), len(forms))
		}
		for i, f := range forms {
			got := "empty"
			switch parts, err := model(f.ContentType, f.Body); {
			case err != nil:
				got = "refused"
			case len(parts) > 0:
				var out []string
				for _, p := range parts {
					sign := "="
					if p.File {
						sign = "@"
					}
					out = append(out, fmt.Sprintf("%x%s%x", p.Name, sign, p.Value))
				}
				got = strings.Join(out, "\t")
			}
			if got != want[i] {
				t.Errorf("%q %q:\nthe model of %s says %s\nthe original said   %s", f.ContentType, f.Body, name, got, want[i])
			}
		}
	}
}
