// Package agenttest has what the agent talks to, in memory and with real state: a service manager that reads the unit
// files of a directory, a journal, and a control plane. Tests of the agent use it; it keeps to systemd's rules as far as
// the agent depends on them.
package agenttest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/levelrail/levelrail/agent/units"
)

// Units is a service manager over the unit files in Dir.
type Units struct {
	Dir string
	// OnStart runs when a service has been started, in a goroutine of its own: it is the process. For a service whose file
	// says Restart=no, its return is the end of the process: nil is success.
	OnStart func(ctx context.Context, unit string) error
	// EndsEarly makes a service with Restart=no end before its start job does, as one that fails at once may: systemd then
	// reports the job of a failed one as failed, although its process has run.
	EndsEarly bool

	mu      sync.Mutex
	units   map[string]*unit
	runs    int
	calls   []string
	refuse  map[string]error
	changes chan struct{}
	work    sync.WaitGroup
}

type unit struct {
	text   string // as it was read
	state  units.State
	cancel context.CancelFunc
	limit  bool // too many starts: refused until reset
}

// NewUnits returns a manager that has read nothing yet.
func NewUnits(dir string) *Units {
	return &Units{Dir: dir, units: map[string]*unit{}, refuse: map[string]error{}, changes: make(chan struct{}, 1)}
}

// Calls lists what was asked so far: "start UNIT", "stop UNIT", "reset UNIT", "clean UNIT", "reload".
func (u *Units) Calls() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return append([]string(nil), u.calls...)
}

// DropIns sets the drop-ins that are in force for a unit.
func (u *Units) DropIns(unit string, paths ...string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.units[unit].state.DropIns = paths
	u.changed()
}

// ForgetCalls empties the list.
func (u *Units) ForgetCalls() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.calls = nil
}

// Refuse makes jobs of a unit fail with an error, until it is given nil.
func (u *Units) Refuse(name string, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.refuse[name] = err
}

// Changes is the sign of a change.
func (u *Units) Changes() <-chan struct{} { return u.changes }

func (u *Units) changed() {
	select {
	case u.changes <- struct{}{}:
	default:
	}
}

// file reads a unit's file as it is now; absent files are not an error.
func (u *Units) file(name string) (text string, there bool) {
	b, err := os.ReadFile(filepath.Join(u.Dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return "", false
	}
	if err != nil {
		panic(err)
	}
	return string(b), true
}

// Reload reads the files of all units that are known, and forgets stopped ones without a file.
func (u *Units) Reload(context.Context) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.calls = append(u.calls, "reload")
	for name, x := range u.units {
		text, there := u.file(name)
		x.text = text
		switch {
		case there:
			x.state.Load = "loaded"
		case x.state.Running() || x.state.Failed():
			x.state.Load = "not-found"
		default:
			delete(u.units, name)
		}
	}
	u.changed()
	return nil
}

// Start starts a unit from the text that was read last; a unit that is not known is read first.
func (u *Units) Start(_ context.Context, name string) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.calls = append(u.calls, "start "+name)
	x := u.units[name]
	if x == nil {
		text, there := u.file(name)
		if !there {
			return fmt.Errorf("start %s: Unit %s not found", name, name)
		}
		x = &unit{text: text, state: units.State{Load: "loaded", Active: "inactive", Sub: "dead"}}
		u.units[name] = x
	}
	if err := u.refuse[name]; err != nil {
		return err
	}
	if x.limit {
		x.state.Result = "start-limit-hit"
		return &units.JobError{Verb: "start", Unit: name, Result: "failed"}
	}
	if !x.state.Running() {
		x.state.Restarts = 0
		if ended := u.run(name, x); ended != nil && u.EndsEarly {
			u.mu.Unlock()
			<-ended
			u.mu.Lock()
			if x.state.Failed() {
				u.changed()
				return &units.JobError{Verb: "start", Unit: name, Result: "failed"}
			}
		}
	}
	u.changed()
	return nil
}

