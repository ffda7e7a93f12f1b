package openai

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
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
