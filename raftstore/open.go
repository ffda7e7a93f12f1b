package raftstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/levelrail/levelrail"
)

// Open opens the store in a directory and returns once this server leads or knows who does, about half a second for a
// server that is alone. An empty directory becomes a new cluster of this one server. The state is rebuilt from the newest
// snapshot and the log.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	lock, err := takeDirectory(cfg.Dir)
	if err != nil {
		return nil, err
	}
	l := &raftLog{cfg: cfg, lock: lock, changed: make(chan struct{}), stop: make(chan struct{})}
	s, err := l.open(ctx)
	if err != nil {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if cerr := l.close(closing); cerr != nil {
			cfg.Logger.Warn("the store was not closed cleanly after it could not be opened", "error", cerr)
		}
		return nil, err
	}
	return s, nil
}

func (l *raftLog) open(ctx context.Context) (*Store, error) {
	cfg := l.cfg
	ids, err := loadIdentity(cfg.Dir)
	if err != nil {
		return nil, err
	}
	l.faults = newFaults(cfg.Fatal)
	l.watchdog = newWatchdog(cfg.HangTimeout, l.faults, cfg.Logger)
	if l.state, err = newBoltState(filepath.Join(cfg.Dir, fileState)); err != nil {
		return nil, err
	}

	s := &Store{clock: cfg.Clock, logger: cfg.Logger, state: l.state, ring: newRing(ringKept), progress: newProgress(), log: l}
	s.machine = &machine{cluster: ids.ClusterID, state: l.state, ring: s.ring, progress: s.progress, log: cfg.Logger, skip: map[uint64]bool{}}
	for _, index := range cfg.SkipEntries {
		s.machine.skip[index] = true
	}
	l.progress = s.progress
	l.fsm = &fsm{machine: s.machine, state: l.state, faults: l.faults, watchdog: l.watchdog, closing: l.stop}

	if !ids.Bootstrapped {
		if err := clearHalfBegun(cfg.Dir, l.faults, l.watchdog); err != nil {
			return nil, err
		}
	}
	if l.logs, err = openLogStore(filepath.Join(cfg.Dir, fileLog), l.faults, l.watchdog); err != nil {
		return nil, err
	}
	l.logs.applied = s.progress.now
	cache, err := raft.NewLogCache(512, l.logs)
	if err != nil {
		return nil, err
	}
	l.cache = cache
	logger := raftLogger(cfg.Logger)
	if l.snapshots, err = openSnapshots(cfg.Dir, cache, logger); err != nil {
		return nil, err
	}
	stream := cfg.Stream
	if stream == nil {
		stream = newAlone(ids.ServerID)
	}
	l.transport = raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{Stream: stream, MaxPool: 3, Timeout: 2 * time.Second, Logger: logger})

	conf := raft.DefaultConfig()
	conf.LocalID = raft.ServerID(ids.ServerID)
	conf.Logger = logger
	conf.HeartbeatTimeout, conf.ElectionTimeout, conf.LeaderLeaseTimeout = cfg.HeartbeatTimeout, cfg.ElectionTimeout, cfg.LeaderLeaseTimeout
	conf.SnapshotThreshold, conf.SnapshotInterval, conf.TrailingLogs = cfg.SnapshotThreshold, cfg.SnapshotInterval, cfg.TrailingLogs
	conf.NoLegacyTelemetry = true
	notify := make(chan bool, 16)
	conf.NotifyCh = notify

	if !ids.Bootstrapped {
		self := raft.Configuration{Servers: []raft.Server{{Suffrage: raft.Voter, ID: conf.LocalID, Address: l.transport.LocalAddr()}}}
		if err := raft.BootstrapCluster(conf, cache, l.logs, l.snapshots, l.transport, self); err != nil {
			return nil, fmt.Errorf("begin the cluster: %w", err)
		}
		ids.Bootstrapped = true
		if err := ids.save(cfg.Dir); err != nil {
			return nil, err
		}
	}
	s.ids, l.id = ids, ids.ServerID
	if err := l.verify(cfg.Dir); err != nil {
		return nil, err
	}
	if l.raft, err = raft.NewRaft(conf, l.fsm, cache, l.logs, l.snapshots, l.transport); err != nil {
		return nil, fmt.Errorf("open the store in %s: %w", cfg.Dir, errors.Join(err, l.fsm.restored))
	}
	if err := l.member(cfg.Dir); err != nil {
		return nil, err
	}
	l.follow(notify)
	if err := l.waitForLeader(ctx); err != nil {
		return nil, fmt.Errorf("open the store in %s: %w", cfg.Dir, err)
	}
	return s, nil
}

// member makes sure that the log's members include this server: it would otherwise wait for ever to be elected or told.
func (l *raftLog) member(dir string) error {
	f := l.raft.GetConfiguration()
	if err := f.Error(); err != nil {
		return err
	}
	var others []string
	for _, m := range f.Configuration().Servers {
		if string(m.ID) == l.id {
			return nil
		}
		others = append(others, string(m.ID))
	}
	if len(others) == 0 {
		return nil
	}
	return levelrail.Errorf(levelrail.ErrRefused, "the log in %s is of the servers %s, and this is the server %s: it is another's log, or this server was removed", dir, strings.Join(others, ", "), l.id).
		WithNext("bring back the %s that belongs to the log, or set the directory aside", fileID)
}

// clearHalfBegun removes the log of a first start that did not come to its end: a term without a configuration would never
// elect anybody. Nothing was ever acknowledged there, which is made sure of.
func clearHalfBegun(dir string, f *faults, w *watchdog) error {
	path := filepath.Join(dir, fileLog)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if logs, err := openLogStore(path, f, w); err == nil {
		last, _ := logs.LastIndex()
		if err := logs.close(); err != nil {
			return err
		}
		if last > 1 {
			return levelrail.Errorf(levelrail.ErrRefused, "the log %s has %d entries, but %s says that it was never begun", path, last, fileID).
				WithNext("bring back the %s that belongs to the log", fileID)
		}
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove the log of an unfinished first start: %w", err)
	}
	return syncDir(dir)
}

// verify reads the part of the log that the state will be rebuilt from: raft would panic on damage, and would not miss
// what was taken away.
func (l *raftLog) verify(dir string) error {
	metas, err := l.snapshots.List()
	if err != nil {
		return fmt.Errorf("list the snapshots in %s: %w", dir, err)
	}
	var snapshot uint64
	if len(metas) > 0 {
		snapshot = metas[0].Index
	}
	first, _ := l.logs.FirstIndex()
	last, _ := l.logs.LastIndex()
	switch {
	case last == 0 && snapshot == 0:
		return levelrail.Errorf(levelrail.ErrRefused, "the log in %s is empty and there is no snapshot, but the store was in use", dir).
			WithNext("bring back %s and %s, or set the directory aside and restore a backup", fileLog, snapshotsDir)
	case last > snapshot && first > snapshot+1:
		return levelrail.Errorf(levelrail.ErrRefused, "the log in %s begins at entry %d, and no snapshot holds what was before", dir, first).
			WithNext("bring back %s, or set the directory aside and restore a backup", snapshotsDir)
	}
	var entry raft.Log
	for i := snapshot + 1; i <= last; i++ {
		if err := l.logs.read(i, &entry); err != nil {
			return levelrail.Errorf(levelrail.ErrRefused, "the store in %s is damaged: entry %d of %d: %v", dir, i, last, err).
				WithNext("set the directory aside and restore a backup")
		}
	}
	return nil
}
