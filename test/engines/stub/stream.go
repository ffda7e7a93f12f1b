package stub

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"
)

// events is a stream of server-sent events being written.
type events struct {
	*exchange
	eol    string
	n      int    // content events so far
	all    int    // events of any kind so far
	buf    []byte // the event being written
	dressy bool   // some form is asked for
}

const longLine = 200_000 // bytes of the content of a Long event

// events begins a stream. It returns nil when the client has left.
func (x *exchange) events() *events {
	s := &events{exchange: x, eol: "\n", dressy: len(x.b.Form) > 0}
	switch {
	case x.b.has(CRLF):
		s.eol = "\r\n"
	case x.b.has(CR):
		s.eol = "\r"
	}
	more := "Cache-Control: no-cache\r\n"
	if x.b.Compress {
		var name string
		if x.pack, name = packerFor(x.head.accept); x.pack != nil {
			more += "Content-Encoding: " + name + "\r\n"
		}
	}
	x.start(200, "text/event-stream", -1, more)
	if x.b.Body > 0 && (!x.flush() || !x.wait(time.Duration(x.b.Body))) {
		return nil
	}
	return s
}

// event writes an event in the form that is asked for, and tells whether the client is still there.
func (s *events) event(name string, data []byte, last bool) bool {
	s.write(name, data, last)
	s.all++
	s.e.events.Add(1)
	return s.put(s.buf)
}

// write makes the event's text in s.buf.
func (s *events) write(name string, data []byte, last bool) {
	buf := s.buf[:0]
	if !s.dressy {
		if name != "" {
			buf = append(append(append(buf, "event: "...), name...), '\n')
		}
		buf = append(append(append(buf, "data: "...), data...), "\n\n"...)
		s.buf = buf
		return
	}
	line := func(text ...string) {
		for _, t := range text {
			buf = append(buf, t...)
		}
		buf = append(buf, s.eol...)
	}
	b := s.b
	if b.has(Comments) {
		if s.all%2 == 0 {
			line(": ping")
			line()
		} else {
			line(":")
		}
	}
	if b.has(Fields) {
		if name == "" {
			name = "message"
		}
		line("id: ", strconv.Itoa(s.all))
		line("retry: 3000")
	}
	if name != "" {
		line("event: ", name)
	}
	field := "data: "
	if b.has(Tight) {
		field = "data:"
	}
	if n := len(data); b.has(Lines) && n > 2 && data[0] == '{' { // between members and blanks a line may end
		line(field, "{")
		line(field, string(data[1:n-1]))
		line(field, "}")
	} else {
		line(field, string(data))
	}
	line()
	if last && b.has(Comments) {
		line(": bye")
	}
	if last && b.has(Open) {
		buf = []byte(strings.TrimRight(string(buf), "\r\n"))
	}
	s.buf = buf
}

// done writes the stream's end marker and ends the body.
func (s *events) done() string {
	if !s.event("", []byte("[DONE]"), true) {
		return endLeft
	}
	return s.finish()
}

// content writes one content event: make puts the text into what the route's events look like.
func (s *events) content(name, text string, make func(quoted []byte) []byte) bool {
	if s.b.has(Long) && s.n == 1 {
		text = strings.Repeat("long ", longLine/5)
	}
	s.n++
	data := make(quote(text))
	if want := s.b.EventBytes; want > 0 {
		s.write(name, data, false)
		if lack := want - len(s.buf); lack > 0 {
			data = make(quote(text + strings.Repeat("x", lack)))
		}
	}
	return s.event(name, data, false)
}

// pieces calls say for each content event, at their pace, and tells how the stream goes on: with "" to its proper end, else
// it has ended.
func (s *events) pieces(pieces []string, say func(i int, piece string) bool, errorEvent func() string) string {
	for i := 0; ; i++ {
		if s.b.End != "" && s.b.End != HeadersOnly && s.b.End != CutHeaders && i == min(s.b.At, len(pieces)) {
			return s.ending(errorEvent)
		}
		if i >= len(pieces) && !s.b.Endless {
			return ""
		}
		if i > 0 && s.b.Gap > 0 && !s.wait(time.Duration(s.b.Gap)) || s.b.Endless && s.hasGone() {
			return endLeft
		}
		if !say(i, pieces[i%len(pieces)]) {
			return endLeft
		}
	}
}

// quote is a text as JSON.
func quote(text string) []byte {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			b, err := json.Marshal(text)
			if err != nil {
				panic(err) // a string has JSON
			}
			return b
		}
	}
	out := make([]byte, 0, len(text)+2)
	return append(append(append(out, '"'), text...), '"')
}
