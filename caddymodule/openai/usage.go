package openai

import (
	"bytes"
	"strconv"
	"strings"
	"sync"
)

// Usage is what an answer says it cost, in tokens.
type Usage struct {
	Input  int64 // prompt_tokens or input_tokens, cached ones included
	Output int64 // completion_tokens or output_tokens
}

// Seen is what a Tail found in an answer.
type Seen struct {
	Usage       *Usage // nil: the answer did not say
	Events      int64  // data events of a stream so far, about one for each token
	EngineError bool   // a stream held an error event: it failed, even if it then ended properly
	Done        bool   // a stream ended with [DONE]
	Begun       bool   // Usage was said when the stream began, as the messages API does, and not again: its Output is to come
}

// leastKeep is how much of a stream's line is kept even where no tokens are counted: error events are still told apart.
const leastKeep = 4 << 10

// parts is memory for what is not finished: an answer's for as long as it lasts, a line's until its end.
var parts = sync.Pool{New: func() any { b := make([]byte, 0, leastKeep); return &b }}

// mostPooled bounds what goes back; larger ones are left to the garbage collector.
const mostPooled = 64 << 10

// Tail reads an answer as it passes by and remembers the little that says what it cost. It changes nothing and holds back
// nothing. A Tail is used by one goroutine, which calls End on every way out.
type Tail struct {
	stream  bool
	json    bool
	tokens  bool   // usage is looked for
	most    int    // bytes to keep: of a JSON body its end, of a stream the end of one line
	part    []byte // the line that is not finished yet; its memory is held's
	held    *[]byte
	long    bool      // the line is longer than that: short reads it on
	short   condenser // of a long line, or of a JSON body
	room    *[]byte   // short's memory
	isData  bool      // of a long line: it began with data:
	cr      bool      // the last byte was CR, so that an LF after it ends no further line
	total   Usage     // said for the whole answer
	said    bool      // it was
	summed  bool      // total came from events without choices, which add up: llama.cpp sends one for each choice
	choices map[int64]Usage
	seen    Seen
	zip     *unzip // of a compressed answer: who reads this Tail instead
}

// NewTail returns a Tail for an answer of that type, which keeps lines of a stream up to `scan` bytes whole; of longer ones,
// and of JSON bodies, it keeps as they pass what it looks for. With 0 or less it looks for no usage. Of an encoded answer it
// reads a decoded copy where it knows how (gzip), else it finds nothing.
func NewTail(contentType, contentEncoding string, scan int64) *Tail {
	t := &Tail{tokens: scan > 0, most: int(min(max(scan, leastKeep), 16<<20))}
	kind := MediaType(contentType)
	stream, whole := kind == "text/event-stream", t.tokens && (kind == "application/json" || kind == "" || strings.HasSuffix(kind, "+json"))
	switch encoding := strings.ToLower(strings.TrimSpace(contentEncoding)); {
	case encoding == "" || encoding == "identity":
		t.stream, t.json = stream, whole
	case (encoding == "gzip" || encoding == "x-gzip") && (stream || whole):
		t.zip = newUnzip(&Tail{tokens: t.tokens, most: t.most, stream: stream, json: whole})
	}
	return t
}

// Write takes the next bytes of the answer. It never fails.
func (t *Tail) Write(p []byte) (int, error) {
	switch {
	case t.zip != nil:
		t.zip.write(p)
	case t.stream:
		t.lines(p)
	case t.json:
		if t.room == nil {
			t.condense()
		}
		t.short.write(p)
	}
	return len(p), nil
}

// Border tells whether a stream is between two lines, where a further event may be put.
func (t *Tail) Border() bool { return t.stream && len(t.part) == 0 && !t.long }

// Events is how many data events a stream has had so far.
func (t *Tail) Events() int64 { return t.seen.Events }

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
		if len(t.part) > 0 || t.long {
			t.keep(line)
			line = t.part
		}
		t.line(line)
		t.drop()
	}
}

// drop lets go of a line.
func (t *Tail) drop() {
	give(&t.held, &t.part)
	give(&t.room, &t.short.out)
	t.long, t.isData = false, false
}

// give puts memory back.
func give(held **[]byte, used *[]byte) {
	if *held != nil && cap(*used) <= mostPooled {
		**held = (*used)[:0]
		parts.Put(*held)
	}
	*held, *used = nil, nil
}

