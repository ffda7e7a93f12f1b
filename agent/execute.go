package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/agent/fetch"
	"github.com/levelrail/levelrail/agent/units"
	"github.com/levelrail/levelrail/systemd"
)

// jobTime bounds one step. Engines may take minutes to stop.
const jobTime = 10 * time.Minute

// begin starts a step beside the loop. What it works on is busy until it is done; the next look then sees what came of it.
func (a *Agent) begin(ctx context.Context, s *state, step Step) {
	a.Log.Info(string(step.Do), "who", step.Who, "why", step.Why)
	var act func(context.Context) error
	var done func(*state, error)
	limit := jobTime // 0: none
	switch step.Do {
	case GiveUp:
		s.order(step.Who).giveUp()
		return
	case Bring, Take, StopFetch, DropFetch:
		o, f := s.order(step.Who), s.fetches[step.Who]
		o.busy = string(step.Do)
		f.Busy = true
		f.There = f.There || step.Do == Bring
		s.fetches[step.Who] = f
		want := s.needs(step.Who)
		if step.Do == Bring || step.Do == Take { // copying and checking take as long as they take, and can be given up
			var cancel context.CancelFunc
			ctx, cancel = context.WithCancel(ctx)
			o.key, o.cancel, limit = want.FetchKey, cancel, 0
		}
		tell := func(p levelrail.Progress) {
			a.tell(func(s *state) {
				if o := s.order(step.Who); o.busy == string(step.Do) {
					o.progress, o.err = &p, nil
				}
			})
		}
		act = func(ctx context.Context) error {
			switch step.Do {
			case Bring:
				return a.bring(ctx, want, every(tell))
			case Take:
				return a.take(ctx, want, every(tell))
			case StopFetch:
				return a.stopFetch(ctx, step.Who, want.FetchKey == "")
			}
			return errors.Join(a.store().Abandon(step.Who), a.dropFetch(ctx, step.Who))
		}
		done = func(s *state, err error) {
			o := s.order(step.Who)
			gaveUp := o.cancel == nil && (step.Do == Bring || step.Do == Take)
			o.giveUp()
			o.busy, o.progress = "", nil
			switch {
			case step.Do == StopFetch || step.Do == DropFetch:
				o.key, o.seen, o.hold = "", "", time.Time{}
			case err != nil && !gaveUp:
				o.err = bringFailure(err)
				o.hold = time.Now().Add(fetchPause)
				if r := time.Duration(o.err.RetryAfter); r > 0 {
					o.hold = time.Now().Add(r)
				}
			default:
				o.err = nil
			}
		}
	default:
		t := s.track(step.Who)
		t.busy = string(step.Do)
		want, have := s.want[step.Who], s.have[step.Who]
		have.Busy = true
		s.have[step.Who] = have
		act = func(ctx context.Context) error { return a.actOn(ctx, step, want, have) }
		done = func(s *state, err error) {
			t := s.track(step.Who)
			t.busy, t.err = "", err
			if err != nil && step.Do == Start {
				t.tries++
				t.hold = time.Now().Add(min(5*time.Second<<min(t.tries-1, 8), startMost))
			}
			if step.Do == Stop || step.Do == Retire {
				t.tries, t.hold, t.holdFor = 0, time.Time{}, ""
			}
		}
	}
	a.beside(func() {
		jobCtx, cancel := ctx, context.CancelFunc(func() {})
		if limit > 0 {
			jobCtx, cancel = context.WithTimeout(ctx, limit)
		}
		defer cancel()
		began := time.Now()
		err := act(jobCtx)
		if err != nil && ctx.Err() == nil {
			a.Log.Error(string(step.Do)+" failed", "who", step.Who, "error", err)
		} else if err == nil {
			a.Log.Info(string(step.Do)+" done", "who", step.Who, "took", time.Since(began).Round(time.Millisecond))
		}
		a.tell(func(s *state) { done(s, err) })
	})
}

// needs is the want of a model's replica that its fetch is for.
func (s *state) needs(model string) Want {
	for _, r := range keys(s.want, map[string]int{}) {
		if w := s.want[r]; w.Assignment.Model == model && w.FetchKey != "" {
			return w
		}
	}
	return Want{}
}

func (a *Agent) actOn(ctx context.Context, step Step, want Want, have Have) error {
	r := step.Who
	switch step.Do {
	case Stop, Retire:
		if step.Do == Retire {
			if err := remove(a.Paths.wants(systemd.EngineUnit(r))); err != nil {
				return fmt.Errorf("take %s out of the boot: %w", r, err)
			}
		}
		return a.stop(ctx, r)
	case Remove:
		return a.remove(ctx, have)
	case Write:
		return a.write(ctx, want, have)
	case Open:
		return a.Units.Start(ctx, systemd.DoorSocket(r))
	case Start:
		return a.start(ctx, want, have)
	}
	return fmt.Errorf("nobody knows how to %s", step.Do)
}

