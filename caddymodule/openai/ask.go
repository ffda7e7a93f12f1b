package openai

import "bytes"

// Change is one edit of a body: the bytes from From up to To become Text.
type Change struct {
	From, To int
	Text     string
}

// Set is the change that gives a top-level member a value, whether the body has it or not. The body is one that Walk takes.
func Set(body []byte, m Members, name, value string) Change {
	if _, there := m.Get(name); there {
		if from, to, ok := span(body, name); ok {
			return Change{from, to, value}
		}
	}
	at := bytes.IndexByte(body, '{') + 1
	return Change{at, at, `"` + name + `":` + value + `,`}
}

// wish is what makes an engine tell a stream's usage.
const wish = `{"include_usage":true}`

// AskUsage says how a request for a stream has to change for the engine to tell its usage at the end. change is nil where
// nothing is to be done: the body asks for no stream, or asks for usage itself (asked). The body is one that Walk takes, with
// stream and stream_options among its fields.
//
// Whatever stands for stream, and is not false or null, may be one: vLLM takes 1, "on" and others for true. If an engine
// takes it for false or refuses it, the options do no harm that the client did not ask for.
func AskUsage(body []byte, m Members) (change *Change, asked bool) {
	if v, ok := m.Get("stream"); !ok || string(v) == "false" || string(v) == "null" {
		return nil, false
	}
	options, ok := m.Get("stream_options")
	if !ok {
		at := bytes.IndexByte(body, '{') + 1
		return &Change{at, at, `"stream_options":` + wish + `,`}, false
	}
	if in, err := Walk(options, optionFields); err == nil {
		if v, _ := in.Get("include_usage"); string(v) == "true" {
			return nil, true
		}
	} else if options[0] != '{' && string(options) != "null" {
		return nil, false // the engine refuses it, in its own words
	}
	// Options that say include_usage twice, or in another case, are replaced, too: engines disagree on what they say.
	// Without include_usage the other options say nothing to any engine; with it they would begin to.
	from, to, ok := span(body, "stream_options")
	if !ok {
		return nil, false
	}
	return &Change{from, to, wish}, false
}

var optionFields = NewFields("include_usage")

// span is where a top-level member's value stands.
func span(body []byte, name string) (from, to int, ok bool) {
	s := scanner{b: body}
	if s.peek() != '{' {
		return 0, 0, false
	}
	for s.i++; s.peek() == '"'; s.i++ {
		text, escaped, err := s.str()
		if err != nil {
			return 0, 0, false
		}
		if escaped {
			if text, err = unescape(text); err != nil {
				return 0, 0, false
			}
		}
		if s.peek() != ':' {
			return 0, 0, false
		}
		s.i++
		s.space()
		from = s.i
		if s.skip() != nil {
			return 0, 0, false
		}
		if string(text) == name {
			return from, s.i, true
		}
		if s.peek() != ',' {
			return 0, 0, false
		}
	}
	return 0, 0, false
}
