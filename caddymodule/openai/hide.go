package openai

import "bytes"

// mostHeld bounds the line that a Hider holds; a longer one is no usage event and passes.
const mostHeld = 256 << 10

// Hider takes out of a stream what the engine says only because the gateway has asked it for usage, so that the client gets
// the events that it would have got. That is the event without choices at the end, and with Ollama's text completions a
// usage of zeros on each event before it. Everything else passes byte for byte and at once; only a line that begins like
// data and has not ended is held until it has.
//
// With another edit of lines it is what a repair of a stream is made of (NewMender).
type Hider struct {
	edit  func(line []byte) (shown []byte, hidden bool) // nil: without
	held  []byte
	out   []byte
	pass  bool // the line has been sent so far, and its rest follows
	cr    bool // the last line ended with CR: an LF after it belongs to it
	drop  bool // that line was taken out
	blank bool // the event's last line was taken out: the empty line after it goes, too
}

// Pass returns what is to be sent now. It is valid until the next call.
func (h *Hider) Pass(p []byte) []byte {
	h.out = h.out[:0]
	for len(p) > 0 {
		if h.cr {
			h.cr = false
			if p[0] == '\n' {
				if !h.drop {
					h.out = append(h.out, '\n')
				}
				p = p[1:]
				continue
			}
		}
		end := bytes.IndexAny(p, "\r\n")
		if end < 0 {
			h.rest(p)
			break
		}
		h.line(p[:end], p[end])
		h.cr, p = p[end] == '\r', p[end+1:]
	}
	return h.out
}

// Rest returns what is still held once the stream has ended.
func (h *Hider) Rest() []byte {
	held := h.held
	h.held = nil
	shown, _ := h.edited(held)
	return shown
}

// rest takes the beginning, or more, of a line that has not ended.
func (h *Hider) rest(p []byte) {
	if h.pass {
		h.out = append(h.out, p...)
		return
	}
	h.held = append(h.held, p...)
	n := min(len(h.held), len(dataField))
	if len(h.held) > mostHeld || !bytes.Equal(h.held[:n], dataField[:n]) {
		h.out = append(h.out, h.held...)
		h.held, h.pass, h.blank = h.held[:0], true, false
	}
}

// line takes a line's end and its terminator.
func (h *Hider) line(end []byte, terminator byte) {
	h.drop = false
	if h.pass {
		h.pass = false
		h.out = append(append(h.out, end...), terminator)
		return
	}
	whole := end
	if len(h.held) > 0 {
		h.held = append(h.held, end...)
		whole = h.held
	}
	if len(whole) == 0 && h.blank {
		h.blank, h.drop = false, true
		return
	}
	h.blank = false
	if shown, hidden := h.edited(whole); hidden {
		h.drop, h.blank = true, true
	} else {
		h.out = append(append(h.out, shown...), terminator)
	}
	h.held = h.held[:0]
}

func (h *Hider) edited(line []byte) (shown []byte, hidden bool) {
	if h.edit == nil {
		return without(line)
	}
	return h.edit(line)
}

// NewMender returns a Hider that hides nothing, and makes the data of each event what mend says. An event that is too long to
// be held passes as it is.
func NewMender(mend func(data []byte) []byte) *Hider {
	return &Hider{edit: func(line []byte) ([]byte, bool) {
		data, ok := bytes.CutPrefix(line, dataField)
		if !ok || len(line) > mostHeld {
			return line, false
		}
		return append([]byte("data: "), mend(bytes.TrimPrefix(data, []byte(" ")))...), false
	}}
}

// mostWhole bounds the JSON answer that is held to be mended; a longer one passes as it is.
const mostWhole = 4 << 20

// WholeMender holds a JSON answer until it has ended, and makes of it what its function says.
type WholeMender struct {
	mend func(body []byte) []byte
	held []byte
	pass bool
}

// NewWholeMender returns one for an answer.
func NewWholeMender(mend func(body []byte) []byte) *WholeMender { return &WholeMender{mend: mend} }

// Pass returns what is to be sent now.
func (m *WholeMender) Pass(p []byte) []byte {
	if m.pass {
		return p
	}
	if m.held = append(m.held, p...); len(m.held) <= mostWhole {
		return nil
	}
	m.pass = true
	return m.held
}

// Rest returns what is still held once the answer has ended.
func (m *WholeMender) Rest() []byte {
	if m.pass {
		return nil
	}
	return m.mend(m.held)
}

var hideFields = NewFields("usage", "choices")

// without is a line as the engine would have written it, or hidden when it would not have.
func without(line []byte) (shown []byte, hidden bool) {
	data, ok := bytes.CutPrefix(line, dataField)
	if !ok || len(line) > mostHeld || !bytes.Contains(data, []byte(`"usage"`)) {
		return line, false
	}
	m, err := Walk(bytes.TrimSpace(data), hideFields)
	if err != nil {
		return line, false
	}
	raw, ok := m.Get("usage")
	var u Usage
	if !ok || !figures(raw, usageFields, &u) {
		return line, false
	}
	if choices, ok := m.Get("choices"); !ok {
		return line, false
	} else if emptyArray(choices) {
		return nil, true
	}
	if u != (Usage{}) {
		return line, false
	}
	member := append([]byte(`,"usage":`), raw...)
	at := bytes.LastIndex(line, member)
	if at < 0 {
		return line, false
	}
	return append(append([]byte(nil), line[:at]...), line[at+len(member):]...), false
}
