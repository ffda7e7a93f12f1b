package openai

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/levelrail/levelrail/engine"
	"github.com/levelrail/levelrail/test/parsers"
)

func tableOf(t testing.TB, name string, strict bool) *Fields {
	t.Helper()
	e, err := engine.Get(name)
	if err != nil {
		t.Fatal(err)
	}
	return NewTable(e.Body(), strict)
}

func checked(body string, f *Fields) error {
	m, err := Walk([]byte(body), f)
	if err != nil {
		return err
	}
	if err := m.Check(); err != nil {
		return err
	}
	return nil
}

// TestTable: values in and out of their rules.
func TestTable(t *testing.T) {
	f := tableOf(t, "llamacpp", true)
	for _, body := range []string{`"repeat_last_n":-1`, `"repeat_last_n":64.0`, `"repeat_last_n":null`, `"temperature":1`, `"temperature":0.7e0`, `"stop":"a"`, `"stop":["a"]`, `"stop":[]`, `"logprobs":true`, `"logprobs":5`,
		`"seed":18014`, `"metadata":{"a":[1,2,"x, y"]}`, `"user":""`, `"grammar":""`, `"json_schema":{}`, `"options":{ }`, `"id_slot":-1`, `"id_slot":-1.0`, `"lora":[ ]`, `"n_predict":null`, `"chat_template_kwargs":{"enable_thinking":false}`,
		`"stop":["` + strings.Repeat("a,", 500) + `"]`, `"logit_bias":{"15043":-100,"1":5.5}`, `"logit_bias":[[15043,false],["x",1]]`} {
		if err := checked("{"+body+"}", f); err != nil {
			t.Errorf("%s: %v", body, err)
		}
	}
	for body, field := range map[string]string{`"repeat_last_n":-2`: "repeat_last_n", `"repeat_last_n":32769`: "repeat_last_n", `"repeat_last_n":1e3`: "repeat_last_n", `"repeat_last_n":"64"`: "repeat_last_n", `"repeat_last_n":64.5`: "repeat_last_n",
		`"repeat_last_n":true`: "repeat_last_n", `"temperature":1e400`: "temperature", `"temperature":101`: "temperature", `"stop":1`: "stop", `"stop":["` + strings.Repeat("a", 1025) + `"]`: "stop", `"logprobs":-1`: "logprobs", `"id_slot":0`: "id_slot",
		`"lora":[{}]`: "lora", `"options":{"a":1}`: "options", `"n_predict":-1`: "n_predict", `"no_such":1`: "no_such", `"metadata":[` + strings.Repeat("[", 90) + strings.Repeat("]", 90) + strings.Repeat(",[]", 600) + `]`: "metadata", `"user":"` + strings.Repeat("a", 2000) + `"`: "user",
		`"samplers":[` + strings.Repeat(`"dry",`, 40) + `"dry"]`: "samplers", `"messages":[` + strings.Repeat(`{},`, 20000) + `{}]`: "messages", `"stream":1`: "stream", `"tools":{}`: "tools"} {
		err := checked("{"+body+"}", f)
		if b := new(BodyError); !errors.As(err, &b) || b.Field != field {
			t.Errorf("%.60s: %v", body, err)
		}
	}
	// What a client has made up stands in a message only where it is a name.
	if err := checked(`{"My Secret: x":1}`, f); err == nil || strings.Contains(err.Error(), "ecret") {
		t.Errorf("an odd name: %v", err)
	}
	if err := checked(`{"no_such":1}`, f); !strings.Contains(err.Error(), UnknownSetting) {
		t.Errorf("an unknown field: %v", err)
	}
	if err := checked(`{"no_such":1}`, tableOf(t, "llamacpp", false)); err != nil {
		t.Errorf("an unknown field that is to pass: %v", err)
	}
}

// TestTextBytes: pictures and sounds are no text, whatever else is.
func TestTextBytes(t *testing.T) {
	long := strings.Repeat("a", 5000)
	for body, want := range map[string]int64{
		`{"messages":[{"content":"` + long + `"}]}`:                            5000,
		`{"messages":[{"content":[{"image_url":{"url":"` + long + `"}}]}]}`:    0,
		`{"messages":[{"content":[{"url":"` + long + `","t":"` + long + `"}]}`: 5000,
		`{"url":["` + long + `"]}`:                                             0,
		`{"prompt":"\"url\":` + long + `"}`:                                    5000,
		`{"url":"x","prompt":"` + long + `"}`:                                  5000,
	} {
		if got := TextBytes([]byte(body), 100); got < want || got > want+200 {
			t.Errorf("%.60s…: %d bytes of text, want about %d", body, got, want)
		}
	}
}

// FuzzNumber: a number that a table admits is one within its bounds for each of the three parsers, or the engine refuses it.
func FuzzNumber(f *testing.F) {
	for _, raw := range []string{"0", "-1", "64.0", "64.00", "1e1", "2147483647", "4294967295", "4294967297", "18446744073709551615", `"64"`, "true", "null", "-0", "-0.0", "32768", "32769", "[1]"} {
		f.Add(raw)
	}
	table := tableOf(f, "llamacpp", true)
	const name = "repeat_last_n"
	f.Fuzz(func(t *testing.T, raw string) {
		body := []byte(`{"` + name + `":` + raw + `}`)
		if checked(string(body), table) != nil {
			return
		}
		in := func(parser string, n float64) {
			if n < -1 || n > 32768 {
				t.Errorf("%q: %s reads %g", raw, parser, n)
			}
		}
		if v, err := parsers.NlohmannJSON(body); err == nil {
			if n, set, err := parsers.NlohmannInt(v.(*parsers.Object).Values[name]); err == nil && set {
				in("llama.cpp", float64(n))
			}
		}
		if v, err := parsers.PythonJSON(body); err == nil {
			if n, set, err := parsers.PydanticInt(v.(*parsers.Object).Values[name]); err == nil && set {
				var x float64
				if _, err := fmt.Sscan(fmt.Sprint(n), &x); err != nil {
					x = math.Inf(1)
				}
				in("vLLM", x)
			}
		}
		var o struct {
			N *int `json:"repeat_last_n"`
		}
		if json.Unmarshal(body, &o) == nil && o.N != nil {
			in("Ollama", float64(*o.N))
		}
	})
}

// BenchmarkTable is the check of a chat body by an engine's table, beside BenchmarkWalk.
func BenchmarkTable(b *testing.B) {
	table := tableOf(b, "llamacpp", true)
	body := []byte(`{"model":"chat","stream":true,"temperature":0.7,"top_p":0.95,"max_tokens":256,"stop":["</s>"],"seed":7,"messages":[{"role":"user","content":"` + strings.Repeat("the quick brown fox ", 50) + `"}]}`)
	room := make([][]byte, table.Len())
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		m, err := WalkInto(body, table, room)
		if err != nil {
			b.Fatal(err)
		}
		if err := m.Check(); err != nil {
			b.Fatal(err)
		}
	}
}
