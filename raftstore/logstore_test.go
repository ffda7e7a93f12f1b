package raftstore

import (
	"bytes"
	"errors"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

var errNoSpace = syscall.ENOSPC

func openTestLog(t *testing.T, path string) *logStore {
	t.Helper()
	f := newFaults(func(err error) { t.Errorf("the log wants the process to stop: %v", err) })
	w := newWatchdog(time.Minute, f, discard)
	s, err := openLogStore(path, f, w)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.close()
		s.db.Close()
	})
	return s
}

func logEntry(index, term uint64) *raft.Log {
	return &raft.Log{Index: index, Term: term, Type: raft.LogCommand, Data: bytes.Repeat([]byte{byte(index)}, int(index)), Extensions: []byte("ext"), AppendedAt: time.Unix(0, int64(index))}
}

// TestLogStore: entries come back as they were stored, gaps are allowed, ranges go, and all of it survives a reopening.
func TestLogStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "raft.db")
	s := openTestLog(t, path)
	ends := func(first, last uint64) {
		t.Helper()
		f, err1 := s.FirstIndex()
		l, err2 := s.LastIndex()
		if f != first || l != last || err1 != nil || err2 != nil {
			t.Errorf("the log goes from %d to %d, and should from %d to %d (%v, %v)", f, l, first, last, err1, err2)
		}
	}
	ends(0, 0)
	must(t, s.StoreLogs([]*raft.Log{logEntry(1, 1), logEntry(2, 1), logEntry(3, 2)}))
	must(t, s.StoreLog(logEntry(10, 2)))
	ends(1, 10)
	var got raft.Log
	must(t, s.GetLog(3, &got))
	if want := logEntry(3, 2); got.Index != 3 || got.Term != 2 || got.Type != want.Type || !bytes.Equal(got.Data, want.Data) || !bytes.Equal(got.Extensions, want.Extensions) || !got.AppendedAt.Equal(want.AppendedAt) {
		t.Errorf("entry 3 reads as %+v", got)
	}
	if err := s.GetLog(5, &got); !errors.Is(err, raft.ErrLogNotFound) {
		t.Errorf("a missing entry gave %v", err)
	}
	must(t, s.DeleteRange(1, 2))
	ends(3, 10)
	must(t, s.DeleteRange(10, 10))
	ends(3, 3)
	must(t, s.close())
	s = openTestLog(t, path)
	ends(3, 3)
	must(t, s.DeleteRange(3, 3))
	ends(0, 0)
}

// TestVoteIsOneCommit: the term of a vote is never on disk without its candidate.
func TestVoteIsOneCommit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "raft.db")
	s := openTestLog(t, path)
	if _, err := s.Get([]byte(keyLastVoteCand)); err == nil || err.Error() != "not found" {
		t.Errorf("a missing vote gave %v", err)
	}
	if _, err := s.GetUint64([]byte(keyLastVoteTerm)); err == nil || err.Error() != "not found" {
		t.Errorf("a missing term gave %v", err)
	}
	vote := func(term uint64, candidate string) {
		must(t, s.SetUint64([]byte(keyLastVoteTerm), term))
		if candidate != "" {
			must(t, s.Set([]byte(keyLastVoteCand), []byte(candidate)))
		}
	}
	check := func(term uint64, candidate string) {
		t.Helper()
		n, err1 := s.GetUint64([]byte(keyLastVoteTerm))
		c, err2 := s.Get([]byte(keyLastVoteCand))
		if n != term || string(c) != candidate || err1 != nil || err2 != nil {
			t.Errorf("the vote is for %s in term %d (%v, %v), and should be for %s in %d", c, n, err1, err2, candidate, term)
		}
	}
	vote(3, "one")
	check(3, "one")
	vote(4, "") // a crash before the candidate
	check(3, "one")
	must(t, s.close())
	s = openTestLog(t, path)
	check(3, "one")
	must(t, s.SetUint64([]byte(keyCurrentTerm), 7))
	if n, err := s.GetUint64([]byte(keyCurrentTerm)); n != 7 || err != nil {
		t.Errorf("the term is %d, %v", n, err)
	}
}

