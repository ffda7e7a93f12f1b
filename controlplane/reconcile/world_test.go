package reconcile

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/controlplane/ledger"
)

// t0 is when everything in these tests began.
var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// world builds the input of decisions in a few words.
type world struct {
	d   Desired
	o   ledger.Snapshot
	ids int
}

func newWorld() *world {
	return &world{
		d: Desired{Nodes: map[string]levelrail.Node{}, Revisions: map[string]levelrail.Revision{}, Reservations: map[string]levelrail.Reservation{}, Weights: map[string]levelrail.Weights{}},
		o: ledger.Snapshot{Since: t0, Now: t0.Add(time.Hour), Nodes: map[string]ledger.NodeReport{}},
	}
}

func (w *world) newID(prefix string) string { w.ids++; return fmt.Sprintf("%s_%d", prefix, w.ids) }

// node adds a local node that reports some GPUs.
func (w *world) node(id string, gpus int) *world {
	n := levelrail.Node{ID: id, Name: "name-of-" + id, Local: true, Stamp: levelrail.Stamp{CreatedAt: t0}}
	r := ledger.NodeReport{Online: true, ReceivedAt: w.o.Now.Add(-time.Second)}
	for i := range gpus {
		n.Devices = append(n.Devices, levelrail.Device{UUID: fmt.Sprintf("GPU-%d", i), Index: i, Kind: "card"})
	}
	slices.Reverse(n.Devices) // a driver may list them in any order
	r.NodeID, r.Devices = id, n.Devices
	w.d.Nodes[id], w.o.Nodes[id] = n, r
	return w
}

func (w *world) report(node string, change func(*ledger.NodeReport)) *world {
	r := w.o.Nodes[node]
	change(&r)
	w.o.Nodes[node] = r
	return w
}

// model adds a model whose revision 1 asks for GPUs, made so many minutes after t0.
func (w *world) model(name string, minute int, gpus levelrail.GPURequest, change ...func(*levelrail.Model)) *world {
	at := t0.Add(time.Duration(minute) * time.Minute)
	m := levelrail.Model{Name: name, Revision: 1, Owner: levelrail.DefaultOwner, Stamp: levelrail.Stamp{CreatedAt: at, UpdatedAt: at}}
	for _, c := range change {
		c(&m)
	}
	w.d.Models = append(w.d.Models, m)
	slices.SortFunc(w.d.Models, func(a, b levelrail.Model) int { return strings.Compare(a.Name, b.Name) })
	return w.revision(name, 1, gpus)
}

func (w *world) revision(name string, number int, gpus levelrail.GPURequest) *world {
	w.d.Revisions[levelrail.RevisionID(name, number)] = levelrail.Revision{Model: name, Number: number, Spec: levelrail.ModelSpec{Engine: "llamacpp", Source: "x", GPUs: gpus}}
	return w
}

// replica places a model's revision 1 on devices of a node.
func (w *world) replica(model, node string, want levelrail.GPURequest, devices ...string) *world {
	id := w.newID("res")
	w.d.Reservations[id] = levelrail.Reservation{ID: id, For: "model:" + model, Want: want, NodeID: node, Devices: devices}
	w.d.Replicas = append(w.d.Replicas, levelrail.Replica{ID: model, Model: model, Revision: 1, Run: true,
		Shards: []levelrail.Shard{{NodeID: node, ReservationID: id, Devices: devices}}, EngineKey: levelrail.SecretRef{Path: "replicas/" + model + "/engine-key"},
		Stamp: levelrail.Stamp{CreatedAt: t0, UpdatedAt: t0.Add(10 * time.Minute)}})
	return w
}

// says adds a replica's status to its node's report.
func (w *world) says(node, replica string, revision int, c levelrail.Condition) *world {
	if c.Since.IsZero() {
		c.Since = t0.Add(20 * time.Minute)
	}
	return w.report(node, func(r *ledger.NodeReport) {
		r.Replicas = append(r.Replicas, wire.ReplicaStatus{Replica: replica, Model: replica, Revision: revision, Condition: c})
	})
}

func (w *world) steps() []string {
	var out []string
	for _, s := range Steps(&w.d, w.o, w.newID) {
		out = append(out, fmt.Sprintf("%s: %s", s.Command.Kind(), s.Why))
	}
	return out
}

func (w *world) status(name string) levelrail.Condition {
	m, _ := w.d.Model(name)
	return Status(&w.d, w.o, m)
}

var (
	none   = levelrail.GPURequest{Mode: levelrail.GPUNone}
	unset  = levelrail.GPURequest{}
	all    = levelrail.GPURequest{Mode: levelrail.GPUAll}
	loaded = levelrail.Condition{Ready: true, Reason: levelrail.ModelLoaded}
)

func count(n int) levelrail.GPURequest {
	return levelrail.GPURequest{Mode: levelrail.GPUCount, Count: n}
}

func devices(ids ...string) levelrail.GPURequest {
	return levelrail.GPURequest{Mode: levelrail.GPUDevices, Devices: ids}
}
