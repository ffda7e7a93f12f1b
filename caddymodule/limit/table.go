package limit

import (
	"hash/maphash"
	"sync"
)

// table finds counters by key id. Maps under locks of their own serve a look-up in a million with two reads of cold memory,
// and hold nothing for a key but its counter, which is what the garbage collector then has to look at. sync.Map reads five
// levels and keeps three objects for each.
type table struct {
	seed   maphash.Seed
	shards [256]shard
}

type shard struct {
	mu   sync.RWMutex
	keys map[string]*Key
	_    [32]byte // shards share no cache line
}

func newTable() *table { return &table{seed: maphash.MakeSeed()} }

func (t *table) shard(id string) *shard {
	return &t.shards[maphash.String(t.seed, id)%uint64(len(t.shards))]
}

// get is the counter with that id, if there is one.
func (t *table) get(id string) (*Key, bool) {
	s := t.shard(id)
	s.mu.RLock()
	defer s.mu.RUnlock()
	c, ok := s.keys[id]
	return c, ok
}

// getOr is the counter with that id, which is what empty makes when there is none.
func (t *table) getOr(id string, empty func(string) *Key) *Key {
	s := t.shard(id)
	s.mu.RLock()
	c := s.keys[id]
	s.mu.RUnlock()
	if c != nil {
		return c
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.keys[id]; c != nil {
		return c
	}
	c = empty(id)
	if s.keys == nil {
		s.keys = map[string]*Key{}
	}
	s.keys[id] = c
	return c
}

func (t *table) remove(id string) {
	s := t.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.keys, id)
}

// all calls yield with each counter until it returns false. Yield may take counters away; no lock is held meanwhile.
func (t *table) all(yield func(*Key) bool) {
	var keys []*Key
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.RLock()
		keys = keys[:0]
		for _, c := range s.keys {
			keys = append(keys, c)
		}
		s.mu.RUnlock()
		for _, c := range keys {
			if !yield(c) {
				return
			}
		}
	}
}
