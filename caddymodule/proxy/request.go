package proxy

import (
	"errors"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/levelrail/levelrail/client/wire"
)

// errField says that something for an engine would not have stayed one line of a request.
var errField = errors.New("what the engine is to be sent holds a line end or a NUL")

// appendHead appends a request's line and fields, up to the empty line. Which fields pass is said in header.go.
func appendHead(b []byte, c *Call, t *wire.RouteTarget, length int) ([]byte, error) {
	ok := true
	field := func(name, value string) {
		ok = ok && !strings.ContainsAny(value, "\r\n\x00")
		b = append(append(append(b, name...), value...), "\r\n"...)
	}
	b = append(append(append(b, c.Method...), ' '), escaped(c.Path)...)
	b = append(b, " HTTP/1.1\r\nHost: localhost\r\n"...)
	if agent := c.Header["User-Agent"]; len(agent) > 0 && agent[0] != "" {
		field("User-Agent: ", agent[0])
	}
	switch {
	case length > 0:
		b = append(strconv.AppendInt(append(b, "Content-Length: "...), int64(length), 10), "\r\n"...)
	case c.Method == http.MethodPost || c.Method == http.MethodPut || c.Method == http.MethodPatch:
		b = append(b, "Content-Length: 0\r\n"...)
	}
	for _, name := range toEngine {
		for _, value := range c.Header[name] {
			b = append(b, name...)
			field(": ", value)
		}
	}
	b = append(b, "Accept-Encoding: identity\r\n"...)
	if t.Key != "" {
		field("Authorization: Bearer ", t.Key)
	}
	if c.Type != "" {
		field("Content-Type: ", c.Type)
	}
	if !ok || strings.ContainsAny(c.Method, " \r\n\x00") {
		return nil, errField
	}
	return append(b, "\r\n"...), nil
}

// escaped is a path as a request's line has it. The table's paths stand there as they are.
func escaped(path string) string {
	for i := range len(path) {
		switch b := path[i]; {
		case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9', b == '/', b == '-', b == '_', b == '.':
		default:
			return (&url.URL{Path: path}).RequestURI()
		}
	}
	if path == "" {
		return "/"
	}
	return path
}

// largeWrite is how much of a body is written at once: an engine has the header timeout to take each such piece.
const largeWrite = 256 << 10

// sending is the rest of a request that the socket did not take at once. A goroutine writes it, because the engine may
// answer before it has read all, and may read no more until that answer is taken.
type sending struct {
	mu       sync.Mutex
	answered bool // the answer has begun: how long reading may take is no more this one's business
	done     bool
	err      error // why not everything was written
}

// start writes head and body, of which the body is held until that has ended. limit is the header timeout.
func (s *sending) start(c *conn, head []byte, body *Body, from int, limit time.Duration) {
	head = append([]byte(nil), head...) // its buffer is about to be read into
	body.hold()
	go func() {
		defer body.Release()
		err := s.write(c, head, limit)
		for rest := body.Bytes()[from:]; err == nil && len(rest) > 0; {
			n := min(len(rest), largeWrite)
			err = s.write(c, rest[:n], limit)
			rest = rest[n:]
		}
		c.SetWriteDeadline(time.Time{})
		s.mu.Lock()
		defer s.mu.Unlock()
		s.done, s.err = true, err
		switch {
		case s.answered:
		case errors.Is(err, os.ErrDeadlineExceeded):
			c.Close() // whoever waits for the answer is told by s.err
		case limit > 0: // also after an error: what the engine said before it stopped reading is on its way
			c.SetReadDeadline(time.Now().Add(limit))
		}
	}()
}

func (s *sending) write(c *conn, b []byte, limit time.Duration) error {
	if len(b) == 0 {
		return nil
	}
	if limit > 0 {
		c.SetWriteDeadline(time.Now().Add(limit))
	}
	_, err := c.Write(b)
	return err
}

// answer takes the deadline for reading over from the goroutine.
func (s *sending) answer(c *conn) {
	s.mu.Lock()
	s.answered = true
	s.mu.Unlock()
	c.due = time.Time{}
	c.SetReadDeadline(c.due)
}

// ended tells whether the goroutine has written everything or given up, and why it gave up.
func (s *sending) ended() (done bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done, s.err
}
