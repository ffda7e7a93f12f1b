package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode/utf8"
)

var testFields = NewFields("model", "max_tokens", "n", "stream")

// TestWalk: what a body says is found as it stands.
func TestWalk(t *testing.T) {
	for body, want := range map[string]string{
		`{}`:                         "",
		` { "model" : "a" } ` + "\n": `model="a"`,
		`{"model":"a","n":1,"max_tokens":null,"stream":true}`:     `model="a" max_tokens=null n=1 stream=true`,
		`{"x":{"model":"inner","n":[1,{"n":2}]},"model":"outer"}`: `model="outer"`,
		`{"mod\u0065l":"a"}`:                                                  `model="a"`,
		`{"\u006e":3}`:                                                        `n=3`,
		`{"model":"a\"b\\\u00e9\ud83d\ude00"}`:                                `model="a\"b\\\u00e9\ud83d\ude00"`,
		`{"x":"}{][,:\"","y":[[],{},[{}],""],"model":"a"}`:                    `model="a"`,
		`{"n":-0.5e+10,"x":[0,-0,1E5,1.5e-3]}`:                                `n=-0.5e+10`,
		`{"N\u0000":1,"nn":2,"MODEL_":3,"é":4}`:                               ``,
		`{"model":` + strings.Repeat("[", 98) + strings.Repeat("]", 98) + `}`: `model=` + strings.Repeat("[", 98) + strings.Repeat("]", 98),
	} {
		m, err := Walk([]byte(body), testFields)
		if err != nil {
			t.Errorf("%s: %v", body, err)
			continue
		}
		var got []string
		for _, f := range testFields.names {
			if raw, ok := m.Get(f); ok {
				got = append(got, f+"="+string(raw))
			}
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%s: %s, want %s", body, s, want)
		}
	}
}

// TestWalkRefuses: what engines read in different ways, or not at all, is refused, and no message quotes the body.
func TestWalkRefuses(t *testing.T) {
	deep := strings.Repeat(`{"a":`, maxDepth+1) + "1" + strings.Repeat("}", maxDepth+1)
	var many strings.Builder
	for i := range maxMembers + 1 {
		fmt.Fprintf(&many, `,"f%d":1`, i)
	}
	for _, body := range []string{
		``, ` `, `[]`, `"x"`, `1`, `null`, `{`, `{"`, `{"a`, `{"a"`, `{"a":`, `{"a":1`, `{"a":1,`, `{"a":1,}`, `{,}`, `{"a" 1}`, `{a:1}`, `{'a':1}`, `{"a":1]`, `{"a":[1}`, `{"a":[1,]}`, `{"a":[,1]}`, `{"a":{,}}`, `{"a":{"b"}}`,
		`{}x`, `{}{}`, `{} []`, "{}\x00", `{}//`, `/**/{}`, "\xef\xbb\xbf{}", "\xff\xfe{\x00}\x00", "{\x00}\x00", "{\"a\":\"\xff\"}", "{\"a\":\"\xed\xa0\x80\"}",
		`{"model":"a","model":"b"}`, `{"model":"a","mod\u0065l":"b"}`, `{"x":1,"x":2}`, `{"":1,"":2}`,
		`{"Model":"a"}`, `{"MODEL":"a"}`, `{"model":"a","Model":"b"}`, `{"MAX_TOKENS":1}`, `{"max_to\u212aens":1}`, `{"max_to` + "\u212a" + `ens":1}`, `{"N":1}`, `{"ſtream":true}`, `{"\u017ftream":true}`,
		`{"n":NaN}`, `{"n":Infinity}`, `{"n":-Infinity}`, `{"n":01}`, `{"n":+1}`, `{"n":1.}`, `{"n":.5}`, `{"n":1e}`, `{"n":-}`, `{"n":0x1}`, `{"n":1_000}`, `{"n":tru}`, `{"n":True}`, `{"n":nul}`, `{"n":undefined}`,
		`{"a":"` + "\n" + `"}`, `{"a":"` + "\t" + `"}`, `{"a":"\x"}`, `{"a":"\u12"}`, `{"a":"\u12G4"}`, `{"a":"\`, `{"a":"\u`, `{"\ud800":1}`, `{"\ud800\u0041":1}`, `{"\udc00":1}`,
		deep, `{"a":` + strings.Repeat("[", 100000), `{"x0":1` + many.String() + `}`,
	} {
		_, err := Walk([]byte(body), testFields)
		var b *BodyError
		if !errors.As(err, &b) {
			t.Errorf("%.60q was taken: %v", body, err)
		}
	}
	const secret = "confidential"
	for _, body := range []string{`{"` + secret + `":1,"` + secret + `":2}`, `{"a":` + secret, secret, `{"a":1}` + secret, `{"model":"` + secret + `","model":2}`} {
		if _, err := Walk([]byte(body), testFields); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v", body, err)
		}
	}
	if _, err := Walk([]byte(`{"n":1,"n":2}`), testFields); err == nil || err.(*BodyError).Field != "n" || !strings.Contains(err.Error(), "n") {
		t.Errorf("a field of the API that stands twice is named: %v", err)
	}
}

