// Package proxy takes an admitted request to an engine and its answer back to the client.
//
// It owns the connections to engines, which headers pass in each direction, the timeouts, and telling apart why an answer
// ended: the client left, the engine died, fell silent or never began. It promises that nothing the client wrote decides
// where a request goes or which credential it carries, that every byte read from an engine is written to the client at
// once, and that a client who leaves ends the engine's work. Whether a request may pass is caddymodule/gateway's business,
// who counts it is caddymodule/meter's.
package proxy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/levelrail/levelrail/caddymodule/meter"
	"github.com/levelrail/levelrail/client/wire"
)

const (
	// idleTime is below the 5 s after which uvicorn and cpp-httplib close idle connections, so that a request is not
	// written to a connection that is just being closed.
	idleTime    = 3 * time.Second
	idlePerHost = 256
	maxHeader   = 64 << 10 // bytes of an answer's header block
)

// Engines holds the connections to all engines. It outlives configurations, so that a reload keeps warm connections.
type Engines struct {
	transport *http.Transport
}

// NewEngines returns Engines without connections.
func NewEngines() *Engines {
	return &Engines{transport: &http.Transport{
		Proxy:                  nil, // an engine is never behind the proxy that the environment may name
		DialContext:            dial,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    idlePerHost,
		IdleConnTimeout:        idleTime,
		MaxResponseHeaderBytes: maxHeader,
	}}
}

// CloseIdle closes the connections that no request uses.
func (e *Engines) CloseIdle() { e.transport.CloseIdleConnections() }

// route is where a dial goes; it travels in the request's context, so that no name is ever resolved.
type route struct {
	network, address string
	timeout          time.Duration
}

type routeKey struct{}

func dial(ctx context.Context, _, _ string) (net.Conn, error) {
	r, ok := ctx.Value(routeKey{}).(route)
	if !ok {
		return nil, errors.New("a request to an engine has no target")
	}
	d := net.Dialer{Timeout: r.timeout, KeepAlive: 15 * time.Second}
	conn, err := d.DialContext(ctx, r.network, r.address)
	if err != nil {
		return nil, err
	}
	return &countedConn{Conn: conn}, nil
}

// countedConn knows how much has been written to it, which tells whether an engine can have seen a request.
type countedConn struct {
	net.Conn
	written atomic.Int64
}

func (c *countedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.written.Add(int64(n))
	return n, err
}

// hostOf names a target's pool of connections: another address is another pool, whatever its replica is called.
func hostOf(t wire.RouteTarget) string {
	sum := sha256.Sum256([]byte(t.Network + " " + t.Address))
	return hex.EncodeToString(sum[:8]) + ".engine"
}

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
	Hide     bool
	Progress *Progress // told of the answer's progress; may be nil
}

// The causes for which the gateway itself ends a call.
var (
	errHeaderTimeout = errors.New("no answer within the header timeout")
	errGapTimeout    = errors.New("no output within the idle timeout")
)

// Answer is an engine's answer, headers read. Close it.
type Answer struct {
	*http.Response
	Target wire.RouteTarget
	call   *Call
	client context.Context // ends when the client leaves
	ctx    context.Context // ends for that or for a timeout; its cause tells
	watch  *watchdog
}

// Do sends the call to the first target that can be connected to and returns its answer once the headers are there. The
// error is a *Failure. ctx is the client's: when it ends, the engine's connection is closed.
//
// A call is sent again only when it is certain that no engine has seen any of it: nobody took the connection, or a kept one
// turned out to be closed before the first byte. Anything else might generate twice.
func (e *Engines) Do(ctx context.Context, c Call) (*Answer, error) {
	last := &Failure{End: meter.DialFailed, Err: errors.New("the model has no target")}
	for _, t := range c.Targets {
		for range idlePerHost { // at most so many kept connections can have gone stale at once
			a, f := e.try(ctx, c, t)
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

func (e *Engines) try(client context.Context, c Call, t wire.RouteTarget) (*Answer, *Failure) {
	ctx, cancel := context.WithCancelCause(client)
	w := newWatchdog(cancel, seconds(c.Limits.HeaderTimeout), seconds(c.Limits.IdleTimeout))
	ctx = context.WithValue(ctx, routeKey{}, route{t.Network, t.Address, seconds(c.Limits.DialTimeoutSeconds)})
	var kept *countedConn // a connection that another request has used before
	var before int64
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		if conn, ok := info.Conn.(*countedConn); ok && info.Reused {
			kept, before = conn, conn.written.Load()
		}
	}})
	// Built by hand: a request made with a Reader would get a GetBody, with which net/http may send it a second time.
	req := (&http.Request{
		Method: c.Method, URL: &url.URL{Scheme: "http", Host: hostOf(t), Path: c.Path}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Host: "localhost", Header: requestHeader(c.Header, c.Type, t.Key),
	}).WithContext(ctx)
	if c.Body != nil && len(c.Body.Bytes()) > 0 { // with none, net/http would take a length of 0 for unknown
		req.Body, req.ContentLength = c.Body.open(), int64(len(c.Body.Bytes()))
	}
	resp, err := e.transport.RoundTrip(req)
	if err != nil {
		w.stop()
		f := failure(ctx, client, err)
		f.unsent = f.End == meter.EngineGone && kept != nil && kept.written.Load() == before
		cancel(nil)
		return nil, f
	}
	return &Answer{Response: resp, Target: t, call: &c, client: client, ctx: ctx, watch: w}, nil
}

// Close ends the call; the connection is kept when the answer was read to its end.
func (a *Answer) Close() {
	a.watch.stop()
	a.Body.Close()
	a.watch.cancel(nil)
}

func seconds(n int64) time.Duration { return time.Duration(max(n, 0)) * time.Second }
