package raftstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

var (
	bucketLog    = []byte("log")    // index, 8 bytes big-endian → entry
	bucketStable = []byte("stable") // raft's term and vote
)

// raft asks for these keys by name.
const (
	keyCurrentTerm  = "CurrentTerm"
	keyLastVoteTerm = "LastVoteTerm"
	keyLastVoteCand = "LastVoteCand"
)

// errNotFound is what raft takes for a missing key of the stable store: it compares the text.
var errNotFound = errors.New("not found")

// logStore keeps raft's log, term and vote in one file. Every write is on disk when it returns, and every entry carries a
// checksum, as the file's pages have none. raft gets no second chance after a failed read, so damage is told to faults
// before it is returned.
type logStore struct {
	path     string
	db       *bbolt.DB
	faults   *faults
	watchdog *watchdog
	// applied is how far the state has come: no entry up to there may be replaced.
	applied func() uint64

	mu          sync.Mutex
	first, last uint64 // 0: the log is empty
	// voteTerm waits for the candidate: raft writes term and candidate one after the other, and a crash between the two
	// would let the next vote skip the comparison of the logs.
	voteTerm *uint64
}

func openLogStore(path string, f *faults, w *watchdog) (*logStore, error) {
	s := &logStore{path: path, faults: f, watchdog: w, applied: func() uint64 { return 0 }}
	err := reading(path, func() error {
		if err := checkPages(path); err != nil {
			return err
		}
		db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType, InitialMmapSize: 256 << 20})
		if err != nil {
			return err
		}
		s.db = db
		err = db.Update(func(tx *bbolt.Tx) error {
			for _, name := range [][]byte{bucketLog, bucketStable} {
				if tx.Bucket(name) == nil {
					if _, err := tx.CreateBucket(name); err != nil {
						return err
					}
				}
			}
			return nil
		})
		if err == nil {
			err = s.reload()
		}
		if err != nil {
			db.Close()
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open the log %s: %w", path, err)
	}
	return s, nil
}

// checkPages walks through a file without writing. Opened for writing, bbolt walks in a goroutine of its own, where a
// damaged page would end the process with a trace instead of an error.
func checkPages(path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Size() == 0 {
		return nil // begins now
	}
	if err != nil {
		return err
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second, ReadOnly: true})
	if err != nil {
		return err
	}
	defer db.Close()
	return db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(_ []byte, b *bbolt.Bucket) error {
			return b.ForEach(func(_, _ []byte) error { return nil })
		})
	})
}

// reload reads the first and last index from the file.
func (s *logStore) reload() error {
	return s.db.View(func(tx *bbolt.Tx) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.first, s.last = 0, 0
		c := tx.Bucket(bucketLog).Cursor()
		if k, _ := c.First(); k != nil {
			s.first = binary.BigEndian.Uint64(k)
			k, _ = c.Last()
			s.last = binary.BigEndian.Uint64(k)
		}
		return nil
	})
}

func (s *logStore) close() error { return s.db.Close() }

// bytes is the size of the file.
func (s *logStore) bytes() int64 {
	info, err := os.Stat(s.path)
	if err != nil {
		return 0
	}
	return info.Size()
}

func (s *logStore) FirstIndex() (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.first, nil
}

func (s *logStore) LastIndex() (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last, nil
}

// GetLog reads an entry, or returns raft.ErrLogNotFound.
func (s *logStore) GetLog(index uint64, into *raft.Log) error {
	err := s.read(index, into)
	if err != nil && !errors.Is(err, raft.ErrLogNotFound) && !errors.Is(err, bolterrors.ErrDatabaseNotOpen) {
		s.faults.fatal(fmt.Errorf("read the log %s: %w", s.path, err))
	}
	return err
}

func (s *logStore) read(index uint64, into *raft.Log) error {
	return reading("the log "+s.path, func() error {
		return s.db.View(func(tx *bbolt.Tx) error {
			value := tx.Bucket(bucketLog).Get(logKey(index))
			if value == nil {
				return raft.ErrLogNotFound
			}
			return decodeEntry(index, value, into)
		})
	})
}

func (s *logStore) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

