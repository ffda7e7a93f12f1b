// Package wake is the gateway's half of models that sleep: it asks the control plane to start one, holds requests until it
// serves, and tells which models are used, so that a busy one is not put to sleep.
//
// However many requests wait for a model, one asking is under way at a time, and it belongs to none of them: who leaves
// ends nothing for the others, and a model whose waiters have all left wakes nevertheless. The package is called for
// requests that have passed every check; what a refusal says is caddymodule/gateway, starting and stopping engines is the
// control plane's. Nothing that a request waits for here takes a lock that all requests share.
package wake

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/caddymodule/route"
	"github.com/levelrail/levelrail/client/wire"
)

// ControlPlane is what is asked of it. *client.Client meets it.
type ControlPlane interface {
	Wake(ctx context.Context, w wire.Wake) error
	Activity(ctx context.Context, a wire.Activity) error
}

// Options say what a Waker needs.
type Options struct {
	ControlPlane ControlPlane
	GatewayID    func() string
	// Table is the newest table, and a channel that is closed once there is a newer one.
	Table func() (*route.Table, <-chan struct{})
	// Touch is the least time between two reports of activity; 0 or less: the default of 10 s.
	Touch func() time.Duration
	Log   *slog.Logger
}

// Why Hold returns without a model that serves. A context's own error is the third.
var (
	ErrWaking   = errors.New("the model is not serving yet")
	ErrDraining = errors.New("the gateway stops")
	ErrNotSoon  = errors.New("the model does not come by waiting")
)

const (
	askTime  = 10 * time.Second // for one asking
	askAgain = 2 * time.Second  // after one that failed
	// A wake that the control plane has accepted shows in the table at once. One that does not show is lost, or the model
	// has gone to sleep anew.
	askLost = 10 * time.Second
)

// Waker wakes models. It is safe for concurrent use.
type Waker struct {
	o     Options
	asked sync.Map // model → *asking
	used  sync.Map // model → *Use
	base  time.Time
	bell  chan struct{}

	drain    sync.Once
	draining chan struct{}
}

// New returns a Waker that has asked for nothing. It starts nothing.
func New(o Options) *Waker {
	return &Waker{o: o, base: time.Now(), bell: make(chan struct{}, 1), draining: make(chan struct{})}
}

// Sleeps tells whether a request for the model makes it wake, or may wait for its waking.
func Sleeps(m *route.Model) bool {
	if m.Asleep {
		return true
	}
	switch levelrail.Reason(m.Reason) {
	case levelrail.Idle, levelrail.WakingUp, levelrail.WaitingGPU:
		return !m.Serving
	}
	return false
}

// comes tells whether a model that has been asked for is on its way. While an engine starts, its reason may be any of a
// start.
func comes(m *route.Model) bool {
	if Sleeps(m) {
		return true
	}
	switch levelrail.Reason(m.Reason) {
	case levelrail.Pending, levelrail.Starting, levelrail.Downloading, levelrail.Loading, levelrail.ModelLoaded:
		return true
	}
	return false
}

// Hold makes a model wake and returns the table in which it serves. It waits at most the time given, from which 0 or less
// asks and returns at once; for ctx, which is the client's; and for Drain.
func (w *Waker) Hold(ctx context.Context, model string, wait time.Duration) (*route.Table, error) {
	late := time.NewTimer(max(wait, 0))
	defer late.Stop()
	for {
		table, changed := w.o.Table()
		m, there := table.Model(model)
		switch {
		case !there:
			return nil, ErrNotSoon
		case m.Serving && !m.Asleep:
			w.asked.Delete(model) // put to sleep again at once, it is asked for again at once
			return table, nil
		case !comes(m):
			return nil, ErrNotSoon
		}
		var again <-chan time.Time
		if m.Asleep {
			w.ask(model)
			again = time.After(askAgain)
		} else {
			w.asked.Delete(model) // it has been heard; asleep again is another time
		}
		if wait <= 0 {
			return nil, ErrWaking
		}
		select {
		case <-changed:
		case <-again:
		case <-late.C:
			return nil, ErrWaking
		case <-w.draining:
			return nil, ErrDraining
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// asking is one model's last asking.
type asking struct {
	mu       sync.Mutex
	underWay bool
	until    time.Time // not asked again before
	said     string    // the last failure logged
}

// ask asks for a model unless that is under way or has just been done. It returns at once.
func (w *Waker) ask(model string) {
	v, _ := w.asked.LoadOrStore(model, new(asking))
	a := v.(*asking)
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case <-w.draining:
		return
	default:
	}
	if a.underWay || time.Now().Before(a.until) {
		return
	}
	a.underWay = true
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), askTime)
		defer cancel()
		err := w.o.ControlPlane.Wake(ctx, wire.Wake{GatewayID: w.o.GatewayID(), Model: model})
		a.mu.Lock()
		defer a.mu.Unlock()
		a.underWay = false
		if err == nil {
			a.until, a.said = time.Now().Add(askLost), ""
			w.o.Log.Info("asked for a sleeping model", "model", model)
			return
		}
		a.until = time.Now().Add(askAgain / 2)
		if text := err.Error(); text != a.said {
			a.said = text
			w.o.Log.Warn("a sleeping model cannot be asked for; its requests wait", "model", model, "error", err, "next", "systemctl status levelrail-server")
		}
	}()
}

// Draining is closed once the gateway stops: nothing is worth waiting for any more.
func (w *Waker) Draining() <-chan struct{} { return w.draining }

// Drain lets go of all that is held and of whatever comes after it: the gateway stops.
func (w *Waker) Drain() { w.drain.Do(func() { close(w.draining) }) }