// condense begins to read a text that is not kept.
func (t *Tail) condense() {
	t.room = parts.Get().(*[]byte)
	t.short.begin(*t.room)
}

var dataField = []byte("data:")

// keep holds a piece of a line that is not finished: the line, while it is short.
func (t *Tail) keep(piece []byte) {
	if t.long {
		if t.isData {
			t.short.write(piece)
		}
		return
	}
	if len(t.part)+len(piece) <= t.most {
		if t.held == nil {
			t.held = parts.Get().(*[]byte)
			t.part = *t.held
		}
		t.part = append(t.part, piece...)
		return
	}
	t.long = true
	var few [5]byte
	n := copy(few[:], t.part)
	copy(few[n:], piece)
	if t.isData = string(few[:]) == "data:"; !t.isData {
		t.part = t.part[:0]
		return
	}
	t.condense()
	t.short.write(t.part[min(len(t.part), len(few)):])
	t.short.write(piece[max(0, len(few)-n):])
	t.part = t.part[:0]
}

// Names as they stand in JSON: an event without any of them need not be read.
var (
	usageName   = []byte(`"usage"`)
	timingsName = []byte(`"timings"`)
	errorName   = []byte(`"error"`)
)

// fewFields is room for the members of any of these sets.
const fewFields = 8

