package stub

import (
	"encoding/json"
	"fmt"
	"strings"
)

// The kinds of answer whose streams differ.
const (
	kindChat        = "chat"
	kindCompletions = "completions"
)

// query is what the stub reads of a request's body.
type query struct {
	Model         string         `json:"model"`
	Stream        bool           `json:"stream"`
	StreamOptions *streamOptions `json:"stream_options"`
	Messages      []message      `json:"messages"`
	Prompt        any            `json:"prompt"`
	Input         any            `json:"input"`
	Instructions  string         `json:"instructions"`
	N             int            `json:"n"`

	MaxTokens           *int `json:"max_tokens"`
	MaxCompletionTokens *int `json:"max_completion_tokens"`
	MaxOutputTokens     *int `json:"max_output_tokens"`

	Tools          []tool          `json:"tools"`
	ToolChoice     any             `json:"tool_choice"`
	ResponseFormat *responseFormat `json:"response_format"`
	Text           *struct {
		Format *responseFormat `json:"format"`
	} `json:"text"`

	EncodingFormat string `json:"encoding_format"`
	Dimensions     int    `json:"dimensions"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
	Continuous   bool `json:"continuous_usage_stats"`
}

type message struct {
	Role    string `json:"role"`
	Content any    `json:"content"`
}

// tool is a function; chat has it in a member, the Responses API in place.
type tool struct {
	Type       string         `json:"type"`
	Name       string         `json:"name"`
	Parameters map[string]any `json:"parameters"`
	Function   *struct {
		Name       string         `json:"name"`
		Parameters map[string]any `json:"parameters"`
	} `json:"function"`
}

func (t tool) function() (name string, parameters map[string]any) {
	if t.Function != nil {
		return t.Function.Name, t.Function.Parameters
	}
	return t.Name, t.Parameters
}

// responseFormat asks for JSON; chat has the schema in a member, the Responses API in place.
type responseFormat struct {
	Type       string         `json:"type"`
	Schema     map[string]any `json:"schema"`
	JSONSchema *struct {
		Schema map[string]any `json:"schema"`
	} `json:"json_schema"`
}

func (x *exchange) query() (*query, error) {
	var q query
	if err := json.Unmarshal(x.body, &q); err != nil {
		return nil, fmt.Errorf("the body cannot be read: %w", err)
	}
	return &q, nil
}

// reply is what the model would say.
type reply struct {
	pieces []string // of the text, or of the call's arguments; a token each
	call   string   // the function that is called; empty: none
	finish string   // stop, length, tool_calls
	prompt int
	output int
}

func (r *reply) text() string { return strings.Join(r.pieces, "") }

// reply makes up the answer: a call of a tool that is offered, JSON where it is wanted, else the client's last words.
func (x *exchange) reply(q *query) reply {
	last, role, words := q.last()
	r := reply{finish: "stop", prompt: words}
	text := "You said: " + last
	switch format := q.format(); {
	case role == "tool":
		text = "The tool said: " + last
	case len(q.Tools) > 0 && q.ToolChoice != "none":
		name, parameters := q.chosen().function()
		args, _ := json.Marshal(example(parameters, parameters, last, 0))
		r.call, r.finish, text = name, "tool_calls", string(args)
	case format != nil && format.Type == "json_object":
		b, _ := json.Marshal(map[string]string{"said": last})
		text = string(b)
	case format != nil && format.Type == "json_schema":
		schema := format.Schema
		if format.JSONSchema != nil {
			schema = format.JSONSchema.Schema
		}
		b, _ := json.Marshal(example(schema, schema, last, 0))
		text = string(b)
	}
	if x.b.Text != "" {
		text, r.call, r.finish = x.b.Text, "", "stop"
	}
	r.pieces = words8(text)
	if x.b.Events > 0 {
		r.pieces = again(r.pieces, x.b.Events)
	} else if most := q.most(); most > 0 && len(r.pieces) > most {
		r.pieces, r.finish = r.pieces[:most], "length"
	}
	r.output = len(r.pieces)
	if x.b.PromptTokens > 0 {
		r.prompt = x.b.PromptTokens
	}
	if x.b.OutputTokens > 0 {
		r.output = x.b.OutputTokens
	}
	return r
}

// last is the text that the client said last, whose it was (a tool's, when it is the result of a call), and how many words
// the request has in all.
func (q *query) last() (text, role string, words int) {
	add := func(t, r string) {
		if t != "" {
			text, role = t, r
		}
		words += len(strings.Fields(t))
	}
	add(q.Instructions, "system")
	for _, m := range q.Messages {
		add(textOf(m.Content), m.Role)
	}
	add(textOf(q.Prompt), "user")
	switch input := q.Input.(type) {
	case string:
		add(input, "user")
	case []any:
		for _, item := range input {
			m, ok := item.(map[string]any)
			switch {
			case !ok:
				add(textOf(item), "user")
			case m["type"] == "function_call_output":
				add(textOf(m["output"]), "tool")
			default:
				r, _ := m["role"].(string)
				add(textOf(m["content"]), r)
			}
		}
	}
	return text, role, words
}

// textOf is the text of a content: itself, or its text parts in a row.
func textOf(content any) string {
	switch c := content.(type) {
	case string:
		return c
	case []any:
		var parts []string
		for _, p := range c {
			switch p := p.(type) {
			case string:
				parts = append(parts, p)
			case map[string]any:
				if t, ok := p["text"].(string); ok {
					parts = append(parts, t)
				}
			}
		}
		return strings.Join(parts, " ")
	}
	return ""
}

func (q *query) format() *responseFormat {
	if q.Text != nil {
		return q.Text.Format
	}
	return q.ResponseFormat
}

// chosen is the tool that tool_choice names, else the first.
func (q *query) chosen() tool {
	if m, ok := q.ToolChoice.(map[string]any); ok {
		name, _ := m["name"].(string)
		if f, ok := m["function"].(map[string]any); ok {
			name, _ = f["name"].(string)
		}
		for _, t := range q.Tools {
			if n, _ := t.function(); n == name {
				return t
			}
		}
	}
	return q.Tools[0]
}

func (q *query) most() int {
	for _, n := range []*int{q.MaxCompletionTokens, q.MaxTokens, q.MaxOutputTokens} {
		if n != nil {
			return *n
		}
	}
	return 0
}

// choices is how many texts are wanted: n for each prompt.
func (q *query) choices() int { return max(q.N, 1) * max(len(q.prompts()), 1) }

// prompts are the prompts of a request that has several; of token numbers there is one list.
func (q *query) prompts() []any {
	list, _ := q.Prompt.([]any)
	if len(list) == 0 {
		return nil
	}
	if _, numbers := list[0].(float64); numbers {
		return nil
	}
	return list
}

// words8 cuts a text into words with the blank before them, and words into eight bytes at most, at borders of letters.
func words8(text string) []string {
	var out []string
	start := 0
	for i, r := range text {
		if i > start && (r == ' ' || i-start >= 8) {
			out = append(out, text[start:i])
			start = i
		}
	}
	return append(out, text[start:])
}

// again repeats pieces until there are n.
func again(pieces []string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = pieces[i%len(pieces)]
	}
	return out
}

// example makes a value that fits a JSON schema. Strings are the client's words.
func example(schema, root map[string]any, words string, depth int) any {
	if depth > 16 {
		return nil
	}
	if ref, ok := schema["$ref"].(string); ok {
		var at any = root
		for _, step := range strings.Split(strings.TrimPrefix(ref, "#/"), "/") {
			m, _ := at.(map[string]any)
			at = m[step]
		}
		found, _ := at.(map[string]any)
		return example(found, root, words, depth+1)
	}
	if v, ok := schema["const"]; ok {
		return v
	}
	if list, ok := schema["enum"].([]any); ok && len(list) > 0 {
		return list[0]
	}
	for _, key := range []string{"anyOf", "oneOf"} {
		if list, ok := schema[key].([]any); ok && len(list) > 0 {
			first, _ := list[0].(map[string]any)
			return example(first, root, words, depth+1)
		}
	}
	kind, _ := schema["type"].(string)
	if list, ok := schema["type"].([]any); ok && len(list) > 0 {
		kind, _ = list[0].(string)
	}
	switch kind {
	case "string":
		return words
	case "integer":
		return 7
	case "number":
		return 7.5
	case "boolean":
		return true
	case "array":
		items, _ := schema["items"].(map[string]any)
		return []any{example(items, root, words, depth+1)}
	case "null":
		return nil
	}
	out := map[string]any{}
	properties, _ := schema["properties"].(map[string]any)
	for name, p := range properties {
		m, _ := p.(map[string]any)
		out[name] = example(m, root, words, depth+1)
	}
	return out
}