// TestAppliedEntriesAreNotReplaced: taking away the end of the log below what is applied stops the process.
func TestAppliedEntriesAreNotReplaced(t *testing.T) {
	s := openTestLog(t, filepath.Join(t.TempDir(), "raft.db"))
	for i := range uint64(10) {
		must(t, s.StoreLog(logEntry(i+1, 1)))
	}
	s.applied = func() uint64 { return 6 }
	must(t, s.DeleteRange(8, 10)) // not applied yet: another leader's
	must(t, s.DeleteRange(1, 3))  // compaction
	var told error
	s.faults = newFaults(func(err error) { told = err })
	if err := s.DeleteRange(6, 7); err == nil || told == nil || !strings.Contains(told.Error(), "join it anew") {
		t.Errorf("it gave %v and told %v", err, told)
	}
	if last, _ := s.LastIndex(); last != 7 {
		t.Errorf("the log ends at %d", last)
	}
}

// TestDamagedEntryStops: an entry that the disk has changed is never handed out.
func TestDamagedEntryStops(t *testing.T) {
	path := filepath.Join(t.TempDir(), "raft.db")
	s := openTestLog(t, path)
	must(t, s.StoreLog(&raft.Log{Index: 1, Term: 1, Data: []byte("some words")}))
	must(t, s.close())
	flip(t, path, "some words")
	s = openTestLog(t, path)
	var told error
	s.faults = newFaults(func(err error) { told = err })
	var got raft.Log
	if err := s.GetLog(1, &got); err == nil || told == nil || !strings.Contains(told.Error(), "checksum") {
		t.Errorf("it gave %v and told %v", err, told)
	}
}

// TestSnapshotRepairsTheEntryAtItsIndex: raft keeps an entry of another term there, and would install for ever.
func TestSnapshotRepairsTheEntryAtItsIndex(t *testing.T) {
	dir := t.TempDir()
	logs := openTestLog(t, filepath.Join(dir, "raft.db"))
	must(t, logs.StoreLogs([]*raft.Log{logEntry(1, 1), logEntry(2, 1), logEntry(3, 1)}))
	store, err := openSnapshots(dir, logs, raftLogger(discard))
	must(t, err)
	_, transport := raft.NewInmemTransport("x")
	take := func(index, term uint64, end func(raft.SnapshotSink) error) {
		sink, err := store.Create(1, index, term, raft.Configuration{}, 1, transport)
		must(t, err)
		_, err = sink.Write([]byte("state"))
		must(t, err)
		must(t, end(sink))
	}
	entry := func(index uint64) (l raft.Log) {
		must(t, logs.GetLog(index, &l))
		return l
	}
	take(3, 9, raft.SnapshotSink.Cancel)
	if e := entry(3); e.Term != 1 {
		t.Errorf("a snapshot that was given up changed the log: %+v", e)
	}
	take(2, 1, raft.SnapshotSink.Close)
	if e := entry(2); e.Type != raft.LogCommand {
		t.Errorf("a snapshot of the same term changed the log: %+v", e)
	}
	take(3, 2, raft.SnapshotSink.Close)
	if e := entry(3); e.Term != 2 || e.Type != raft.LogNoop {
		t.Errorf("the entry at the snapshot is %+v", e)
	}
}

// TestWatchdogTellsOfAHang and of nothing that ended.
func TestWatchdogTellsOfAHang(t *testing.T) {
	told := make(chan error, 1)
	w := newWatchdog(50*time.Millisecond, newFaults(func(err error) { told <- err }), discard)
	defer w.close()
	w.watch("something quick")()
	w.watch("writing the log")
	select {
	case err := <-told:
		if !strings.Contains(err.Error(), "writing the log") {
			t.Errorf("it told %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it told nothing")
	}
}