// run begins a process. The lock is held. The channel is closed when a process that is not started again has ended, and is
// nil for all others.
func (u *Units) run(name string, x *unit) <-chan struct{} {
	u.runs++
	restarts := x.state.Restarts
	x.state = units.State{Load: "loaded", Active: "active", Sub: "running", Result: "success", Restarts: restarts, Changed: time.Now(), Entered: time.Now(), DropIns: x.state.DropIns}
	if strings.HasSuffix(name, ".socket") {
		x.state.Sub = "listening"
		return nil
	}
	x.state.MainPID, x.state.Invocation = 1000+u.runs, fmt.Sprintf("%032x", u.runs)
	if u.OnStart == nil {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	x.cancel = cancel
	run := x.state.Invocation
	once := strings.Contains(x.text, "\nRestart=no\n")
	ended := make(chan struct{})
	u.work.Go(func() {
		defer close(ended)
		err := u.OnStart(ctx, name)
		if !once {
			return
		}
		u.mu.Lock()
		defer u.mu.Unlock()
		if x.state.Invocation != run || !x.state.Running() {
			return
		}
		x.state.Active, x.state.Sub, x.state.MainPID, x.state.ExitCode, x.state.Changed = "inactive", "dead", 0, 1, time.Now()
		if err != nil {
			x.state.Active, x.state.Sub, x.state.Result, x.state.ExitStatus = "failed", "failed", "exit-code", 1
		}
		u.changed()
	})
	if !once {
		return nil
	}
	return ended
}

// Stop ends a unit's process.
func (u *Units) Stop(_ context.Context, name string) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.calls = append(u.calls, "stop "+name)
	if err := u.refuse[name]; err != nil {
		return err
	}
	x := u.units[name]
	if x == nil {
		return nil
	}
	if x.cancel != nil {
		x.cancel()
	}
	if !x.state.Failed() {
		x.state.Active, x.state.Sub = "inactive", "dead"
	}
	x.state.MainPID, x.state.Changed = 0, time.Now()
	u.changed()
	return nil
}

// ResetFailed clears a failure and the count of starts.
func (u *Units) ResetFailed(_ context.Context, name string) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.calls = append(u.calls, "reset "+name)
	if x := u.units[name]; x != nil {
		x.limit = false
		x.state.Restarts = 0
		if x.state.Failed() {
			x.state.Active, x.state.Sub, x.state.Result = "inactive", "dead", "success"
		}
	}
	return nil
}

// Clean notes that a cache was removed.
func (u *Units) Clean(_ context.Context, name string) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.calls = append(u.calls, "clean "+name)
	return nil
}

// States tells the states of units.
func (u *Units) States(_ context.Context, names []string) (map[string]units.State, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	all := map[string]units.State{}
	for _, n := range names {
		text, there := u.file(n)
		switch x := u.units[n]; {
		case x != nil:
			s := x.state
			s.NeedReload = there && text != x.text
			all[n] = s
		case there:
			all[n] = units.State{Load: "loaded", Active: "inactive", Sub: "dead"}
		default:
			all[n] = units.State{Load: "not-found", Active: "inactive", Sub: "dead"}
		}
	}
	return all, nil
}

// Crash ends a unit's process as if by itself. systemd will start it again, see Again, unless giveUp: then it has reached
// its limit of starts.
func (u *Units) Crash(name string, status int, giveUp bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	x := u.units[name]
	if x.cancel != nil {
		x.cancel()
	}
	x.state.MainPID, x.state.ExitCode, x.state.ExitStatus, x.state.Changed = 0, 1, status, time.Now()
	x.state.Result = "exit-code"
	x.state.Active, x.state.Sub = "activating", "auto-restart"
	if giveUp {
		x.state.Active, x.state.Sub, x.limit = "failed", "failed", true
	}
	u.changed()
}

// Again is systemd's own restart of a crashed unit.
func (u *Units) Again(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	x := u.units[name]
	x.state.Restarts++
	u.run(name, x)
	u.changed()
}

// State is a unit's state; zero for one that is not known.
func (u *Units) State(name string) units.State {
	u.mu.Lock()
	defer u.mu.Unlock()
	if x := u.units[name]; x != nil {
		return x.state
	}
	return units.State{}
}

// Text is the unit's text as it was read last.
func (u *Units) Text(name string) string {
	u.mu.Lock()
	defer u.mu.Unlock()
	if x := u.units[name]; x != nil {
		return x.text
	}
	return ""
}

// Reboot ends everything and starts what the directory's levelrail-engines.target.wants names.
func (u *Units) Reboot() {
	u.mu.Lock()
	for _, x := range u.units {
		if x.cancel != nil {
			x.cancel()
		}
	}
	u.units = map[string]*unit{}
	u.mu.Unlock()
	links, err := filepath.Glob(filepath.Join(u.Dir, "levelrail-engines.target.wants", "*"))
	if err != nil {
		panic(err)
	}
	for _, l := range links {
		if _, err := os.Stat(l); err != nil {
			continue // a link to nowhere
		}
		if err := u.Start(context.Background(), filepath.Base(l)); err != nil {
			panic(err)
		}
	}
}

// Close ends all processes and waits for them.
func (u *Units) Close() {
	u.mu.Lock()
	for _, x := range u.units {
		if x.cancel != nil {
			x.cancel()
		}
	}
	u.mu.Unlock()
	u.work.Wait()
}
