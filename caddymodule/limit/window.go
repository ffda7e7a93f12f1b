package limit

import "time"

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

// window sums what was counted in the newest span. The zero window with a span is empty and takes no memory until
// something is counted. Times are nanoseconds since 1970 by a clock that never goes back.
type window struct {
	span
	counts []int64 // by step number modulo steps
	head   int64   // number of the newest step
	sum    int64
}

// roll moves the window on to now.
func (w *window) roll(now int64) {
	step := now / int64(w.step)
	if w.counts == nil || step <= w.head {
		return
	}
	if step-w.head >= w.steps {
		clear(w.counts)
		w.sum = 0
	} else {
		for n := w.head + 1; n <= step; n++ {
			at := n % w.steps
			w.sum -= w.counts[at]
			w.counts[at] = 0
		}
	}
	w.head = step
}

// add counts n at now and returns the step that it went to.
func (w *window) add(now, n int64) (step int64) {
	if w.counts == nil {
		w.counts, w.head = make([]int64, w.steps), now/int64(w.step)
	}
	w.roll(now)
	w.counts[w.head%w.steps] += n
	w.sum += n
	return w.head
}

// takeBack uncounts n that add put into a step, unless the step has left the window.
func (w *window) takeBack(step, n int64) {
	if w.counts == nil || step <= w.head-w.steps || step > w.head {
		return
	}
	n = min(n, w.counts[step%w.steps])
	w.counts[step%w.steps] -= n
	w.sum -= n
}

// total is the sum at now.
func (w *window) total(now int64) int64 {
	w.roll(now)
	return w.sum
}

// until is how long it takes from now, if nothing more is counted, until the sum is below most; 0: it is.
func (w *window) until(now, most int64) time.Duration {
	left := w.total(now)
	if left == 0 {
		return 0
	}
	for n := w.head - w.steps + 1; left >= most && n <= w.head; n++ {
		left -= w.counts[n%w.steps]
		if left < most {
			return time.Duration((n+w.steps)*int64(w.step) - now)
		}
	}
	return 0
}

// kept is what of the window is worth keeping at now: pairs of step and count, oldest first.
func (w *window) kept(now int64) [][2]int64 {
	if w.total(now) == 0 {
		return nil
	}
	var out [][2]int64
	for n := w.head - w.steps + 1; n <= w.head; n++ {
		if c := w.counts[n%w.steps]; c != 0 {
			out = append(out, [2]int64{n, c})
		}
	}
	return out
}

// restore adds pairs that kept has returned, moved on by a number of steps. What has left the window by now is passed over.
func (w *window) restore(now int64, pairs [][2]int64, shift int64) {
	present := now / int64(w.step)
	for _, p := range pairs {
		step, n := min(p[0]+shift, present), p[1]
		if n <= 0 || step <= present-w.steps {
			continue
		}
		w.add(now, 0)
		w.counts[step%w.steps] += n
		w.sum += n
	}
}

// hoursOfDay are the hours in which a day's window may have something.
const hoursOfDay = 26

// hours are the sums of the newest hours, as pairs of an hour since 1970 and a sum that is not 0, oldest first.
func (w *window) hours(now int64, newest int64) (out [][2]int64) {
	if w.total(now) == 0 {
		return nil
	}
	first := now/int64(time.Hour) - newest + 1
	for n := w.head - w.steps + 1; n <= w.head; n++ {
		hour := n * int64(w.step) / int64(time.Hour)
		c := w.counts[n%w.steps]
		switch {
		case c == 0 || hour < first:
		case len(out) > 0 && out[len(out)-1][0] == hour:
			out[len(out)-1][1] += c
		default:
			out = append(out, [2]int64{hour, c})
		}
	}
	return out
}

// put counts n at a time of the past, or now where that lies ahead. What has left the window is passed over.
func (w *window) put(now, at, n int64) {
	step := min(at, now) / int64(w.step)
	if step <= now/int64(w.step)-w.steps {
		return
	}
	w.add(now, 0)
	w.counts[step%w.steps] += n
	w.sum += n
}
