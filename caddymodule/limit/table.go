package limit

import (
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/levelrail/levelrail/caddymodule/dense"
)

// table finds counters by key id. None of it holds pointers to follow: a request with a key that has not come lately reads
// cold memory a few times, and the garbage collector passes a million counters by.
type table struct{ shards [shardCount]shard }

const shardCount = 64

type shard struct {
	mu       sync.Mutex
	counters dense.Table[dense.ID, counter]
	steps    steps
	_        [64]byte // shards share no cache line
}

// record is a key's counter in the table.
type record = dense.Record[dense.ID, counter]

// counter is where a key's use is counted. It lives as long as there is something to count, and its place may be another
// key's afterwards: whoever has looked one up locks it, and looks whether it is of the life that was found.
type counter struct {
	mu    sync.Mutex
	lives atomic.Uint32 // that have ended
	live  bool
	state
}

var seed = maphash.MakeSeed()

// hashBits are all but in tests of ids with one hash.
var hashBits = ^uint64(0)

func hash(id *dense.ID) uint64 { return maphash.Bytes(seed, id.Text()) & hashBits }

func (t *table) shard(hash uint64) *shard { return &t.shards[hash/(1<<64/shardCount)] }

// found is a counter that was looked up, and its life.
type found struct {
	*record
	*shard
	life uint32
}

// find is the counter with that id; without one there is an empty one, or none, as orMake says.
func (t *table) find(id *dense.ID, orMake bool) (found, bool) {
	h := hash(id)
	s := t.shard(h)
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.counters.Find(uint32(h), id)
	switch {
	case r != nil:
	case !orMake:
		return found{}, false
	default:
		r = s.counters.Make(uint32(h), id)
		c := &r.Value
		c.mu.Lock() // by whoever found it in its last life: for a moment
		c.live, c.state = true, state{}
		c.mu.Unlock()
	}
	return found{r, s, r.Value.lives.Load()}, true
}

// hold locks the counter, unless it is of another life by now.
func (f found) hold() bool {
	c := &f.record.Value
	c.mu.Lock()
	if c.live && c.lives.Load() == f.life {
		return true
	}
	c.mu.Unlock()
	return false
}

// remove ends the life of a locked counter.
func (s *shard) remove(r *record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.Value.live = false
	r.Value.lives.Add(1)
	s.counters.Remove(r)
}

// all calls yield with each counter, and with places that are no live counter's, until it returns false. Yield may take
// counters away; no lock is held meanwhile.
func (t *table) all(yield func(*shard, *record) bool) {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		places := s.counters.Places()
		s.mu.Unlock()
		for _, lot := range places {
			for j := range lot {
				if !yield(s, &lot[j]) {
					return
				}
			}
		}
	}
}
