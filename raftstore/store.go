package raftstore

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/raftstore/command"
)

// Store is one server's share of the replicated store. Its methods may be called from several goroutines.
type Store struct {
	ids      identity
	clock    func() time.Time
	logger   *slog.Logger
	state    state
	ring     *ring
	progress *progress
	machine  *machine
	log      replicatedLog
}

// replicatedLog is how commands get from a proposer into the state: raftLog by raft, memoryLog at once.
type replicatedLog interface {
	// propose brings an encoded command to the state, and returns what became of it.
	propose(ctx context.Context, data []byte) (outcome, error)
	// current returns an index whose state holds every write that was acknowledged before the call.
	current(ctx context.Context) (uint64, error)
	status() Status
	leaderChanged() <-chan struct{}
	snapshot(ctx context.Context) error
	// room is an error when the disk has no room for more.
	room() error
	close(ctx context.Context) error
}

// Status is how a server stands in its cluster.
type Status struct {
	ServerID      string
	ClusterID     string
	Lineage       string   // of the history: changes when a backup is restored
	Replaced      []string // clusters that this one took the place of
	Role          string   // leader, follower, candidate
	LeaderID      string   // empty while none is known
	LeaderAddress string
	Term          uint64
	Index         uint64 // the state has come to here
	CommitIndex   uint64
	FirstIndex    uint64 // of the log
	LastIndex     uint64
	SnapshotIndex uint64
	LogBytes      int64 // files
	StateBytes    int64
}

// Status returns how this server stands now.
func (s *Store) Status() Status {
	st := s.log.status()
	st.ServerID, st.ClusterID, st.Lineage, st.Index = s.ids.ServerID, s.ids.ClusterID, s.ids.Lineage, s.progress.now()
	st.Replaced = s.ids.Replaced
	return st
}

// LeaderChanged returns a channel that is closed when the leader, or this server's being it, next changes. Read Status
// after taking the channel, not before.
func (s *Store) LeaderChanged() <-chan struct{} { return s.log.leaderChanged() }

// Propose writes a command and returns its result once the write is durable and this server has applied it.
//
// A command that was refused gives its *levelrail.Error. A *NotLeaderError and an error of kind unavailable say that
// nothing was written. An error of kind timeout says that it is not known, also when ctx ends: repeat it with the same
// idempotency key.
func (s *Store) Propose(ctx context.Context, by command.By, cmd command.Command) (command.Result, error) {
	if err := cmd.Validate(); err != nil {
		return command.Result{}, refusal(err)
	}
	if !command.Removes(cmd) {
		if err := s.log.room(); err != nil {
			return command.Result{}, err
		}
	}
	data, err := command.Encode(command.Envelope{ClusterID: s.ids.ClusterID, Proposer: s.ids.ServerID, At: s.clock().UTC(), By: by, Command: cmd})
	if err != nil {
		return command.Result{}, err
	}
	if err := s.rehearse(data); err != nil {
		return command.Result{}, err
	}
	out, err := s.log.propose(ctx, data)
	if err != nil {
		return command.Result{}, err
	}
	if out.refuse != nil {
		return command.Result{}, out.refuse
	}
	return out.result, nil
}

// rehearse runs a command against the state without writing anything, as it will be run from the log: what this release
// cannot apply must not get into the log, where it would be met again at every start. Refusals are left to the real run,
// which knows the last state and is audited.
func (s *Store) rehearse(data []byte) error {
	env, err := command.Open(data)
	if err != nil {
		return levelrail.Errorf(levelrail.ErrInternal, "the command cannot be read back: %v", err)
	}
	var refuse *levelrail.Error
	err = s.state.view(func(r stateReader) error {
		m, err := readMeta(r)
		if err != nil {
			return err
		}
		tx := command.NewTx(r, m.Applied+1, m.LogTime, env.By, s.ids.ClusterID)
		_, refuse, err = s.machine.run(tx, env.Command, m.Applied+1)
		return err
	})
	switch {
	case errors.Is(err, ErrClosed):
		return err
	case err != nil:
		return levelrail.Errorf(levelrail.ErrInternal, "%v", err).WithNext("restart the server: the state is rebuilt from the log")
	case refuse != nil && refuse.Kind == levelrail.ErrInternal:
		return refuse
	}
	return nil
}

// Snapshot writes the state as a snapshot now and shortens the log. It is done by itself when the log has grown.
func (s *Store) Snapshot(ctx context.Context) error { return s.log.snapshot(ctx) }

// Close hands leadership on where there is somebody, stops and closes the files. Watches end with ErrClosed. Writes under
// way end with an unknown outcome.
func (s *Store) Close(ctx context.Context) error {
	s.ring.close()
	err := s.log.close(ctx)
	s.progress.close()
	return err
}
