package limit

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(d time.Duration) time.Time { return start.Add(d) }

// enter takes the slots of a key and fails the test when it cannot.
func enter(t testing.TB, k *Keys, l levelrail.KeyLimits, now time.Time) Key {
	t.Helper()
	c, ok := k.Enter("key_a", l, now)
	if !ok {
		t.Fatalf("no slot at %s", now.Sub(start))
	}
	return c
}

// TestWindows: a limit counts everything of its span and nothing that is a step older than it, and says to the second when
// a refused request would pass.
func TestWindows(t *testing.T) {
	type step struct {
		at     time.Duration
		spend  int64 // tokens; 0: a request
		passes bool
		wait   time.Duration
	}
	for _, c := range []struct {
		name   string
		limits levelrail.KeyLimits
		steps  []step
	}{
		{"two requests a minute", levelrail.KeyLimits{RPM: 2}, []step{
			{at: 0, passes: true}, {at: 30 * time.Second, passes: true}, {at: 31 * time.Second, wait: 30 * time.Second}, {at: 60 * time.Second, wait: time.Second},
			{at: 61 * time.Second, passes: true}, {at: 62 * time.Second, wait: 29 * time.Second}, {at: 91 * time.Second, passes: true}, {at: time.Hour, passes: true}}},
		{"tokens are known at the end, so the last request may go over", levelrail.KeyLimits{TPM: 100}, []step{
			{at: 0, passes: true}, {at: time.Second, spend: 99}, {at: 2 * time.Second, passes: true}, {at: 3 * time.Second, spend: 5000},
			{at: 4 * time.Second, wait: 60 * time.Second}, {at: 63*time.Second + 999*time.Millisecond, wait: time.Millisecond}, {at: 64 * time.Second, passes: true}}},
		{"a rolling day", levelrail.KeyLimits{TPD: 100}, []step{
			{at: time.Hour, spend: 60}, {at: 13 * time.Hour, spend: 60}, {at: 14 * time.Hour, wait: 11*time.Hour + 5*time.Minute},
			{at: 25*time.Hour + 4*time.Minute, wait: time.Minute}, {at: 25*time.Hour + 5*time.Minute, passes: true}, {at: 90 * time.Hour, passes: true}}},
		{"the longest wait of all that refuse", levelrail.KeyLimits{RPM: 1, TPD: 10}, []step{
			{at: 0, passes: true}, {at: 0, spend: 10}, {at: 0, wait: 24*time.Hour + 5*time.Minute}, {at: 2 * time.Minute, wait: 24*time.Hour + 3*time.Minute}}},
		{"no limit", levelrail.KeyLimits{RPM: -1, MaxParallel: 9}, []step{{at: 0, passes: true}, {at: 0, passes: true}, {at: 0, passes: true}}},
	} {
		k := NewKeys(start)
		for i, s := range c.steps {
			key := enter(t, k, c.limits, at(s.at))
			if s.spend > 0 {
				key.Spend(c.limits, s.spend, at(s.at))
			} else if _, wait, ok := key.Charge(c.limits, at(s.at)); ok != s.passes || wait != s.wait {
				t.Errorf("%s, step %d: %v after %s, want %v after %s", c.name, i, ok, wait, s.passes, s.wait)
			}
			key.Leave()
		}
	}
}

// TestChargedOnce: a request that one limit refuses uses up nothing of another, whichever it is (C010).
func TestChargedOnce(t *testing.T) {
	l := levelrail.KeyLimits{RPM: 2, MaxParallel: 1, TPM: 100, TPD: 1000}
	k := NewKeys(start)
	a, ok := k.Enter("key_a", l, start)
	if _, _, charged := a.Charge(l, start); !ok || !charged {
		t.Fatal("A does not pass")
	}
	for range 5 {
		if _, ok := k.Enter("key_a", l, start); ok {
			t.Fatal("B passes beside A")
		}
	}
	a.Leave()

	a.Spend(l, 100, start) // tpm is full
	b := enter(t, k, l, at(time.Second))
	if _, _, ok := b.Charge(l, at(time.Second)); ok {
		t.Error("passes with its tokens spent")
	}
	if s := k.State("key_a", l, at(time.Second)); s[0].Used != 1 || s[1].Used != 100 || s[2].Used != 100 || s[3].Used != 1 {
		t.Errorf("a refusal by tpm charged: %+v", s)
	}
	b.Leave()
	later := at(62 * time.Second)
	c := enter(t, k, l, later)
	ticket, _, ok := c.Charge(l, later)
	if !ok {
		t.Error("C does not pass")
	}
	c.TakeBack(ticket)
	c.TakeBack(ticket) // what is not there is not taken
	if s := k.State("key_a", l, later); s[0].Used != 0 {
		t.Errorf("after it was taken back: %+v", s[0])
	}
	c.Leave()
}

