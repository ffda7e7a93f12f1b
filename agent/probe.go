package agent

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/agent/units"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/engine"
	"github.com/levelrail/levelrail/systemd"
)

// How often an engine is asked. A model that serves is asked seldom: its unit's state tells first when it dies.
const (
	probeQuick = 250 * time.Millisecond // in the first half minute of a run
	probeSlow  = time.Second            // later, while the model loads
	probeCalm  = 10 * time.Second       // once it serves
	quickTime  = 30 * time.Second
)

// prober asks one run of an engine until it is stopped.
type prober struct {
	run    string
	cancel context.CancelFunc
}

func (p *prober) stop() {
	if p != nil {
		p.cancel()
	}
}

// probe begins to ask engines that came up, and stops asking those that went.
func (a *Agent) probe(ctx context.Context, s *state) {
	for r, h := range s.have {
		t := s.track(r)
		up := h.Engine.Up() && h.Engine.Invocation != ""
		if t.probe != nil && (!up || t.probe.run != h.Engine.Invocation) {
			t.probe.stop()
			t.probe = nil
		}
		if !up || t.probe != nil {
			continue
		}
		// The engine is asked as the one that it was started as, which may be an earlier revision.
		var as wire.Assignment
		var program string
		var files []levelrail.WeightsFile
		switch w, ok := s.want[r]; {
		case h.Applied != nil:
			as, program, files = h.Applied.Assignment, h.Applied.Program, h.Applied.Files
		case ok:
			as, program, files = w.Assignment, w.Program, w.Files
		default:
			continue
		}
		e, err := engine.Get(as.Spec.Engine)
		if err != nil {
			continue
		}
		probeCtx, cancel := context.WithCancel(ctx)
		t.probe = &prober{run: h.Engine.Invocation, cancel: cancel}
		t.found, t.foundRun, t.serving, t.answered = engine.Readiness{State: engine.Down}, h.Engine.Invocation, false, false
		a.beside(func() {
			defer cancel()
			a.ask(probeCtx, e, a.params(as, program, files), h.Engine)
		})
	}
}

// ask asks one run of an engine and tells what changes.
func (a *Agent) ask(ctx context.Context, e engine.Engine, p engine.Params, unit units.State) {
	client := &http.Client{Transport: &http.Transport{
		DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return a.Dial(ctx, p.Socket) },
		MaxIdleConnsPerHost: 1, IdleConnTimeout: 2 * time.Second,
	}}
	defer client.CloseIdleConnections()
	began := time.Now()
	var last engine.Readiness
	missed := 0 // answers in a row that did not say serving, after one that did
	for first := true; ctx.Err() == nil; first = false {
		found := e.Ready(ctx, client, p)
		if ctx.Err() != nil {
			return
		}
		// An engine that serves and does not answer in time once is busy, not gone.
		if last.State == engine.Serving && found.State != engine.Serving {
			if missed++; missed < patience {
				pause(ctx, probeSlow)
				continue
			}
		}
		missed = 0
		if first || found != last {
			last = found
			a.tell(func(s *state) { s.answer(p.Name, unit.Invocation, found) })
		}
		wait := probeSlow
		switch {
		case found.State == engine.Serving:
			wait = probeCalm
		case time.Since(began) < quickTime:
			wait = probeQuick
		}
		pause(ctx, wait)
	}
}

// patience is how many answers in a row have to be bad before an engine that served counts as one that does not.
const patience = 3

// answer takes note of what an engine answered in one run.
func (s *state) answer(r, run string, found engine.Readiness) {
	t := s.tracks[r]
	if t == nil || t.foundRun != run {
		return
	}
	t.found, t.answered = found, true
	if found.State == engine.Serving {
		t.serving, t.tries, t.hold, t.holdFor = true, 0, time.Time{}, ""
		t.served = s.have[r].Engine.Restarts
	}
}

// read looks into the journal when an engine died, for the first cause, and when it serves, for what it computes on. It
// does so once a run, beside the loop.
func (a *Agent) read(ctx context.Context, s *state, r string) {
	t, h := s.track(r), s.have[r]
	if t.reading || h.Applied == nil {
		return
	}
	e, err := engine.Get(h.Applied.Assignment.Spec.Engine)
	if err != nil {
		return
	}
	unit := systemd.EngineUnit(r)
	run := h.Engine.Invocation
	if t.serving && t.computed != run {
		t.reading = true
		a.beside(func() {
			_, lines, err := a.Journal.LastRun(ctx, unit, run, false)
			a.tell(func(s *state) {
				t := s.track(r)
				t.reading, t.computed = false, run
				if err != nil {
					a.Log.Warn("cannot read the journal", "unit", unit, "error", err)
					return
				}
				t.compute = e.Compute(lines)
			})
		})
		return
	}
	// The run that died is the one of the unit as long as it is down; once it is up again, the one before.
	ended := h.Engine.Up() || h.Engine.Active == "activating" && h.Engine.Sub != "auto-restart"
	id := run
	if ended {
		id = "before " + run
	}
	if !died(t, h.Engine) || t.diagnosed == id {
		return
	}
	t.reading = true
	a.beside(func() {
		_, lines, err := a.Journal.LastRun(ctx, unit, run, ended)
		a.tell(func(s *state) {
			t := s.track(r)
			t.reading, t.diagnosed = false, id
			if err != nil {
				a.Log.Warn("cannot read the journal", "unit", unit, "error", err)
				return
			}
			if reason, message := e.Diagnose(lines); message != "" {
				t.reason, t.message = reason, message
			} else if len(lines) > 0 {
				t.reason, t.message = "", "its last line was: "+oneLine(lines[len(lines)-1])
			} else {
				t.reason, t.message = "", ""
			}
		})
	})
}

// died tells that the engine has ended by itself since it last served.
func died(t *track, u units.State) bool {
	return u.Failed() || u.Sub == "auto-restart" || u.Restarts > t.served && !t.serving
}
