package listener

import (
	"context"
	"hash/maphash"
	"math"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// The rules of failed authentications.
const (
	freeFailures = 10                     // of one address that are answered at once
	forgetEvery  = 6 * time.Second        // one failure is forgotten after this, so that ten a minute cost nothing
	firstWait    = 100 * time.Millisecond // of the first that is held; each further one doubles it
	longestWait  = 2 * time.Second
	worst        = freeFailures + 6 // failures are not counted beyond this: an address is free again after a minute

	lineEvery = time.Second // between two reports of one address
	lineRate  = 20          // reports a second, of all addresses together
	lineBurst = 100

	heldOfOne = 16  // refusals of one address that are held at a time
	heldOfAll = 512 // and of all: each holds a goroutine and a connection

	failureShards = 16
	mostAddresses = 16384 / failureShards // in a shard
)

// Failures are the failed authentications of a listener, by the client's address. They slow down who fails often, and decide
// which failures are reported, so that a flood of them fills no log. Only refusals come here: a good key is never held up,
// from whatever address, since many clients may share one. Memory is bounded; IPv6 addresses count by their /64.
//
// The zero Failures is ready.
type Failures struct {
	Now func() time.Time // default time.Now

	shards   [failureShards]failureShard
	held     atomic.Int32
	unwanted atomic.Int64 // failures that no report has counted, for want of lines

	lines struct {
		sync.Mutex
		left float64
		at   time.Time
	}
}

type failureShard struct {
	mu  sync.Mutex
	all map[netip.Prefix]*failing
}

// failing is one address.
type failing struct {
	level float64 // failures that are not forgotten
	at    time.Time
	told  time.Time // the last report
	since int       // failures after it
	held  int
}

// Failure is what becomes of one failed authentication.
type Failure struct {
	Report   bool // a line is due
	Count    int  // with it: failures of the address since its last line, this one included
	Missed   int  // with it: failures of other addresses for which no line could be written
	Close    bool // too many are held: answered at once, and the connection is not used again
	wait     time.Duration
	failures *Failures
	prefix   netip.Prefix
}

var failureSeed = maphash.MakeSeed()

func (f *Failures) shard(p netip.Prefix) *failureShard {
	return &f.shards[maphash.Comparable(failureSeed, p)%failureShards]
}

func (f *Failures) now() time.Time {
	if f.Now != nil {
		return f.Now()
	}
	return time.Now()
}

// Failed counts one failure of a client's address, as text. Wait has to be called before the refusal is sent.
func (f *Failures) Failed(client string) Failure {
	addr, _ := netip.ParseAddr(client) // what cannot be read is one address, the zero one
	prefix, now := prefixOf(addr), f.now()
	s := f.shard(prefix)
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.all[prefix]
	if a == nil {
		a = s.add(prefix)
	} else {
		a.level = max(0, a.level-float64(now.Sub(a.at))/float64(forgetEvery))
	}
	a.level, a.at = min(a.level+1, worst), now
	a.since++
	out := Failure{failures: f, prefix: prefix}
	if now.Sub(a.told) >= lineEvery {
		if f.line(now) {
			out.Report, out.Count, out.Missed = true, a.since, int(f.unwanted.Swap(0))
			a.told, a.since = now, 0
		} else {
			f.unwanted.Add(int64(a.since))
			a.told, a.since = now, 0
		}
	}
	if over := a.level - freeFailures; over > 0 {
		if a.held >= heldOfOne || f.held.Load() >= heldOfAll {
			out.Close = true
			return out
		}
		out.wait = min(firstWait<<(int(math.Ceil(over))-1), longestWait)
		a.held++
		f.held.Add(1)
	}
	return out
}

// Wait holds the refusal as long as the address has earned, or until ctx ends.
func (x Failure) Wait(ctx context.Context) {
	if x.wait == 0 {
		return
	}
	t := time.NewTimer(x.wait)
	select {
	case <-t.C:
	case <-ctx.Done():
		t.Stop()
	}
	s := x.failures.shard(x.prefix)
	s.mu.Lock()
	if a := s.all[x.prefix]; a != nil && a.held > 0 { // another one may be in its place by now
		a.held--
	}
	s.mu.Unlock()
	x.failures.held.Add(-1)
}

// add makes room for an address. Of a few that are there by chance the one that has been quiet the longest goes.
func (s *failureShard) add(p netip.Prefix) *failing {
	if s.all == nil {
		s.all = map[netip.Prefix]*failing{}
	}
	if len(s.all) >= mostAddresses {
		var oldest netip.Prefix
		looked := 0
		for q, a := range s.all {
			if looked == 0 || a.at.Before(s.all[oldest].at) {
				oldest = q
			}
			if looked++; looked == 8 {
				break
			}
		}
		delete(s.all, oldest)
	}
	a := new(failing)
	s.all[p] = a
	return a
}

// line takes one of the lines that all addresses share.
func (f *Failures) line(now time.Time) bool {
	f.lines.Lock()
	defer f.lines.Unlock()
	if f.lines.at.IsZero() {
		f.lines.left = lineBurst
	} else {
		f.lines.left = min(lineBurst, f.lines.left+now.Sub(f.lines.at).Seconds()*lineRate)
	}
	f.lines.at = now
	if f.lines.left < 1 {
		return false
	}
	f.lines.left--
	return true
}
