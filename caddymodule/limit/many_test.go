package limit

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/caddymodule/dense"
)

// BenchmarkManyKeys is a first request of each of very many keys with every limit, and what a key then takes in memory.
func BenchmarkManyKeys(b *testing.B) {
	const keys = 100_000
	l := levelrail.KeyLimits{RPM: 1 << 40, TPM: 1 << 40, TPD: 1 << 40, MaxParallel: 1 << 20}
	ids := make([]string, keys)
	for i := range ids {
		ids[i] = fmt.Sprint("key_", i)
	}
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		k := NewKeys(start)
		for _, id := range ids {
			c, ok := k.Enter(id, l, start)
			if !ok {
				b.Fatal("refused")
			}
			c.Charge(l, start)
			c.Spend(l, 30, start)
			c.Leave()
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/keys, "bytes/key")
		runtime.KeepAlive(k)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/keys, "ns/key")
}

// TestWindowTakesNoMoreThanItHas: steps that have left the window leave nothing behind, and one that is used again and again
// holds no more of them than it has.
func TestWindowTakesNoMoreThanItHas(t *testing.T) {
	w := newWindow(&minute)
	now := start.UnixNano()
	for range 10_000 {
		now += int64(minute.step) * 2
		w.add(now, 1)
		if n := w.steps.of.Len(); n > 30 || w.total(now) > 31 {
			t.Fatalf("%d older steps are held, of %d in all", n, w.total(now))
		}
	}
	if got := w.total(now + int64(minute.step)*61); got != 0 || w.steps.of.Len() != 0 {
		t.Errorf("after its span it has %d and holds %d steps", got, w.steps.of.Len())
	}
}

// TestCounterHasNoPointers: the garbage collector passes counters by. With a million of them it would else have a tenth of a
// gateway's time.
func TestCounterHasNoPointers(t *testing.T) {
	for _, of := range []reflect.Type{reflect.TypeFor[record](), reflect.TypeFor[older]()} {
		if t.Logf("%s: %d bytes", of, of.Size()); dense.Pointers(of) || of.Size() > 512 {
			t.Errorf("a %s has pointers (%v), or %d bytes", of, dense.Pointers(of), of.Size())
		}
	}
}

// TestCountersComeAndGo: keys whose counters take the place of forgotten ones are counted apart, whoever else counts.
func TestCountersComeAndGo(t *testing.T) {
	countersComeAndGo(t)
}

// TestCountersOfOneHash: neither are keys whose ids have the same hash, or the next.
func TestCountersOfOneHash(t *testing.T) {
	t.Cleanup(func() { hashBits = ^uint64(0) })
	hashBits = 3<<62 | 511
	countersComeAndGo(t)
}

func countersComeAndGo(t *testing.T) {
	k := NewKeys(start)
	l := levelrail.KeyLimits{RPM: 1 << 30, TPM: 1 << 30, MaxParallel: 1 << 30}
	now := start
	for round := range 30 {
		now = now.Add(2 * time.Minute) // what was counted before has left its window
		var workers, keeping sync.WaitGroup
		for worker := range 4 {
			workers.Go(func() {
				random, counted := rand.New(rand.NewPCG(uint64(round), uint64(worker))), map[string][2]int64{}
				for range 2000 {
					id := fmt.Sprintf("key_%d_%d_%d", worker, round%3, random.IntN(300))
					at := now.Add(time.Duration(random.IntN(30)) * time.Second)
					c, ok := k.Enter(id, l, at)
					if !ok {
						t.Error("refused")
						return
					}
					c.Charge(l, at)
					c.Spend(l, 7, at)
					c.Leave()
					counted[id] = [2]int64{counted[id][0] + 1, counted[id][1] + 7}
				}
				for id, want := range counted {
					s := k.State(id, l, now.Add(30*time.Second))
					if got := [2]int64{s[0].Used, s[1].Used}; got != want || s[2].Used != 0 {
						t.Errorf("%s has %d and %d in flight, want %d", id, got, s[2].Used, want)
					}
				}
			})
		}
		stop := make(chan struct{})
		keeping.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					k.Keep(now, func(Kept) bool { return true })
				}
			}
		})
		workers.Wait()
		close(stop)
		keeping.Wait()
	}
	k.Keep(now.Add(time.Hour), func(kept Kept) bool { t.Errorf("%s is kept", kept.ID); return true })
	for i := range k.keys.shards {
		if s := &k.keys.shards[i]; s.counters.Len() != 0 || s.steps.of.Len() != 0 {
			t.Errorf("of keys that used nothing for an hour %d and %d steps are left", s.counters.Len(), s.steps.of.Len())
		}
	}
}

// BenchmarkKeep is what going through very many keys costs, of which each has one request.
func BenchmarkKeep(b *testing.B) {
	const keys = 200_000
	l := levelrail.KeyLimits{RPM: 1 << 40, TPM: 1 << 40, TPD: 1 << 40, MaxParallel: 1 << 20}
	k := NewKeys(start)
	for i := range keys {
		c, _ := k.Enter(fmt.Sprint("key_", i), l, start)
		c.Charge(l, start)
		c.Spend(l, 30, start)
		c.Leave()
	}
	for b.Loop() {
		k.Keep(start, func(Kept) bool { return true })
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/keys, "ns/key")
}