// TestState: each limit that a key has is told with what is used, when it last refused, and when it would let one pass.
func TestState(t *testing.T) {
	l := levelrail.KeyLimits{RPM: 1, MaxParallel: 1}
	k := NewKeys(start)
	if s := k.State("key_a", l, start); len(s) != 2 || s[0] != (State{Limit: RPM, Most: 1}) || s[1] != (State{Limit: MaxParallel, Most: 1}) {
		t.Errorf("before any use: %+v", s)
	}
	key := enter(t, k, l, start)
	key.Charge(l, start)
	key.Charge(l, at(10*time.Second))
	s := k.State("key_a", l, at(11*time.Second))
	if s[0].Used != 1 || !s[0].Refused.Equal(at(10*time.Second)) || s[0].Reset != 50*time.Second || s[0].Frees != 50*time.Second || s[1].Used != 1 || s[1].Reset == 0 || !s[1].Refused.IsZero() {
		t.Errorf("in flight: %+v", s)
	}
	key.Leave()
	if s := k.State("key_a", l, at(2*time.Minute)); s[0].Used != 0 || s[0].Reset != 0 || s[1].Used != 0 || s[1].Reset != 0 {
		t.Errorf("later: %+v", s)
	}
}

// TestClockSetAnew: the wall clock's jumps are none of a window's: only the time that has passed counts.
func TestClockSetAnew(t *testing.T) {
	now := time.Now() // with a monotonic reading, as the gateway's clock has
	k, l := NewKeys(now), levelrail.KeyLimits{RPM: 1}
	key := enter(t, k, l, now)
	key.Charge(l, now)
	for _, jump := range []time.Duration{-time.Hour, -time.Second, 0} {
		if _, _, ok := key.Charge(l, now.Add(jump)); ok {
			t.Errorf("a clock that goes back by %s lets one pass", -jump)
		}
	}
	if _, _, ok := key.Charge(l, now.Add(62*time.Second)); !ok {
		t.Error("a minute later it does not pass")
	}
}

// TestRestore: what a restart brings back refuses as before, ages while the process is down, and is forgotten when it has
// left its windows; keys that have nothing left take no memory.
func TestRestore(t *testing.T) {
	l := levelrail.KeyLimits{RPM: 2, TPM: 10, TPD: 100}
	k := NewKeys(start)
	key := enter(t, k, l, start)
	key.Charge(l, start)
	key.Charge(l, start)
	key.Spend(l, 50, at(30*time.Second))
	key.Leave()
	enter(t, k, l, start) // in flight: stays, though it is empty
	idle := k.lock("key_idle")
	idle.done()

	var kept []Kept
	k.Keep(at(31*time.Second), func(one Kept) bool {
		one.RPM, one.TPM, one.TPD = slices.Clone(one.RPM), slices.Clone(one.TPM), slices.Clone(one.TPD)
		kept = append(kept, one)
		return true
	})
	if len(kept) != 1 || kept[0].ID != "key_a" {
		t.Fatalf("kept %+v", kept)
	}
	if _, there := k.known("key_idle"); there {
		t.Error("a key that has used nothing is still there")
	}
	for _, c := range []struct {
		name  string
		down  time.Duration
		saved time.Time
		used  [3]int64
	}{
		{"at once", 0, at(31 * time.Second), [3]int64{2, 50, 50}},
		{"half a minute", 30 * time.Second, at(31 * time.Second), [3]int64{0, 50, 50}},
		{"an hour", time.Hour, at(31 * time.Second), [3]int64{0, 0, 50}},
		{"two days", 48 * time.Hour, at(31 * time.Second), [3]int64{0, 0, 0}},
		{"a clock set back by a week", -7 * 24 * time.Hour, at(31 * time.Second), [3]int64{2, 50, 50}},
	} {
		now := at(31*time.Second + c.down)
		next := NewKeys(now)
		next.Restore(kept[0], c.saved, now)
		s := next.State("key_a", l, now)
		if got := [3]int64{s[0].Used, s[1].Used, s[2].Used}; got != c.used {
			t.Errorf("%s: used %v, want %v", c.name, got, c.used)
		}
	}
}

