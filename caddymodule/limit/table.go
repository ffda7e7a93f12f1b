package limit

import (
	"hash/maphash"
	"sync"

	"github.com/levelrail/levelrail/caddymodule/dense"
)

// table finds counters by key id. Neither they nor the maps under locks hold pointers: a request with a key that it has not
// seen lately reads cold memory two or three times, and the garbage collector passes a million of them by.
type table struct{ shards [shardCount]shard }

const shardCount = 64

var seed = maphash.MakeSeed()

// hashBits are all but in tests of ids with one hash.
var hashBits = ^uint64(0)

// hash is what ids are found by.
func hash(id *dense.ID) uint64 { return maphash.Bytes(seed, id.Text()) & hashBits }

type shard struct {
	mu       sync.Mutex
	numbers  map[uint64]uint32 // by a hash of the id, or the next that was free
	counters dense.Lots[counter]
	beside   map[uint32]*windows // by the counter's number
	_        [64]byte            // shards share no cache line
}

// counter is where a key's use is counted: what of it holds no pointers. It has a place in its shard as long as it lives, and
// may be another key's afterwards: whoever has looked one up locks it, and looks whose it is.
type counter struct {
	mu     sync.Mutex
	live   bool // in the table
	id     dense.ID
	number uint32
	long   bool // its windows stand beside
	state
}

func (t *table) shard(h uint64) *shard { return &t.shards[h/(1<<64/shardCount)] }

// find is the counter with that id, or nil.
func (t *table) find(id *dense.ID) *counter {
	h := hash(id)
	s := t.shard(h)
	s.mu.Lock()
	defer s.mu.Unlock()
	c, _ := s.find(h, id)
	return c
}

// find is the counter with an id, or nil, and at which hash it stands or could. The map holds hashes and not ids, of which it
// would read several times as much; two ids with one hash are rare, and right all the same.
func (s *shard) find(h uint64, id *dense.ID) (*counter, uint64) {
	for ; ; h++ {
		n, ok := s.numbers[h]
		if !ok {
			return nil, h
		}
		if c := s.counters.At(n); c.id == *id {
			return c, h
		}
	}
}

// findOr is the counter with that id, an empty one when there was none.
func (t *table) findOr(id *dense.ID) *counter {
	h := hash(id)
	s := t.shard(h)
	s.mu.Lock()
	defer s.mu.Unlock()
	c, h := s.find(h, id)
	if c != nil {
		return c
	}
	if s.numbers == nil {
		s.numbers = map[uint64]uint32{}
	}
	c, n := s.counters.Take()
	c.mu.Lock() // by whoever found it when it was another key's: for a moment
	c.live, c.id, c.number, c.long, c.state = true, *id, n, false, state{}
	c.mu.Unlock()
	s.numbers[h] = n
	return c
}

// remove takes a locked counter out of the table.
func (t *table) remove(c *counter) {
	h := hash(&c.id)
	s := t.shard(h)
	s.mu.Lock()
	defer s.mu.Unlock()
	_, h = s.find(h, &c.id)
	delete(s.numbers, h)
	for h++; ; h++ { // what stands behind it may have stood aside for it
		n, ok := s.numbers[h]
		if !ok {
			break
		}
		delete(s.numbers, h)
		id := &s.counters.At(n).id
		_, at := s.find(hash(id), id)
		s.numbers[at] = n
	}
	delete(s.beside, c.number)
	s.counters.Give(c.number)
	c.live = false
}

// scratch are windows that a counter's own steps are put into while it is locked. On the stack they would not stay.
var scratch = sync.Pool{New: func() any { return new(windows) }}

// windows are those of a locked counter: the ones beside, or scratch with what it has itself.
func (t *table) windows(c *counter) *windows {
	if !c.long {
		w := scratch.Get().(*windows)
		w.unpack(&c.one)
		return w
	}
	s := t.shard(hash(&c.id))
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.beside[c.number]
}

// keep brings the windows of a locked counter to where they stand. Once beside they stay there until tidy says otherwise.
func (t *table) keep(c *counter, w *windows) {
	if c.long {
		return
	}
	if w.pack(&c.one) {
		scratch.Put(w)
		return
	}
	s := t.shard(hash(&c.id))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.beside == nil {
		s.beside = map[uint32]*windows{}
	}
	s.beside[c.number], c.long = w, true
}

// tidy takes windows that have become small again into their locked counter.
func (t *table) tidy(c *counter, w *windows) {
	if !c.long || !w.pack(&c.one) {
		return
	}
	s := t.shard(hash(&c.id))
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.beside, c.number)
	c.long = false
}

// all calls yield with each counter until it returns false, and with places that are no live counter's. Yield may take
// counters away; no lock is held meanwhile.
func (t *table) all(yield func(*counter) bool) {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		lots := s.counters.All()
		s.mu.Unlock()
		for _, lot := range lots {
			for j := range lot {
				if !yield(&lot[j]) {
					return
				}
			}
		}
	}
}
