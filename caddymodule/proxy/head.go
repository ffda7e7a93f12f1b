package proxy

import (
	"bytes"
	"io"
	"math"
	"net/http"
)

const (
	maxHead    = 64 << 10 // bytes of an answer's status line and fields, those of interim answers included
	maxInterim = 16       // interim answers before the answer
)

// malformed is what is wrong with an engine's answer. The text never holds what the engine wrote.
type malformed string

func (m malformed) Error() string { return "the engine's answer is malformed: " + string(m) }

// head is what an answer says before its body.
type head struct {
	status  int
	old     bool  // HTTP/1.0
	length  int64 // Content-Length; -1: not said
	digits  int   // of it, as it was written
	chunked bool
	close   bool // Connection said so
	keep    bool // Connection said so; HTTP/1.0 closes otherwise
	fields  Header
}

// readHead reads an answer's head. Interim answers before it are passed over.
func (c *conn) readHead(h *head) error {
	room := maxHead
	for range maxInterim {
		*h = head{length: -1}
		line, err := c.line(&room)
		if err != nil {
			return err
		}
		if err := h.statusLine(line); err != nil {
			return err
		}
		for {
			line, err := c.line(&room)
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			if err != nil {
				return err
			}
			if len(line) == 0 {
				break
			}
			if err := h.field(line); err != nil {
				return err
			}
		}
		if h.chunked && h.length >= 0 {
			return malformed("it has both a Content-Length and a Transfer-Encoding")
		}
		if h.chunked && h.old {
			return malformed("HTTP/1.0 knows no Transfer-Encoding")
		}
		if h.status >= 200 || h.status == http.StatusSwitchingProtocols {
			return nil
		}
	}
	return malformed("too many interim answers")
}

// line reads a line of at most room bytes and returns it without its end. It is valid until the next one is read.
func (c *conn) line(room *int) ([]byte, error) {
	seen := 0
	for {
		if i := bytes.IndexByte(c.b[c.r+seen:c.w], '\n'); i >= 0 {
			line := c.b[c.r : c.r+seen+i]
			c.r += len(line) + 1
			if *room -= len(line) + 1; *room < 0 {
				return nil, malformed("its head is too long")
			}
			if n := len(line); n > 0 && line[n-1] == '\r' {
				line = line[:n-1]
			}
			return line, nil
		}
		if seen = c.w - c.r; seen > *room {
			return nil, malformed("its head is too long")
		}
		err := c.fill()
		if err == errFull {
			c.grow(2 * len(c.b))
			err = c.fill()
		}
		if err == io.EOF && seen > 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return nil, err
		}
	}
}

func (h *head) statusLine(line []byte) error {
	const form = "HTTP/1.x 200"
	if len(line) < len(form) || string(line[:7]) != form[:7] || line[7] != '0' && line[7] != '1' || line[8] != ' ' || len(line) > len(form) && line[len(form)] != ' ' {
		return malformed("its first line is not HTTP/1's")
	}
	h.old = line[7] == '0'
	for _, d := range line[9:12] {
		if d < '0' || d > '9' {
			return malformed("its status is no number")
		}
		h.status = 10*h.status + int(d-'0')
	}
	if h.status < 100 {
		return malformed("its status is no status")
	}
	if !isText(line[len(form):]) {
		return malformed("its first line holds control characters")
	}
	return nil
}

// field takes a header line apart.
func field(line []byte) (name, value []byte, err error) {
	colon := bytes.IndexByte(line, ':')
	if colon <= 0 {
		return nil, nil, malformed("a header line has no name") // such as a folded one
	}
	name, value = line[:colon], bytes.Trim(line[colon+1:], " \t")
	for _, b := range name {
		if !tokens[b] {
			return nil, nil, malformed("a header's name is none")
		}
	}
	if !isText(value) {
		return nil, nil, malformed("a header's value holds control characters")
	}
	return name, value, nil
}

func (h *head) field(line []byte) error {
	name, value, err := field(line)
	if err != nil {
		return err
	}
	switch {
	case is(name, "Content-Length"):
		n, ok := decimal(value)
		if !ok {
			return malformed("its Content-Length is no number")
		}
		if h.length >= 0 && (n != h.length || len(value) != h.digits) { // said twice it is still said
			return malformed("it has two different Content-Lengths")
		}
		h.length, h.digits = n, len(value)
	case is(name, "Transfer-Encoding"):
		if h.chunked || !is(value, "chunked") {
			return malformed("its Transfer-Encoding is not chunked")
		}
		h.chunked = true
	case is(name, "Connection"):
		for len(value) > 0 {
			var token []byte
			token, value, _ = bytes.Cut(value, []byte(","))
			token = bytes.Trim(token, " \t")
			h.close = h.close || is(token, "close")
			h.keep = h.keep || is(token, "keep-alive")
		}
	default:
		h.fields.add(name, value)
	}
	return nil
}

func is(name []byte, what string) bool { return len(name) == len(what) && isFold(name, what) }

// decimal reads digits, and nothing but digits.
func decimal(b []byte) (int64, bool) {
	if len(b) == 0 {
		return 0, false
	}
	var n int64
	for _, d := range b {
		if d < '0' || d > '9' || n > (math.MaxInt64-9)/10 {
			return 0, false
		}
		n = 10*n + int64(d-'0')
	}
	return n, true
}

// isText tells whether a value has no control characters; a CR that is not a line's end is one of them.
func isText(b []byte) bool {
	for _, c := range b {
		if c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// tokens are the bytes of which a header's name may be made (RFC 9110, 5.6.2).
var tokens = func() (t [256]bool) {
	for c := range t {
		t[c] = c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c < 128 && bytes.IndexByte([]byte("!#$%&'*+-.^_`|~"), byte(c)) >= 0
	}
	return t
}()