var (
	tailFields   = NewFields("usage", "response", "message", "error", "type", "choices", "timings")
	usageFields  = NewFields("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "total_tokens")
	timingFields = NewFields("cache_n", "prompt_n", "predicted_n")
)

// line reads one line of a stream. Engines write an event's data in one line; comments and other fields say nothing here.
func (t *Tail) line(line []byte) {
	if !t.long && len(line) > t.most {
		t.keep(line)
	}
	if t.long {
		if t.isData {
			t.seen.Events++
			t.read(t.short.end())
		}
		return
	}
	data, ok := bytes.CutPrefix(line, dataField)
	if !ok {
		return
	}
	data = bytes.TrimPrefix(data, []byte(" "))
	if string(data) == "[DONE]" {
		t.seen.Done = true
		return
	}
	t.seen.Events++
	if t.tokens && (bytes.Contains(data, usageName) || bytes.Contains(data, timingsName)) || bytes.Contains(data, errorName) {
		t.read(data)
	}
}

// read reads an event's data.
func (t *Tail) read(data []byte) {
	var room [fewFields][]byte
	m, err := walk(data, tailFields, room[:])
	if err != nil {
		return
	}
	if e, ok := m.Get("error"); ok && string(e) != "null" {
		t.seen.EngineError = true
	}
	if t.tokens {
		t.event(m)
	}
}

// event takes the usage from one event. Engines say it in several ways: for the whole answer in an event without choices
// (one for each choice, with llama.cpp), for one choice in its last event, on each event up to now (zeros at first, with
// Ollama), as timings, or within the last event's own object.
func (t *Tail) event(m Members) {
	for _, inner := range [...]string{"response", "message"} { // response.completed, message_start
		if raw, ok := m.Get(inner); ok {
			var room [fewFields][]byte
			if in, err := walk(raw, tailFields, room[:]); err == nil {
				if u, ok := in.Get("usage"); ok {
					t.whole(u)
					t.seen.Begun = inner == "message"
				}
			}
		}
	}
	choices, chosen := m.Get("choices")
	var one Usage
	found := false
	if u, ok := m.Get("usage"); ok {
		if !chosen {
			t.whole(u)
			t.seen.Begun = false
			return
		}
		found = figures(u, usageFields, &one)
	}
	if raw, ok := m.Get("timings"); ok && !found && chosen {
		found = timings(raw, &one)
	}
	switch {
	case !found:
	case emptyArray(choices):
		if !t.said || !t.summed {
			t.total, t.said, t.summed = Usage{}, true, true
		}
		t.total.Input = min(t.total.Input+one.Input, mostFigure)
		t.total.Output = min(t.total.Output+one.Output, mostFigure)
	default:
		if t.choices == nil {
			t.choices = map[int64]Usage{}
		}
		if i := index(choices); len(t.choices) < 1024 || t.choices[i] != (Usage{}) {
			t.choices[i] = one
		}
	}
}

// whole takes what is said for the whole answer. What it leaves out stays as said before.
func (t *Tail) whole(raw []byte) {
	var u Usage
	if t.said && !t.summed {
		u = t.total
	}
	if figures(raw, usageFields, &u) {
		t.total, t.said, t.summed = u, true, false
	}
}

// figures reads a usage object and tells whether it says tokens at all; some say seconds.
func figures(raw []byte, fields *Fields, u *Usage) (found bool) {
	var room [fewFields][]byte
	m, err := walk(raw, fields, room[:])
	if err != nil {
		return false
	}
	for _, f := range [...]struct {
		name string
		to   *int64
	}{{"prompt_tokens", &u.Input}, {"input_tokens", &u.Input}, {"completion_tokens", &u.Output}, {"output_tokens", &u.Output}} {
		if n, ok := number(m, f.name); ok {
			*f.to, found = n, true
		}
	}
	if !found { // of reranking some say the sum alone, which is all input
		total, ok := number(m, "total_tokens")
		if ok {
			u.Input = total
		}
		return ok
	}
	for _, cached := range [...]string{"cache_read_input_tokens", "cache_creation_input_tokens"} { // input_tokens excludes them
		if n, ok := number(m, cached); ok {
			if _, input := number(m, "input_tokens"); input {
				u.Input += n
			}
		}
	}
	return true
}

// timings reads llama.cpp's own account of an answer, which it gives in the last event of a stream that did not ask for
// usage. Its usage would say the same.
func timings(raw []byte, u *Usage) bool {
	var room [fewFields][]byte
	m, err := walk(raw, timingFields, room[:])
	if err != nil {
		return false
	}
	cached, a := number(m, "cache_n")
	prompt, b := number(m, "prompt_n")
	output, c := number(m, "predicted_n")
	u.Input, u.Output = cached+prompt, output
	return (a || b) && c
}

// mostFigure is the largest number of tokens that is believed. It keeps sums far from the end of an int64.
const mostFigure = 1 << 40

func number(m Members, name string) (int64, bool) {
	raw, ok := m.Get(name)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	return n, err == nil && n >= 0 && n <= mostFigure
}

func emptyArray(raw []byte) bool {
	return len(raw) >= 2 && raw[0] == '[' && len(bytes.TrimSpace(raw[1:len(raw)-1])) == 0
}

var indexField = NewFields("index")

// index is the place of an event's choice among the answer's.
func index(choices []byte) int64 {
	s := scanner{b: choices, i: 1}
	s.space()
	start := s.i
	if start >= len(choices) || choices[start] != '{' || s.skip() != nil {
		return 0
	}
	var room [fewFields][]byte
	m, err := walk(choices[start:s.i], indexField, room[:])
	if err != nil {
		return 0
	}
	i, _ := number(m, "index")
	return i
}

// End says what was found. No more is written after it. It may be called again.
func (t *Tail) End() Seen {
	if t.zip != nil {
		return t.zip.end()
	}
	switch {
	case t.stream && (len(t.part) > 0 || t.long): // one without a last line end
		t.line(t.part)
	case t.json && t.room != nil:
		t.body(t.short.end())
	}
	t.drop()
	if t.seen.Usage == nil {
		t.seen.Usage = t.sum()
	}
	return t.seen
}

// body takes the usage from a whole answer: its own, not one that stands in something else.
func (t *Tail) body(short []byte) {
	var room [fewFields][]byte
	if m, err := walk(short, tailFields, room[:]); err == nil {
		if u, ok := m.Get("usage"); ok {
			t.whole(u)
		}
	}
}

func (t *Tail) sum() *Usage {
	switch {
	case t.said:
		return &t.total
	case len(t.choices) == 0:
		return nil
	}
	u := new(Usage)
	for _, c := range t.choices {
		u.Input += c.Input
		u.Output += c.Output
	}
	if *u == (Usage{}) { // of a stream that was cut while it said zeros
		return nil
	}
	return u
}

// MediaType is the type in a Content-Type header, lower-case, without its parameters.
func MediaType(contentType string) string {
	kind, _, _ := strings.Cut(contentType, ";")
	return strings.ToLower(strings.TrimSpace(kind))
}
