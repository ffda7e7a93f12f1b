package main

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"strings"
	"time"
)

// limits are what the gateway promises: a floor that has to hold, and an aim.
var limits = []struct {
	name        string
	floor, aim  float64
	more        bool // more is better
	explanation string
}{
	{"rps_ratio_1k", 1.2, 1.3, true, "requests a second at 1 KiB, over plain Caddy's"},
	{"cpu_ratio_1k", 0.85, 0.75, false, "CPU a request at 1 KiB, over plain Caddy's"},
	{"rps_ratio_100k", 1.1, 1.1, true, "requests a second at 100 KiB, over plain Caddy's"},
	{"sse_cpu_ratio", 1.05, 1.05, false, "CPU an event, over plain Caddy's"},
	{"stream_bytes", 80 << 10, 60 << 10, false, "bytes of memory an open stream"},
	{"lookup_ratio_1m", 1.1, 1.1, false, "time of a request with a million keys, over that with ten"},
	{"soak_rss_mb_first", 0, 0, false, "MiB resident at the soak's beginning"},
	{"soak_rss_mb_last", 0, 0, false, "MiB resident at its end (floor: a tenth and 8 MiB more)"},
}

func (b *bench) heading() {
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	load, _ := os.ReadFile("/proc/loadavg")
	fmt.Printf("Linux %s, %s, %s/%s; load %s; proxies on core %d\n", strings.TrimSpace(string(release)), runtime.Version(), runtime.GOOS, runtime.GOARCH,
		strings.Join(strings.Fields(string(load))[:3], " "), b.core)
}

// table prints what was measured of each side: medians of its turns.
func (b *bench) table(title, unit string, names []string, w [][]window) {
	fmt.Printf("\n%s; medians of %d turns each\n", title, len(w[0]))
	fmt.Printf("  %-20s %10s %12s %9s %9s %8s\n", "", unit+"s/s", "µs CPU each", "p50 ms", "p99 ms", "others")
	for i, name := range names {
		all := w[i]
		each, p50, p99 := "-", "-", "-"
		if c := mid(all, cpu); c > 0 {
			each = fmt.Sprintf("%.1f", c/1000)
		}
		if unit == "request" {
			p50 = fmt.Sprintf("%.2f", mid(all, func(w window) float64 { return float64(w.p50) })/1e6)
			p99 = fmt.Sprintf("%.1f", mid(all, func(w window) float64 { return float64(w.p99) })/1e6)
		}
		fmt.Printf("  %-20s %10.0f %12s %9s %9s %7.0f%%\n", name, mid(all, func(w window) float64 { return w.rate }), each, p50, p99, 100*mid(all, func(w window) float64 { return w.others }))
	}
	switch {
	case len(w) > 1 && unit == "event": // at a pace
		fmt.Printf("  %s over %s: %.2f× the CPU\n", names[0], names[1], ratio(w[0], w[1], cpu))
	case len(w) > 1:
		fmt.Printf("  %s over %s: %.2f× the rate, %.2f× the CPU\n", names[0], names[1], ratio(w[0], w[1], rate), ratio(w[0], w[1], cpu))
	}
}

// verdicts holds the results against their floors and returns how many were missed. Figures are rounded for the last line.
func (b *bench) verdicts(took time.Duration) (missed int) {
	fmt.Printf("\n%-20s %10s %10s %10s\n", "", "measured", "floor", "aim")
	for _, l := range limits {
		v, ok := b.result[l.name]
		if !ok {
			continue
		}
		floor, aim := l.floor, l.aim
		if l.name == "soak_rss_mb_last" {
			floor = b.result["soak_rss_mb_first"]*1.1 + 8
			aim = floor
		}
		reaches := func(bound float64) bool { return bound == 0 || l.more && v >= bound || !l.more && v <= bound }
		word := "reaches the aim"
		switch {
		case floor == 0:
			word = ""
		case !reaches(floor):
			word = "MISSES THE FLOOR"
			missed++
		case !reaches(aim):
			word = "holds the floor"
		}
		text := func(x float64) string {
			switch {
			case x == 0:
				return ""
			case x >= 1000:
				return fmt.Sprintf("%.0f", x)
			}
			return fmt.Sprintf("%.2f", x)
		}
		fmt.Printf("%-20s %10s %10s %10s  %-17s %s\n", l.name, text(v), text(floor), text(aim), word, l.explanation)
		if v < 1000 {
			b.result[l.name] = math.Round(v*1000) / 1000
		} else {
			b.result[l.name] = math.Round(v)
		}
	}
	fmt.Printf("took %s; %d rounds were measured again because other processes had the core\n", took.Round(time.Second), b.discarded)
	return missed
}
