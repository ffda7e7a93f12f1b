package raftstore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

const (
	snapshotsKept = 3
	// raft's file store adds this folder to the directory that it is given.
	snapshotsDir = "snapshots"
)

// snapshotStore is raft's own, in files with checksums, with one repair: raft leaves an entry of another term standing at
// the position of a snapshot that a leader has sent, and would then be sent the same snapshot for ever.
type snapshotStore struct {
	raft.SnapshotStore
	log raft.LogStore // through which raft reads, so that its cache is mended too
}

func openSnapshots(dir string, log raft.LogStore, logger hclog.Logger) (*snapshotStore, error) {
	if err := clearTemporary(filepath.Join(dir, snapshotsDir)); err != nil {
		return nil, err
	}
	files, err := raft.NewFileSnapshotStoreWithLogger(dir, snapshotsKept, logger)
	if err != nil {
		return nil, fmt.Errorf("open the snapshots in %s: %w", dir, err)
	}
	return &snapshotStore{SnapshotStore: files, log: log}, nil
}

// clearTemporary removes what a crash left of a snapshot under way.
func clearTemporary(dir string) error {
	names, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the snapshots: %w", err)
	}
	for _, n := range names {
		if strings.HasSuffix(n.Name(), ".tmp") {
			if err := os.RemoveAll(filepath.Join(dir, n.Name())); err != nil {
				return fmt.Errorf("remove an unfinished snapshot: %w", err)
			}
		}
	}
	return nil
}

func (s *snapshotStore) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, ci uint64, t raft.Transport) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(version, index, term, c, ci, t)
	if err != nil {
		return nil, err
	}
	return &repairingSink{SnapshotSink: sink, log: s.log, index: index, term: term}, nil
}

type repairingSink struct {
	raft.SnapshotSink
	log         raft.LogStore
	index, term uint64
	ended       bool
}

func (s *repairingSink) Close() error {
	err := s.SnapshotSink.Close()
	if err != nil || s.ended {
		return err
	}
	s.ended = true
	var l raft.Log
	if s.log.GetLog(s.index, &l) == nil && l.Term != s.term {
		return s.log.StoreLog(&raft.Log{Index: s.index, Term: s.term, Type: raft.LogNoop})
	}
	return nil
}

func (s *repairingSink) Cancel() error {
	s.ended = true
	return s.SnapshotSink.Cancel()
}
