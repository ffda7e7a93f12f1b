package limit

import (
	"sync"
	"sync/atomic"
	"testing"
)

// TestSlots: never more than the bound are taken at once, none is lost, and names do not share.
func TestSlots(t *testing.T) {
	var s Slots
	var running, most, served atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for range 200 {
				g := s.Gate("chat")
				if !g.Take(8) {
					continue
				}
				n := running.Add(1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				served.Add(1)
				running.Add(-1)
				g.Give()
			}
		})
	}
	wg.Wait()
	if most.Load() > 8 || served.Load() == 0 || s.Gate("chat").InFlight() != 0 {
		t.Errorf("%d at once, %d served, %d left", most.Load(), served.Load(), s.Gate("chat").InFlight())
	}
	a := s.Gate("a")
	if !a.Take(1) || a.Take(1) || !s.Gate("b").Take(1) {
		t.Error("a bound of one lets exactly one in, by name")
	}
	if !a.Take(0) || !a.Take(-1) || a.InFlight() != 3 {
		t.Error("no bound lets all in and still counts")
	}
}
