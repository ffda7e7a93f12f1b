// Package limit counts what is bounded: requests in flight of each model, the memory of bodies that wait, and of each key its
// requests and tokens.
//
// Counts outlive the tables of caddymodule/route and the gateway's configurations, so a reload or a changed key frees
// nothing and forgets nothing. All limits of a request are checked before any is charged, each key by itself under its own
// lock; a key costs memory from its first limited request until what it used has left its windows. The package does no I/O
// and, but for the queue, which waits, is told the time; keeping counts over a restart is caddymodule/limit/keep, what a refusal
// looks like is caddymodule/openai, how large a bound is comes with the route and the key.
package limit

import (
	"sync"
	"sync/atomic"
	"time"
)

// Slots bounds requests in flight by name. The zero Slots is ready.
type Slots struct {
	gates sync.Map // name → *Gate
}

// Gate counts one name's requests in flight, and has the queue of those that wait for a slot.
type Gate struct {
	inFlight atomic.Int64
	waiting  atomic.Int64 // in the queue; while some are, whoever comes goes there
	most     atomic.Int64 // as last said
	refused  atomic.Int64 // Unix nanoseconds of the last refusal; 0: none
	held     sketch       // slots by key
	queue    queue
}

// Gate is the name's counter, made on first use and kept.
func (s *Slots) Gate(name string) *Gate {
	if g, ok := s.gates.Load(name); ok {
		return g.(*Gate)
	}
	g, _ := s.gates.LoadOrStore(name, new(Gate))
	return g.(*Gate)
}

// Take takes a slot for a key if fewer than most are in flight and nobody waits for one; most ≤ 0 means no bound. Every success
// is given back once.
func (g *Gate) Take(who uint64, most int64) bool {
	if g.most.Load() != most {
		g.most.Store(most)
	}
	if g.waiting.Load() > 0 || !g.one() {
		return false
	}
	g.held.add(who, 1)
	return true
}

// one counts one more if there is room.
func (g *Gate) one() bool {
	for {
		n, most := g.inFlight.Load(), g.most.Load()
		if most > 0 && n >= most {
			return false
		}
		if g.inFlight.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Refuse notes that a slot was refused.
func (g *Gate) Refuse(now time.Time) { g.refused.Store(now.UnixNano()) }

// Give gives a key's slot back. The next in the queue has it then.
func (g *Gate) Give(who uint64) {
	g.held.add(who, -1)
	g.inFlight.Add(-1)
	if g.waiting.Load() > 0 { // whoever has begun to wait since looks for himself
		g.queue.mu.Lock()
		g.handOut()
		g.queue.mu.Unlock()
	}
}

// InFlight is how many slots are taken.
func (g *Gate) InFlight() int64 { return g.inFlight.Load() }

// Waiting is how many wait for a slot.
func (g *Gate) Waiting() int64 { return g.waiting.Load() }

// Refused is when a slot was last refused; zero: never.
func (g *Gate) Refused() time.Time { return timeOf(g.refused.Load()) }

func timeOf(unixNano int64) time.Time {
	if unixNano == 0 {
		return time.Time{}
	}
	return time.Unix(0, unixNano)
}
