// Package ledger holds what nodes and gateways said last: readings, unit states, progress, addresses. It is memory only;
// everything in it is said again within seconds, so a server that starts anew knows it soon.
//
// It promises that whether a node is online depends on this server's monotonic clock alone, never on a clock of the node,
// and that going silent is told like any other change. A late report never replaces a newer one. What is stored for good
// belongs to raftstore, what follows from both to reconcile and view.
package ledger

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// Silence is how long a node may say nothing before it counts as offline: three of its reports.
const Silence = 30 * time.Second

// NodeReport is the last word of one node. Its parts are shared and must not be changed.
type NodeReport struct {
	wire.Report
	Online     bool
	ReceivedAt time.Time // this server's clock
}

// Snapshot is what is known at one moment. Nodes that have not reported since this server started are not in it.
type Snapshot struct {
	Since    time.Time // when this ledger began to listen
	Now      time.Time
	Nodes    map[string]NodeReport
	Gateways []Gateway // by id
}

// Listened tells whether this ledger has listened long enough that a node which said nothing counts as offline.
func (s Snapshot) Listened() bool { return s.Now.Sub(s.Since) >= Silence }

// Ledger takes reports and tells snapshots. It is safe for concurrent use; Close it to stop its timers.
type Ledger struct {
	since time.Time

	mu       sync.Mutex
	nodes    map[string]*entry
	gateways map[string]*connection
	used     map[string]time.Time // by model: its last use, with the monotonic clock
	changed  chan struct{}
	sawMore  chan struct{}
	revision uint64
	closed   bool
	listened *time.Timer
}

type entry struct {
	report NodeReport
	at     time.Time // with the monotonic clock
	silent *time.Timer
}

// New returns an empty ledger that begins to listen now.
func New() *Ledger {
	l := &Ledger{since: time.Now(), nodes: map[string]*entry{}, gateways: map[string]*connection{}, used: map[string]time.Time{}, changed: make(chan struct{}), sawMore: make(chan struct{})}
	l.listened = time.AfterFunc(Silence, l.tell)
	return l
}

// Close stops the timers. Reports are still taken.
func (l *Ledger) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.listened.Stop()
	for _, e := range l.nodes {
		e.silent.Stop()
	}
}

// Report takes a node's word. It fails with conflict when the same process of the agent has sent a newer one before.
func (l *Ledger) Report(r wire.Report) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	e, known := l.nodes[r.NodeID]
	if known && e.report.Boot == r.Boot && r.Sequence <= e.report.Sequence {
		return levelrail.Errorf(levelrail.ErrConflict, "report %d of the node %s came after its report %d", r.Sequence, r.NodeID, e.report.Sequence).
			WithNext("send the next report")
	}
	if !known {
		e = &entry{}
		e.silent = time.AfterFunc(Silence, l.tell)
		l.nodes[r.NodeID] = e
	}
	if !l.closed {
		e.silent.Reset(Silence)
	}
	e.at = now
	e.report = NodeReport{Report: r, ReceivedAt: now.UTC()}
	l.tellLocked()
	return nil
}

// Forget drops what a removed node has said.
func (l *Ledger) Forget(nodeID string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e, ok := l.nodes[nodeID]; ok {
		e.silent.Stop()
		delete(l.nodes, nodeID)
		l.tellLocked()
	}
}

func (l *Ledger) tell() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tellLocked()
}

func (l *Ledger) tellLocked() {
	l.revision++
	close(l.changed)
	l.changed = make(chan struct{})
}

// Changed returns a channel that is closed at the next change. Take it before the snapshot, so that no change falls
// between the two.
func (l *Ledger) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// Snapshot returns what is known now.
func (l *Ledger) Snapshot() Snapshot {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	s := Snapshot{Since: l.since, Now: now, Nodes: make(map[string]NodeReport, len(l.nodes))}
	for id, e := range l.nodes {
		r := e.report
		r.Online = now.Sub(e.at) < Silence
		s.Nodes[id] = r
	}
	for _, id := range slices.Sorted(maps.Keys(l.gateways)) {
		s.Gateways = append(s.Gateways, l.gateways[id].Gateway)
	}
	return s
}
