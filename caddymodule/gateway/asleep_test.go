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

// TestNarrowedWhileQueued: a key that was narrowed while its request waited for a slot opens no more than it now does.
func TestNarrowedWhileQueued(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*wire.RouteKey)
		status int
	}{
		"the same":          {func(k *wire.RouteKey) {}, 200},
		"another model":     {func(k *wire.RouteKey) { k.Models = []string{"other"} }, 404},
		"another path":      {func(k *wire.RouteKey) { k.AllowPaths = []string{"/v1/embeddings"} }, 403},
		"another name":      {func(k *wire.RouteKey) { k.AllowModels = []string{"chat-small"} }, 403},
		"no longer a key":   {nil, 401},
		"a path of its own": {func(k *wire.RouteKey) { k.AllowPaths = []string{"/v1/chat/"} }, 200},
	} {
		t.Run(name, func(t *testing.T) {
			served := 0
			socket := listen(t, func(w http.ResponseWriter, r *http.Request) {
				served++
				io.Copy(io.Discard, r.Body)
				io.WriteString(w, "{}")
			})
			g, _, _ := newGateway(t, socket, 1)
			e := g.Table().Edit()
			m, _ := g.Table().Model("chat")
			route1 := m.Wire()
			route1.Limits.MaxInflight, route1.Limits.QueueWaitSeconds = 1, 60
			if err := e.PutModel(route1); err != nil {
				t.Fatal(err)
			}
			var now atomic.Pointer[route.Table]
			now.Store(e.Table())
			g.Table = now.Load
			gate := g.Slots.Gate("chat")
			if !gate.Take(7, 1) {
				t.Fatal("no slot")
			}
			w, done := httptest.NewRecorder(), make(chan struct{})
			go func() { g.ServeHTTP(w, request(body)); close(done) }()
			for end := time.Now().Add(20 * time.Second); gate.Waiting() == 0; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("the request does not wait")
				}
			}
			k := wire.RouteKey{ID: "key_" + key[3:9], SHA256: levelrail.HashSecret(key), Prefix: key[:8], Models: []string{"chat"}}
			e = now.Load().Edit()
			if c.change == nil {
				e.DropKeyByID(k.ID)
			} else {
				c.change(&k)
				if _, err := e.PutKey(k); err != nil {
					t.Fatal(err)
				}
			}
			now.Store(e.Table())
			gate.Give(7)
			<-done
			if w.Code != c.status || served != 0 != (c.status == 200) {
				t.Errorf("%d %s, %d requests at the engine", w.Code, w.Body, served)
			}
			if gate.InFlight() != 0 {
				t.Error("the slot is still taken")
			}
		})
	}
}
