package raftstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/levelrail/levelrail"
)

// resolved is a future of raft that has come to its end.
type resolved struct {
	err      error
	response any
}

func (f resolved) Error() error  { return f.err }
func (f resolved) Response() any { return f.response }
func (f resolved) Index() uint64 { return 0 }

// TestOutcomesOfRaft: only what raft never wrote is told as not written; everything else is unknown.
func TestOutcomesOfRaft(t *testing.T) {
	s := openTest(t, testConfig(t, t.TempDir()))
	l := s.log.(*raftLog)
	for _, err := range []error{raft.ErrNotLeader, raft.ErrLeadershipTransferInProgress} {
		_, got := l.settled(resolved{err: err})
		var not *NotLeaderError
		if !errors.As(got, &not) {
			t.Errorf("%v is told as %v", err, got)
		}
	}
	for err, want := range map[error]levelrail.ErrorKind{
		raft.ErrEnqueueTimeout:     levelrail.ErrUnavailable,
		raft.ErrLeadershipLost:     levelrail.ErrTimeout,
		raft.ErrRaftShutdown:       levelrail.ErrTimeout,
		raft.ErrAbortedByRestore:   levelrail.ErrTimeout,
		errors.New("disk is full"): levelrail.ErrTimeout,
	} {
		if _, got := l.settled(resolved{err: err}); levelrail.KindOf(got) != want {
			t.Errorf("%v is told as %v", err, got)
		}
	}
	refuse := levelrail.Errorf(levelrail.ErrConflict, "no")
	if out, err := l.settled(resolved{response: outcome{refuse: refuse}}); err != nil || out.refuse != refuse {
		t.Errorf("a refusal is told as %+v, %v", out, err)
	}
}

// TestWaitsEnd: a caller who gives up gets an unknown outcome, and a store that closes ends the waits.
func TestWaitsEnd(t *testing.T) {
	s := openTest(t, testConfig(t, t.TempDir()))
	over, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.Propose(over, root, node("a")); err != nil && levelrail.KindOf(err) != levelrail.ErrTimeout {
		t.Errorf("a write that was given up is told as %v", err)
	}
	if err := s.ViewCurrent(over, func(*Tx) error { return nil }); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("a read that was given up is told as %v", err)
	}
	l := s.log.(*raftLog)
	ended := make(chan error, 1)
	go func() { ended <- l.await(context.Background(), never{}) }()
	closeTest(t, s)
	select {
	case err := <-ended:
		if !errors.Is(err, errStopped) {
			t.Errorf("the wait ended with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the wait did not end")
	}
	if err := s.ViewCurrent(context.Background(), func(*Tx) error { return nil }); err == nil {
		t.Error("a closed store gave a current read")
	}
}

// never is a future that raft forgets.
type never struct{}

func (never) Error() error { select {} }