// stop stops the door before the engine, so that no connection is taken that nobody will answer.
func (a *Agent) stop(ctx context.Context, replica string) error {
	var all error
	for _, unit := range []string{systemd.DoorSocket(replica), systemd.DoorService(replica), systemd.EngineUnit(replica)} {
		all = errors.Join(all, a.Units.Stop(ctx, unit))
	}
	// An engine that did not end in time was killed, and is "failed" to systemd. A stop that was asked for is no failure.
	return errors.Join(all, a.Units.ResetFailed(ctx, systemd.EngineUnit(replica)))
}

// remove takes away all that a stopped replica has on this node, except its weights.
func (a *Agent) remove(ctx context.Context, have Have) error {
	r := have.Replica
	cleanErr := a.Units.Clean(ctx, systemd.EngineUnit(r)) // the cache is no reason to keep the unit
	if cleanErr != nil {
		a.Log.Warn("the cache stays", "replica", r, "error", cleanErr)
	}
	a.reload.Lock()
	defer a.reload.Unlock()
	paths := []string{a.Paths.wants(systemd.EngineUnit(r))}
	for unit := range have.Files {
		paths = append(paths, a.Paths.unit(unit))
	}
	if err := remove(paths...); err != nil {
		return fmt.Errorf("remove the unit files of %s: %w", r, err)
	}
	if err := a.Units.Reload(ctx); err != nil {
		return err
	}
	for unit := range have.Files { // a failed unit without a file would stay in the list for ever
		if err := a.Units.ResetFailed(ctx, unit); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(a.Paths.credentials(r)); err != nil {
		return err
	}
	return remove(a.Paths.applied(r))
}

// write makes the unit files as they should be, with what they refer to, and has systemd read them when one changed.
func (a *Agent) write(ctx context.Context, want Want, have Have) error {
	as := want.Assignment
	secret := a.Paths.credentials(as.Replica)
	if err := writeFile(filepath.Join(secret, engineKey), []byte(as.EngineKey), 0o600); err != nil {
		return err
	}
	if want.KeyVariable != "" {
		if err := writeFile(filepath.Join(secret, engineEnv), []byte(want.KeyVariable+"="+as.EngineKey+"\n"), 0o600); err != nil {
			return err
		}
	}
	a.reload.Lock()
	defer a.reload.Unlock()
	changed := have.Engine.NeedReload || have.Socket.NeedReload || have.Door.NeedReload
	names := map[string]bool{}
	for _, u := range want.Units {
		names[u.Name] = true
		if have.Files[u.Name].Text == u.Text {
			continue
		}
		if err := writeFile(a.Paths.unit(u.Name), []byte(u.Text), 0o644); err != nil {
			return err
		}
		changed = true
	}
	for unit := range have.Files { // the door of an engine that no longer needs one
		if !names[unit] {
			if err := remove(a.Paths.unit(unit)); err != nil {
				return err
			}
			changed = true
		}
	}
	link := a.Paths.wants(systemd.EngineUnit(as.Replica))
	if !have.Enabled {
		if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
			return err
		}
		if err := os.Symlink("../"+systemd.EngineUnit(as.Replica), link); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("put %s into the boot: %w", as.Replica, err)
		}
		changed = true
	}
	b, err := json.Marshal(Applied{Assignment: as, Hash: want.Hash, Program: want.Program, Files: want.Files})
	if err != nil {
		return err
	}
	if err := writeFile(a.Paths.applied(as.Replica), b, 0o600); err != nil {
		return err
	}
	if changed {
		return a.Units.Reload(ctx)
	}
	return nil
}

// start writes what differs and starts the engine, then its door. It first clears what systemd remembers of earlier
// failures: after some quick crashes it would refuse, also the start that follows the cure.
func (a *Agent) start(ctx context.Context, want Want, have Have) error {
	if err := a.write(ctx, want, have); err != nil {
		return err
	}
	if have.Engine.Failed() || have.Engine.Restarts > 0 {
		if err := a.Units.ResetFailed(ctx, systemd.EngineUnit(want.Assignment.Replica)); err != nil {
			return err
		}
	}
	var all error
	for _, u := range want.Units {
		if u.Name == systemd.DoorService(want.Assignment.Replica) {
			continue // the socket starts it
		}
		all = errors.Join(all, a.Units.Start(ctx, u.Name))
	}
	return all
}

