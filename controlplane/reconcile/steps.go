package reconcile

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/controlplane/ledger"
	"github.com/levelrail/levelrail/raftstore/command"
)

// Abandoned is how long a node may be silent before the models that are being deleted there are forgotten. The agent takes
// their engines down when it comes back, since it is then told that they are not wanted.
const Abandoned = 5 * time.Minute

// lastUsedCoarse is how far a set's last use may move before it is stored again.
const lastUsedCoarse = 24 * time.Hour

// Step is one command and why it is wanted.
type Step struct {
	Why     string
	Command command.Command
}

// Steps returns what has to be done now, in order; none when all is as wanted. newID mints an id with a prefix. A
// command.ReplicaPlace comes without its engine's key, which the caller mints and seals at the path that the replica names.
func Steps(d *Desired, o ledger.Snapshot, newID func(prefix string) string) []Step {
	var steps []Step
	add := func(c command.Command, format string, args ...any) {
		steps = append(steps, Step{Why: fmt.Sprintf(format, args...), Command: c})
	}
	nodeSteps(d, o, add)
	// Reservations of models that are going stay until their engines are gone, so deletions free GPUs for the next pass.
	for _, m := range d.Models {
		if m.Deleting {
			deleteSteps(d, o, m, add)
		}
	}
	taken := map[string]held{}
	for _, m := range oldestFirst(d.Models) {
		if !m.Deleting {
			modelSteps(d, o, m, newID, taken, add)
		}
	}
	weightsSteps(d, o, add)
	jobSteps(d, o, add)
	return steps
}

type adder = func(c command.Command, format string, args ...any)

// oldestFirst is the order in which models are placed: whoever waits longest comes first.
func oldestFirst(models []levelrail.Model) []levelrail.Model {
	out := slices.Clone(models)
	slices.SortStableFunc(out, func(a, b levelrail.Model) int { return a.Stamp.CreatedAt.Compare(b.Stamp.CreatedAt) })
	return out
}

// nodeSteps records devices that have come, gone or changed.
func nodeSteps(d *Desired, o ledger.Snapshot, add adder) {
	for _, id := range slices.Sorted(maps.Keys(d.Nodes)) {
		n := d.Nodes[id]
		report, heard := o.Nodes[id]
		if !heard || !report.Online || len(n.Devices) == 0 && len(report.Devices) == 0 || reflect.DeepEqual(n.Devices, report.Devices) {
			continue
		}
		before := len(n.Devices)
		n.Devices = report.Devices
		add(command.NodePut{Node: n}, "the node %s reports other devices: %d, before %d", n.Name, len(report.Devices), before)
	}
}

// deleteSteps forgets a model once its engines are gone.
func deleteSteps(d *Desired, o ledger.Snapshot, m levelrail.Model, add adder) {
	left := 0
	for _, r := range d.ReplicasOf(m.Name) {
		why, gone := d.gone(o, m, r)
		if !gone {
			left++
			continue
		}
		add(command.ReplicaRemove{ID: r.ID}, "the model %s is being deleted, and %s", m.Name, why)
	}
	if left == 0 {
		add(command.ModelRemove{Name: m.Name}, "the model %s is being deleted, and none of its replicas is left", m.Name)
	}
}

// gone tells whether the engine of a replica that is not wanted any more has been taken down: its node says so with a
// report that came after the deletion, or there is no such node, or it has been silent for so long that it is not waited
// for.
func (d *Desired) gone(o ledger.Snapshot, m levelrail.Model, r levelrail.Replica) (why string, gone bool) {
	node, known := d.Nodes[r.Shards[0].NodeID]
	if !known {
		return "its node has left the cluster", true
	}
	status, report, heard := Observe(o, r)
	switch last := report.ReceivedAt; {
	case heard && report.Online:
		return "the node " + node.Name + " has taken it down", status == nil && last.After(m.Stamp.UpdatedAt)
	case !heard:
		last = o.Since
		fallthrough
	default:
		return "the node " + node.Name + " has been silent for long", o.Now.Sub(last) > Abandoned
	}
}

