package stub

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	maxBody = 256 << 20 // bytes of a request's body
	maxHead = 1 << 20   // bytes of a request's head
)

// head is what the stub reads of a request's head.
type head struct {
	method, target, path string
	old                  bool        // HTTP/1.0
	length               int64       // of the body; -1: chunked
	fields               http.Header // only when requests are kept, or for a form
	authorization        string
	contentType          string
	accept               string // Accept-Encoding
	behaviour            []byte // X-Stub
	close, expect        bool
}

// conn is one connection, served by one goroutine. Its buffers live as long as it does.
type conn struct {
	e    *Engine
	nc   net.Conn
	in   *bufio.Reader
	head head
	body []byte
	out  []byte

	raw   []byte // the behaviour last read from a body, as text
	plain *Behaviour
	plan  *Behaviour
	ready []byte // the whole answer that plan makes, when it is an instant one

	gone    chan struct{} // closed when the client has left; made by watch
	watched chan struct{} // closed when the watch has ended
	timer   *time.Timer
}

func newConn(e *Engine, nc net.Conn) *conn {
	return &conn{e: e, nc: nc, in: bufio.NewReaderSize(nc, 32<<10)}
}

// serve answers request after request until one side ends the connection.
func (c *conn) serve() {
	for {
		if c.e.o.KeepAlive > 0 {
			c.nc.SetReadDeadline(time.Now().Add(c.e.o.KeepAlive))
			if _, err := c.in.Peek(1); err != nil {
				return
			}
			c.nc.SetReadDeadline(time.Time{})
		}
		if err := c.readHead(); err != nil {
			if errors.Is(err, errHead) {
				io.WriteString(c.nc, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
			}
			return
		}
		if c.head.expect {
			if _, err := io.WriteString(c.nc, "HTTP/1.1 100 Continue\r\n\r\n"); err != nil {
				return
			}
		}
		if err := c.readBody(); err != nil {
			return
		}
		if !c.answer() {
			return
		}
	}
}

var errHead = errors.New("the request's head cannot be read")

func (c *conn) readHead() error {
	h := &c.head
	*h = head{}
	line, err := c.line()
	if err != nil {
		return err
	}
	method, rest, ok1 := bytes.Cut(line, []byte(" "))
	target, proto, ok2 := bytes.Cut(rest, []byte(" "))
	if !ok1 || !ok2 || !bytes.HasPrefix(proto, []byte("HTTP/1.")) {
		return errHead
	}
	h.method, h.target, h.old = string(method), string(target), bytes.HasSuffix(proto, []byte(".0"))
	h.path, _, _ = strings.Cut(h.target, "?")
	h.close = h.old
	if c.e.o.Keep > 0 {
		h.fields = http.Header{}
	}
	for size := 0; ; {
		if line, err = c.line(); err != nil {
			return err
		}
		if len(line) == 0 {
			return nil
		}
		if size += len(line); size > maxHead {
			return errHead
		}
		name, value, ok := bytes.Cut(line, []byte(":"))
		if !ok {
			return errHead
		}
		value = bytes.TrimSpace(value)
		if h.fields != nil {
			h.fields.Add(string(name), string(value))
		}
		if err := h.field(name, value); err != nil {
			return err
		}
	}
}

func (h *head) field(name, value []byte) (err error) {
	is := func(s string) bool { return len(name) == len(s) && strings.EqualFold(string(name), s) }
	switch {
	case is("content-length"):
		if h.length, err = strconv.ParseInt(string(value), 10, 64); err != nil || h.length < 0 || h.length > maxBody {
			return errHead
		}
	case is("transfer-encoding"):
		h.length = -1
	case is("authorization"):
		h.authorization = string(value)
	case is("content-type"):
		h.contentType = string(value)
	case is("accept-encoding"):
		h.accept = string(value)
	case is("x-stub"):
		h.behaviour = bytes.Clone(value)
	case is("connection"):
		h.close = h.close || strings.EqualFold(string(value), "close")
	case is("expect"):
		h.expect = true
	}
	return nil
}

// line reads a line without its end. It is valid until the next read.
func (c *conn) line() ([]byte, error) {
	line, err := c.in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return nil, errHead
	}
	if err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(line[:len(line)-1], []byte("\r")), nil
}

func (c *conn) readBody() error {
	c.body = c.body[:0]
	if c.head.length >= 0 {
		n := int(c.head.length)
		if cap(c.body) < n {
			c.body = make([]byte, 0, n)
		}
		c.body = c.body[:n]
		_, err := io.ReadFull(c.in, c.body)
		return err
	}
	for {
		line, err := c.line()
		if err != nil {
			return err
		}
		size, _, _ := bytes.Cut(line, []byte(";"))
		n, err := strconv.ParseInt(string(size), 16, 32)
		if err != nil || n < 0 || int64(len(c.body))+n > maxBody {
			return errHead
		}
		if n == 0 {
			break
		}
		at := len(c.body)
		c.body = append(c.body, make([]byte, n)...)
		if _, err := io.ReadFull(c.in, c.body[at:]); err != nil {
			return err
		}
		if _, err := c.line(); err != nil {
			return err
		}
	}
	for { // trailers
		if line, err := c.line(); err != nil || len(line) == 0 {
			return err
		}
	}
}

// watch begins to look for the client's departure, which costs a goroutine: only answers that take time do it.
func (c *conn) watch() {
	if c.gone != nil {
		return
	}
	gone, watched := make(chan struct{}), make(chan struct{})
	c.gone, c.watched = gone, watched
	go func() {
		defer close(watched)
		// A byte of the next request stays in the buffer. An end of input is a departure.
		if _, err := c.in.Peek(1); err != nil && !isTimeout(err) {
			close(gone)
		}
	}()
}

// unwatch ends the watch, so that the connection can be read again.
func (c *conn) unwatch() {
	if c.gone == nil {
		return
	}
	c.nc.SetReadDeadline(time.Unix(1, 0))
	<-c.watched
	c.nc.SetReadDeadline(time.Time{})
	c.gone = nil
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

// wait waits and tells whether the client is still there.
func (c *conn) wait(d time.Duration) bool {
	c.watch()
	if c.timer == nil {
		c.timer = time.NewTimer(d)
	} else {
		c.timer.Reset(d)
	}
	select {
	case <-c.timer.C:
		return true
	case <-c.gone:
		c.timer.Stop()
		return false
	}
}

// hasGone tells whether the client has left.
func (c *conn) hasGone() bool {
	c.watch()
	select {
	case <-c.gone:
		return true
	default:
		return false
	}
}

// waitGone waits until the client leaves.
func (c *conn) waitGone() {
	c.watch()
	<-c.gone
}