// bring writes the order for a model's weights and starts the unit that carries it out. Files of the node it copies itself.
func (a *Agent) bring(ctx context.Context, want Want, tell func(levelrail.Progress)) error {
	as := want.Assignment
	dir := a.Paths.fetch(as.Model)
	token := ""
	if as.HubTokenSet {
		var err error
		if token, err = a.ControlPlane.HubToken(ctx, a.id.NodeID, as.Model); err == nil {
			err = checkHubToken(token)
		}
		if err != nil {
			return &tokenError{err}
		}
	}
	unit, spec, copied, err := a.order(want, token != "")
	if err != nil {
		return err
	}
	if copied {
		return a.store().Import(ctx, spec, a.Settings.importDirs(), tell)
	}
	if spec, err = a.store().Prepare(ctx, spec, a.Settings.importDirs(), tell); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, jobTime)
	defer cancel()
	b, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	if err := writeFile(filepath.Join(dir, fetch.SpecName), b, 0o600); err != nil {
		return err
	}
	if token != "" {
		path := filepath.Join(dir, fetch.TokenName)
		if err := writeFile(path, []byte(token), 0o600); err != nil {
			return err
		}
		defer remove(path) // systemd has given it to the process; a failed start asks for it again
	}
	text, err := systemd.Render(unit)
	if err != nil {
		return err
	}
	if err := a.writeFetch(ctx, unit.Name, text); err != nil {
		return err
	}
	if err := a.Units.ResetFailed(ctx, unit.Name); err != nil {
		return err
	}
	err = a.Units.Start(ctx, unit.Name)
	if job := (*units.JobError)(nil); errors.As(err, &job) {
		// The job of a fetch that fails at once may fail with it. The state file, which Prepare removed, tells that the process
		// has run, and has the reason: the next look judges by that.
		if said, read := fetch.ReadState(spec.Stage); read == nil && said.Key == spec.Key {
			return nil
		}
	}
	return err
}

// take checks what an ended fetch has brought and puts it in place.
func (a *Agent) take(ctx context.Context, want Want, tell func(levelrail.Progress)) error {
	_, spec, _, err := a.order(want, false)
	if err != nil {
		return err
	}
	return a.store().Take(ctx, spec, tell)
}

// every passes progress on at most three times a second, and whenever its phase changes.
func every(tell func(levelrail.Progress)) func(levelrail.Progress) {
	var last time.Time
	phase := ""
	return func(p levelrail.Progress) {
		if now := time.Now(); p.Phase != phase || now.Sub(last) >= 300*time.Millisecond {
			last, phase = now, p.Phase
			tell(p)
		}
	}
}

func (a *Agent) writeFetch(ctx context.Context, name, text string) error {
	a.reload.Lock()
	defer a.reload.Unlock()
	old, err := os.ReadFile(a.Paths.unit(name))
	if err == nil && string(old) == text {
		return nil
	}
	if err := writeFile(a.Paths.unit(name), []byte(text), 0o644); err != nil {
		return err
	}
	return a.Units.Reload(ctx)
}

// stopFetch ends a fetch. With abandon, what it had brought so far goes too; else another order may need it.
func (a *Agent) stopFetch(ctx context.Context, model string, abandon bool) error {
	if err := a.Units.Stop(ctx, systemd.FetchUnit(model)); err != nil {
		return err
	}
	if abandon {
		if err := a.store().Abandon(model); err != nil {
			return err
		}
	}
	return a.dropFetch(ctx, model)
}

// dropFetch removes the files of a fetch that has ended. systemd forgets the unit at the next reload, and a failed one only
// when it is told to.
func (a *Agent) dropFetch(ctx context.Context, model string) error {
	a.reload.Lock()
	defer a.reload.Unlock()
	return errors.Join(remove(a.Paths.unit(systemd.FetchUnit(model))), os.RemoveAll(a.Paths.fetch(model)), a.Units.ResetFailed(ctx, systemd.FetchUnit(model)))
}

// tokenError is a Hub token that is set and cannot be had.
type tokenError struct{ err error }

func (e *tokenError) Error() string { return "the Hub token cannot be had: " + e.err.Error() }
func (e *tokenError) Unwrap() error { return e.err }

// bringFailure is what the condition says when a fetch could not even begin.
func bringFailure(err error) *fetch.Failure {
	var t *tokenError
	if errors.As(err, &t) {
		f := &fetch.Failure{Reason: levelrail.HFTokenUnavailable, Message: "the Hub token of this model is set and cannot be had: " + t.err.Error(), Next: "set it again: HF_TOKEN=… levelrail models set-hf-token NAME"}
		var e *levelrail.Error
		if errors.As(err, &e) {
			f.Message = "the Hub token of this model is set and cannot be had: " + e.Message
			if e.Kind == levelrail.ErrUnavailable || e.Kind == levelrail.ErrTimeout {
				f.Reason, f.Next = levelrail.Downloading, "" // the server is away for a moment
			} else if e.Next != "" {
				f.Next = e.Next
			}
		}
		return f
	}
	next := "journalctl -u levelrail-agent has the details; it is tried again by itself"
	if job := (*units.JobError)(nil); errors.As(err, &job) {
		next = "journalctl -u " + job.Unit + " has the details; it is tried again by itself"
	}
	if f, ok := errors.AsType[*fetch.Failure](err); ok {
		return f
	}
	return &fetch.Failure{Reason: levelrail.DownloadFailed, Message: "the download could not be started: " + err.Error(), Next: next}
}
