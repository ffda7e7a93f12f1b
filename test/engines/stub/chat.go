package stub

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
)

// chat answers /v1/chat/completions.
func (x *exchange) chat() string { return x.generate(kindChat) }

// completions answers /v1/completions.
func (x *exchange) completions() string { return x.generate(kindCompletions) }

func (x *exchange) generate(kind string) string {
	q, err := x.query()
	if err != nil {
		return x.refuse(400, err.Error())
	}
	if q.StreamOptions != nil && !q.Stream && x.b.Manner == VLLM {
		return x.refuse(400, "Stream options can only be defined when `stream=True`.")
	}
	r := x.reply(q)
	if q.Stream {
		return x.streamText(kind, q, r)
	}
	choices, prompts := make([]any, q.choices()), q.prompts()
	for i := range choices {
		if kind == kindCompletions {
			own := r
			if prompts != nil {
				one := *q
				one.Prompt = prompts[i/max(q.N, 1)]
				own = x.reply(&one)
			}
			choices[i] = map[string]any{"index": i, "text": own.text(), "finish_reason": own.finish, "logprobs": nil}
			continue
		}
		m := map[string]any{"role": "assistant", "content": r.text()}
		if r.call != "" {
			m["content"] = nil
			m["tool_calls"] = []any{map[string]any{"id": "call_stub", "type": "function", "function": map[string]any{"name": r.call, "arguments": r.text()}}}
		}
		choices[i] = map[string]any{"index": i, "message": m, "finish_reason": r.finish, "logprobs": nil}
	}
	answer := map[string]any{"id": idOf(kind), "object": objectOf(kind, false), "created": x.e.started, "model": q.Model, "choices": choices}
	if x.b.Usage != "none" {
		output := r.output * q.choices()
		if x.b.Manner == LlamaCpp {
			output = r.output
		}
		answer["usage"] = usageOf(x.b.Manner, r.prompt, output)
	}
	return x.json(answer)
}

func idOf(kind string) string {
	if kind == kindChat {
		return "chatcmpl-stub"
	}
	return "cmpl-stub"
}

func objectOf(kind string, stream bool) string {
	switch {
	case kind == kindCompletions:
		return "text_completion"
	case stream:
		return "chat.completion.chunk"
	}
	return "chat.completion"
}

// chunks makes the data of events of chat and completions.
type chunks struct {
	kind string
	head []byte // up to and with "choices":[
	buf  []byte
}

func (x *exchange) chunks(kind, model string) *chunks {
	c := &chunks{kind: kind}
	c.head = append(c.head, `{"id":"`+idOf(kind)+`","object":"`+objectOf(kind, true)+`","created":`+strconv.FormatInt(x.e.started, 10)+`,"model":`...)
	c.head = append(append(c.head, quote(model)...), `,"choices":[`...)
	return c
}

// chunk is one event's data. delta is the choice's delta, or for completions its text as JSON; without one the event has no
// choices. finish and usage may be empty.
func (c *chunks) chunk(index int, delta []byte, finish string, usage []byte) []byte {
	b := append(c.buf[:0], c.head...)
	if delta != nil {
		b = append(strconv.AppendInt(append(b, `{"index":`...), int64(index), 10), ',')
		if c.kind == kindChat {
			b = append(append(append(b, `"delta":`...), delta...), ',')
		} else {
			b = append(append(append(b, `"text":`...), delta...), ',')
		}
		if finish == "" {
			b = append(b, `"finish_reason":null}`...)
		} else {
			b = append(append(append(b, `"finish_reason":"`...), finish...), `"}`...)
		}
	}
	b = append(b, ']')
	if usage != nil {
		b = append(append(b, `,"usage":`...), usage...)
	}
	c.buf = append(b, '}')
	return c.buf
}

func (x *exchange) streamText(kind string, q *query, r reply) string {
	u := x.streamUsage(kind, q)
	s := x.events()
	if s == nil {
		return endLeft
	}
	if x.b.End == HeadersOnly || x.b.End == CutHeaders {
		return x.ending(nil)
	}
	c := x.chunks(kind, q.Model)
	each := func(output int) []byte {
		switch u.each {
		case "zeros":
			return x.usageText(0, 0)
		case "cumulative":
			return x.usageText(r.prompt, output)
		}
		return nil
	}
	if kind == kindChat {
		delta := []byte(`{"role":"assistant","content":""}`)
		if r.call != "" {
			delta = append(append([]byte(`{"role":"assistant","content":null,"tool_calls":[{"index":0,"id":"call_stub","type":"function","function":{"name":`), quote(r.call)...), `,"arguments":""}}]}`...)
		}
		for i := range q.choices() {
			if !s.event("", c.chunk(i, delta, "", each(0)), false) {
				return endLeft
			}
		}
	}
	say := func(i int, piece string) bool {
		for choice := range q.choices() {
			if !s.content("", piece, func(text []byte) []byte { return c.chunk(choice, deltaOf(kind, r.call, text), "", each(i+1)) }) {
				return false
			}
		}
		return true
	}
	if end := s.pieces(r.pieces, say, s.dyingWords); end != "" {
		return end
	}
	for i := range q.choices() {
		usage := each(r.output)
		if u.finish {
			usage = x.usageText(r.prompt, r.output)
		}
		delta := []byte(`{}`)
		if kind == kindCompletions {
			delta = []byte(`""`)
		}
		event := c.chunk(i, delta, r.finish, usage)
		if x.b.Manner == LlamaCpp && x.b.Usage == "" {
			event = fmt.Appendf(event[:len(event)-1], `,"timings":{"cache_n":0,"prompt_n":%d,"predicted_n":%d}}`, r.prompt, r.output)
		}
		if !s.event("", event, false) {
			return endLeft
		}
	}
	if u.extra {
		times, output := 1, r.output*q.choices()
		if x.b.Manner == LlamaCpp {
			times, output = q.choices(), r.output
		}
		for range times {
			if !s.event("", c.chunk(0, nil, "", x.usageText(r.prompt, output)), false) {
				return endLeft
			}
		}
	}
	return s.done()
}

func deltaOf(kind, call string, text []byte) []byte {
	switch {
	case kind == kindCompletions:
		return text
	case call != "":
		return bytes.Join([][]byte{[]byte(`{"tool_calls":[{"index":0,"function":{"arguments":`), text, []byte(`}}]}`)}, nil)
	}
	return bytes.Join([][]byte{[]byte(`{"content":`), text, []byte(`}`)}, nil)
}

func (x *exchange) usageText(prompt, output int) []byte {
	b, err := json.Marshal(usageOf(x.b.Manner, prompt, output))
	if err != nil {
		panic(err)
	}
	return b
}

// dyingWords is what an engine writes when it fails in mid-stream: vLLM ends as if all were well, llama.cpp leaves out
// [DONE], Ollama says nothing.
func (s *events) dyingWords() string {
	if s.b.Manner != Ollama {
		message := "EngineCore encountered an issue. See stack trace (above) for the root cause."
		if s.b.Manner == LlamaCpp {
			message = "Compute error."
		}
		body, _ := json.Marshal(errorBody(s.b.Manner, 500, message))
		if !s.event("", body, false) {
			return endLeft
		}
	}
	if s.b.Manner == VLLM {
		return s.done()
	}
	return s.finish()
}
