package raftstore

import (
	"sync/atomic"

	iradix "github.com/hashicorp/go-immutable-radix"

	"github.com/levelrail/levelrail"
)

// memState keeps the state in an immutable tree: a view keeps the tree that it began with.
type memState struct {
	tree atomic.Pointer[iradix.Tree]
}

func newMemState() *memState {
	s := &memState{}
	s.tree.Store(iradix.New())
	return s
}

func memKey(bucket levelrail.Kind, id string) []byte { return []byte(string(bucket) + "\x00" + id) }

func (s *memState) view(fn func(stateReader) error) error {
	return fn(memReader{s.tree.Load().Txn()})
}

func (s *memState) begin() (stateWriter, error) {
	return &memWriter{memReader{s.tree.Load().Txn()}, s}, nil
}

type memReader struct{ txn *iradix.Txn }

func (r memReader) Get(bucket levelrail.Kind, id string) []byte {
	v, ok := r.txn.Get(memKey(bucket, id))
	if !ok {
		return nil
	}
	return v.([]byte)
}

func (r memReader) Each(bucket levelrail.Kind, prefix string, fn func(id string, value []byte) bool) {
	skip := len(bucket) + 1
	r.txn.Root().WalkPrefix(memKey(bucket, prefix), func(k []byte, v any) bool {
		return !fn(string(k[skip:]), v.([]byte))
	})
}

func (r memReader) first(bucket levelrail.Kind) (id string, value []byte) {
	r.Each(bucket, "", func(i string, v []byte) bool {
		id, value = i, v
		return false
	})
	return id, value
}

type memWriter struct {
	memReader
	s *memState
}

func (w *memWriter) put(bucket levelrail.Kind, id string, value []byte) error {
	w.txn.Insert(memKey(bucket, id), value)
	return nil
}

func (w *memWriter) remove(bucket levelrail.Kind, id string) error {
	w.txn.Delete(memKey(bucket, id))
	return nil
}

func (w *memWriter) commit() error {
	w.s.tree.Store(w.txn.Commit())
	return nil
}

func (w *memWriter) rollback() {}
