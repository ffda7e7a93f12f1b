package limit

import (
	"sync/atomic"
	"time"
)

// sketch counts by key without a lock, an allocation or an entry for each key: a count goes into one cell of each of two
// rows, and what a key has is the smaller of its two cells. It is never less than the truth, and more only when other keys
// stand in both of its cells at once, which is rare while few keys have anything at the same time. The cells are those of a
// hash that no client chooses.
type sketch struct{ cells [2][sketchCells]atomic.Int64 }

const sketchCells = 512

func (s *sketch) at(who uint64) (a, b *atomic.Int64) {
	return &s.cells[0][who%sketchCells], &s.cells[1][who>>32%sketchCells]
}

// add changes what a key has, and returns it.
func (s *sketch) add(who uint64, n int64) int64 {
	a, b := s.at(who)
	return min(a.Add(n), b.Add(n))
}

func (s *sketch) of(who uint64) int64 {
	a, b := s.at(who)
	return min(a.Load(), b.Load())
}

// Bodies bounds the memory of request bodies whose requests have no slot yet: those that are being read, and those that wait.
// The zero Bodies is ready.
type Bodies struct {
	all     atomic.Int64
	keys    sketch
	refused atomic.Int64 // Unix nanoseconds of the last refusal; 0: none
}

// Take takes n bytes for a key, unless the key would then hold more than mostKey, or all together more than mostAll; 0 or
// less is no bound. Give gives them back.
func (b *Bodies) Take(who uint64, n, mostKey, mostAll int64) bool {
	all, own := b.all.Add(n), b.keys.add(who, n)
	if mostAll > 0 && all > mostAll || mostKey > 0 && own > mostKey {
		b.Give(who, n)
		return false
	}
	return true
}

// Give gives bytes of a key back.
func (b *Bodies) Give(who uint64, n int64) {
	b.all.Add(-n)
	b.keys.add(who, -n)
}

// Refuse notes that there was no room.
func (b *Bodies) Refuse(now time.Time) { b.refused.Store(now.UnixNano()) }

// Refused is when there was no room last; zero: never.
func (b *Bodies) Refused() time.Time { return timeOf(b.refused.Load()) }

// Of is how many bytes a key holds.
func (b *Bodies) Of(who uint64) int64 { return b.keys.of(who) }

// Held is how many bytes are taken.
func (b *Bodies) Held() int64 { return b.all.Load() }