// StoreLogs writes entries in one commit; gaps are allowed.
func (s *logStore) StoreLogs(logs []*raft.Log) error {
	defer s.watchdog.watch("writing the log")()
	err := s.update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketLog)
		b.FillPercent = 0.95 // entries come in order
		for _, l := range logs {
			if err := b.Put(logKey(l.Index), encodeEntry(l)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("write %d entries to the log %s: %w", len(logs), s.path, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range logs {
		if s.first == 0 || l.Index < s.first {
			s.first = l.Index
		}
		s.last = max(s.last, l.Index)
	}
	return nil
}

// DeleteRange removes the entries from lowest to highest. Its start is taken away by compaction; taking away an end that
// the state holds already would replace what was committed, and stops the process.
func (s *logStore) DeleteRange(lowest, highest uint64) error {
	defer s.watchdog.watch("shortening the log")()
	s.mu.Lock()
	first := s.first
	s.mu.Unlock()
	if applied := s.applied(); lowest != first && lowest <= applied {
		err := fmt.Errorf("the cluster replaces entry %d of the log, and this server has applied up to %d: its history is another one; set its directory aside and join it anew", lowest, applied)
		s.faults.fatal(err)
		return err
	}
	err := s.update(func(tx *bbolt.Tx) error {
		c := tx.Bucket(bucketLog).Cursor()
		for k, _ := c.Seek(logKey(lowest)); k != nil && binary.BigEndian.Uint64(k) <= highest; k, _ = c.Seek(logKey(lowest)) {
			if err := c.Delete(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("shorten the log %s: %w", s.path, err)
	}
	return s.reload()
}

// update is a commit whose panics, from damaged pages, are errors.
func (s *logStore) update(fn func(tx *bbolt.Tx) error) error {
	return reading("the log "+s.path, func() error { return s.db.Update(fn) })
}

func logKey(index uint64) []byte { return binary.BigEndian.AppendUint64(nil, index) }

// Set writes a value; the candidate of a vote together with its term.
func (s *logStore) Set(key, value []byte) error {
	pairs := map[string][]byte{string(key): value}
	if string(key) == keyLastVoteCand {
		s.mu.Lock()
		if s.voteTerm != nil {
			pairs[keyLastVoteTerm] = binary.BigEndian.AppendUint64(nil, *s.voteTerm)
		}
		s.voteTerm = nil
		s.mu.Unlock()
	}
	return s.set(pairs)
}

func (s *logStore) set(pairs map[string][]byte) error {
	defer s.watchdog.watch("writing the vote")()
	err := s.update(func(tx *bbolt.Tx) error {
		for key, value := range pairs {
			if err := tx.Bucket(bucketStable).Put([]byte(key), value); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("write term and vote to %s: %w", s.path, err)
	}
	return nil
}

// Get returns a value, or an error with the text "not found".
func (s *logStore) Get(key []byte) ([]byte, error) {
	var out []byte
	err := reading("the log "+s.path, func() error {
		return s.db.View(func(tx *bbolt.Tx) error {
			if out = bytes.Clone(tx.Bucket(bucketStable).Get(key)); out == nil {
				return errNotFound
			}
			return nil
		})
	})
	return out, err
}

// SetUint64 writes a number. The term of a vote waits for its candidate; a term that cannot be written stops the process,
// as raft itself would panic.
func (s *logStore) SetUint64(key []byte, n uint64) error {
	if string(key) == keyLastVoteTerm {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.voteTerm = &n
		return nil
	}
	err := s.set(map[string][]byte{string(key): binary.BigEndian.AppendUint64(nil, n)})
	if err != nil && string(key) == keyCurrentTerm {
		s.faults.fatal(err)
	}
	return err
}

// GetUint64 reads a number, or returns an error with the text "not found".
func (s *logStore) GetUint64(key []byte) (uint64, error) {
	b, err := s.Get(key)
	if err != nil {
		return 0, err
	}
	if len(b) != 8 {
		return 0, fmt.Errorf("read %s from %s: it has %d bytes, not 8", key, s.path, len(b))
	}
	return binary.BigEndian.Uint64(b), nil
}