// TestNeverOver: with many at once, no more requests of a key are ever in flight, or admitted in a minute, than its limits
// say; counts end at zero; and other keys are not concerned.
func TestNeverOver(t *testing.T) {
	k := NewKeys(start)
	l := levelrail.KeyLimits{RPM: 500, MaxParallel: 3}
	var running, most, admitted atomic.Int64
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			for range 200 {
				c, ok := k.Enter("key_a", l, start)
				if !ok {
					runtime.Gosched()
					continue
				}
				n := running.Add(1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				if _, _, ok := c.Charge(l, start); ok {
					admitted.Add(1)
				}
				running.Add(-1)
				c.Leave()
			}
		})
	}
	wg.Go(func() {
		for range 200 {
			k.Keep(start, func(Kept) bool { return true }) // sweeping forgets nobody's count
		}
	})
	wg.Wait()
	if most.Load() > 3 || admitted.Load() > 500 || admitted.Load() == 0 || k.State("key_a", l, start)[1].Used != 0 {
		t.Errorf("%d at once, %d in the minute", most.Load(), admitted.Load())
	}
	if s := k.State("key_b", l, start); s[0].Used != 0 {
		t.Errorf("another key: %+v", s)
	}
}

func newWindow(s *span) *window { return &window{s, new(sums), new(steps)} }

// TestWindowAgainstList: the window says the same as a list of everything that was counted, for random times and counts, in
// the past as well, and for what is taken back; and it holds a step for each second that has something.
func TestWindowAgainstList(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		w, now := newWindow(&minute), start.UnixNano()
		type one struct{ step, n int64 }
		var all []one
		for range 300 {
			now += r.Int64N(int64(20 * time.Second))
			sum, present := int64(0), map[int64]bool{}
			for _, o := range all {
				if o.step > now/int64(time.Second)-61 {
					sum += o.n
					present[o.step] = true
				}
			}
			if got := w.total(now); got != sum {
				t.Fatalf("total %d, want %d", got, sum)
			}
			if held := w.steps.of.Len(); held > max(0, len(present)-1) {
				t.Fatalf("%d older steps are held of %d in all", held, len(present))
			}
			if sum > 0 {
				most := 1 + r.Int64N(sum)
				wait := int64(w.until(now, most))
				before, after := newWindow(&minute), newWindow(&minute)
				before.restore(now, w.kept(now, nil), 0)
				after.restore(now, w.kept(now, nil), 0)
				if wait == 0 {
					t.Fatalf("no wait for %d of %d", most, sum)
				}
				if before.total(now+wait-1) < most || after.total(now+wait) >= most {
					t.Fatalf("waiting %s is not the shortest", time.Duration(wait))
				}
			}
			o := one{n: r.Int64N(9)}
			switch r.IntN(4) {
			case 0: // in the past
				at := now - r.Int64N(int64(70*time.Second))
				if o.step = at / int64(time.Second); o.step <= now/int64(time.Second)-61 {
					o.n = 0
				}
				w.put(now, at, r.Int64N(1)+o.n)
			case 1: // taken back
				if len(all) == 0 {
					continue
				}
				back := &all[r.IntN(len(all))]
				if w.takeBack(back.step, back.n); back.step > now/int64(time.Second)-61 {
					back.n = 0
				}
				continue
			default:
				o.step = w.add(now, o.n)
			}
			all = append(all, o)
		}
		if w.clear(); *w.sums != (sums{}) || w.steps.of.Len() != 0 {
			t.Fatalf("cleared, it has %+v and holds %d steps", *w.sums, w.steps.of.Len())
		}
	}
}

// BenchmarkLimits is what the limits of one request cost, in a gateway that knows many keys.
func BenchmarkLimits(b *testing.B) {
	k, l := NewKeys(start), levelrail.KeyLimits{RPM: 1 << 40, TPM: 1 << 40, TPD: 1 << 40, MaxParallel: 1 << 20}
	ids := make([]string, 1000)
	for i := range ids {
		ids[i] = fmt.Sprintf("key_%d", i)
	}
	b.ReportAllocs()
	b.RunParallel(func(p *testing.PB) {
		for i := rand.IntN(1000); p.Next(); i++ {
			now := time.Now()
			c, ok := k.Enter(ids[i%1000], l, now)
			if !ok {
				b.Fatal("refused")
			}
			c.Charge(l, now)
			c.Spend(l, 30, now)
			c.Leave()
		}
	})
}