// modelSteps places a model, and brings its replica to the wanted revision and count of restarts.
func modelSteps(d *Desired, o ledger.Snapshot, m levelrail.Model, newID func(string) string, taken map[string]held, add adder) {
	replicas := d.ReplicasOf(m.Name)
	if len(replicas) == 0 {
		spec := d.Spec(m.Name, m.Revision)
		p, v := d.place(o, m, spec, levelrail.Replica{}, taken)
		if v != nil {
			return
		}
		promise(taken, p, m)
		res := levelrail.Reservation{ID: newID("res"), For: "model:" + m.Name, Want: spec.GPUs, NodeID: p.node.ID, Devices: p.devices, Owner: m.Owner}
		id := levelrail.ReplicaID(m.Name, 0)
		add(command.ReplicaPlace{
			Replica: levelrail.Replica{ID: id, Model: m.Name, Revision: m.Revision, Restarts: m.Restarts, Run: true, Owner: m.Owner,
				Shards:    []levelrail.Shard{{NodeID: p.node.ID, ReservationID: res.ID, Devices: p.devices}},
				EngineKey: levelrail.SecretRef{Path: "replicas/" + id + "/engine-key"}},
			Reservations: []levelrail.Reservation{res},
		}, "the model %s has no replica, and the node %s has room on %s", m.Name, p.node.Name, devicesText(p.devices))
		return
	}
	r := replicas[0]
	if r.Revision == m.Revision && r.Restarts >= m.Restarts {
		return
	}
	why := fmt.Sprintf("the model %s is restarted", m.Name)
	var reservations []levelrail.Reservation
	if r.Revision != m.Revision {
		why = fmt.Sprintf("the model %s wants revision %d", m.Name, m.Revision)
		p, v := d.reserve(o, m, r, taken)
		if v != nil {
			if r.Restarts >= m.Restarts {
				return
			}
			why = fmt.Sprintf("the model %s is restarted", m.Name) // the revision that it can have, meanwhile
		} else {
			if p != nil {
				promise(taken, *p, m)
				res := levelrail.Reservation{ID: newID("res"), For: "model:" + m.Name, Want: d.Spec(m.Name, m.Revision).GPUs, NodeID: p.node.ID, Devices: p.devices, Owner: m.Owner}
				reservations = []levelrail.Reservation{res}
				r.Shards = []levelrail.Shard{{NodeID: p.node.ID, ReservationID: res.ID, Devices: p.devices}}
				why += " on " + devicesText(p.devices)
			}
			r.Revision = m.Revision
		}
	}
	r.Restarts = m.Restarts
	add(command.ReplicaPut{Replica: r, Reservations: reservations}, "%s", why)
}

// reserve finds the devices for the wanted revision of a placed model, on the node where it is. Nil without a verdict: it
// asks for the same as before and keeps what it has.
func (d *Desired) reserve(o ledger.Snapshot, m levelrail.Model, r levelrail.Replica, taken map[string]held) (*placement, *verdict) {
	spec := d.Spec(m.Name, m.Revision)
	if reflect.DeepEqual(spec.GPUs, d.Reservations[r.Shards[0].ReservationID].Want) {
		return nil, nil
	}
	m.NodeID = r.Shards[0].NodeID
	p, v := d.place(o, m, spec, r, taken)
	return &p, v
}

func promise(taken map[string]held, p placement, m levelrail.Model) {
	if taken[p.node.ID] == nil {
		taken[p.node.ID] = held{}
	}
	for _, uuid := range p.devices {
		taken[p.node.ID][uuid] = "model:" + m.Name
	}
}

func devicesText(devices []string) string {
	switch len(devices) {
	case 0:
		return "the CPU"
	case 1:
		return "1 GPU"
	}
	return fmt.Sprintf("%d GPUs", len(devices))
}

