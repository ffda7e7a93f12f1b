package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/agent/fetch"
	"github.com/levelrail/levelrail/agent/units"
	"github.com/levelrail/levelrail/systemd"
)

// adopt takes over what runs: it looks, and changes nothing.
func (a *Agent) adopt(ctx context.Context, s *state) error {
	for {
		err := a.observe(ctx, s)
		if err == nil {
			break
		}
		a.Log.Warn("cannot look at the units", "error", err)
		pause(ctx, time.Second)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	for r, h := range s.have {
		if h.Engine.Up() { // what happened before this agent is not this agent's to judge
			s.track(r).served = h.Engine.Restarts
		}
		a.Log.Info("adopted", "replica", r, "unit", systemd.EngineUnit(r), "state", h.Engine.String(), "pid", h.Engine.MainPID)
	}
	return nil
}

// lookTime bounds one look at all units.
const lookTime = 15 * time.Second

// observe looks at the unit files with the agent's mark, at what systemd says of them, and at the weights.
func (a *Agent) observe(ctx context.Context, s *state) error {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	have, fetches, err := a.files()
	if err != nil {
		return err
	}
	applied, err := a.readApplied()
	if err != nil {
		return err
	}
	for r, ap := range applied {
		h := have[r]
		h.Applied = ap
		have[r] = h
	}
	for r := range s.assignments { // there may be a unit without its file
		if _, there := have[r]; !there {
			have[r] = Have{}
		}
	}
	var names []string
	for r := range have {
		names = append(names, systemd.EngineUnit(r), systemd.DoorSocket(r), systemd.DoorService(r))
	}
	for m := range fetches {
		names = append(names, systemd.FetchUnit(m))
	}
	states := map[string]units.State{}
	if len(names) > 0 {
		if states, err = a.Units.States(ctx, names); err != nil {
			return err
		}
	}
	now := time.Now()
	for r, h := range have {
		h.Replica = r
		h.Engine, h.Socket, h.Door = states[systemd.EngineUnit(r)], states[systemd.DoorSocket(r)], states[systemd.DoorService(r)]
		_, err := os.Lstat(a.Paths.wants(systemd.EngineUnit(r)))
		h.Enabled = err == nil
		t := s.track(r)
		h.Busy = t.busy != ""
		a.backOff(t, h, now)
		h.Hold = t.hold
		have[r] = h
	}
	for m, f := range fetches {
		f.State = states[systemd.FetchUnit(m)]
		said, err := fetch.ReadState(a.store().Stage(m))
		if err != nil { // one that an agent of an earlier version began
			said, err = fetch.ReadState(a.Paths.fetch(m))
		}
		f.Known, f.Said = err == nil, said
		o := s.order(m)
		f.Busy, f.Long = o.busy != "", o.cancel != nil
		f.Key = o.key
		if f.Key == "" { // begun by an earlier agent
			f.Key = said.Key
		}
		a.holdOff(o, f, now)
		f.Hold = o.hold
		fetches[m] = f
	}
	for m, o := range s.orders { // a fetch that could not even begin
		if _, ok := fetches[m]; !ok && (o.busy != "" || o.err != nil) {
			fetches[m] = Fetch{Key: o.key, Busy: o.busy != "", Long: o.cancel != nil, Hold: o.hold}
		}
	}
	s.have, s.fetches = have, fetches
	if s.sets, err = a.store().Sets(); err != nil {
		return err
	}
	s.forget()
	return nil
}

// forget drops what is remembered of replicas and models that are no longer there.
func (s *state) forget() {
	for r, t := range s.tracks {
		_, have := s.have[r]
		_, want := s.assignments[r]
		if !have && !want && t.busy == "" {
			t.probe.stop()
			delete(s.tracks, r)
		}
	}
	models := map[string]bool{}
	for _, as := range s.assignments {
		models[as.Model] = true
	}
	for m, o := range s.orders {
		if !models[m] && !s.fetches[m].There && o.busy == "" {
			delete(s.orders, m)
			delete(s.fetches, m)
		}
	}
}

// files reads the unit files of this agent: those with its mark, whatever their name.
func (a *Agent) files() (map[string]Have, map[string]Fetch, error) {
	have, fetches := map[string]Have{}, map[string]Fetch{}
	entries, err := os.ReadDir(a.Paths.Units)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("list the unit files: %w", err)
	}
	for _, e := range entries {
		// The name only saves reading other files; what counts is the mark.
		if !e.Type().IsRegular() || !strings.HasPrefix(e.Name(), "levelrail-") {
			continue
		}
		b, err := os.ReadFile(a.Paths.unit(e.Name()))
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			return nil, nil, err
		}
		marks, ours, intact := systemd.Read(string(b))
		if !ours {
			continue
		}
		switch {
		case e.Name() == systemd.FetchUnit(marks.Model):
			f := fetches[marks.Model]
			f.There = true
			fetches[marks.Model] = f
		case e.Name() == systemd.EngineUnit(marks.Replica), e.Name() == systemd.DoorSocket(marks.Replica), e.Name() == systemd.DoorService(marks.Replica):
			h := have[marks.Replica]
			if h.Files == nil {
				h.Files = map[string]File{}
			}
			h.Files[e.Name()] = File{Marks: marks, Text: string(b), Intact: intact}
			have[marks.Replica] = h
		}
	}
	dirs, err := filepath.Glob(filepath.Join(a.Paths.Run, "fetch-*"))
	if err != nil {
		return nil, nil, err
	}
	for _, d := range dirs {
		m := strings.TrimPrefix(filepath.Base(d), "fetch-")
		f := fetches[m]
		f.There = true
		fetches[m] = f
	}
	staged, err := a.store().Staged()
	if err != nil {
		return nil, nil, err
	}
	for _, m := range staged {
		f := fetches[m]
		f.There = true
		fetches[m] = f
	}
	return have, fetches, nil
}

