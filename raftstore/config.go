package raftstore

import (
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/hashicorp/raft"
)

// Config says how to open a store. Dir is needed, everything else has a default.
type Config struct {
	Dir    string           // made with mode 0700 when it is not there; must be on a local disk
	Logger *slog.Logger     // default: slog.Default
	Clock  func() time.Time // default: time.Now

	// Fatal is called once when this process must stop: the disk failed or hangs, or the log holds what this release does
	// not understand. Nothing is applied any more then. Default: log the error and exit with status 70.
	Fatal func(error)

	// Raft's timing. With one server an election has nobody to wait for, so the default is 250 ms for all three; with more
	// it is 500, 500 and 250 ms.
	HeartbeatTimeout   time.Duration
	ElectionTimeout    time.Duration
	LeaderLeaseTimeout time.Duration

	SnapshotThreshold uint64        // entries between snapshots, default 1024
	SnapshotInterval  time.Duration // how often to look whether one is due, default 30 s
	TrailingLogs      uint64        // entries kept behind a snapshot, default 10240

	HangTimeout  time.Duration // a disk operation that takes longer is fatal, default 10 s
	MinFreeBytes uint64        // refuse what needs room when the disk has less, default 256 MiB

	// SkipEntries are positions of the log that are passed over. A last resort for an entry that stops every server at
	// every start, to be set on all of them.
	SkipEntries []uint64

	// Stream is the transport to other servers, default none: the server is alone.
	Stream raft.StreamLayer
}

// ExitCode is the exit status of a server that its store has stopped.
const ExitCode = 70

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	if c.Fatal == nil {
		logger := c.Logger
		c.Fatal = func(err error) {
			logger.Error("the store cannot go on, and the server stops", "error", err)
			os.Exit(ExitCode)
		}
	}
	heartbeat := 500 * time.Millisecond
	if c.Stream == nil {
		heartbeat = 250 * time.Millisecond
	}
	def(&c.HeartbeatTimeout, heartbeat)
	def(&c.ElectionTimeout, c.HeartbeatTimeout)
	def(&c.LeaderLeaseTimeout, min(c.HeartbeatTimeout, 250*time.Millisecond))
	def(&c.SnapshotInterval, 30*time.Second)
	def(&c.HangTimeout, 10*time.Second)
	if c.SnapshotThreshold == 0 {
		c.SnapshotThreshold = 1024
	}
	if c.TrailingLogs == 0 {
		c.TrailingLogs = 10240
	}
	if c.MinFreeBytes == 0 {
		c.MinFreeBytes = 256 << 20
	}
	return c
}

func (c Config) check() error {
	if c.Dir == "" {
		return fmt.Errorf("open the store: no directory is given")
	}
	return nil
}
