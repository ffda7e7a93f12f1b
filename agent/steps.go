package agent

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/levelrail/levelrail/agent/fetch"
	"github.com/levelrail/levelrail/systemd"
)

// World is what the agent decides from: what is wanted, and what is there.
type World struct {
	Synced  bool // the control plane has said everything once
	Now     time.Time
	Want    map[string]Want  // by replica
	Have    map[string]Have  // by replica
	Fetches map[string]Fetch // by model
}

// Step is one thing to do, with its reason, which is what the log prints.
type Step struct {
	Do  Verb
	Who string // the replica, or for fetches the model
	Why string
}

// Verb is a kind of step.
type Verb string

// The kinds of step. Each ends in a state from which the next look decides the next one.
const (
	Stop      Verb = "stop"       // the engine and its door, to start something else in their place
	Retire    Verb = "retire"     // stop them for good: they do not come back at boot either; files stay
	Remove    Verb = "remove"     // files of what is stopped; weights stay
	StopFetch Verb = "stop fetch" // and remove what it left
	DropFetch Verb = "drop fetch" // the files of a fetch that is done
	Bring     Verb = "fetch"      // begin to bring the weights
	Take      Verb = "take in"    // check what was brought, and put it in place
	GiveUp    Verb = "give up"    // what is being copied or checked
	Write     Verb = "write"      // unit files, without touching what runs
	Start     Verb = "start"      // write what differs, and start
	Open      Verb = "open"       // the door of an engine that runs
)

// steps returns what turns have into want, one step a replica and one a model, stops first so that a start finds its GPU
// memory free. What has a step on its way gets no other. An engine that runs is stopped only when the hash of what
// decides its process differs; changes by hand to its file are left alone until then.
func steps(w World) []Step {
	if !w.Synced {
		return nil
	}
	var stops, rest []Step
	waiting := false // something that may hold GPU memory is not down yet
	for _, r := range keys(w.Want, w.Have) {
		want, wanted := w.Want[r]
		have := w.Have[r]
		running := have.Engine.Running()
		anything := running || have.Socket.Running() || have.Door.Running() // a door may be open without its engine
		file, written := have.Files[systemd.EngineUnit(r)]
		stop := func(do Verb, why string) {
			waiting = true
			if !have.Busy {
				stops = append(stops, Step{do, r, why})
			}
		}
		switch {
		case !wanted && anything:
			stop(Retire, "it is no longer assigned to this node")
		case !wanted && !have.Busy && (len(have.Files) > 0 || have.Applied != nil):
			rest = append(rest, Step{Remove, r, "it is no longer assigned to this node"})
		case !wanted:
		case !want.Assignment.Run && (anything || have.Enabled):
			stop(Retire, "it is to be asleep")
		case !want.Assignment.Run || want.Lack != nil || want.Missing != "":
			// Nothing to do here: what runs goes on running until it can be replaced.
		case running && hashOf(file, written, have) != want.Hash:
			stop(Stop, difference(want, file, written))
		case have.Busy:
		case running:
			rest = append(rest, repair(want, have)...)
		case want.Hash == heldHash(file, have) && w.Now.Before(have.Hold):
		default:
			rest = append(rest, Step{Start, r, startReason(want, have, written)})
		}
	}
	if waiting {
		rest = slices.DeleteFunc(rest, func(s Step) bool { return s.Do == Start && len(w.Want[s.Who].Assignment.Devices) > 0 })
	}
	fetchStops, fetchRest := fetchSteps(w)
	return slices.Concat(stops, fetchStops, rest, fetchRest)
}

// hashOf is the hash of what runs. When its file was deleted by hand, the agent's own note says.
func hashOf(file File, written bool, have Have) string {
	if written {
		return file.Marks.Hash
	}
	if have.Applied != nil {
		return have.Applied.Hash
	}
	return ""
}

// heldHash is the hash that Hold is about: a new spec is tried at once.
func heldHash(file File, have Have) string {
	if have.Applied != nil {
		return have.Applied.Hash
	}
	return file.Marks.Hash
}

func difference(want Want, file File, written bool) string {
	a := want.Assignment
	switch {
	case !written:
		return "its unit file is gone and nothing tells what it runs"
	case file.Marks.Revision != a.Revision:
		return fmt.Sprintf("revision %d replaces revision %d", a.Revision, file.Marks.Revision)
	case file.Marks.Restarts != a.Restarts:
		return "a restart was asked for"
	}
	return "what it was given has changed"
}

