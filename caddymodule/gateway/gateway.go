// Package gateway takes one request from its first line to its last byte: which route, whose key, the body, which model, a slot,
// the engine, the answer.
//
// It owns the order of the checks and what a refusal says. It promises that nothing reaches an engine without passing all
// of them, that every request ends in one meter.Record, that no message, record or panic holds a key, a body or a query,
// and that a request keeps the table it began with. There is no network call and no lock shared by all requests on the way
// to the engine. Caddy's face is package caddymodule, what is known comes from caddymodule/route, the road to the engines
// is caddymodule/proxy.
package gateway

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/levelrail/levelrail/caddymodule/limit"
	"github.com/levelrail/levelrail/caddymodule/meter"
	"github.com/levelrail/levelrail/caddymodule/openai"
	"github.com/levelrail/levelrail/caddymodule/proxy"
	"github.com/levelrail/levelrail/caddymodule/route"
	"github.com/levelrail/levelrail/caddymodule/wake"
	"github.com/levelrail/levelrail/listener"
)

// Gateway serves requests. It is safe for concurrent use; its fields are set before the first request.
type Gateway struct {
	Table   func() *route.Table // the newest one
	Engines *proxy.Engines
	Slots   *limit.Slots
	Bodies  limit.Bodies // of requests that have no slot yet
	Keys    *limit.Keys
	Leases  Leases // nil: no other gateway shares the keys' limits
	Wake    *wake.Waker
	Sink    meter.Sink
	Log     *slog.Logger // what an operator has to know, once per event
	Now     func() time.Time
	Flights Flights
	Stale   func() bool // routes and keys are too old to serve by; nil: never

	// ClientIP is the client's address as the operator wants it seen, behind proxies that are trusted. Default: the other end
	// of the connection.
	ClientIP func(*http.Request) string
	Failures listener.Failures // of authentication, by that address
	Stopping func() bool       // the process is about to end; nil: never
}

// step is one check. It refuses with an error, or lets the request on.
type step func(*exchange) *openai.Error

// order is the order of the checks (docs/architecture.md has it for readers): what costs nothing comes first, what a
// client without a key may learn is only which routes exist, memory is spent on a body only for a key that has room for one, and
// a slot is taken only once there is nothing more to wait for but the model.
var order = []step{
	(*exchange).findRoute, // the host's table: 404, 405
	(*exchange).authorize, // 401
	(*exchange).ownRoute,  // the model's own table: 404; the key's allow_paths: 403
	(*exchange).list,      // /v1/models is answered here
	(*exchange).enter,     // one of the key's slots; 429
	(*exchange).readBody,  // 413, 415, 408; 429: no memory for it
	(*exchange).checkBody, // 400, 403, 404
	(*exchange).checkCost, // 400
	(*exchange).takeSlot,  // one of the model's slots, waited for in the key's line; 429
	(*exchange).admit,     // 429: the key's limits are charged, all or none
	(*exchange).awake,     // a sleeping model is woken and waited for; 503
	(*exchange).forward,   // the engine: 502, 503, 504, or its answer
}

// ServeHTTP answers one request. It panics with http.ErrAbortHandler, and nothing else, to cut an answer that has begun.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if g.health(w, r) {
		return
	}
	x := g.begin(w, r)
	defer x.finish()
	for _, check := range order {
		if refusal := check(x); refusal != nil {
			x.refuse(refusal)
			return
		}
		if x.answered {
			return
		}
	}
}

// exchange is one request and what has been found out about it.
type exchange struct {
	*Gateway
	w http.ResponseWriter
	r *http.Request

	table   *route.Table
	site    *route.Model // the model whose domain was asked; nil on the shared address
	match   route.Match
	key     *route.Key // found, once it is
	found   route.Key
	model   *route.Model // nil until it is known: a key of several models leaves it to the body
	who     uint64       // the key, where slots and memory are counted
	gate    *limit.Gate  // the slot taken
	body    *proxy.Body
	memory  int64           // counted for the body while there is no slot
	due     time.Time       // when reading the body gives up, as last set
	began   time.Time       // to read it
	members openai.Members  // of a JSON body, by the model's fields once it is known
	room    [][]byte        // members' memory, which stays when the request has ended
	parts   int64           // the answers asked for: prompts times choices
	changes []openai.Change // of the body, before an engine gets it
	whole   bool            // the request's body has been read to its end
	sentAs  string

	counter  limit.Key // what the key uses
	ticket   int64     // for giving the charge back
	charged  bool      // admit has passed, and settle has not
	reached  bool      // an engine may have seen the request
	events   int64     // of the answer, a stream
	ctx      context.Context
	cancel   context.CancelCauseFunc
	flight   *flight // from when the key is known
	landed   bool    // the flight is over
	use      *wake.Use
	patience *patience // nil: the request is for no stream, or nobody wants it
	cut      bool      // an operator has cancelled the answer

	answered bool // an answer has begun
	record   meter.Record
}

var exchanges = sync.Pool{New: func() any { return new(exchange) }}

func (g *Gateway) begin(w http.ResponseWriter, r *http.Request) *exchange {
	x := exchanges.Get().(*exchange)
	*x = exchange{Gateway: g, w: w, r: r, table: g.Table(), room: x.room}
	x.whole = r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0
	x.record = meter.Record{RequestID: requestID(r.Header), Method: method(r.Method), Start: g.Now(), End: meter.Complete}
	h := w.Header()
	delete(h, "Server")
	h["X-Request-Id"] = []string{x.record.RequestID}
	return x
}

// finish gives back what the request held and records it, however it ended.
func (x *exchange) finish() {
	panicked := recover()
	if panicked != nil && panicked != http.ErrAbortHandler {
		x.record.End = meter.Panic
		x.panicked(panicked)
		if !x.answered {
			x.refuse(openai.Failed(http.StatusInternalServerError, openai.CodeInternal, 0, "The gateway made a mistake. It has been logged."))
			x.record.End = meter.Panic
			panicked = nil
		} else {
			panicked = http.ErrAbortHandler
		}
	}
	x.letGo()
	x.patience.end()
	if x.cut && panicked == nil {
		panicked = http.ErrAbortHandler
	}
	rec := &x.record
	if rec.End == meter.Panic && x.flight != nil {
		rec.Bytes = x.flight.progress.Bytes.Load() // nobody came to say it
	}
	if panicked != nil && rec.End != meter.ClientGone {
		x.cutOff()
	}
	rec.Duration = x.Now().Sub(rec.Start)
	if x.key != nil {
		rec.KeyID, rec.KeyPrefix, rec.Owner, rec.Tags = x.key.ID, x.key.Prefix, x.key.Owner, x.key.Tags
	}
	if x.model != nil {
		rec.Model = x.model.Name
	}
	x.Sink.Record(*rec)
	clear(x.room)
	*x = exchange{room: x.room}
	exchanges.Put(x)
	if panicked != nil {
		panic(panicked)
	}
}

// letGo gives back the slots and the body, and settles what the request has cost. It may be called twice.
func (x *exchange) letGo() {
	x.settle()
	if f := x.flight; f != nil && !x.landed {
		x.landed = true
		if x.Flights.remove(f) && f.state.Load() == stateAnswering {
			x.record.End, x.cut = meter.Cancelled, true
		}
		x.cancel(nil)
	}
	if x.body != nil {
		x.body.Release()
		x.body = nil
	}
	x.countBody(0)
	if x.gate != nil {
		x.gate.Give(x.who)
		x.gate = nil
	}
	x.counter.Leave()
	x.counter = limit.Key{}
}

// random picks among targets.
func random() float64 { return rand.Float64() }
