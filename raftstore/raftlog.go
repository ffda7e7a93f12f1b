package raftstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/raft"

	"github.com/levelrail/levelrail"
)

// raftLog brings commands to the state through raft.
type raftLog struct {
	cfg       Config
	id        string
	lock      *os.File
	faults    *faults
	watchdog  *watchdog
	state     *boltState
	progress  *progress
	fsm       *fsm
	logs      *logStore
	cache     *raft.LogCache
	snapshots *snapshotStore
	transport *raft.NetworkTransport
	raft      *raft.Raft

	mu      sync.Mutex
	ready   uint64        // the term in which this server leads and has applied all of earlier terms; 0: does not
	changed chan struct{} // closed at the next change of leader
	free    uint64        // bytes of the disk, as of freeAt
	freeAt  time.Time

	once  sync.Once
	stop  chan struct{}
	loops sync.WaitGroup
}

// follow keeps track of who leads.
func (l *raftLog) follow(notify <-chan bool) {
	seen := make(chan raft.Observation, 16)
	observer := raft.NewObserver(seen, false, func(o *raft.Observation) bool {
		_, ok := o.Data.(raft.LeaderObservation)
		return ok
	})
	l.raft.RegisterObserver(observer)
	l.loops.Go(func() {
		defer l.raft.DeregisterObserver(observer)
		for {
			select {
			case <-l.stop:
				return
			case <-seen:
				l.leaderMoved()
			case leads := <-notify:
				if leads {
					l.loops.Go(l.takeOver)
					continue
				}
				l.mu.Lock()
				l.ready = 0
				l.mu.Unlock()
				l.leaderMoved()
			}
		}
	})
}

func (l *raftLog) leaderMoved() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *raftLog) leaderChanged() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// takeOver waits until everything that earlier leaders committed is applied here: before, a new leader may not know all
// of it.
func (l *raftLog) takeOver() {
	term := l.raft.CurrentTerm()
	if err := l.await(context.Background(), l.raft.Barrier(0)); err != nil {
		return
	}
	if l.raft.State() != raft.Leader || l.raft.CurrentTerm() != term {
		return
	}
	l.mu.Lock()
	l.ready = term
	l.mu.Unlock()
	l.leaderMoved()
}

// errStopped is the end of a wait by the end of the store.
var errStopped = errors.New("the store was closed meanwhile")

// await waits for a future of raft, which may never be resolved once raft shuts down.
func (l *raftLog) await(ctx context.Context, f raft.Future) error {
	done := make(chan error, 1)
	go func() { done <- f.Error() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-l.faults.faced:
		return l.faults.err
	case <-l.stop:
		return errStopped
	}
}

// waitForLeader returns when this server is ready to lead, or another one leads.
func (l *raftLog) waitForLeader(ctx context.Context) error {
	for {
		changed := l.leaderChanged()
		l.mu.Lock()
		ready := l.ready != 0
		l.mu.Unlock()
		if _, leader := l.raft.LeaderWithID(); ready || leader != "" && string(leader) != l.id {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("no server leads the cluster yet: %w", ctx.Err())
		case <-l.faults.faced:
			return l.faults.err
		}
	}
}

func (l *raftLog) notLeader() error {
	address, id := l.raft.LeaderWithID()
	if string(id) == l.id { // about to step down, or not told yet
		return &NotLeaderError{}
	}
	return &NotLeaderError{LeaderID: string(id), Leader: string(address)}
}

func (l *raftLog) propose(ctx context.Context, data []byte) (outcome, error) {
	if err := l.faults.failed(); err != nil {
		return outcome{}, levelrail.Errorf(levelrail.ErrUnavailable, "the store has stopped: %v", err)
	}
	select {
	case <-l.stop:
		return outcome{}, ErrClosed
	default:
	}
	if l.raft.State() != raft.Leader {
		return outcome{}, l.notLeader()
	}
	patience := 10 * time.Second
	if deadline, ok := ctx.Deadline(); ok {
		patience = max(time.Until(deadline), time.Millisecond)
	}
	done := make(chan raft.ApplyFuture, 1)
	go func() {
		f := l.raft.Apply(data, patience)
		_ = f.Error() // waits; read again below
		done <- f
	}()
	select {
	case f := <-done:
		return l.settled(f)
	case <-ctx.Done():
		return outcome{}, unknownOutcome("the time for it is over")
	case <-l.faults.faced:
		return outcome{}, unknownOutcome("the store has stopped")
	case <-l.stop:
		return outcome{}, unknownOutcome("the store was closed meanwhile")
	}
}

// settled reads a resolved future. Only three errors of raft say that nothing was written.
func (l *raftLog) settled(f raft.ApplyFuture) (outcome, error) {
	err := f.Error()
	switch {
	case err == nil:
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return outcome{}, l.notLeader()
	case errors.Is(err, raft.ErrEnqueueTimeout):
		return outcome{}, levelrail.Errorf(levelrail.ErrUnavailable, "the store is too busy to take the change").WithNext("try again")
	default:
		return outcome{}, unknownOutcome(err.Error())
	}
	switch r := f.Response().(type) {
	case outcome:
		return r, nil
	case error:
		return outcome{}, unknownOutcome("the store has stopped")
	default:
		return outcome{}, levelrail.Errorf(levelrail.ErrInternal, "the state answered a command with %T", r)
	}
}

