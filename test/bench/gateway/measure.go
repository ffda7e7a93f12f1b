package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// window is what was measured of one side in one turn.
type window struct {
	rate     float64       // requests, or events, a second
	cpu      time.Duration // of the proxy, for each of them; 0 without a proxy
	p50, p99 time.Duration
	mean     time.Duration
	others   float64 // share of the proxy's core that went to other processes
	done     int64   // requests, or events, in all
	took     time.Duration
	used     time.Duration // CPU in all
}

// turn lets a load run and measures the middle of it. p is nil where there is no proxy. unit tells how much has been done.
func (b *bench) turn(p *proxy, l *load, warm, long time.Duration, unit func() (int64, error)) (w window, err error) {
	if b.ctx.Err() != nil {
		return w, fmt.Errorf("interrupted")
	}
	type state struct {
		at   time.Time
		n    int64
		cpu  time.Duration
		busy time.Duration
	}
	look := func() (s state, err error) {
		if s.n, err = unit(); err != nil {
			return s, err
		}
		if p != nil {
			if s.cpu, err = p.CPU(); err != nil {
				return s, err
			}
		}
		s.busy = busy(b.core)
		s.at = time.Now()
		return s, nil
	}
	l.begin()
	time.Sleep(warm)
	from, err := look()
	var to state
	if err == nil {
		time.Sleep(long)
		to, err = look()
	}
	if failed := l.end(); failed != nil {
		return w, failed
	}
	if err != nil {
		return w, err
	}
	done, took := to.n-from.n, to.at.Sub(from.at)
	if done <= 0 {
		return w, fmt.Errorf("%s did nothing in %s", l.target.name, took)
	}
	w.done, w.took, w.used = done, took, to.cpu-from.cpu
	w.rate, w.cpu = float64(done)/took.Seconds(), (to.cpu-from.cpu)/time.Duration(done)
	w.p50, w.p99, w.mean = l.percentile(50), l.percentile(99), l.mean()
	if p != nil {
		w.others = max(0, float64(to.busy-from.busy-(to.cpu-from.cpu))/float64(took))
	}
	return w, nil
}

// busy is how long a core has been working, by /proc/stat, in steps of 10 ms.
func busy(core int) time.Duration {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 9 || f[0] != "cpu"+strconv.Itoa(core) {
			continue
		}
		sum := int64(0)
		for i, v := range f[1:9] { // user nice system idle iowait irq softirq steal
			if n, err := strconv.ParseInt(v, 10, 64); err == nil && i != 3 && i != 4 {
				sum += n
			}
		}
		return time.Duration(sum) * 10 * time.Millisecond
	}
	return 0
}

// Noise: a round in which other processes had more than this share of the proxy's core on one of its sides is measured again,
// in up to half as many rounds more; of all rounds those with the least of it count.
const mostOthers = 0.10

// rounds lets sides take turns and returns n windows of each, in order. The order changes from round to round. A side whose
// every is k takes part in each k-th round only.
func (b *bench) rounds(n int, sides ...side) ([][]window, error) {
	all := make([][]window, len(sides)) // by side and round; done is 0 where the side did not take part
	quiet := 0
	for round := 0; quiet < n && round < n+n/2; round++ {
		worst := 0.0
		for i := range sides {
			at := i
			if round%2 == 1 {
				at = len(sides) - 1 - i
			}
			var w window
			if round%max(sides[at].every, 1) == 0 {
				var err error
				if w, err = sides[at].turn(); err != nil {
					return nil, err
				}
			}
			all[at] = append(all[at], w)
			worst = max(worst, w.others)
		}
		if worst <= mostOthers {
			quiet++
		}
	}
	keep := quietest(all, n)
	b.discarded += len(all[0]) - len(keep)
	out := make([][]window, len(sides))
	for i := range sides {
		for _, round := range keep {
			if w := all[i][round]; w.done > 0 {
				out[i] = append(out[i], w)
			}
		}
	}
	return out, nil
}

// quietest are the n rounds in which other processes had the least of the core, in order.
func quietest(all [][]window, n int) []int {
	worst := make([]float64, len(all[0]))
	order := make([]int, len(all[0]))
	for round := range order {
		order[round] = round
		for _, side := range all {
			worst[round] = max(worst[round], side[round].others)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(worst[a], worst[b]) })
	order = order[:min(n, len(order))]
	slices.Sort(order)
	return order
}

// side is one of those that take turns.
type side struct {
	turn  func() (window, error)
	every int
}

// ratio is the median of ours over the reference, round by round.
func ratio(ours, reference []window, of func(window) float64) float64 {
	all := make([]float64, len(ours))
	for i := range ours {
		all[i] = of(ours[i]) / of(reference[i])
	}
	return median(all)
}

func median(all []float64) float64 {
	if len(all) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(all))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

func mid(all []window, of func(window) float64) float64 {
	values := make([]float64, len(all))
	for i, w := range all {
		values[i] = of(w)
	}
	return median(values)
}

// sums is all turns of one side together: what comes seldom and then lasts, such as a collection of a large heap, is in no
// median. The time is what others left of the core.
func sums(all []window) (perUnit, cpuPerUnit float64) {
	var done int64
	var took, used time.Duration
	for _, w := range all {
		done, took, used = done+w.done, took+time.Duration(float64(w.took)*w.left()), used+w.used
	}
	return float64(took) / float64(done), float64(used) / float64(done)
}

// waits is how long a client waited for an answer on average, over all turns.
func waits(all []window) time.Duration {
	var done, waited float64
	for _, w := range all {
		done, waited = done+float64(w.done), waited+float64(w.done)*float64(w.mean)
	}
	return time.Duration(waited / done)
}

// left is the share of the core that other processes left.
func (w window) left() float64 { return 1 - min(w.others, 0.9) }

// rate is how much was done in each second of the core's time that others left: both sides use all they get.
func rate(w window) float64 { return w.rate / w.left() }
func cpu(w window) float64  { return float64(w.cpu) }

// profile takes a CPU profile of each proxy under a load, where profiles are wanted.
func (b *bench) profile(name string, loads func(*proxy) *load, proxies ...*proxy) error {
	if b.profiles == "" {
		return nil
	}
	if err := os.MkdirAll(b.profiles, 0o700); err != nil {
		return err
	}
	for i, p := range proxies {
		l := loads(p)
		l.begin()
		text, err := get(b.ctx, p.admin, "/debug/pprof/profile?seconds=8")
		if failed := l.end(); failed != nil {
			return failed
		}
		if err != nil {
			return fmt.Errorf("profile %s: %w", p.target.name, err)
		}
		file := filepath.Join(b.profiles, fmt.Sprintf("%s-%s.pprof", name, []string{"ours", "plain"}[i]))
		if err := os.WriteFile(file, text, 0o600); err != nil {
			return err
		}
		fmt.Println("  profile:", file)
	}
	return nil
}

func get(ctx context.Context, socket, path string) ([]byte, error) {
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	req, err := http.NewRequestWithContext(ctx, "GET", "http://caddy"+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != 200 {
		err = fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(b))
	}
	return b, err
}
