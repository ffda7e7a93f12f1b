package raftstore

import (
	"context"
	"sync"
)

// OpenMemory returns a store that keeps everything in memory and always leads: the same commands, views and watches as
// Open's, without files, raft and waiting, for tests of what stands on the store. Of cfg it uses Logger and Clock.
func OpenMemory(cfg Config) *Store {
	cfg = cfg.withDefaults()
	s := &Store{ids: newIdentity(), clock: cfg.Clock, logger: cfg.Logger, state: newMemState(), ring: newRing(ringKept), progress: newProgress()}
	s.machine = &machine{cluster: s.ids.ClusterID, state: s.state, ring: s.ring, progress: s.progress, log: cfg.Logger}
	s.log = &memoryLog{store: s, changed: make(chan struct{})}
	return s
}

// memoryLog applies each command at once, and keeps none.
type memoryLog struct {
	store   *Store
	mu      sync.Mutex
	index   uint64
	closed  bool
	changed chan struct{} // the leader never changes
}

func (l *memoryLog) propose(ctx context.Context, data []byte) (outcome, error) {
	if err := ctx.Err(); err != nil {
		return outcome{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return outcome{}, ErrClosed
	}
	l.index++
	out, err := l.store.machine.apply([]entry{{index: l.index, term: 1, data: data}})
	if err != nil {
		return outcome{}, err
	}
	return out[0], nil
}

func (l *memoryLog) current(ctx context.Context) (uint64, error) {
	return l.store.progress.now(), ctx.Err()
}

func (l *memoryLog) status() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Status{Role: "leader", LeaderID: l.store.ids.ServerID, Term: 1, CommitIndex: l.index, LastIndex: l.index}
}

func (l *memoryLog) leaderChanged() <-chan struct{}     { return l.changed }
func (l *memoryLog) snapshot(ctx context.Context) error { return ctx.Err() }
func (l *memoryLog) room() error                        { return nil }

func (l *memoryLog) close(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	return nil
}
