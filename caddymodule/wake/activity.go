package wake

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/levelrail/levelrail/client/wire"
)

const (
	defaultTouch = 10 * time.Second
	reportTime   = 10 * time.Second // for one report
)

// Use is what is known of one model's use.
type Use struct {
	w        *Waker
	model    string
	inFlight atomic.Int64
	ended    atomic.Int64 // nanoseconds after Waker.base, when the last request ended
	fresh    atomic.Bool  // used since the last report
}

// Begin notes that a request for a model is admitted. Its End is called once.
func (w *Waker) Begin(model string) *Use {
	v, ok := w.used.Load(model)
	if !ok {
		v, _ = w.used.LoadOrStore(model, &Use{w: w, model: model})
	}
	u := v.(*Use)
	u.inFlight.Add(1)
	u.ring()
	return u
}

// End notes that the request has ended, from when on the model may be idle.
func (u *Use) End() {
	u.ended.Store(int64(time.Since(u.w.base)))
	u.inFlight.Add(-1)
	u.ring()
}

func (u *Use) ring() {
	if !u.fresh.Load() && !u.fresh.Swap(true) {
		select {
		case u.w.bell <- struct{}{}:
		default:
		}
	}
}

// Renew makes the next report name every model that was ever used: who listens may be new and know of none.
func (w *Waker) Renew() {
	w.used.Range(func(_, v any) bool { v.(*Use).ring(); return true })
}

// Run reports activity until ctx ends: which models were used since the last report, and in each report those with
// requests in flight. The first use after a pause is told at once, and two reports are Touch apart.
func (w *Waker) Run(ctx context.Context) {
	var last time.Time
	said := ""
	for {
		var due <-chan time.Time
		if w.pending() {
			due = time.After(time.Until(last.Add(w.touch())))
		}
		select {
		case <-ctx.Done():
			return
		case <-w.bell:
			continue
		case <-due:
		}
		models := w.collect()
		if len(models) == 0 {
			continue
		}
		last = time.Now()
		one, cancel := context.WithTimeout(ctx, reportTime)
		err := w.o.ControlPlane.Activity(one, wire.Activity{GatewayID: w.o.GatewayID(), Models: models})
		cancel()
		if err == nil {
			said = ""
			continue
		}
		for _, m := range models {
			if v, ok := w.used.Load(m.Model); ok {
				v.(*Use).fresh.Store(true)
			}
		}
		if text := err.Error(); text != said && ctx.Err() == nil {
			said = text
			w.o.Log.Warn("the control plane cannot be told which models are used", "error", err)
		}
	}
}

func (w *Waker) touch() time.Duration {
	if d := w.o.Touch(); d > 0 {
		return d
	}
	return defaultTouch
}

// pending tells whether there is something to report.
func (w *Waker) pending() (yes bool) {
	w.used.Range(func(_, v any) bool {
		u := v.(*Use)
		yes = u.fresh.Load() || u.inFlight.Load() > 0
		return !yes
	})
	return yes
}

// collect takes what there is to report, and forgets models that are gone.
func (w *Waker) collect() (out []wire.ModelActivity) {
	table, _ := w.o.Table()
	w.used.Range(func(name, v any) bool {
		u := v.(*Use)
		fresh := u.fresh.Swap(false)
		n := u.inFlight.Load()
		if _, there := table.Model(u.model); !there && n == 0 {
			w.used.Delete(name)
			return true
		}
		if !fresh && n == 0 {
			return true
		}
		a := wire.ModelActivity{Model: u.model, InFlight: n}
		if n == 0 {
			a.IdleSeconds = int64((time.Since(w.base) - time.Duration(u.ended.Load())) / time.Second)
		}
		out = append(out, a)
		return true
	})
	slices.SortFunc(out, func(a, b wire.ModelActivity) int { return cmp.Compare(a.Model, b.Model) })
	return out
}
