// Package stub is an engine without a model: it speaks the OpenAI API as llama.cpp, vLLM and Ollama do, quickly enough to
// measure a proxy with, and it goes wrong in whatever way a test asks for.
//
// It owns what engines say and how they say it: whole answers of an exact size, paced and oddly written streams, usage
// and errors in each engine's manner, hangs, cuts and dying words, and noting which requests ended because their client
// left. It reads and writes HTTP/1.1 on raw connections, since net/http would neither be cheap enough nor let an answer
// be broken. What real engines do with real weights is tested in test/e2e; files of the Hub are hubstub's.
//
// How a request is answered is said by a Behaviour, in the order of who wins: the request body's field "stub" (an object,
// which proxies pass on; in a form a part of that name), the header X-Stub (the same JSON), what SetDefault left.
//
//	{"model":"chat","stream":true,"messages":[…],"stub":{"events":200,"gap":"10ms"}}
//
// Beside the API there are GET /stub/counters, GET /stub/requests, PUT /stub/default (a Behaviour) and POST /stub/reset,
// for tests in another process.
package stub

import (
	"errors"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// The manners that an engine can have.
const (
	LlamaCpp = "llamacpp"
	VLLM     = "vllm"
	Ollama   = "ollama"
)

// Options say what the engine is. The zero value is llama.cpp serving the model "chat" to everyone.
type Options struct {
	Manner    string        // LlamaCpp, VLLM or Ollama; whose usage, errors and listing; default LlamaCpp
	Names     []string      // the models it lists; default "chat"
	Key       string        // demanded as Authorization: Bearer KEY on every API route; empty: nobody is asked
	KeepAlive time.Duration // idle connections are closed after it; 0: never
	Keep      int           // how many of the newest requests Requests returns; 0: none
	Default   Behaviour     // of requests that do not say
}

// Counters are how many there were since the start or the last Reset; Active and Connections are how many there are.
type Counters struct {
	Connections int64 `json:"connections"`
	Accepted    int64 `json:"accepted"` // connections
	Requests    int64 `json:"requests"`
	Active      int64 `json:"active"`
	Answered    int64 `json:"answered"` // to the end, as the behaviour has it
	Left        int64 `json:"left"`     // the client left before that
	Cut         int64 `json:"cut"`      // the stub broke the answer off, as it was told
	Events      int64 `json:"events"`   // of streams, written
}

// Request is one request as it came.
type Request struct {
	Method string      `json:"method"`
	Target string      `json:"target"` // as in the request line
	Header http.Header `json:"header"`
	Body   []byte      `json:"body"` // at most 64 KiB of it
	Length int64       `json:"length"`
	Began  time.Time   `json:"began"`
	Ended  time.Time   `json:"ended"` // zero: not yet
	End    string      `json:"end"`   // answered, left, cut; empty: not yet
}

// Engine is the stub. Make it with New; it is safe for concurrent use.
type Engine struct {
	o       Options
	plain   atomic.Pointer[Behaviour]
	started int64 // Unix seconds, as "created" in answers

	connections, accepted, requests, active, answered, left, cut, events atomic.Int64

	mu     sync.Mutex
	open   map[net.Conn]struct{}
	seen   []*Request // the newest, oldest first
	doors  []net.Listener
	closed bool
	served sync.WaitGroup
}

// New returns an engine that does not listen yet. It fails when the default behaviour is none.
func New(o Options) (*Engine, error) {
	if o.Manner == "" {
		o.Manner = LlamaCpp
	}
	if len(o.Names) == 0 {
		o.Names = []string{"chat"}
	}
	e := &Engine{o: o, open: map[net.Conn]struct{}{}, started: time.Now().Unix()}
	if err := e.SetDefault(o.Default); err != nil {
		return nil, err
	}
	return e, nil
}

// SetDefault changes how requests that do not say are answered, those that begin later.
func (e *Engine) SetDefault(b Behaviour) error {
	if b.Manner == "" {
		b.Manner = e.o.Manner
	}
	if err := b.check(); err != nil {
		return err
	}
	e.plain.Store(&b)
	return nil
}

// Serve answers on the listener until Close, and returns nil then. Several listeners may be served at once.
func (e *Engine) Serve(l net.Listener) error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		l.Close()
		return net.ErrClosed
	}
	e.doors = append(e.doors, l)
	e.mu.Unlock()
	for {
		nc, err := l.Accept()
		if err != nil {
			e.mu.Lock()
			defer e.mu.Unlock()
			if e.closed && errors.Is(err, net.ErrClosed) {
				return nil
			}
			return err
		}
		if !e.enter(nc) {
			nc.Close()
			continue
		}
		go func() {
			defer e.leave(nc)
			newConn(e, nc).serve()
		}()
	}
}

