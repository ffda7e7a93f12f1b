// Package limit counts what is bounded: requests in flight of each model.
//
// Counts outlive the tables of caddymodule/route and the gateway's configurations, so a reload or a changed key frees
// nothing and forgets nothing. The package reads no clock and does no I/O; what a refusal looks like is caddymodule/openai,
// how large a bound is comes with the route.
package limit

import (
	"sync"
	"sync/atomic"
)

// Slots bounds requests in flight by name. The zero Slots is ready.
type Slots struct {
	gates sync.Map // name → *Gate
}

// Gate counts one name's requests in flight.
type Gate struct {
	inFlight atomic.Int64
}

// Gate is the name's counter, made on first use and kept.
func (s *Slots) Gate(name string) *Gate {
	if g, ok := s.gates.Load(name); ok {
		return g.(*Gate)
	}
	g, _ := s.gates.LoadOrStore(name, new(Gate))
	return g.(*Gate)
}

// Take takes a slot if fewer than most are in flight; most ≤ 0 means no bound. Every success is given back once.
func (g *Gate) Take(most int64) bool {
	for {
		n := g.inFlight.Load()
		if most > 0 && n >= most {
			return false
		}
		if g.inFlight.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Give gives a slot back.
func (g *Gate) Give() { g.inFlight.Add(-1) }

// InFlight is how many slots are taken.
func (g *Gate) InFlight() int64 { return g.inFlight.Load() }
