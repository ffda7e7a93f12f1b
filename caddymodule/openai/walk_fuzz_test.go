package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/levelrail/levelrail/test/parsers"
)

// What the gateway looks at in a body, by how it reads it.
var (
	numberFields = []string{"max_tokens", "max_completion_tokens", "max_output_tokens", "n", "best_of"}
	refuseFields = []string{"n_predict", "num_predict", "n_cmpl", "options", "keep_alive"}
	fuzzFields   = NewFields(append(append([]string{"model", "stream", "stream_options", "prompt"}, numberFields...), refuseFields...)...)
)

// says is what somebody takes a body to say: of each field its value as parsers.Show writes it, of the fields that decide
// what the engine does with them. A field that is null is as good as absent.
type says map[string]string

// gatewayReading is the gateway's, of a body that it passes on to an engine.
func gatewayReading(body []byte) (m Members, r says, ok bool) {
	m, err := Walk(body, fuzzFields)
	if err != nil {
		return m, nil, false
	}
	for _, name := range refuseFields {
		if _, there := m.Get(name); there {
			return m, nil, false
		}
	}
	r = says{}
	for _, name := range append([]string{"model", "stream"}, numberFields...) {
		raw, there := m.Get(name)
		if !there || string(raw) == "null" {
			continue
		}
		switch name {
		case "model":
			text, err := Text(raw)
			if err != nil {
				return m, nil, false
			}
			r[name] = parsers.Show(text)
		case "stream":
			// Engines take other things for true, too; the gateway calls nothing but true a stream.
			if s := string(raw); s == "true" || s == "false" {
				r[name] = s
			}
		default:
			n, isNumber := Whole(raw)
			if !isNumber || n < 0 || n > 999_999_999 {
				return m, nil, false
			}
			r[name] = fmt.Sprintf("i%d", n)
		}
	}
	return m, r, true
}

// engineReading is that of llama.cpp or vLLM, by the model of its parser, for the fields of want. It fails when the engine refuses the body.
func engineReading(root any, want says, read func(name string, v any) (string, bool, error)) (says, error) {
	o, isObject := root.(*parsers.Object)
	if !isObject {
		return nil, parsers.ErrRefused
	}
	r := says{}
	for _, name := range append([]string{"model", "stream"}, numberFields...) {
		v, there := o.Values[name]
		if _, wanted := want[name]; !there || name == "stream" && !wanted && v != nil {
			continue
		}
		text, set, err := read(name, v)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if set {
			r[name] = text
		}
	}
	return r, nil
}

func llamaReads(name string, v any) (string, bool, error) {
	switch name {
	case "model":
		s, set, err := parsers.NlohmannText(v)
		return parsers.Show(s), set, err
	case "stream":
		b, set, err := parsers.NlohmannBool(v)
		return fmt.Sprint(b), set, err
	}
	n, set, err := parsers.NlohmannInt(v)
	return fmt.Sprintf("i%d", n), set, err
}

func vllmReads(name string, v any) (string, bool, error) {
	switch name {
	case "model":
		s, set, err := parsers.PydanticText(v)
		return parsers.Show(s), set, err
	case "stream":
		b, set, err := parsers.PydanticBool(v)
		return fmt.Sprint(b), set, err
	}
	n, set, err := parsers.PydanticInt(v)
	return "i" + fmt.Sprint(n), set, err
}

// ollamaRequest is what Go's encoding/json fills, whatever the case of the names, and from the first value alone.
type ollamaRequest struct {
	Model               *string         `json:"model"`
	Stream              json.RawMessage `json:"stream"`
	StreamOptions       json.RawMessage `json:"stream_options"`
	Prompt              json.RawMessage `json:"prompt"`
	MaxTokens           *int            `json:"max_tokens"`
	MaxCompletionTokens *int            `json:"max_completion_tokens"`
	MaxOutputTokens     *int            `json:"max_output_tokens"`
	N                   *int            `json:"n"`
	BestOf              *int            `json:"best_of"`
	NPredict            json.RawMessage `json:"n_predict"`
	NumPredict          json.RawMessage `json:"num_predict"`
	NCmpl               json.RawMessage `json:"n_cmpl"`
	Options             json.RawMessage `json:"options"`
	KeepAlive           json.RawMessage `json:"keep_alive"`
}