func (e *Engine) enter(nc net.Conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.open[nc] = struct{}{}
	e.served.Add(1)
	e.connections.Add(1)
	e.accepted.Add(1)
	return true
}

func (e *Engine) leave(nc net.Conn) {
	nc.Close()
	e.mu.Lock()
	delete(e.open, nc)
	e.mu.Unlock()
	e.connections.Add(-1)
	e.served.Done()
}

// Close stops listening, breaks all connections and returns when nothing runs any more.
func (e *Engine) Close() error {
	e.mu.Lock()
	e.closed = true
	var err error
	for _, l := range e.doors {
		err = errors.Join(err, l.Close())
	}
	for nc := range e.open {
		nc.Close()
	}
	e.mu.Unlock()
	e.served.Wait()
	return err
}

// DropIdle closes the connections, those in the middle of an answer too, and keeps listening: an engine's restart as a
// proxy with kept connections sees it.
func (e *Engine) DropIdle() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for nc := range e.open {
		nc.Close()
	}
}

// Counters returns the present counts.
func (e *Engine) Counters() Counters {
	return Counters{Connections: e.connections.Load(), Accepted: e.accepted.Load(), Requests: e.requests.Load(), Active: e.active.Load(),
		Answered: e.answered.Load(), Left: e.left.Load(), Cut: e.cut.Load(), Events: e.events.Load()}
}

// Requests returns the newest requests, oldest first, as many as Options.Keep says.
func (e *Engine) Requests() []Request {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make([]Request, len(e.seen))
	for i, r := range e.seen {
		out[i] = *r
	}
	return out
}

// Reset forgets the counts and the requests. Connections and requests that are there stay counted as such.
func (e *Engine) Reset() {
	for _, n := range []*atomic.Int64{&e.accepted, &e.requests, &e.answered, &e.left, &e.cut, &e.events} {
		n.Store(0)
	}
	e.mu.Lock()
	e.seen = nil
	e.mu.Unlock()
}

// The ways in which a request ends.
const (
	endAnswered = "answered"
	endLeft     = "left"
	endCut      = "cut"
)

func (e *Engine) begin(h *head, body []byte) *Request {
	e.requests.Add(1)
	e.active.Add(1)
	if e.o.Keep <= 0 {
		return nil
	}
	r := &Request{Method: h.method, Target: h.target, Header: h.fields.Clone(), Body: slices.Clone(body[:min(len(body), 64<<10)]), Length: h.length, Began: time.Now()}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.seen = append(e.seen, r); len(e.seen) > e.o.Keep {
		e.seen = slices.Delete(e.seen, 0, len(e.seen)-e.o.Keep)
	}
	return r
}

func (e *Engine) end(r *Request, end string) {
	switch end {
	case endAnswered:
		e.answered.Add(1)
	case endLeft:
		e.left.Add(1)
	case endCut:
		e.cut.Add(1)
	}
	if r != nil {
		e.mu.Lock()
		r.Ended, r.End = time.Now(), end
		e.mu.Unlock()
	}
	e.active.Add(-1) // last: whoever sees none active sees how all of them ended
}
