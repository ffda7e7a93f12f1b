package raftstore

import (
	"encoding/json"
	"sort"
	"sync"

	"github.com/levelrail/levelrail"
)

const ringKept = 8192 // changes

var watched = func() map[levelrail.Kind]bool {
	m := map[levelrail.Kind]bool{}
	for _, k := range kindsWatched {
		m[k] = true
	}
	return m
}()

// change is one changed object.
type change struct {
	index  uint64
	kind   levelrail.Kind
	id     string
	object json.RawMessage // nil: removed
}

// ring keeps the last changes for the watchers. Whoever publishes never waits for a watcher: one that is too slow finds
// its place gone and begins anew.
type ring struct {
	mu      sync.Mutex
	size    int
	changes []change // by index, older ones first; all changes after base
	base    uint64
	last    uint64
	moved   chan struct{} // closed at the next move
	closed  bool
}

func newRing(size int) *ring { return &ring{size: size, moved: make(chan struct{})} }

// publish adds changes, in order, and says that the state has come to the index last.
func (r *ring) publish(changes []change, last uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changes = append(r.changes, changes...)
	if over := len(r.changes) - r.size; over > 0 {
		r.base = r.changes[over-1].index
		clear(r.changes[:over])
		r.changes = r.changes[over:]
	}
	r.last = last
	r.wake()
}

// restart forgets all changes: the state was replaced by one of the index base.
func (r *ring) restart(base uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changes, r.base, r.last = nil, base, base
	r.wake()
}

func (r *ring) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.wake()
}

func (r *ring) wake() {
	close(r.moved)
	r.moved = make(chan struct{})
}

// holds tells whether all changes after index are here.
func (r *ring) holds(index uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return index >= r.base
}

// after returns the changes after index of the kinds wanted and the index up to which they go, or false when some are not
// kept any more. When there is none, moved is closed as soon as there may be.
func (r *ring) after(index uint64, want map[levelrail.Kind]bool) (found []change, upTo uint64, moved <-chan struct{}, ok bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, 0, nil, false, ErrClosed
	}
	if index < r.base {
		return nil, 0, nil, false, nil
	}
	from := sort.Search(len(r.changes), func(i int) bool { return r.changes[i].index > index })
	for _, c := range r.changes[from:] {
		if want[c.kind] {
			found = append(found, c)
		}
	}
	return found, max(index, r.last), r.moved, true, nil
}
