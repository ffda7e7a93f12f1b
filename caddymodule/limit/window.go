package limit

import (
	"sync"
	"time"

	"github.com/levelrail/levelrail/caddymodule/dense"
)

// span is a length of time that slides in steps. A window of n+1 steps covers the newest n whole ones and the present one,
// so whatever lies within the span counts, and what is up to one step older may: a limit errs to the strict side.
type span struct {
	step  time.Duration
	steps int64
}

var (
	minute = span{time.Second, 60 + 1}
	day    = span{5 * time.Minute, 24*12 + 1}
)

// window sums what was counted in the newest span. Times are nanoseconds since 1970 by a clock that never goes back. What it
// works on lies elsewhere, without pointers, and takes memory for the steps in which something was counted and no others: of
// very many keys most have made a request or two.
type window struct {
	*span
	*sums
	steps *steps
}

// sums are a window's newest step and the sum of all. The zero sums are an empty window's.
type sums struct {
	newest       uint32 // step; 0, which is long gone: none
	oldest, last uint32 // of the older ones, one more than their numbers among the steps; 0: there are none
	n            int64  // counted in the newest
	sum          int64
}

// steps are the older steps of many windows. Each window changes its own; mu is for taking and giving.
type steps struct {
	mu sync.Mutex
	of dense.Lots[older]
}

// older is a step in which something was counted, and one more than the number of the next.
type older struct {
	step, next uint32
	n          int64
}

func (s *steps) take() (*older, uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, n := s.of.Take()
	return o, n + 1
}

func (s *steps) give(n uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of.Give(n - 1)
}

func (s *steps) at(n uint32) *older { return s.of.At(n - 1) }

// count is what was counted in one step.
type count struct{ step, n int64 }

// each calls yield with the steps in which something was counted, oldest first, until it returns false.
func (w *window) each(yield func(count) bool) {
	for n := w.oldest; n != 0; {
		o := w.steps.at(n)
		if !yield(count{int64(o.step), o.n}) {
			return
		}
		n = o.next
	}
	if w.newest != 0 {
		yield(count{int64(w.newest), w.n})
	}
}

// clear drops everything.
func (w *window) clear() { w.drop(1 << 40) }

// roll drops what has left the window by now.
func (w *window) roll(now int64) { w.drop(now/int64(w.span.step) - w.span.steps + 1) }

// drop drops the steps before first.
func (w *window) drop(first int64) {
	for w.oldest != 0 {
		o := w.steps.at(w.oldest)
		if int64(o.step) >= first {
			return
		}
		w.sum -= o.n
		gone := w.oldest
		w.oldest = o.next
		w.steps.give(gone)
	}
	if w.last = 0; int64(w.newest) < first {
		*w.sums = sums{}
	}
}

// add counts n at now and returns the step that it went to.
func (w *window) add(now, n int64) (step int64) {
	w.roll(now)
	step = max(now/int64(w.span.step), int64(w.newest))
	w.insert(step, n)
	return step
}

// insert counts n in a step that the window covers.
func (w *window) insert(step, n int64) {
	newest := int64(w.newest)
	switch w.sum += n; {
	case step == newest:
		w.n += n
	case step > newest:
		if newest != 0 {
			o, at := w.steps.take()
			*o = older{w.newest, 0, w.n}
			if w.oldest == 0 {
				w.oldest = at
			} else {
				w.steps.at(w.last).next = at
			}
			w.last = at
		}
		w.newest, w.n = uint32(step), n
	default:
		var before *older
		next := w.oldest
		for next != 0 && int64(w.steps.at(next).step) < step {
			before = w.steps.at(next)
			next = before.next
		}
		if next != 0 && int64(w.steps.at(next).step) == step {
			w.steps.at(next).n += n
			return
		}
		o, at := w.steps.take()
		*o = older{uint32(step), next, n}
		if before == nil {
			w.oldest = at
		} else {
			before.next = at
		}
		if next == 0 {
			w.last = at
		}
	}
}

// takeBack uncounts n that add put into a step, unless the step has left the window.
func (w *window) takeBack(step, n int64) {
	in := &w.n
	if step != int64(w.newest) {
		in = nil
		for at := w.oldest; at != 0 && in == nil; at = w.steps.at(at).next {
			if o := w.steps.at(at); int64(o.step) == step {
				in = &o.n
			}
		}
	}
	if in != nil {
		n = min(n, *in)
		*in -= n
		w.sum -= n
	}
}

// total is the sum at now.
func (w *window) total(now int64) int64 {
	w.roll(now)
	return w.sum
}

// until is how long it takes from now, if nothing more is counted, until the sum is below most; 0: it is.
func (w *window) until(now, most int64) time.Duration {
	left := w.total(now)
	if left == 0 || left < most {
		return 0
	}
	wait := time.Duration(0)
	w.each(func(c count) bool {
		if left -= c.n; left < most {
			wait = time.Duration((c.step+w.span.steps)*int64(w.span.step) - now)
		}
		return left >= most
	})
	return wait
}

// kept appends what of the window is worth keeping at now: pairs of step and count, oldest first.
func (w *window) kept(now int64, out [][2]int64) [][2]int64 {
	w.roll(now)
	w.each(func(c count) bool {
		if c.n != 0 {
			out = append(out, [2]int64{c.step, c.n})
		}
		return true
	})
	return out
}

// restore adds pairs that kept has returned, moved on by a number of steps. What has left the window by now is passed over.
func (w *window) restore(now int64, pairs [][2]int64, shift int64) {
	present := now / int64(w.span.step)
	for _, p := range pairs {
		if step := min(p[0]+shift, present); p[1] > 0 && step > present-w.span.steps {
			w.insert(step, p[1])
		}
	}
}

// hoursOfDay are the hours in which a day's window may have something.
const hoursOfDay = 26

// hours are the sums of the newest hours, as pairs of an hour since 1970 and a sum that is not 0, oldest first.
func (w *window) hours(now int64, newest int64) (out [][2]int64) {
	w.roll(now)
	first := now/int64(time.Hour) - newest + 1
	w.each(func(c count) bool {
		hour := c.step * int64(w.span.step) / int64(time.Hour)
		switch {
		case c.n == 0 || hour < first:
		case len(out) > 0 && out[len(out)-1][0] == hour:
			out[len(out)-1][1] += c.n
		default:
			out = append(out, [2]int64{hour, c.n})
		}
		return true
	})
	return out
}

// put counts n at a time of the past, or now where that lies ahead. What has left the window is passed over.
func (w *window) put(now, at, n int64) {
	if step := min(at, now) / int64(w.span.step); step > now/int64(w.span.step)-w.span.steps {
		w.roll(now)
		w.insert(step, n)
	}
}
