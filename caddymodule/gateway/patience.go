package gateway

import (
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/levelrail/levelrail/caddymodule/meter"
	"github.com/levelrail/levelrail/caddymodule/openai"
	"github.com/levelrail/levelrail/caddymodule/proxy"
)

// patience keeps the client of a stream from giving up while nothing can be said yet: for a slot, for a model that wakes, for
// an engine that reads a long prompt. After a while it sends the headers of an event stream and a comment, which every reader of
// such streams passes over, and a further comment whenever it has been silent for as long. From then on the status is 200, and what
// goes wrong is told as an event.
type patience struct {
	mu    sync.Mutex
	w     http.ResponseWriter
	every time.Duration
	timer *time.Timer
	begun bool // the headers are sent
	over  bool // the writer is the request's again
}

// bePatient begins to watch the time, where the request is for a stream of events.
func (x *exchange) bePatient() {
	every := time.Duration(x.model.Limits.KeepAliveSeconds) * time.Second
	if every <= 0 || x.patience != nil || !x.flight.stream.Load() || !streams(x.match.Kind) {
		return
	}
	p := &patience{w: x.w, every: every}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = time.AfterFunc(every, p.comment)
	x.patience = p
}

// streams tells whether a route of a kind answers "stream": true with events.
func streams(kind string) bool { return kind == "chat" || kind == "completions" || kind == "responses" }

func (p *patience) comment() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	if !p.begun {
		p.begun = true
		h := p.w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-store")
		h.Set("X-Accel-Buffering", "no") // of nginx, which would keep it all until the end
		p.w.WriteHeader(http.StatusOK)
	}
	io.WriteString(p.w, proxy.WaitingLine) // a client that has left is noticed by the request's context
	http.NewResponseController(p.w).Flush()
	p.timer.Reset(p.every)
}

// end gives the writer back to the request, and tells whether the headers are sent. It may be called again.
func (p *patience) end() (begun bool) {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	p.timer.Stop()
	return p.begun
}

// lateEvent tells a client whose stream has begun what went wrong.
func (x *exchange) lateEvent(text []byte) {
	n, _ := x.w.Write(text)
	x.record.Bytes = int64(n)
	http.NewResponseController(x.w).Flush()
}

// mostLate is how much of an engine's error is read to tell it as an event.
const mostLate = 64 << 10

// lateAnswer tells an engine's answer that is no stream to a client whose stream has begun: its error.
func (x *exchange) lateAnswer(a *proxy.Answer) *openai.Error {
	x.record.Status, x.record.End = a.StatusCode, meter.Refused
	body, err := a.ReadAll(mostLate)
	var e *openai.Error
	if err == nil && a.StatusCode >= 400 {
		e = x.readFault(a.StatusCode, body)
	}
	if e == nil {
		return openai.Failed(http.StatusBadGateway, openai.CodeEngineFailed, 0, x.model.Name+"'s engine answered with something that is no stream.")
	}
	x.answered, x.record.Status = true, e.Status
	x.lateEvent(e.Event())
	return nil
}