// current finds the index that a read has to wait for, and makes sure that this server still leads.
func (l *raftLog) current(ctx context.Context) (uint64, error) {
	for {
		changed := l.leaderChanged()
		l.mu.Lock()
		term := l.ready
		l.mu.Unlock()
		if l.raft.State() != raft.Leader {
			return 0, l.notLeader()
		}
		if term == 0 {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				return 0, ctx.Err()
			case <-l.stop:
				return 0, ErrClosed
			}
		}
		index, err := l.lastInState(l.raft.CommitIndex())
		if err != nil {
			return 0, err
		}
		err = l.await(ctx, l.raft.VerifyLeader())
		switch {
		case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipLost):
			return 0, l.notLeader()
		case errors.Is(err, raft.ErrRaftShutdown), errors.Is(err, errStopped):
			return 0, ErrClosed
		case err != nil:
			return 0, err
		}
		if l.raft.CurrentTerm() == term {
			return index, nil
		}
	}
}

// lastInState finds the last entry up to a position that the state takes note of: raft keeps its own no-ops and barriers
// from it, so the state's index never comes to theirs.
func (l *raftLog) lastInState(index uint64) (uint64, error) {
	var entry raft.Log
	for ; index > 0; index-- {
		err := l.cache.GetLog(index, &entry)
		if errors.Is(err, raft.ErrLogNotFound) {
			return 0, nil // in a snapshot, which was taken of the state
		}
		if err != nil {
			return 0, err
		}
		if entry.Type == raft.LogCommand || entry.Type == raft.LogConfiguration {
			return index, nil
		}
	}
	return 0, nil
}

func (l *raftLog) status() Status {
	address, leader := l.raft.LeaderWithID()
	first, _ := l.logs.FirstIndex()
	last, _ := l.logs.LastIndex()
	st := Status{LeaderID: string(leader), LeaderAddress: string(address), Term: l.raft.CurrentTerm(), CommitIndex: l.raft.CommitIndex(),
		FirstIndex: first, LastIndex: last, LogBytes: l.logs.bytes(), StateBytes: l.state.bytes()}
	switch l.raft.State() {
	case raft.Leader:
		st.Role = "leader"
	case raft.Candidate:
		st.Role = "candidate"
	default:
		st.Role = "follower"
	}
	if metas, err := l.snapshots.List(); err == nil && len(metas) > 0 {
		st.SnapshotIndex = metas[0].Index
	}
	return st
}

func (l *raftLog) snapshot(ctx context.Context) error {
	err := l.await(ctx, l.raft.Snapshot())
	if err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return fmt.Errorf("take a snapshot: %w", err)
	}
	return nil
}

const freeKnownFor = 5 * time.Second

// room refuses while the disk is nearly full: what is left is for deletions, snapshots and raft's own votes.
func (l *raftLog) room() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); now.Sub(l.freeAt) > freeKnownFor {
		var fs syscall.Statfs_t
		if err := syscall.Statfs(l.cfg.Dir, &fs); err != nil {
			return fmt.Errorf("read the free space of %s: %w", l.cfg.Dir, err)
		}
		l.free, l.freeAt = fs.Bavail*uint64(fs.Bsize), now
	}
	if l.free < l.cfg.MinFreeBytes {
		return levelrail.Errorf(levelrail.ErrUnavailable, "the disk of %s has %d MiB free, and the store keeps %d MiB: only deletions are taken",
			l.cfg.Dir, l.free>>20, l.cfg.MinFreeBytes>>20).WithNext("free space on that disk")
	}
	return nil
}

// close ends what open has begun, as far as it came.
func (l *raftLog) close(ctx context.Context) error {
	var err error
	l.once.Do(func() { err = l.shut(ctx) })
	return err
}

func (l *raftLog) shut(ctx context.Context) error {
	if l.raft != nil {
		l.handOver()
	}
	close(l.stop)
	if l.raft != nil {
		done := make(chan error, 1)
		go func() { done <- l.raft.Shutdown().Error() }()
		select {
		case err := <-done:
			if err != nil {
				return fmt.Errorf("stop raft: %w", err)
			}
		case <-ctx.Done():
			return fmt.Errorf("stop raft: %w", ctx.Err()) // its files are still in use
		}
		l.loops.Wait()
	}
	var errs []error
	if l.transport != nil {
		errs = append(errs, l.transport.Close())
	}
	if l.watchdog != nil {
		l.watchdog.close()
	}
	if l.logs != nil {
		errs = append(errs, l.logs.close())
	}
	if l.state != nil {
		errs = append(errs, l.state.close())
	}
	return errors.Join(append(errs, l.lock.Close())...)
}

// handOver lets another server lead at once instead of after an election, when there is one.
func (l *raftLog) handOver() {
	if l.raft.State() != raft.Leader || l.faults.failed() != nil {
		return
	}
	f := l.raft.GetConfiguration()
	if f.Error() != nil || len(f.Configuration().Servers) < 2 {
		return
	}
	if err := l.raft.LeadershipTransfer().Error(); err != nil {
		l.cfg.Logger.Warn("leadership could not be handed over, the others elect a leader by themselves", "error", err)
	}
}
