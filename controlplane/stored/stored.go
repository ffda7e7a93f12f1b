// Package stored reads what decisions and answers are made of out of the store, as one value of one position. A value is
// kept until the store moves on, so that many requests at one position read once.
//
// It owns no state beyond that copy, and changes nothing. Writing goes straight to raftstore.
package stored

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/controlplane/reconcile"
	"github.com/levelrail/levelrail/raftstore"
)

// Kinds are the kinds of object that a state is made of: when none of them has changed, the state is the same.
var Kinds = []levelrail.Kind{
	levelrail.KindCluster, levelrail.KindSettings, levelrail.KindModel, levelrail.KindReplica, levelrail.KindToken, levelrail.KindJob,
	levelrail.KindNode, levelrail.KindRevision, levelrail.KindReservation, levelrail.KindWeights, levelrail.KindSecret,
}

// Store is what is asked of the store. *raftstore.Store meets it.
type Store interface {
	View(fn func(tx *raftstore.Tx) error) error
	ViewAt(ctx context.Context, index uint64, fn func(tx *raftstore.Tx) error) error
}

// Reader reads the state. It is safe for concurrent use.
type Reader struct {
	store Store

	mu   sync.Mutex
	last *reconcile.Desired
}

// New returns a reader that has read nothing yet.
func New(store Store) *Reader { return &Reader{store: store} }

// Read returns the state as this server has it.
func (r *Reader) Read() (*reconcile.Desired, error) {
	var d *reconcile.Desired
	err := r.store.View(func(tx *raftstore.Tx) (err error) { d, err = r.read(tx); return err })
	return d, err
}

// ReadAt returns a state that has come at least to an index: one that sees one's own write.
func (r *Reader) ReadAt(ctx context.Context, index uint64) (*reconcile.Desired, error) {
	var d *reconcile.Desired
	err := r.store.ViewAt(ctx, index, func(tx *raftstore.Tx) (err error) { d, err = r.read(tx); return err })
	return d, err
}

func (r *Reader) read(tx *raftstore.Tx) (*reconcile.Desired, error) {
	r.mu.Lock()
	last := r.last
	r.mu.Unlock()
	if last != nil && last.Index == tx.Index() {
		return last, nil
	}
	d, err := load(tx)
	if err != nil {
		return nil, fmt.Errorf("read the state: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil || r.last.Index < d.Index {
		r.last = d
	}
	return d, nil
}

func load(tx *raftstore.Tx) (*reconcile.Desired, error) {
	d := &reconcile.Desired{Index: tx.Index()}
	var err error
	d.Cluster, _, err = raftstore.Get[levelrail.Cluster](tx, "cluster")
	if err == nil {
		d.Settings, _, err = raftstore.Get[levelrail.SettingsDocument](tx, "cluster")
	}
	d.Models = list[levelrail.Model](tx, &err)
	d.Replicas = list[levelrail.Replica](tx, &err)
	d.Tokens = list[levelrail.Token](tx, &err)
	d.Jobs = list[levelrail.Job](tx, &err)
	d.Nodes = byID[levelrail.Node](tx, &err)
	d.Revisions = byID[levelrail.Revision](tx, &err)
	d.Reservations = byID[levelrail.Reservation](tx, &err)
	d.Weights = byID[levelrail.Weights](tx, &err)
	d.Secrets = byID[levelrail.Secret](tx, &err)
	if err != nil {
		return nil, err
	}
	// The store sorts by the bytes of an id; what is looked up by name is searched in the same order.
	slices.SortFunc(d.Models, func(a, b levelrail.Model) int { return cmp.Compare(a.Name, b.Name) })
	return d, nil
}

func list[T levelrail.Object](tx *raftstore.Tx, err *error) []T {
	if *err != nil {
		return nil
	}
	var out []T
	out, *err = raftstore.List[T](tx, "")
	return out
}

func byID[T levelrail.Object](tx *raftstore.Tx, err *error) map[string]T {
	out := map[string]T{}
	for _, v := range list[T](tx, err) {
		out[v.ObjectID()] = v
	}
	return out
}