func ollamaReading(body []byte, want says) (says, error) {
	var q ollamaRequest
	if err := json.NewDecoder(bytes.NewReader(body)).Decode(&q); err != nil {
		return nil, err
	}
	r := says{}
	if q.Model != nil {
		r["model"] = parsers.Show(*q.Model)
	}
	if _, wanted := want["stream"]; q.Stream != nil && (wanted || string(q.Stream) == "true" || string(q.Stream) == "false") {
		r["stream"] = string(q.Stream)
	}
	for name, n := range map[string]*int{"max_tokens": q.MaxTokens, "max_completion_tokens": q.MaxCompletionTokens, "max_output_tokens": q.MaxOutputTokens, "n": q.N, "best_of": q.BestOf} {
		if n != nil {
			r[name] = fmt.Sprintf("i%d", *n)
		}
	}
	for name, raw := range map[string]json.RawMessage{"n_predict": q.NPredict, "num_predict": q.NumPredict, "n_cmpl": q.NCmpl, "options": q.Options, "keep_alive": q.KeepAlive} {
		if raw != nil {
			r[name] = string(raw)
		}
	}
	return r, nil
}

// promptsOf is how many prompts an engine makes of a value of the field prompt at most: llama.cpp and vLLM make one of a
// list with numbers, if they take it at all, and one of each element of any other.
func promptsOf(v any) int64 {
	list, isList := v.([]any)
	if !isList || len(list) == 0 {
		return 1
	}
	for _, e := range list {
		switch parsers.Show(e)[0] {
		case 'i', 'f':
			if parsers.Show(e) != "false" {
				return 1
			}
		}
	}
	return int64(len(list))
}

// includesUsage tells whether an engine that takes a body tells the usage at the end of its stream. Of an engine that wants
// a boolean and gets something else, nothing is known.
func includesUsage(root any, read func(name string, v any) (string, bool, error)) bool {
	options, isObject := root.(*parsers.Object).Values["stream_options"].(*parsers.Object)
	if !isObject {
		return false
	}
	b, set, err := read("stream", options.Values["include_usage"])
	return err == nil && set && b == "true"
}

