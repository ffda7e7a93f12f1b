package limit

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Two keys, as their hashes are.
const keyA, keyB, keyC = 0x1111111122222222, 0x3333333344444444, 0x5555555566666666

// TestSlots: never more than the bound are taken at once, none is lost, and names do not share.
func TestSlots(t *testing.T) {
	var s Slots
	var running, most, served atomic.Int64
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			who := uint64(i) * 0x9e3779b97f4a7c15
			for n := range 200 {
				g := s.Gate("chat")
				if n%2 == 0 {
					if !g.Take(who, 8) {
						continue
					}
				} else if g.Wait(t.Context(), nil, who, 1, 8, time.Minute) != nil {
					continue
				}
				n := running.Add(1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				served.Add(1)
				running.Add(-1)
				g.Give(who)
			}
		})
	}
	wg.Wait()
	if g := s.Gate("chat"); most.Load() > 8 || served.Load() < 64*100 || g.InFlight() != 0 || g.Waiting() != 0 || g.held != (sketch{}) {
		t.Errorf("%d at once, %d served, %d left, %d waiting", most.Load(), served.Load(), g.InFlight(), g.Waiting())
	}
	a := s.Gate("a")
	if !a.Take(keyA, 1) || a.Take(keyA, 1) || !s.Gate("b").Take(keyA, 1) {
		t.Error("a bound of one lets exactly one in, by name")
	}
	if !a.Take(keyA, 0) || !a.Take(keyB, -1) || a.InFlight() != 3 {
		t.Error("no bound lets all in and still counts")
	}
}

// TestFairQueue: of two keys, one with a hundred connections that come again at once and one with a single connection, the
// second waits for one slot to come free each time, and not for the hundred.
func TestFairQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slots, service = 4, 10 * time.Second
		g := new(Gate)
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		client := func(who uint64, wait *time.Duration, served *int) {
			for ctx.Err() == nil {
				began := time.Now()
				if err := g.Wait(ctx, nil, who, 1, slots, time.Hour); err != nil {
					return
				}
				*wait = max(*wait, time.Since(began))
				*served++
				time.Sleep(service)
				g.Give(who)
			}
		}
		var mu sync.Mutex
		all := 0
		for i := range 100 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				var wait time.Duration
				var n int
				client(keyA, &wait, &n)
				mu.Lock()
				all += n
				mu.Unlock()
			})
		}
		var wait time.Duration
		served := 0
		wg.Go(func() {
			time.Sleep(time.Minute)
			client(keyB, &wait, &served)
		})
		time.Sleep(30 * time.Minute)
		stop()
		wg.Wait()
		if wait > service || served < 80 || all < 400 {
			t.Errorf("the single connection waited up to %s and was served %d times, the hundred %d times", wait, served, all)
		}
		if g.InFlight() != 0 || g.Waiting() != 0 || g.held != (sketch{}) {
			t.Errorf("left over: %d in flight, %d waiting", g.InFlight(), g.Waiting())
		}
	})
}

// TestQueueWeights: keys that want more than there is get slots by their weights.
func TestQueueWeights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := new(Gate)
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var served [3]atomic.Int64
		for i, who := range []uint64{keyA, keyB, keyC} {
			for range 20 {
				wg.Go(func() {
					for ctx.Err() == nil && g.Wait(ctx, nil, who, int64(i+1), 6, time.Hour) == nil {
						time.Sleep(time.Second)
						g.Give(who)
						served[i].Add(1)
					}
				})
			}
		}
		time.Sleep(1000*time.Second + time.Millisecond)
		stop()
		wg.Wait()
		for i := range served {
			if want := int64(1000 * (i + 1)); served[i].Load() < want-20 || served[i].Load() > want+20 {
				t.Errorf("weight %d was served %d times, want about %d", i+1, served[i].Load(), want)
			}
		}
	})
}