// readApplied reads what each replica's unit was written from.
func (a *Agent) readApplied() (map[string]*Applied, error) {
	paths, err := filepath.Glob(a.Paths.applied("*"))
	if err != nil {
		return nil, err
	}
	all := map[string]*Applied{}
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			return nil, err
		}
		var ap Applied
		if err := json.Unmarshal(b, &ap); err != nil {
			return nil, fmt.Errorf("read %s: %w", p, err)
		}
		all[strings.TrimSuffix(filepath.Base(p), ".json")] = &ap
	}
	return all, nil
}

// How long the agent waits before it starts again what systemd has given up on.
const (
	startPause = time.Minute
	startMost  = 5 * time.Minute
)

// backOff notes when a unit that systemd has given up on may be started again.
func (a *Agent) backOff(t *track, h Have, now time.Time) {
	if h.Applied == nil || !h.Engine.Failed() || t.busy != "" {
		return
	}
	// Once per failure: the run and its count name it.
	id := fmt.Sprint(h.Applied.Hash, h.Engine.Invocation, h.Engine.Changed.UnixMicro())
	if t.holdFor == id {
		return
	}
	t.holdFor = id
	t.tries++
	t.hold = now.Add(min(startPause<<min(t.tries-1, 8), startMost))
}

// fetchPause is how long the agent waits before it tries a failed fetch again.
const fetchPause = 30 * time.Second

// holdOff notes when a fetch that has ended may be tried again.
func (a *Agent) holdOff(o *order, f Fetch, now time.Time) {
	if !f.There || f.State.Running() || o.busy != "" {
		return
	}
	id := fmt.Sprint(f.Key, f.Said.Step, f.Said.At.UnixNano(), f.State.Changed.UnixMicro(), f.State.Invocation)
	if o.seen == id {
		return
	}
	o.seen = id
	wait := fetchPause
	switch {
	case !f.Known || f.Said.Key != f.Key || f.Said.Step == fetch.Running:
		// It was killed, or never came so far: go on where it was.
		o.tries++
		wait = min(time.Second<<min(o.tries, 5), fetchPause)
	case f.Said.Failure != nil:
		o.tries = 0
		if r := time.Duration(f.Said.Failure.RetryAfter); r > 0 {
			wait = r
		}
	default:
		o.tries = 0
	}
	o.hold = now.Add(wait)
}

// weights are the sets on this node, for the report.
func (s *state) weights(node string) []levelrail.Weights {
	if s.storeLack != nil {
		return nil // that says nothing about the sets
	}
	all := []levelrail.Weights{}
	for _, m := range keys(s.sets, map[string]int{}) {
		all = append(all, s.sets[m].Weights(node, m))
	}
	return all
}
