package openai

import (
	"bytes"
	"strconv"
	"strings"
)

// Usage is what an answer says it cost, in tokens.
type Usage struct {
	Input  int64 // prompt_tokens or input_tokens, cached ones included
	Output int64 // completion_tokens or output_tokens
}

// Seen is what a Tail found in an answer.
type Seen struct {
	Usage       *Usage // nil: the answer did not say
	EngineError bool   // a stream held an error event: it failed, even if it then ended properly
	Done        bool   // a stream ended with [DONE]
}

// How much of an answer a Tail keeps: of a JSON body its end, of a stream one line.
const (
	keepJSON = 64 << 10
	keepLine = 256 << 10
)

// Tail reads an answer as it passes by and remembers the little that says what it cost. It changes nothing and holds back
// nothing. A Tail is used by one goroutine.
type Tail struct {
	stream bool
	json   bool
	part   []byte // the line that is not finished yet, or the end of the JSON body
	lost   bool   // the unfinished line outgrew keepLine: skipped up to its end
	cut    bool   // part is no longer the whole body
	cr     bool   // the last byte was CR, so that an LF after it ends no further line
	seen   Seen
}

// NewTail returns a Tail for an answer of that type. An encoded (compressed) answer cannot be read; its Tail finds nothing.
func NewTail(contentType, contentEncoding string) *Tail {
	t := &Tail{}
	if contentEncoding != "" && !strings.EqualFold(contentEncoding, "identity") {
		return t
	}
	kind := MediaType(contentType)
	t.stream = kind == "text/event-stream"
	t.json = kind == "application/json"
	return t
}

// Write takes the next bytes of the answer. It never fails.
func (t *Tail) Write(p []byte) (int, error) {
	switch {
	case t.stream:
		t.lines(p)
	case t.json:
		if t.part = append(t.part, p...); len(t.part) > 2*keepJSON {
			t.part, t.cut = append(t.part[:0], t.part[len(t.part)-keepJSON:]...), true
		}
	}
	return len(p), nil
}

// Border tells whether a stream is between two events, where a further one may be put.
func (t *Tail) Border() bool { return t.stream && len(t.part) == 0 && !t.lost }

// lines takes a stream apart into lines, which end with LF, CR or CRLF.
func (t *Tail) lines(p []byte) {
	lf := bytes.IndexByte(p, '\n') // found once, not for every line that ends with a CR before it
	for at := 0; at < len(p); {
		if t.cr && p[at] == '\n' {
			at++
			t.cr = false
			continue
		}
		t.cr = false
		if lf >= 0 && lf < at {
			if lf = bytes.IndexByte(p[at:], '\n'); lf >= 0 {
				lf += at
			}
		}
		end := lf
		if end < 0 {
			end = len(p)
		}
		if cr := bytes.IndexByte(p[at:end], '\r'); cr >= 0 {
			end = at + cr
		}
		if end == len(p) {
			t.keep(p[at:])
			return
		}
		line := p[at:end]
		at, t.cr = end+1, p[end] == '\r'
		if len(t.part) > 0 {
			t.keep(line)
			line = t.part
		}
		if !t.lost {
			t.line(line)
		}
		t.part, t.lost = t.part[:0], false
	}
}

// keep holds a piece of a line that is not finished, unless it grows too long.
func (t *Tail) keep(piece []byte) {
	if t.lost = t.lost || len(t.part)+len(piece) > keepLine; t.lost {
		t.part = t.part[:0]
		return
	}
	t.part = append(t.part, piece...)
}

var (
	tailFields  = NewFields("usage", "response", "error", "type", "choices")
	usageFields = NewFields("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens")
)

// line reads one line of a stream. Engines write an event's data in one line; comments and other fields say nothing here.
func (t *Tail) line(line []byte) {
	data, ok := bytes.CutPrefix(line, []byte("data:"))
	if !ok {
		return
	}
	data = bytes.TrimPrefix(data, []byte(" "))
	if string(data) == "[DONE]" {
		t.seen.Done = true
		return
	}
	hasUsage := bytes.Contains(data, []byte(`"usage"`))
	if !hasUsage && !bytes.Contains(data, []byte(`"error"`)) {
		return
	}
	m, err := Walk(data, tailFields)
	if err != nil {
		return
	}
	if e, ok := m.Get("error"); ok && string(e) != "null" {
		t.seen.EngineError = true
	}
	if u, ok := m.Get("usage"); ok {
		t.found(u)
	}
	if r, ok := m.Get("response"); ok && hasUsage { // the Responses API's last event
		if inner, err := Walk(r, tailFields); err == nil {
			if u, ok := inner.Get("usage"); ok {
				t.found(u)
			}
		}
	}
}

// found keeps the newest usage: some engines send zeros first and the true figures last.
func (t *Tail) found(raw []byte) {
	m, err := Walk(raw, usageFields)
	if err != nil {
		return
	}
	var u Usage
	any := false
	for _, f := range []struct {
		name string
		to   *int64
	}{{"prompt_tokens", &u.Input}, {"input_tokens", &u.Input}, {"completion_tokens", &u.Output}, {"output_tokens", &u.Output}} {
		if v, ok := m.Get(f.name); ok {
			if n, err := strconv.ParseInt(string(v), 10, 64); err == nil && n >= 0 {
				*f.to, any = n, true
			}
		}
	}
	if any {
		t.seen.Usage = &u
	}
}

// End says what was found. No more is written after it.
func (t *Tail) End() Seen {
	switch {
	case t.stream:
		if len(t.part) > 0 && !t.lost { // a stream without a last line end
			t.line(t.part)
		}
	case t.json && !t.cut:
		if m, err := Walk(t.part, tailFields); err == nil {
			if u, ok := m.Get("usage"); ok {
				t.found(u)
			}
		}
	case t.json:
		t.fromEnd()
	}
	return t.seen
}

// fromEnd looks for the usage in the end of a long body: the last member of that name, which text inside a string cannot
// be, since its quotes would be escaped.
func (t *Tail) fromEnd() {
	name := []byte(`"usage"`)
	for end := len(t.part); ; {
		i := bytes.LastIndex(t.part[:end], name)
		if i <= 0 {
			return
		}
		end = i
		if t.part[i-1] == '\\' {
			continue
		}
		s := scanner{b: t.part, i: i + len(name)}
		if s.peek() != ':' {
			continue
		}
		s.i++
		s.space()
		start := s.i
		if start < len(s.b) && s.b[start] == '{' && s.skip() == nil {
			t.found(t.part[start:s.i])
			return
		}
	}
}

// MediaType is the type in a Content-Type header, lower-case, without its parameters.
func MediaType(contentType string) string {
	kind, _, _ := strings.Cut(contentType, ";")
	return strings.ToLower(strings.TrimSpace(kind))
}