func startReason(want Want, have Have, written bool) string {
	switch {
	case !written:
		return fmt.Sprintf("it is assigned to this node (revision %d)", want.Assignment.Revision)
	case have.Engine.Failed():
		return "systemd has given up on it; trying again"
	}
	return "it is not running"
}

// repair mends what stands around an engine that runs the right thing.
func repair(want Want, have Have) []Step {
	r := want.Assignment.Replica
	for _, u := range want.Units {
		f, there := have.Files[u.Name]
		switch {
		case !there:
			return []Step{{Write, r, "the file of " + u.Name + " is gone"}}
		case f.Marks.Revision != want.Assignment.Revision:
			return []Step{{Write, r, fmt.Sprintf("revision %d changes nothing of the process", want.Assignment.Revision)}}
		}
	}
	switch {
	case !have.Enabled:
		return []Step{{Write, r, "it would not come back at boot"}}
	case len(want.Units) > 1 && !have.Socket.Running() && have.Engine.Up():
		return []Step{{Open, r, "its door is closed"}}
	}
	return nil
}

// fetchSteps decides about the weights of each model.
func fetchSteps(w World) (stops, rest []Step) {
	type need struct {
		wanted bool // a replica of it is assigned
		run    bool // and shall run
		key    string
		why    string
		origin string // of its weights
	}
	needs := map[string]need{}
	for _, r := range slices.Sorted(maps.Keys(w.Want)) {
		want := w.Want[r]
		n := needs[want.Assignment.Model]
		n.wanted = true
		n.run = n.run || want.Assignment.Run
		if n.key == "" && want.Assignment.Run && want.Lack == nil && want.Missing != "" {
			n.key, n.why, n.origin = want.FetchKey, want.Missing, origin(want)
		}
		needs[want.Assignment.Model] = n
	}
	bringing := map[string]bool{} // origins; whoever wants the same files waits, and then finds them
	for m, f := range w.Fetches {
		if n := needs[m]; n.key != "" && f.Key == n.key && (f.State.Running() || f.Busy || f.finished()) {
			bringing[n.origin] = true
		}
	}
	for _, m := range keys(needs, w.Fetches) {
		n, f := needs[m], w.Fetches[m]
		running := f.State.Running()
		switch {
		case f.Busy && f.Long && !n.run:
			stops = append(stops, Step{GiveUp, m, "the model is not to run on this node any more"})
		case f.Busy && f.Long && n.key != "" && f.Key != n.key:
			stops = append(stops, Step{GiveUp, m, "something else is to be fetched"})
		case f.Busy:
		case !n.run && (running || f.There):
			why := "the model is no longer assigned to this node"
			if n.wanted {
				why = "the model is to be asleep"
			}
			stops = append(stops, Step{StopFetch, m, why})
		case n.key == "" && running:
			// A lack came up, or another hand finished the set: the fetch ends by itself.
		case n.key == "" && f.There && n.run:
			if complete(w, m) {
				rest = append(rest, Step{DropFetch, m, "the weights are there"})
			}
		case n.key == "":
		case running && f.Key != n.key:
			stops = append(stops, Step{StopFetch, m, "something else is to be fetched"})
		case running:
		case f.Key == n.key && f.finished():
			rest = append(rest, Step{Take, m, "the fetch is done"})
		case f.Key == n.key && w.Now.Before(f.Hold):
		case bringing[n.origin]:
		default:
			bringing[n.origin] = true
			rest = append(rest, Step{Bring, m, n.why})
		}
	}
	return stops, rest
}

// finished tells that a fetch has brought what its order asks for.
func (f Fetch) finished() bool {
	return !f.State.Running() && f.Known && f.Said.Key == f.Key && f.Said.Step == fetch.Done
}

// origin names where a want's weights come from: the same origin, the same files.
func origin(want Want) string {
	spec := want.Assignment.Spec
	return spec.Engine + " " + spec.Source + " " + spec.SourceCommit
}

// complete tells that every replica of a model has its weights.
func complete(w World, model string) bool {
	for _, want := range w.Want {
		if want.Assignment.Model == model && want.Missing != "" {
			return false
		}
	}
	return true
}

// keys are the keys of two maps, sorted, so that the same world gives the same steps.
func keys[A, B any](a map[string]A, b map[string]B) []string {
	all := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(all)
	return slices.Compact(all)
}