// weightsSteps records which sets of weights lie where. A report without a list says nothing about sets.
func weightsSteps(d *Desired, o ledger.Snapshot, add adder) {
	next := map[string]levelrail.Weights{}
	look := func(id string) (levelrail.Weights, bool) {
		if w, ok := next[id]; ok {
			return w, true
		}
		w, ok := d.Weights[id]
		w.Nodes = slices.Clone(w.Nodes)
		return w, ok
	}
	for _, nodeID := range slices.Sorted(maps.Keys(o.Nodes)) {
		if _, known := d.Nodes[nodeID]; !known || !o.Nodes[nodeID].Online || o.Nodes[nodeID].Weights == nil {
			continue
		}
		here := map[string][]levelrail.WeightsNode{}
		for _, w := range o.Nodes[nodeID].Weights {
			if w.ID == "" || w.Source == "" {
				continue
			}
			places := slices.DeleteFunc(slices.Clone(w.Nodes), func(n levelrail.WeightsNode) bool { return n.NodeID != nodeID && n.NodeID != "" })
			if len(places) == 0 {
				places = []levelrail.WeightsNode{{}}
			}
			for i := range places {
				places[i].NodeID = nodeID
			}
			here[w.ID] = append(here[w.ID], places...)
			old, there := look(w.ID)
			if !there {
				old = levelrail.Weights{ID: w.ID, Source: w.Source, Commit: w.Commit, Files: w.Files, LastUsed: w.LastUsed, Owner: levelrail.DefaultOwner}
			}
			if w.LastUsed.Sub(old.LastUsed) > lastUsedCoarse {
				old.LastUsed = w.LastUsed
			}
			if len(w.Files) > 0 {
				old.Files = w.Files
			}
			next[w.ID] = old
		}
		for _, id := range union(slices.Collect(maps.Keys(d.Weights)), slices.Collect(maps.Keys(next))) {
			w, _ := look(id)
			w.Nodes = slices.DeleteFunc(w.Nodes, func(n levelrail.WeightsNode) bool { return n.NodeID == nodeID })
			w.Nodes = append(w.Nodes, here[id]...)
			slices.SortFunc(w.Nodes, func(a, b levelrail.WeightsNode) int {
				if a.NodeID != b.NodeID {
					return compare(a.NodeID, b.NodeID)
				}
				return compare(a.Model, b.Model)
			})
			w.Nodes = slices.Compact(w.Nodes)
			next[id] = w
		}
	}
	for _, id := range slices.Sorted(maps.Keys(next)) {
		w := next[id]
		old, there := d.Weights[id]
		switch {
		case len(w.Nodes) == 0:
			if there {
				add(command.WeightsRemove{ID: id}, "the weights %s lie on no node any more", id)
			}
		case !there || !sameWeights(old, w):
			add(command.WeightsPut{Weights: w}, "the weights %s lie in %d places", id, len(w.Nodes))
		}
	}
}

func sameWeights(a, b levelrail.Weights) bool {
	return slices.Equal(a.Nodes, b.Nodes) && slices.Equal(a.Files, b.Files) && a.LastUsed.Equal(b.LastUsed)
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func union(a, b []string) []string {
	out := append(a, b...)
	slices.Sort(out)
	return slices.Compact(out)
}

// jobSteps ends jobs whose work is done, or waits for somebody.
func jobSteps(d *Desired, o ledger.Snapshot, add adder) {
	for _, j := range d.Jobs {
		if j.State != levelrail.JobRunning {
			continue
		}
		finish := func(state levelrail.JobState, reason levelrail.Reason, message string) {
			add(command.JobFinish{ID: j.ID, State: state, Reason: reason, Message: message}, "the job %s of %s has ended: %s", j.Action, j.Model, state)
		}
		m, there := d.Model(j.Model)
		switch {
		case j.Action == "delete":
			if !there {
				finish(levelrail.JobDone, "", "")
			}
		case !there || m.Deleting:
			finish(levelrail.JobFailed, "", "the model was deleted meanwhile")
		case j.Revision > 0 && m.Revision > j.Revision:
			finish(levelrail.JobFailed, "", fmt.Sprintf("revision %d took its place before it was loaded", m.Revision))
		default:
			c := Status(d, o, m)
			switch {
			case c.Ready, c.Reason == levelrail.Idle:
				finish(levelrail.JobDone, "", "")
			case c.Reason.NeedsPerson():
				finish(levelrail.JobFailed, c.Reason, c.Message)
			}
		}
	}
}
