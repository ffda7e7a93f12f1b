package gateway

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/caddymodule/route"
	"github.com/levelrail/levelrail/caddymodule/wake"
	"github.com/levelrail/levelrail/client/wire"
)

// waker is a control plane that starts an engine when it is asked to.
type waker struct{ start func() }

func (w waker) Wake(context.Context, wire.Wake) error         { w.start(); return nil }
func (w waker) Activity(context.Context, wire.Activity) error { return nil }

// TestFallsAsleep is the end of case C024: a request that finds the engine just put to sleep is held and wakes it again, and
// its answer is as it would have been, though the gateway asks for the usage of a stream itself.
func TestFallsAsleep(t *testing.T) {
	var bodies atomic.Int64
	engine := func(w http.ResponseWriter, r *http.Request) {
		bodies.Add(1)
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: {\"choices\":[{\"delta\":{}}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}\n\ndata: [DONE]\n\n")
	}
	socket := listen(t, engine)
	if err := os.Remove(socket); err != nil { // nobody takes connections any more
		t.Fatal(err)
	}
	g, s, _ := newGateway(t, socket, 1)
	awake := g.Table()
	m, _ := awake.Model("chat")
	r := m.Wire()
	r.Engine = "vllm" // tells the usage of a stream to who asks
	r.Limits.UsageStream, r.Limits.UsageScanBytes, r.Limits.WakeWaitSeconds = "always", 16<<10, 10
	e := awake.Edit()
	e.PutModel(r)
	awake = e.Table()
	r.Serving, r.Asleep, r.Reason = false, true, string(levelrail.Idle)
	e = awake.Edit()
	e.PutModel(r)
	asleep := e.Table()

	var now atomic.Pointer[route.Table]
	now.Store(asleep)
	newer := make(chan struct{})
	g.Wake = wake.New(wake.Options{GatewayID: func() string { return "gw_test" }, Log: slog.New(slog.DiscardHandler),
		Table: func() (*route.Table, <-chan struct{}) { return now.Load(), newer },
		ControlPlane: waker{func() {
			r.Targets[0].Address = listen(t, engine)
			r.Serving, r.Asleep = true, false
			e := asleep.Edit()
			e.PutModel(r)
			now.Store(e.Table())
			close(newer)
		}}})
	var begun atomic.Bool
	g.Table = func() *route.Table {
		if begun.CompareAndSwap(false, true) {
			return awake // the request's own; a moment later the model sleeps
		}
		return now.Load()
	}
	w := httptest.NewRecorder()
	g.ServeHTTP(w, request(`{"model":"chat","stream":true}`))
	if got := w.Body.String(); w.Code != 200 || got != "data: {\"choices\":[{\"delta\":{}}]}\n\ndata: [DONE]\n\n" || bodies.Load() != 1 {
		t.Errorf("%d %q, %d requests", w.Code, got, bodies.Load())
	}
	if rec := s.last(); rec.Input != 3 || rec.Output != 4 || rec.Duration > 5*time.Second {
		t.Errorf("%+v", rec)
	}
}
