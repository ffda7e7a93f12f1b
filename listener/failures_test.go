package listener

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestFailuresSlow: the first failures of an address are answered at once, later ones are held longer and longer, others
// are not touched, and after a minute of quiet all is forgotten.
func TestFailuresSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f Failures
		waited := func(client string) time.Duration {
			began := time.Now()
			f.Failed(client).Wait(t.Context())
			return time.Since(began)
		}
		for i := range freeFailures {
			if d := waited("192.0.2.7"); d != 0 {
				t.Errorf("failure %d was held for %s", i+1, d)
			}
		}
		for last := time.Duration(0); last < longestWait; {
			d := waited("192.0.2.7")
			if d <= last {
				t.Fatalf("held for %s after %s", d, last)
			}
			last = d
		}
		for _, other := range []string{"192.0.2.8", "2001:db8::1", ""} {
			if d := waited(other); d != 0 {
				t.Errorf("%q was held for %s", other, d)
			}
		}
		time.Sleep(worst * forgetEvery)
		if d := waited("192.0.2.7"); d != 0 {
			t.Errorf("after a minute it was held for %s", d)
		}
	})
}

// TestFailuresPrefix: all addresses of one IPv6 host are one, and so are two forms of an IPv4 address.
func TestFailuresPrefix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, form := range []string{"2001:db8:1:2:%x::1", "::ffff:192.0.2.7"} {
			var f Failures
			began := time.Now()
			for i := range freeFailures + 1 {
				client := form
				if form[0] == '2' {
					client = fmt.Sprintf(form, i+1)
				}
				f.Failed(client).Wait(t.Context())
			}
			if form[0] == ':' {
				f.Failed("192.0.2.7").Wait(t.Context())
			}
			if time.Since(began) == 0 {
				t.Errorf("%s: no failure was held", form)
			}
		}
	})
}

// TestFailuresLeave: a client that leaves is not waited for.
func TestFailuresLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f Failures
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		began := time.Now()
		for range 100 {
			f.Failed("192.0.2.7").Wait(ctx)
		}
		if d := time.Since(began); d != 0 {
			t.Errorf("it took %s", d)
		}
		if n := f.held.Load(); n != 0 {
			t.Errorf("%d are still held", n)
		}
	})
}

// TestFailuresHeld: only so many are held at a time; the rest are answered at once and lose their connection.
func TestFailuresHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f Failures
		var all sync.WaitGroup
		closed := 0
		for range 1000 {
			x := f.Failed("192.0.2.7")
			if x.Close {
				closed++
			}
			all.Go(func() { x.Wait(t.Context()) })
		}
		if n := f.held.Load(); n != heldOfOne || closed != 1000-freeFailures-heldOfOne {
			t.Errorf("%d are held, %d closed", n, closed)
		}
		all.Wait()
		if n := f.held.Load(); n != 0 {
			t.Errorf("%d are held at the end", n)
		}
		for i := range 2 * heldOfAll {
			for range worst {
				f.Failed(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}).String())
			}
		}
		if n := f.held.Load(); n > heldOfAll {
			t.Errorf("%d are held of many addresses", n)
		}
	})
}

// TestFailuresReports: each address has a line a second, which counts what came between; all together have a bounded
// number, and what that left out is in a later line. No failure is lost.
func TestFailuresReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f Failures
		lines, counted := 0, 0
		fail := func(client string) {
			if x := f.Failed(client); x.Report {
				lines++
				counted += x.Count + x.Missed
			}
		}
		for range 1000 {
			fail("192.0.2.7")
			time.Sleep(10 * time.Millisecond)
		}
		if lines != 10 {
			t.Errorf("one address: %d lines in ten seconds", lines)
		}
		time.Sleep(10 * time.Second)
		lines = 0
		for i := range 5000 {
			fail(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}).String())
		}
		if lines != lineBurst {
			t.Errorf("many addresses: %d lines at once", lines)
		}
		time.Sleep(10 * time.Second)
		fail("192.0.2.7")
		if want := 1000 + 5000 + 1; counted != want {
			t.Errorf("%d of %d failures are in lines", counted, want)
		}
	})
}

// TestFailuresBounded: a flood from everywhere takes bounded memory, and does not make an address that goes on failing be
// forgotten.
func TestFailuresBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f Failures
		for i := range 20 * failureShards * mostAddresses {
			if i%1000 == 0 {
				time.Sleep(time.Millisecond)
				f.Failed("192.0.2.7")
			}
			f.Failed(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}).String())
		}
		n := 0
		for i := range f.shards {
			n += len(f.shards[i].all)
		}
		if n > failureShards*mostAddresses {
			t.Errorf("%d addresses are kept", n)
		}
		if x := f.Failed("192.0.2.7"); x.wait == 0 && !x.Close {
			t.Error("the address that goes on failing was forgotten")
		}
	})
}

// BenchmarkFailed is what a flood of wrong keys costs here.
func BenchmarkFailed(b *testing.B) {
	var f Failures
	b.ReportAllocs()
	for b.Loop() {
		f.Failed("192.0.2.7")
		f.held.Store(0)
	}
}