// TestQueueWaits: waiting ends at its bound with a wait that is true, at once with a client that leaves, and a queue that is too
// long for the bound refuses at once.
func TestQueueWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := new(Gate)
		full := new(FullError)
		if !g.Take(keyA, 1) {
			t.Fatal("no slot")
		}
		began := time.Now()
		if err := g.Wait(t.Context(), nil, keyB, 1, 1, 30*time.Second); !errors.As(err, &full) || time.Since(began) != 30*time.Second || g.Waiting() != 0 {
			t.Errorf("%v after %s, %d waiting", err, time.Since(began), g.Waiting())
		}
		if full.Wait != 30*time.Second { // the slot was not free for as long: it may be as long again
			t.Errorf("the wait said is %s", full.Wait)
		}
		if err := g.Wait(t.Context(), nil, keyB, 1, 1, 0); !errors.As(err, &full) || time.Since(began) != 30*time.Second {
			t.Errorf("without a wait: %v after %s", err, time.Since(began))
		}
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error)
		go func() { left <- g.Wait(ctx, nil, keyB, 1, 1, time.Hour) }()
		synctest.Wait()
		if g.Waiting() != 1 || g.Take(keyA, 2) {
			t.Error("somebody passes the one who waits")
		}
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) || g.Waiting() != 0 || len(g.queue.lines) != 0 {
			t.Errorf("%v, %d waiting", err, g.Waiting())
		}

		// Ten that take 6 s each, one slot: the eleventh would wait a minute, and may 30 s.
		g.Give(keyA)
		var wg sync.WaitGroup
		serve := func(who uint64) {
			wg.Go(func() {
				if err := g.Wait(t.Context(), nil, who, 1, 1, time.Hour); err != nil {
					t.Error(err)
				}
				time.Sleep(6 * time.Second)
				g.Give(who)
			})
		}
		for range 10 {
			serve(keyA)
		}
		time.Sleep(57 * time.Second) // nine are done, one is served
		for range 9 {
			serve(keyA)
		}
		synctest.Wait()
		began = time.Now()
		err := g.Wait(t.Context(), nil, keyA, 1, 1, 30*time.Second)
		if !errors.As(err, &full) || time.Since(began) != 0 || full.Wait < 50*time.Second || full.Wait > 70*time.Second {
			t.Errorf("%v after %s, saying %v", err, time.Since(began), full.Wait)
		}
		if err := g.Wait(t.Context(), nil, keyB, 1, 1, 30*time.Second); err != nil || time.Since(began) > 9*time.Second { // this turn and one more
			t.Errorf("another key: %v after %s", err, time.Since(began))
		}
		g.Give(keyB)
		wg.Wait()
		if g.InFlight() != 0 || g.Waiting() != 0 {
			t.Errorf("left over: %d in flight, %d waiting", g.InFlight(), g.Waiting())
		}
	})
}

// TestQueueForgets: a rush in which slots came free more slowly than a request may wait closes the queue to nobody who comes later.
func TestQueueForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := new(Gate)
		var wg sync.WaitGroup
		for range 2 * fewestPaced {
			wg.Go(func() {
				if err := g.Wait(t.Context(), nil, keyA, 1, 1, time.Hour); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Minute)
				g.Give(keyA)
			})
		}
		wg.Wait()
		for range 3 {
			if !g.Take(keyA, 1) {
				t.Fatal("no slot")
			}
			time.AfterFunc(time.Second, func() { g.Give(keyA) })
			if err := g.Wait(t.Context(), nil, keyB, 1, 1, 30*time.Second); err != nil {
				t.Fatalf("the only one who waits, for a slot that is free in a second: %v", err)
			}
			g.Give(keyB)
		}
	})
}

// TestBodies: neither one key nor all together hold more than they may, and what is given back is free.
func TestBodies(t *testing.T) {
	var b Bodies
	if !b.Take(keyA, 100, 100, 250) || b.Take(keyA, 1, 100, 250) || !b.Take(keyB, 100, 100, 250) || b.Take(keyC, 60, 100, 250) {
		t.Error("bounds of 100 and 250 do not hold")
	}
	b.Give(keyA, 100)
	if !b.Take(keyC, 60, 100, 250) || b.Held() != 160 || !b.Take(keyA, 1000, 0, 0) {
		t.Errorf("%d held", b.Held())
	}
}

// BenchmarkSlots is a slot taken and given back while nobody waits.
func BenchmarkSlots(b *testing.B) {
	var s Slots
	b.ReportAllocs()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			if g := s.Gate("chat"); g.Take(keyA, 1000) {
				g.Give(keyA)
			}
		}
	})
}
