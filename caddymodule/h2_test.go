package caddymodule

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// h2conn is an HTTP/2 connection of bare frames, for requests that no client library would send.
type h2conn struct {
	t    *testing.T
	conn net.Conn
	next uint32
	seen map[uint32]*h2stream
	gone bool // GOAWAY came
}

// h2stream is what has come of one stream.
type h2stream struct {
	headers, data []byte // the last header block before the body; the body
	ended         bool
	reset         int // RST_STREAM's code, -1: none came
}

// The frames that are used here (RFC 9113, section 6) and their flags.
const (
	frameData, frameHeaders, frameReset, frameSettings, framePing, frameGoAway, frameWindow = 0, 1, 3, 4, 6, 7, 8
	endStream, endHeaders, ack                                                              = 1, 4, 1
)

// dialH2 begins a connection without TLS, as who knows that the server speaks HTTP/2.
func dialH2(t *testing.T, port string) *h2conn {
	t.Helper()
	conn, err := net.Dial("tcp", "127.0.0.1:"+port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	c := &h2conn{t: t, conn: conn, next: 1, seen: map[uint32]*h2stream{}}
	io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	c.frame(frameSettings, 0, 0, nil)
	return c
}

func (c *h2conn) frame(kind, flags byte, stream uint32, payload []byte) {
	head := make([]byte, 9, 9+len(payload))
	head[0], head[1], head[2], head[3], head[4] = byte(len(payload)>>16), byte(len(payload)>>8), byte(len(payload)), kind, flags
	binary.BigEndian.PutUint32(head[5:], stream)
	c.conn.Write(append(head, payload...)) // an error shows when the answer is read
}

// begin sends a request's headers, name and value by turns, and leaves the stream open.
func (c *h2conn) begin(method, path string, headers ...string) uint32 {
	return c.open(0, method, path, headers)
}

// ask sends a request without a body.
func (c *h2conn) ask(method, path string, headers ...string) uint32 {
	return c.open(endStream, method, path, headers)
}

func (c *h2conn) open(flags byte, method, path string, headers []string) uint32 {
	block := fields(append([]string{":method", method, ":scheme", "http", ":authority", "127.0.0.1", ":path", path}, headers...))
	id := c.next
	c.next += 2
	c.seen[id] = &h2stream{reset: -1}
	c.frame(frameHeaders, flags|endHeaders, id, block)
	return id
}

// fields is a header block of literals without an index and without Huffman's code (RFC 7541, section 6.2.2).
func fields(pairs []string) (block []byte) {
	length := func(n int) {
		if n < 127 {
			block = append(block, byte(n))
			return
		}
		block = append(block, 127)
		for n -= 127; n >= 128; n >>= 7 {
			block = append(block, byte(n)|128)
		}
		block = append(block, byte(n))
	}
	for i := 0; i < len(pairs); i += 2 {
		block = append(block, 0)
		for _, s := range pairs[i : i+2] {
			length(len(s))
			block = append(block, s...)
		}
	}
	return block
}

// body sends a piece of the request's body.
func (c *h2conn) body(stream uint32, piece string, last bool) {
	var flags byte
	if last {
		flags = endStream
	}
	c.frame(frameData, flags, stream, []byte(piece))
}

// cancel resets a stream as a client does that has lost interest.
func (c *h2conn) cancel(stream uint32) { c.frame(frameReset, 0, stream, []byte{0, 0, 0, 8}) }

// until reads frames until a condition holds, or for so long.
func (c *h2conn) until(limit time.Duration, ok func() bool) bool {
	c.conn.SetReadDeadline(time.Now().Add(limit))
	head := make([]byte, 9)
	for !ok() {
		if _, err := io.ReadFull(c.conn, head); err != nil {
			return false
		}
		payload := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
		if _, err := io.ReadFull(c.conn, payload); err != nil {
			return false
		}
		id := binary.BigEndian.Uint32(head[5:]) &^ (1 << 31)
		s := c.seen[id]
		if s == nil {
			s = new(h2stream)
		}
		switch kind, flags := head[3], head[4]; kind {
		case frameData:
			s.data = append(s.data, payload...)
			s.ended = s.ended || flags&endStream != 0
			if n := len(payload); n > 0 {
				grow := binary.BigEndian.AppendUint32(nil, uint32(n))
				c.frame(frameWindow, 0, 0, grow)
				if !s.ended {
					c.frame(frameWindow, 0, id, grow)
				}
			}
		case frameHeaders:
			if len(s.data) == 0 { // an informational answer is followed by the real one
				s.headers = payload
			}
			s.ended = s.ended || flags&endStream != 0
		case frameReset:
			s.reset = int(binary.BigEndian.Uint32(payload))
		case frameSettings:
			if flags&ack == 0 {
				c.frame(frameSettings, ack, 0, nil)
			}
		case framePing:
			if flags&ack == 0 {
				c.frame(framePing, ack, 0, payload)
			}
		case frameGoAway:
			c.gone = true
		}
	}
	return true
}

// answer waits for the end of a stream: its status where it is a common one, the body, and RST_STREAM's code or -1.
func (c *h2conn) answer(stream uint32, limit time.Duration) (status int, body string, reset int) {
	c.t.Helper()
	s := c.seen[stream]
	if !c.until(limit, func() bool { return s.ended || s.reset >= 0 || c.gone }) {
		c.t.Errorf("stream %d has not ended within %s: %q", stream, limit, s.data)
	}
	return s.status(), string(s.data), s.reset
}

// status reads the first field of the answer's headers, which is :status, by the static table of RFC 7541.
func (s *h2stream) status() int {
	if len(s.headers) == 0 {
		return 0
	}
	switch s.headers[0] {
	case 0x88:
		return 200
	case 0x89:
		return 204
	case 0x8c:
		return 400
	case 0x8d:
		return 404
	case 0x8e:
		return 500
	}
	return -1 // another one, in Huffman's code: the body's error says it
}

// TestPathsH2 is TestPaths in frames of HTTP/2: no spelling of a path but the table's own reaches an engine, and what is no request ends its
// stream only.
func TestPathsH2(t *testing.T) {
	h := newHost(t)
	c := dialH2(t, h.port)
	auth := []string{"authorization", "Bearer " + h.key, "content-type", "application/json"}
	for target, want := range map[string]string{
		"/v1/chat/completions": "", "/v1/chat/completions?x=1;y=2": "", "/v1/chat/completions?": "",
		"/v1/chat/completions/": "unknown_url", "/v1/chat/completions.": "unknown_url", "//v1/chat/completions": "unknown_url", "/v1//chat/completions": "unknown_url", "/v1/./chat/completions": "unknown_url",
		"/v1/x/../chat/completions": "unknown_url", "/V1/Chat/Completions": "unknown_url", "/v1/chat%2Fcompletions": "unknown_url", "/v1/chat%2fcompletions": "unknown_url", "/v1/ch%61t/completions": "unknown_url",
		"/v1/%2e%2e/v1/chat/completions": "unknown_url", "/v1/chat\\completions": "unknown_url", "/v1/chat%5Ccompletions": "unknown_url", "/v1/chat/completions%00": "unknown_url", "/v1/chat/completions%20": "unknown_url",
		"/v1/chat/completions%3Fx=1": "unknown_url", "/v1/chat/completions%0d%0aX:1": "unknown_url", "/v1/chat/completions;x=1": "unknown_url", "/v1/chat/completions#f": "unknown_url", "/v1/caf\xc3\xa9": "unknown_url",
		"/v1/messages": "unknown_url", "/v1/responses/resp_1": "unknown_url", "/": "unknown_url", "*": "unknown_url", "v1/chat/completions": "refused", "/v1/%zz": "refused", "": "refused",
		"http://evil.example.com/v1/chat/completions": "refused",
	} {
		before := len(h.engine.requests())
		id := c.begin("POST", target, auth...)
		c.body(id, chatBody, true)
		status, body, reset := c.answer(id, 5*time.Second)
		reached := h.engine.requests()[before:]
		switch want {
		case "":
			if status != 200 || len(reached) != 1 || reached[0].target != chatPath || string(reached[0].body) != chatBody {
				t.Errorf("%q: %d %s, the engine saw %v", target, status, body, reached)
			}
		case "refused": // by the protocol: a reset, or 400 without a word of ours
			if status == 200 || reset <= 0 && status != 400 || len(reached) != 0 {
				t.Errorf("%q: %d %s, reset %d, the engine saw %v", target, status, body, reset, reached)
			}
		default:
			if status != 404 || errorCode(body) != want || len(reached) != 0 {
				t.Errorf("%q: %d %s, the engine saw %v", target, status, body, reached)
			}
		}
		if c.gone {
			t.Fatalf("%q: the connection has ended", target)
		}
	}
}

// TestFramingH2: lengths that lie, fields of HTTP/1.1 and half requests reach no engine; what is wrong with one stream ends that one only, and
// what is wrong with the connection ends the connection.
func TestFramingH2(t *testing.T) {
	h := newHost(t)
	auth := []string{"authorization", "Bearer " + h.key, "content-type", "application/json"}
	long := fmt.Sprint(len(chatBody))
	for name, row := range map[string]struct {
		headers []string
		reaches bool
	}{
		"no length":              {nil, true},
		"its length":             {[]string{"content-length", long}, true},
		"a length too small":     {[]string{"content-length", "3"}, false},
		"a length too large":     {[]string{"content-length", "1000"}, false},
		"no number":              {[]string{"content-length", "+" + long}, false},
		"two lengths":            {[]string{"content-length", "3", "content-length", long}, false},
		"transfer-encoding":      {[]string{"transfer-encoding", "chunked"}, false},
		"connection":             {[]string{"connection", "close"}, false},
		"a field in upper case":  {[]string{"X-Upper", "1"}, false},
		"a line end in a value":  {[]string{"x-split", "a\r\nauthorization: Bearer x"}, false},
		"a second path":          {[]string{":path", "/v1/completions"}, false},
		"te other than trailers": {[]string{"te", "gzip"}, false},
		"a host that differs":    {[]string{"host", "evil.example.com"}, false},
		"expect":                 {[]string{"expect", "100-continue"}, true},
	} {
		c := dialH2(t, h.port)
		before := len(h.engine.requests())
		id := c.begin("POST", chatPath, append(append([]string{}, auth...), row.headers...)...)
		c.body(id, chatBody, true)
		status, body, reset := c.answer(id, 5*time.Second)
		reached := h.engine.requests()[before:]
		if row.reaches && (status != 200 || len(reached) != 1 || string(reached[0].body) != chatBody || reached[0].length != int64(len(chatBody)) || reached[0].host != "localhost") || !row.reaches && (status == 200 || len(reached) != 0) {
			t.Errorf("%s: %d %s, reset %d, the engine saw %v", name, status, body, reset, reached)
		}
		if _, body, _ := c.answer(c.ask("GET", "/v1/models", auth...), 5*time.Second); !strings.Contains(body, `"chat"`) && !c.gone {
			t.Errorf("%s: its neighbour got %s", name, body)
		}
	}
	h.eventually("the slots are free", func() bool { return pooledSlots("chat") == 0 })
}

// TestEarlyAnswersH2: an answer that needs no body comes at once on a stream whose client has sent half of it or nothing, the stream ends without
// an error of the protocol, and the connection serves on.
func TestEarlyAnswersH2(t *testing.T) {
	h := newHost(t)
	full := fill(h)
	defer full()
	c := dialH2(t, h.port)
	for _, row := range earlyRows(h) {
		for _, sent := range []string{"", "{", strings.Repeat("x", 16000)} {
			if row.status == 413 && sent == "{" {
				continue // with its length unsaid it is not too large yet
			}
			headers := []string{"authorization", "Bearer " + row.key, "content-type", row.contentType}
			if row.status == 413 {
				headers = append(headers, "content-length", "100000")
			}
			began := time.Now()
			id := c.begin(row.method, row.path, headers...)
			if sent != "" {
				c.body(id, sent, false)
			}
			_, body, reset := c.answer(id, 5*time.Second)
			if took := time.Since(began); errorCode(body) != row.code || took > 3*time.Second || reset > 0 {
				t.Errorf("%s, %d bytes sent: %s after %s, reset %d", row.code, len(sent), body, took, reset)
			}
		}
	}
	if _, body, _ := c.answer(c.ask("GET", "/v1/models", "authorization", "Bearer "+h.key), 5*time.Second); !strings.Contains(body, `"chat"`) || c.gone {
		t.Errorf("after all of them: %s", body)
	}
}
