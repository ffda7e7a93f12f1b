// Package reconcile decides what has to happen so that what was asked for comes about: it takes what is stored and what
// nodes have reported, and returns commands with their reasons, and for each model its Ready condition.
//
// It is pure: data in, data with a reason out. It mints ids only with the function it is given and seals nothing; the loop
// in package controlplane completes the commands and proposes them, and does so only while its server leads. What the
// answers look like on the wire belongs to view.
package reconcile

import (
	"slices"
	"strings"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/controlplane/ledger"
)

// Desired is everything stored that decisions and views are made of, as of one position. It is shared and never changed.
// Keys and usage, of which there may be millions, are not in it: no decision needs them, and who asks for some looks them
// up in the store.
type Desired struct {
	Index        uint64 // the store's position
	Cluster      levelrail.Cluster
	Nodes        map[string]levelrail.Node
	Models       []levelrail.Model // by name
	Revisions    map[string]levelrail.Revision
	Replicas     []levelrail.Replica              // by id
	Reservations map[string]levelrail.Reservation // by id
	Weights      map[string]levelrail.Weights
	Tokens       []levelrail.Token
	Secrets      map[string]levelrail.Secret // by path
	Jobs         []levelrail.Job
	Settings     levelrail.SettingsDocument // the document "cluster"; version 0 when there is none
}

// Model returns the model of that name.
func (d *Desired) Model(name string) (levelrail.Model, bool) {
	i, found := slices.BinarySearchFunc(d.Models, name, func(m levelrail.Model, n string) int { return strings.Compare(m.Name, n) })
	if !found {
		return levelrail.Model{}, false
	}
	return d.Models[i], true
}

// Spec returns the spec of a model's revision, the zero value when there is no such revision.
func (d *Desired) Spec(model string, revision int) levelrail.ModelSpec {
	return d.Revisions[levelrail.RevisionID(model, revision)].Spec
}

// ReplicasOf returns the replicas of a model by number.
func (d *Desired) ReplicasOf(model string) []levelrail.Replica {
	var out []levelrail.Replica
	for _, r := range d.Replicas {
		if r.Model == model {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b levelrail.Replica) int { return a.Number - b.Number })
	return out
}

// FindNode returns the node of that id or, when no id fits, of that name. Two nodes of one name are told apart by their
// ids only: then none is returned.
func (d *Desired) FindNode(idOrName string) (levelrail.Node, bool) {
	if n, ok := d.Nodes[idOrName]; ok {
		return n, true
	}
	var found []levelrail.Node
	for _, n := range d.Nodes {
		if n.Name == idOrName {
			found = append(found, n)
		}
	}
	if len(found) != 1 {
		return levelrail.Node{}, false
	}
	return found[0], true
}

// Observe returns how a replica stands by the last word of its node: the status (nil when the node does not list it), the
// report, and whether the node has reported at all since this server started.
func Observe(o ledger.Snapshot, r levelrail.Replica) (status *wire.ReplicaStatus, report ledger.NodeReport, heard bool) {
	if len(r.Shards) == 0 {
		return nil, report, false
	}
	if report, heard = o.Nodes[r.Shards[0].NodeID]; !heard {
		return nil, report, false
	}
	for i := range report.Replicas {
		if report.Replicas[i].Replica == r.ID {
			return &report.Replicas[i], report, true
		}
	}
	return nil, report, true
}

// Serving tells whether requests may go to a replica. While its node is silent the last word counts, and before the first
// word since this server started a running replica is taken to serve: engines outlive agents and servers, and a gateway
// that is told otherwise would refuse what works.
func Serving(o ledger.Snapshot, r levelrail.Replica) bool {
	status, _, heard := Observe(o, r)
	if !heard {
		return r.Run
	}
	return status != nil && status.Condition.Ready
}