// TestText: a value that decides is a string that every engine decodes alike.
func TestText(t *testing.T) {
	for raw, want := range map[string]string{`"a"`: "a", `""`: "", `"a\/b\u0041\ud83d\ude00\n"`: "a/bA😀\n", `"é"`: "é"} {
		if got, err := Text([]byte(raw)); err != nil || got != want {
			t.Errorf("%s: %q %v", raw, got, err)
		}
	}
	for _, raw := range []string{`1`, `null`, `{}`, `["a"]`, `true`, `"\ud800"`, `"\ud800x"`, `"\ude00\ud83d"`} {
		if got, err := Text([]byte(raw)); err == nil {
			t.Errorf("%s: %q was taken", raw, got)
		}
	}
}

// FuzzWalk holds the scanner against encoding/json: what it takes is JSON there too, with the same members and values, and
// what it refuses is either no JSON or one of the named differences.
func FuzzWalk(f *testing.F) {
	for _, s := range []string{`{}`, `{"model":"a"}`, `{"mod\u0065l":"a","n":1}`, `{"a":[1,2,{"b":null}],"n":-1.5e3}`, `{"Model":1}`, `{"a":1,"a":2}`, `{"a":"\ud83d\ude00"}`, `{"a":"\ud800"}`, `[1]`, `{"a":1}x`,
		`{"a":01}`, `{"a":1.}`, `{"a":"` + "\x01" + `"}`, "\xef\xbb\xbf{}", "{\"a\":\"\xff\"}", `{"a":NaN}`, `{"a":{"b":[[[]]]}}`, `{"`, `{"a":"\`, `{"12345678":"12345678"}`, `{"1234567":"1234567\\"}`, `{"a":"1234567` + "\n" + `"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		m, err := Walk(body, testFields)
		if err != nil {
			var b *BodyError
			if !errors.As(err, &b) {
				t.Fatalf("%T", err)
			}
			if json.Valid(body) && utf8.Valid(body) && !expected(body) {
				t.Fatalf("%q was refused: %v", body, err)
			}
			return
		}
		var want map[string]json.RawMessage
		if err := json.Unmarshal(body, &want); err != nil {
			t.Fatalf("%q was taken, encoding/json says %v", body, err)
		}
		for _, f := range testFields.names {
			got, ok := m.Get(f)
			if raw, there := want[f]; there != ok || !bytes.Equal(bytes.TrimSpace(raw), got) {
				t.Fatalf("%q: %s is %q, encoding/json says %q", body, f, got, raw)
			}
		}
		// Whatever an engine in Go would read case-insensitively is what was found.
		var folded struct {
			Model any `json:"model"`
			N     any `json:"n"`
		}
		if err := json.Unmarshal(body, &folded); err != nil {
			t.Fatal(err)
		}
		for name, v := range map[string]any{"model": folded.Model, "n": folded.N} {
			raw, ok := m.Get(name)
			var exact any
			if ok {
				json.Unmarshal(raw, &exact)
			}
			if fmt.Sprint(exact) != fmt.Sprint(v) {
				t.Fatalf("%q: %s is %v, an engine in Go would read %v", body, name, exact, v)
			}
		}
	})
}

// expected tells whether a valid JSON text is one of those that are refused on purpose.
func expected(body []byte) bool {
	if b := bytes.TrimLeft(body, " \t\r\n"); len(b) == 0 || b[0] != '{' {
		return true
	}
	if bytes.Contains(body, []byte(`\ud`)) || bytes.Contains(body, []byte(`\uD`)) || bytes.Contains(body, []byte(`\Ud`)) {
		return true // perhaps half a pair in a name
	}
	depth, most := 0, 0
	for _, c := range body { // an upper bound: brackets in strings count too
		switch c {
		case '{', '[':
			depth++
			most = max(most, depth)
		case '}', ']':
			depth--
		}
	}
	if most >= maxDepth {
		return true
	}
	seen := map[string]bool{}
	d := json.NewDecoder(bytes.NewReader(body))
	d.Token()
	for d.More() {
		tok, err := d.Token()
		name, ok := tok.(string)
		if err != nil || !ok {
			return true
		}
		if seen[name] {
			return true
		}
		seen[name] = true
		for _, f := range testFields.names {
			if name != f && strings.EqualFold(name, f) {
				return true
			}
		}
		var v json.RawMessage
		if d.Decode(&v) != nil {
			return true
		}
	}
	return len(seen) > maxMembers
}

// BenchmarkWalk is the check of a chat body of two sizes.
func BenchmarkWalk(b *testing.B) {
	fields := NewFields("model", "max_completion_tokens", "max_tokens", "max_output_tokens", "n", "best_of", "n_predict", "num_predict", "n_cmpl", "options")
	for _, size := range []int{1 << 10, 100 << 10} {
		var body bytes.Buffer
		io.WriteString(&body, `{"model":"chat","stream":true,"temperature":0.7,"messages":[`)
		for i := 0; body.Len() < size; i++ {
			if i > 0 {
				body.WriteByte(',')
			}
			fmt.Fprintf(&body, `{"role":"user","content":"message %d: the quick brown fox says \"hello\" and jumps over the lazy dog, again and again and again"}`, i)
		}
		io.WriteString(&body, `],"max_tokens":256}`)
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			b.SetBytes(int64(body.Len()))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Walk(body.Bytes(), fields); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
