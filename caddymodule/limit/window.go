package limit

import (
	"slices"
	"time"
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

// window sums what was counted in the newest span. The zero window with a span is empty. It takes memory for the steps in
// which something was counted and no others: of very many keys most have made a request or two. Times are nanoseconds since
// 1970 by a clock that never goes back.
type window struct {
	span
	first [1]count // the only step; of step 0, which is long gone: none, or more than one
	more  []count  // two steps or more, oldest first
	sum   int64
}

// count is what was counted in one step.
type count struct{ step, n int64 }

// counts are the steps in which something was counted, oldest first.
func (w *window) counts() []count {
	if w.more == nil && w.first[0].step != 0 {
		return w.first[:]
	}
	return w.more
}

// roll drops what has left the window by now.
func (w *window) roll(now int64) {
	counts, gone, first := w.counts(), 0, now/int64(w.step)-w.steps+1
	for gone < len(counts) && counts[gone].step < first {
		w.sum -= counts[gone].n
		gone++
	}
	switch {
	case gone == 0:
	case gone == len(counts):
		w.first[0], w.more = count{}, nil
	default:
		w.more = w.more[gone:]
	}
}

// add counts n at now and returns the step that it went to.
func (w *window) add(now, n int64) (step int64) {
	w.roll(now)
	step = now / int64(w.step)
	if counts := w.counts(); len(counts) > 0 {
		step = max(step, counts[len(counts)-1].step)
	}
	w.insert(step, n)
	return step
}

// insert counts n in a step that the window covers.
func (w *window) insert(step, n int64) {
	w.sum += n
	counts := w.counts()
	at := len(counts)
	for at > 0 && counts[at-1].step > step {
		at--
	}
	switch {
	case at > 0 && counts[at-1].step == step:
		counts[at-1].n += n
	case len(counts) == 0:
		w.first[0] = count{step, n}
	default:
		if w.more == nil {
			w.more, w.first[0] = append(make([]count, 0, 4), w.first[0]), count{}
		}
		w.more = slices.Insert(w.more, at, count{step, n})
	}
}

// takeBack uncounts n that add put into a step, unless the step has left the window.
func (w *window) takeBack(step, n int64) {
	counts := w.counts()
	for i := len(counts) - 1; i >= 0 && counts[i].step >= step; i-- {
		if c := &counts[i]; c.step == step {
			n = min(n, c.n)
			c.n -= n
			w.sum -= n
		}
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
	for _, c := range w.counts() {
		if left -= c.n; left < most {
			return time.Duration((c.step+w.steps)*int64(w.step) - now)
		}
	}
	return 0
}

// kept appends what of the window is worth keeping at now: pairs of step and count, oldest first.
func (w *window) kept(now int64, out [][2]int64) [][2]int64 {
	w.roll(now)
	for _, c := range w.counts() {
		if c.n != 0 {
			out = append(out, [2]int64{c.step, c.n})
		}
	}
	return out
}

// restore adds pairs that kept has returned, moved on by a number of steps. What has left the window by now is passed over.
func (w *window) restore(now int64, pairs [][2]int64, shift int64) {
	present := now / int64(w.step)
	for _, p := range pairs {
		if step := min(p[0]+shift, present); p[1] > 0 && step > present-w.steps {
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
	for _, c := range w.counts() {
		hour := c.step * int64(w.step) / int64(time.Hour)
		switch {
		case c.n == 0 || hour < first:
		case len(out) > 0 && out[len(out)-1][0] == hour:
			out[len(out)-1][1] += c.n
		default:
			out = append(out, [2]int64{hour, c.n})
		}
	}
	return out
}

// put counts n at a time of the past, or now where that lies ahead. What has left the window is passed over.
func (w *window) put(now, at, n int64) {
	if step := min(at, now) / int64(w.step); step > now/int64(w.step)-w.steps {
		w.roll(now)
		w.insert(step, n)
	}
}