// FuzzWalk: there is no body on which the gateway checks one thing and an engine runs another. Of each body that the gateway
// passes on, each of the three parsers reads the same model, counts and lengths, or refuses the body; it makes no more
// prompts of it than were counted; and where usage is asked for in the client's place, exactly that changes. What the
// gateway refuses is either no JSON or one of the named differences.
func FuzzWalk(f *testing.F) {
	for _, body := range parsers.Bodies() {
		if len(body) < 2000 { // the fuzzer itself gets nowhere with longer ones
			f.Add(body)
		}
	}
	for _, s := range []string{`{"a":{"b":[[[]]]}}`, `{"12345678":"12345678"}`, `{"1234567":"1234567\\"}`, `{"a":"1234567` + "\n" + `"}`, `{"stream":true,"stream_options":{"include_usage":false,"include_usage":false}}`, `{"stream":true,"stream_options":{"Include_Usage":true}}`,
		`{"stream":true,"prompt":[1.5,"a",null]}`, `{"stream":true,"stream_options":{"include_usage":1}}`, `{"stream":true,"stream_options":[]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var b *BodyError
		if _, err := Walk(body, fuzzFields); err != nil && !errors.As(err, &b) {
			t.Fatalf("%T", err)
		} else if err != nil && json.Valid(body) && utf8.Valid(body) && !expected(body) {
			t.Fatalf("%q was refused: %v", body, err)
		} else if err == nil && (!json.Valid(body) || !utf8.Valid(body)) {
			t.Fatalf("%q was taken, and is no JSON", body)
		}
		m, want, ok := gatewayReading(body)
		if !ok {
			return
		}
		sameToEngines(t, body, want)
		raw, hasPrompt := m.Get("prompt")
		for _, parse := range []func([]byte) (any, error){parsers.NlohmannJSON, parsers.PythonJSON} {
			root, err := parse(body)
			if err != nil {
				continue
			}
			v, there := root.(*parsers.Object).Values["prompt"]
			if there != hasPrompt {
				t.Fatalf("%q: a prompt is there %v, for an engine %v", body, hasPrompt, there)
			}
			if there && promptsOf(v) > Prompts(raw) {
				t.Fatalf("%q: the gateway counts %d prompts, an engine %d", body, Prompts(raw), promptsOf(v))
			}
		}
		usageIsAsked(t, body, m, want)
	})
}

// sameToEngines holds the readings of three engines against the gateway's.
func sameToEngines(t *testing.T, body []byte, want says) {
	t.Helper()
	type engine struct {
		name string
		read func() (says, error)
	}
	for _, e := range []engine{
		{"llama.cpp", func() (says, error) {
			root, err := parsers.NlohmannJSON(body)
			if err != nil {
				return nil, err
			}
			return engineReading(root, want, llamaReads)
		}},
		{"vLLM", func() (says, error) {
			root, err := parsers.PythonJSON(body)
			if err != nil {
				return nil, err
			}
			return engineReading(root, want, vllmReads)
		}},
		{"Ollama", func() (says, error) { return ollamaReading(body, want) }},
	} {
		if got, err := e.read(); err == nil && !reflect.DeepEqual(got, want) {
			t.Fatalf("%q: the gateway reads %v, %s %v", body, want, e.name, got)
		}
	}
}

// usageIsAsked holds AskUsage against what engines make of the changed body.
func usageIsAsked(t *testing.T, body []byte, m Members, want says) {
	t.Helper()
	change, asked := AskUsage(body, m)
	if v, there := m.Get("stream"); !there || string(v) == "null" || string(v) == "false" {
		if change != nil || asked {
			t.Fatalf("%q: usage of what is no stream", body)
		}
		return
	}
	sent := body
	if change != nil {
		sent = append(append(append([]byte(nil), body[:change.From]...), change.Text...), body[change.To:]...)
		if _, again, ok := gatewayReading(sent); !ok || !reflect.DeepEqual(again, want) {
			t.Fatalf("%q was changed to %q, which says %v", body, sent, again)
		}
		sameToEngines(t, sent, want)
	}
	options, there := m.Get("stream_options")
	if change == nil && !asked && (!there || options[0] == '{' || string(options) == "null") {
		t.Fatalf("%q: usage is not asked for", body)
	}
	if change == nil && !asked {
		return // options of another kind, for the engine to refuse
	}
	for name, e := range map[string]struct {
		parse func([]byte) (any, error)
		read  func(string, any) (string, bool, error)
	}{"llama.cpp": {parsers.NlohmannJSON, llamaReads}, "vLLM": {parsers.PythonJSON, vllmReads}} {
		if root, err := e.parse(sent); err == nil && !includesUsage(root, e.read) {
			t.Fatalf("%q, sent as %q: %s tells no usage", body, sent, name)
		}
	}
	var ollama struct {
		Options struct {
			Usage bool `json:"include_usage"`
		} `json:"stream_options"`
	}
	if err := json.NewDecoder(bytes.NewReader(sent)).Decode(&ollama); err == nil && !ollama.Options.Usage {
		t.Fatalf("%q, sent as %q: Ollama tells no usage", body, sent)
	}
}

// expected tells whether a valid JSON text is one of those that are refused on purpose.
func expected(body []byte) bool {
	if b := bytes.TrimLeft(body, " \t\r\n"); len(b) == 0 || b[0] != '{' {
		return true
	}
	if bytes.Contains(body, []byte(`\ud`)) || bytes.Contains(body, []byte(`\uD`)) {
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
		if err != nil || !ok || seen[name] {
			return true
		}
		seen[name] = true
		for _, f := range fuzzFields.names {
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
