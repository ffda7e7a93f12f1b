package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/levelrail/levelrail/caddymodule/meter"
	"github.com/levelrail/levelrail/caddymodule/openai"
	"github.com/levelrail/levelrail/client/wire"
)

// Answer is an engine's answer, headers read. Close it. It is used by one goroutine.
type Answer struct {
	StatusCode    int
	Header        Header
	ContentLength int64 // of the body; -1: not known, or there is none
	Target        wire.RouteTarget
	// Begun says that the client has been sent the headers of an event stream already. Set it before Send.
	Begun bool

	call    *Call
	client  context.Context // ends when the client leaves
	stay    func() bool     // the client need not be watched any more; false: it has left
	engines *Engines
	conn    *conn    // nil once closed
	sending *sending // nil: the request was written before the answer was waited for
	broken  bool     // the engine did not take all of the request
	body    body
	keeps   bool // the connection can be used again after the body
	gap     time.Duration
	quiet   time.Duration // after so long a silence wait says errQuiet; 0: never
	silent  time.Duration // for how long it has said so
}

// read reads the answer's head.
func (a *Answer) read() error {
	var h head
	if err := a.conn.readHead(&h); err != nil {
		return err
	}
	if a.sending != nil {
		a.sending.answer(a.conn)
	}
	a.StatusCode, a.Header, a.ContentLength = h.status, h.fields, h.length
	a.keeps = a.body.begin(&h, a.call.Method)
	if a.body.part == bodyDone && a.call.Method != "HEAD" && h.length != 0 {
		a.ContentLength = -1
	}
	if a.body.part == bodyKnown && a.body.left > plainBuffer {
		a.conn.grow(largeBuffer)
		a.conn.top()
	}
	return nil
}

// errQuiet says that the engine has been silent for a while, and may be for longer.
var errQuiet = errors.New("silence")

// wait waits until more of the body is there for buffered. The error is io.EOF at the end of a body that goes on until the
// engine closes, else a *Failure.
func (a *Answer) wait() error {
	c := a.conn
	if c.full && c.r == c.w && len(c.b) < plainBuffer { // more comes at a time than fits
		c.grow(plainBuffer)
	}
	limit, quiet := a.gap, a.quiet > 0 && (a.gap <= 0 || a.silent+a.quiet < a.gap)
	if quiet {
		limit = a.quiet
	} else if a.silent > 0 {
		limit = max(a.gap-a.silent, time.Millisecond)
	}
	c.within(limit)
	switch err := c.fill(); {
	case err == nil:
		a.silent = 0
		return nil
	case quiet && errors.Is(err, os.ErrDeadlineExceeded):
		a.silent += a.quiet
		return errQuiet
	case err == io.EOF && a.body.part == bodyToClose && a.client.Err() == nil:
		a.body.part = bodyDone
		return io.EOF
	case err == io.EOF:
		return a.failed(io.ErrUnexpectedEOF)
	default:
		return a.failed(err)
	}
}

// failed judges an error of reading the body. The client's departure comes first: it is what made everything else fail.
func (a *Answer) failed(err error) *Failure {
	return failure(a.client, err, meter.GapTimeout, errGapTimeout)
}

// Events tells whether the answer is a good one that is an event stream.
func (a *Answer) Events() bool {
	return a.StatusCode == http.StatusOK && openai.MediaType(a.Header[contentType]) == "text/event-stream" && a.Header[contentEncoding] == ""
}

// ReadAll is the whole body, in place of Send. One that is larger than most is an error.
func (a *Answer) ReadAll(most int) (body []byte, err error) {
	for {
		piece, err := a.body.buffered(a.conn)
		if body = append(body, piece...); len(body) > most {
			return nil, ErrTooLarge
		}
		if err == nil {
			err = a.wait()
		}
		switch {
		case err == io.EOF:
			return body, nil
		case err != nil:
			return nil, err
		}
	}
}

// Close ends the call; the connection is kept when the answer was read to its end.
func (a *Answer) Close() {
	c := a.conn
	if c == nil {
		return
	}
	a.conn = nil
	keep := a.stay() && a.keeps && !a.broken && a.body.part == bodyDone && c.r == c.w
	if keep && a.sending != nil {
		done, err := a.sending.ended()
		keep = done && err == nil
	}
	a.engines.release(c, keep)
}

// release gives a connection back, or closes it when the engine might still say something on it.
func (e *Engines) release(c *conn, keep bool) {
	freeBuffer(c.b)
	c.b, c.r, c.w, c.full = nil, 0, 0, false
	if !keep {
		c.Close()
		return
	}
	c.used = true
	e.pool.put(c)
}
