// Package proxy takes an admitted request to an engine and its answer back to the client.
//
// It owns the connections to engines and the HTTP/1.1 spoken on them, which headers pass in each direction, the timeouts,
// and telling apart why an answer ended: the client left, the engine died, fell silent or never began. It promises that
// nothing the client wrote decides where a request goes or which credential it carries, that every byte read from an engine
// is written to the client at once, that half an answer never looks whole, and that a client who leaves ends the engine's
// work. Whether a request may pass is caddymodule/gateway's business, who counts it is caddymodule/meter's.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/levelrail/levelrail/caddymodule/meter"
	"github.com/levelrail/levelrail/client/wire"
)

const (
	// idleTime is below the 5 s after which uvicorn and cpp-httplib close idle connections, so that a request is not
	// written to a connection that is just being closed.
	idleTime     = 3 * time.Second
	idlePerPlace = 256
)

// Engines holds the connections to all engines. It outlives configurations, so that a reload keeps warm connections.
type Engines struct {
	pool pool
}

// NewEngines returns Engines without connections.
func NewEngines() *Engines { return &Engines{pool: pool{life: idleTime, most: idlePerPlace}} }

// CloseIdle closes the connections that no request uses.
func (e *Engines) CloseIdle() { e.pool.clear() }

// Call is one request to an engine.
type Call struct {
	Method  string
	Path    string      // the table's constant
	Header  http.Header // the client's
	Type    string      // Content-Type to send; empty without a body
	Body    *Body       // nil: none
	Targets []wire.RouteTarget
	Limits  wire.Limits
	// Hide keeps from the client what the engine says only because the gateway has asked it for a stream's usage.
	Hide bool
	// Mend makes what changes an answer that is no error on its way to the client; it may be nil, and return nil.
	Mend     func(events bool) Rewriter
	Progress *Progress // told of the answer's progress; may be nil
}

// Do sends the call to the first target that can be connected to and returns its answer once the headers are there. The
// error is a *Failure. ctx is the client's: when it ends, the engine's connection is closed.
//
// A call is sent again only when it is certain that no engine has seen any of it: nobody took the connection, or a kept one
// turned out to be closed before the first byte. Anything else might generate twice.
func (e *Engines) Do(ctx context.Context, c Call) (*Answer, error) {
	last := &Failure{End: meter.DialFailed, Err: errors.New("the model has no target")}
	for i := range c.Targets {
		for n := range idlePerPlace + 1 { // at most so many kept connections can have gone stale at once
			a, f := e.try(ctx, &c, &c.Targets[i], n < idlePerPlace)
			if f == nil {
				return a, nil
			}
			if last = f; !f.unsent {
				break
			}
		}
		if last.End != meter.DialFailed {
			break
		}
	}
	return nil, last
}

// try sends the call to one target, on a kept connection if there is one and it may be.
func (e *Engines) try(client context.Context, c *Call, t *wire.RouteTarget, kept bool) (*Answer, *Failure) {
	if client.Err() != nil {
		return nil, failure(client, nil, "", nil)
	}
	at := place{t.Network, t.Address}
	var conn *conn
	if kept {
		conn = e.pool.take(at)
	}
	if conn == nil {
		var err error
		if conn, err = dial(client, at, seconds(c.Limits.DialTimeoutSeconds)); err != nil {
			return nil, dialFailure(client, err)
		}
	}
	conn.b = newBuffer(smallBuffer)
	a := &Answer{Target: *t, call: c, client: client, engines: e, conn: conn, gap: seconds(c.Limits.IdleTimeout)}
	a.stay = context.AfterFunc(client, conn.abort)
	unsent, err := a.ask()
	if err == nil {
		if err = a.read(); err == io.EOF {
			err = errNoAnswer
		}
	}
	if err == nil {
		return a, nil
	}
	if a.sending != nil { // a write that stood still closed the connection under the reader
		if _, werr := a.sending.ended(); werr != nil {
			err = fmt.Errorf("%w, while it was sent the request: %w", err, werr)
		}
	}
	f := failure(client, err, meter.HeaderTimeout, errHeaderTimeout)
	f.unsent = unsent && f.End == meter.EngineGone
	a.Close()
	return nil, f
}

// ask writes the request and begins to wait for the answer, for no longer than the header timeout. unsent says, with an
// error, that the engine has not been sent any of it because it had closed the connection before.
func (a *Answer) ask() (unsent bool, err error) {
	var body []byte
	if a.call.Body != nil {
		body = a.call.Body.Bytes()
	}
	c, limit := a.conn, seconds(a.call.Limits.HeaderTimeout)
	head, err := appendHead(c.b[:0], a.call, &a.Target, len(body))
	if err != nil {
		return false, err
	}
	rest := body
	if len(head)+len(body) <= len(c.b) {
		head, rest = append(head, body...), nil
	}
	c.within(limit)
	sent, stale, err := c.ask(head, rest)
	switch {
	case sent == len(head)+len(rest):
		return false, err
	case stale || err != nil && sent == 0 && c.used:
		return true, errors.Join(errStale, err)
	case err != nil: // it has closed the connection, and may have said why: its answer is read all the same
		a.broken = true
		return false, nil
	}
	c.within(0)
	a.sending = new(sending)
	a.sending.start(c, head[min(sent, len(head)):], a.call.Body, max(sent-len(head), 0), limit)
	return false, nil
}

var (
	errStale    = errors.New("the engine has closed the kept connection")
	errNoAnswer = errors.New("the engine has closed the connection without an answer")
)

func seconds(n int64) time.Duration { return time.Duration(max(n, 0)) * time.Second }
