package raftstore

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/raftstore/command"
)

// boltState keeps the state in a file that is rebuilt at every start, so its commits do not wait for the disk.
type boltState struct {
	path string

	mu  sync.RWMutex
	cur *boltFile // nil: closed
}

// boltFile is an open state file; views count themselves in, so that it is closed after the last.
type boltFile struct {
	db    *bbolt.DB
	views sync.WaitGroup
}

// newBoltState makes an empty state at path, in place of whatever lies there.
func newBoltState(path string) (*boltState, error) {
	for _, old := range []string{path, path + ".tmp"} {
		if err := os.Remove(old); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("remove the old state: %w", err)
		}
	}
	f, err := openBoltFile(path)
	if err != nil {
		return nil, err
	}
	return &boltState{path: path, cur: f}, nil
}

func openBoltFile(path string) (*boltFile, error) {
	var f *boltFile
	err := reading("the state "+path, func() error {
		// A write that has to enlarge the memory map waits for all views: map enough at once, it costs addresses only.
		db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second, NoSync: true, NoGrowSync: true, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType, InitialMmapSize: 1 << 30})
		if err != nil {
			return err
		}
		err = db.Update(func(tx *bbolt.Tx) error {
			for _, name := range append([]levelrail.Kind{bucketMeta}, buckets...) {
				if _, err := tx.CreateBucketIfNotExists([]byte(name)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			db.Close()
			return err
		}
		f = &boltFile{db: db}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("open the state %s: %w", path, err)
	}
	return f, nil
}

// replace puts the state that r holds in place of this one. It waits for no view: those under way end on the old file.
func (s *boltState) replace(r io.Reader) error {
	tmp := s.path + ".tmp"
	if err := writeFile(tmp, r); err != nil {
		return fmt.Errorf("write the state: %w", err)
	}
	f, err := openBoltFile(tmp)
	if err != nil {
		return err
	}
	if err := os.Rename(tmp, s.path); err != nil {
		f.db.Close()
		return fmt.Errorf("put the state in place: %w", err)
	}
	s.mu.Lock()
	old := s.cur
	s.cur = f
	s.mu.Unlock()
	go old.close()
	return nil
}

func writeFile(path string, r io.Reader) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, r); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

func (f *boltFile) close() error {
	f.views.Wait()
	return f.db.Close()
}

func (s *boltState) close() error {
	s.mu.Lock()
	f := s.cur
	s.cur = nil
	s.mu.Unlock()
	if f == nil {
		return nil
	}
	return f.close()
}

// bytes is the size of the file.
func (s *boltState) bytes() int64 {
	info, err := os.Stat(s.path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// open begins a view that the caller ends with the function returned.
func (s *boltState) open() (*bbolt.Tx, func(), error) {
	s.mu.RLock()
	f := s.cur
	if f == nil {
		s.mu.RUnlock()
		return nil, nil, ErrClosed
	}
	f.views.Add(1)
	s.mu.RUnlock()
	tx, err := f.db.Begin(false)
	if err != nil {
		f.views.Done()
		return nil, nil, err
	}
	return tx, func() {
		tx.Rollback()
		f.views.Done()
	}, nil
}

func (s *boltState) view(fn func(stateReader) error) (err error) {
	tx, end, err := s.open()
	if err != nil {
		return err
	}
	defer end()
	defer func() {
		if p := recover(); p != nil {
			c, ok := p.(*command.Corrupt)
			if !ok {
				panic(p)
			}
			err = c
		}
	}()
	return fn(boltReader{tx})
}

func (s *boltState) begin() (stateWriter, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.cur == nil {
		return nil, ErrClosed
	}
	tx, err := s.cur.db.Begin(true)
	if err != nil {
		return nil, err
	}
	return &boltWriter{boltReader{tx}}, nil
}

// boltReader panics with *command.Corrupt where the file cannot be read.
type boltReader struct{ tx *bbolt.Tx }

func (r boltReader) bucket(name levelrail.Kind) *bbolt.Bucket { return r.tx.Bucket([]byte(name)) }

func damaged(bucket levelrail.Kind, id string, fn func()) {
	if err := reading("the state", func() error { fn(); return nil }); err != nil {
		panic(&command.Corrupt{Bucket: bucket, ID: id, Err: err})
	}
}

func (r boltReader) Get(bucket levelrail.Kind, id string) (value []byte) {
	damaged(bucket, id, func() { value = r.bucket(bucket).Get([]byte(id)) })
	return value
}

func (r boltReader) Each(bucket levelrail.Kind, prefix string, fn func(id string, value []byte) bool) {
	var c *bbolt.Cursor
	var k, v []byte
	damaged(bucket, prefix, func() {
		c = r.bucket(bucket).Cursor()
		k, v = c.Seek([]byte(prefix))
	})
	for k != nil && bytes.HasPrefix(k, []byte(prefix)) && fn(string(k), v) {
		damaged(bucket, prefix, func() { k, v = c.Next() })
	}
}

func (r boltReader) first(bucket levelrail.Kind) (id string, value []byte) {
	r.Each(bucket, "", func(i string, v []byte) bool {
		id, value = i, v
		return false
	})
	return id, value
}

type boltWriter struct{ boltReader }

func (w *boltWriter) put(bucket levelrail.Kind, id string, value []byte) error {
	return reading("the state", func() error { return w.bucket(bucket).Put([]byte(id), value) })
}

func (w *boltWriter) remove(bucket levelrail.Kind, id string) error {
	return reading("the state", func() error { return w.bucket(bucket).Delete([]byte(id)) })
}

func (w *boltWriter) commit() error {
	return reading("the state", func() error { return w.tx.Commit() })
}

func (w *boltWriter) rollback() {
	// After a commit, or when the commit itself failed, there is nothing left to give back.
	_ = reading("the state", func() error { return w.tx.Rollback() })
}
