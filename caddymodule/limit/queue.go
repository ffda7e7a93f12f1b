package limit

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// queue is who waits for a slot of one model: a line for each key. A slot that comes free goes to the key that holds the fewest
// for its weight, and among those that hold as many they take turns (start-time fair queueing). So a key with a thousand
// connections and one with a single connection wait for each other, not the second for all of the first's, also where there is
// one slot only.
type queue struct {
	mu    sync.Mutex
	lines map[uint64]*line
	seq   uint64
	turn  uint64 // the turn that had the last slot

	// How fast slots come free while somebody waits, of which the wait is estimated.
	last  time.Time     // when one was handed out, or waiting began
	pace  time.Duration // between two of them, the newest counting most
	paced int           // how many pace is made of
}

// line is one key's requests in the order in which they came.
type line struct {
	weight int64
	turn   uint64 // of its next request
	first  []*waiter
}

// oneTurn is how far a slot takes a key of weight 1 back.
const oneTurn = 1 << 20

type waiter struct {
	seq   uint64
	ready chan struct{} // closed when it has a slot
}

// fewestPaced is of how many hand-outs an estimate has to be made to refuse somebody for it.
const fewestPaced = 8

// FullError says that no slot came free in time, or that none will.
type FullError struct {
	// Wait is when a new request could have a slot, by how fast they came free lately; 0: nothing is known.
	Wait time.Duration
}

// ErrStopped says that waiting was ended for everybody.
var ErrStopped = errors.New("waiting has been ended")

func (*FullError) Error() string { return "no slot is free" }

// Wait takes a slot, for which it waits in the key's line for as long as it may: then, or at once when the queue is so long
// that waiting would be in vain, the error is a *FullError. When ctx ends it is that one's, and the line is the shorter.
// Weight is how many slots the key has for each one of a key with weight 1, when both want more than there are.
func (g *Gate) Wait(ctx context.Context, stop <-chan struct{}, who uint64, weight, most int64, wait time.Duration) error {
	if g.Take(who, most) {
		return nil
	}
	if wait <= 0 {
		return &FullError{g.estimate(who, weight)}
	}
	q := &g.queue
	q.mu.Lock()
	g.waiting.Add(1) // first: a slot given back from here on is seen by one of both
	now := time.Now()
	if g.waiting.Load() == 1 {
		q.last = now
		if q.pace > wait {
			q.paced = 0 // else the only one who waits would be refused for an earlier rush, and no hand-out would ever correct the pace
		}
	}
	if q.paced >= fewestPaced {
		if long := g.estimateLocked(who, weight, now); long > wait {
			g.waiting.Add(-1)
			q.mu.Unlock()
			return &FullError{long}
		}
	}
	w := q.enter(who, weight)
	g.handOut()
	q.mu.Unlock()

	late := time.NewTimer(wait)
	defer late.Stop()
	stopped := false
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
	case <-stop:
		stopped = true
	case <-late.C:
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-w.ready: // at this very moment
		if ctx.Err() == nil {
			return nil
		}
		g.held.add(who, -1)
		g.inFlight.Add(-1)
		g.handOut()
		return ctx.Err()
	default:
	}
	q.leave(who, w)
	defer g.waiting.Add(-1)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if stopped {
		return ErrStopped
	}
	return &FullError{g.estimateLocked(who, weight, time.Now())}
}

func (q *queue) enter(who uint64, weight int64) *waiter {
	if q.lines == nil {
		q.lines = map[uint64]*line{}
	}
	l := q.lines[who]
	if l == nil {
		l = &line{turn: q.turn}
		q.lines[who] = l
	}
	q.seq++
	w := &waiter{seq: q.seq, ready: make(chan struct{})}
	l.weight, l.first = max(weight, 1), append(l.first, w)
	return w
}

func (q *queue) leave(who uint64, w *waiter) {
	l := q.lines[who]
	if at := slices.Index(l.first, w); at >= 0 {
		l.first = slices.Delete(l.first, at, at+1)
	}
	if len(l.first) == 0 {
		delete(q.lines, who)
	}
}

// handOut gives slots that are free to those who wait. The queue is locked.
func (g *Gate) handOut() {
	q := &g.queue
	for len(q.lines) > 0 && g.one() {
		who, l := g.next()
		w := l.first[0]
		q.turn = max(q.turn, l.turn)
		l.turn += max(oneTurn/uint64(l.weight), 1)
		q.leave(who, w)
		g.held.add(who, 1)
		g.waiting.Add(-1)
		q.handedOut(time.Now())
		close(w.ready)
	}
}

// next is whose turn it is.
func (g *Gate) next() (best uint64, line *line) {
	var has int64
	for who, l := range g.queue.lines {
		held := g.held.of(who)
		if line != nil {
			a, b := held*line.weight, has*l.weight // held for each weight, compared without a division
			if cmp.Or(cmp.Compare(a, b), cmp.Compare(l.turn, line.turn), cmp.Compare(l.first[0].seq, line.first[0].seq)) > 0 {
				continue
			}
		}
		best, line, has = who, l, held
	}
	return best, line
}

func (q *queue) handedOut(now time.Time) {
	took := now.Sub(q.last)
	q.last = now
	if q.paced++; q.paced == 1 {
		q.pace = took
		return
	}
	q.pace += (took - q.pace) / time.Duration(min(q.paced, 16))
}

func (g *Gate) estimate(who uint64, weight int64) time.Duration {
	g.queue.mu.Lock()
	defer g.queue.mu.Unlock()
	return g.estimateLocked(who, weight, time.Now())
}

// estimateLocked is how long one more request of a key would wait: how many have their turn before it, times how long a turn
// takes. When nobody has had one for longer than usual, that is how long it takes.
func (g *Gate) estimateLocked(who uint64, weight int64, now time.Time) time.Duration {
	q := &g.queue
	pace := q.pace
	if g.waiting.Load() > 0 {
		pace = max(pace, now.Sub(q.last))
	}
	if pace <= 0 {
		return 0
	}
	mine := int64(1)
	if l := q.lines[who]; l != nil {
		mine += int64(len(l.first))
	}
	turns, level, weight := mine, g.held.of(who)+mine, max(weight, 1)
	for other, l := range q.lines {
		if other != who { // as many as bring it to the same part
			turns += min(int64(len(l.first)), max(level*l.weight/weight-g.held.of(other), 0))
		}
	}
	return time.Duration(turns) * pace
}
