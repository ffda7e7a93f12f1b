package view

import (
	"bytes"
	"context"
	"encoding/json"
	"sync/atomic"

	"github.com/levelrail/levelrail/client/wire"
)

// Lines are the views of one kind by id, each encoded once for all who watch. An object that has not changed keeps its
// bytes, so that what a watcher has sent already is found by comparing where they lie.
type Lines map[string]json.RawMessage

// Views is a finished set of views at one position. It never changes.
type Views struct {
	Index       uint64
	Models      Lines
	Nodes       Lines
	Routes      Lines
	Assignments map[string]Lines // by node, then by replica
	next        chan struct{}    // closed when there is a newer one
}

// Next is closed when there are newer views.
func (v *Views) Next() <-chan struct{} { return v.next }

// Board holds the newest views. One goroutine publishes; any number read.
type Board struct {
	now    atomic.Pointer[Views]
	looked atomic.Pointer[look]
	asked  chan struct{}
}

// look is how far the publisher has come: views stay as they are while what they show does not change.
type look struct {
	index uint64
	next  chan struct{} // closed at the next look
}

// NewBoard returns a board with nothing on it.
func NewBoard() *Board {
	b := &Board{asked: make(chan struct{}, 1)}
	b.now.Store(&Views{next: make(chan struct{})})
	b.looked.Store(&look{next: make(chan struct{})})
	return b
}

// Asked receives when somebody waits for views of a later position; the publisher then publishes at once.
func (b *Board) Asked() <-chan struct{} { return b.asked }

// Reach returns views that show everything up to a position of the store, so that who has just written sees it.
func (b *Board) Reach(ctx context.Context, index uint64) (*Views, error) {
	for {
		l := b.looked.Load()
		if l.index >= index && l.index > 0 {
			return b.Views(), nil
		}
		select {
		case b.asked <- struct{}{}:
		default:
		}
		select {
		case <-l.next:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Views is what is on the board now. Its Index is 0 until something was published.
func (b *Board) Views() *Views { return b.now.Load() }

// Publish works the views of a world out and puts them on the board when any of them is new. It is called by one goroutine
// at a time. The index in an assignment moves only with the assignment.
func (b *Board) Publish(w World) (changed bool, err error) {
	old := b.now.Load()
	v := &Views{Index: w.Desired.Index, Models: Lines{}, Nodes: Lines{}, Routes: Lines{}, Assignments: map[string]Lines{}, next: make(chan struct{})}
	keep := keeper{changed: old.Index == 0}
	for _, m := range w.Desired.Models {
		keep.put(v.Models, old.Models, m.Name, w.Model(m))
		if m.Deleting {
			continue // its node is told to take it down, and gateways to forget it
		}
		keep.put(v.Routes, old.Routes, m.Name, w.Route(m))
		for _, r := range w.Desired.ReplicasOf(m.Name) {
			if len(r.Shards) == 0 {
				continue
			}
			node := r.Shards[0].NodeID
			if v.Assignments[node] == nil {
				v.Assignments[node] = Lines{}
			}
			a := w.Assignment(r, m)
			if was, ok := old.Assignments[node][r.ID]; ok {
				var before wire.Assignment
				if json.Unmarshal(was, &before) == nil {
					a.Index = before.Index
				}
			}
			if keep.put(v.Assignments[node], old.Assignments[node], r.ID, a) {
				a.Index = w.Desired.Index
				keep.put(v.Assignments[node], nil, r.ID, a)
			}
		}
	}
	for id, n := range w.Desired.Nodes {
		keep.put(v.Nodes, old.Nodes, id, w.Node(n))
	}
	keep.changed = keep.changed || len(v.Models) != len(old.Models) || len(v.Routes) != len(old.Routes) || len(v.Nodes) != len(old.Nodes)
	if !keep.changed {
		for node := range old.Assignments {
			keep.changed = keep.changed || len(v.Assignments[node]) != len(old.Assignments[node])
		}
	}
	if keep.err != nil {
		return false, keep.err
	}
	if keep.changed {
		b.now.Store(v)
		close(old.next)
	}
	before := b.looked.Swap(&look{index: w.Desired.Index, next: make(chan struct{})})
	close(before.next)
	return keep.changed, nil
}

type keeper struct {
	changed bool
	err     error
}

// put encodes an object, keeping the old bytes where they are the same.
func (k *keeper) put(into, old Lines, id string, object any) (changed bool) {
	text, err := json.Marshal(object)
	if err != nil {
		k.err = err
		return false
	}
	if was, ok := old[id]; ok && bytes.Equal(was, text) {
		into[id] = was
		return false
	}
	into[id] = text
	k.changed = true
	return true
}
