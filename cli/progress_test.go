package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/levelrail/levelrail"
)

func bytesOf(n int64) *int64 { return &n }

// TestPace: rate and time left come from the last 15 seconds; a new phase, or a count that falls, begins anew.
func TestPace(t *testing.T) {
	type sight struct {
		after time.Duration
		phase string
		done  int64
	}
	for _, tc := range []struct {
		name  string
		sees  []sight
		total int64
		rate  float64
		left  time.Duration
		ok    bool
	}{
		{"one sight says nothing", []sight{{0, "downloading", 100}}, 1000, 0, 0, false},
		{"two sights", []sight{{0, "downloading", 0}, {2 * time.Second, "downloading", 200}}, 1000, 100, 8 * time.Second, true},
		{"old sights are forgotten", []sight{{0, "downloading", 0}, {20 * time.Second, "downloading", 200}, {30 * time.Second, "downloading", 1200}}, 2200, 100, 10 * time.Second, true},
		{"a new phase", []sight{{0, "downloading", 0}, {1 * time.Second, "downloading", 1000}, {2 * time.Second, "verifying", 1000}}, 1000, 0, 0, false},
		{"begun again", []sight{{0, "downloading", 900}, {1 * time.Second, "downloading", 100}}, 1000, 0, 0, false},
		{"standing still", []sight{{0, "downloading", 100}, {5 * time.Second, "downloading", 100}}, 1000, 0, 0, false},
		{"the same moment", []sight{{0, "downloading", 100}, {0, "downloading", 200}}, 1000, 0, 0, false},
		{"no total", []sight{{0, "downloading", 0}, {1 * time.Second, "downloading", 50}}, -1, 50, 0, false},
		{"more than the total", []sight{{0, "downloading", 0}, {1 * time.Second, "downloading", 50}}, 40, 50, 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var p pace
			var pr *levelrail.Progress
			for _, s := range tc.sees {
				pr = &levelrail.Progress{Phase: s.phase, DoneBytes: s.done}
				if tc.total >= 0 {
					pr.TotalBytes = &tc.total
				}
				p.observe(pr, fakeNow.Add(s.after))
			}
			left, ok := p.left(pr)
			if p.rate() != tc.rate || left != tc.left || ok != tc.ok {
				t.Errorf("rate %v, left %v %v; want %v, %v %v", p.rate(), left, ok, tc.rate, tc.left, tc.ok)
			}
		})
	}
}

// TestBar: the bar fills the room that the figures leave, and no line is ever wider than the terminal.
func TestBar(t *testing.T) {
	half := &levelrail.Progress{Phase: "downloading", DoneBytes: 512 << 20, TotalBytes: bytesOf(1 << 30)}
	moving := &pace{phase: "downloading", seen: []seenBytes{{fakeNow, 0}, {fakeNow.Add(8 * time.Second), 512 << 20}}}
	for _, tc := range []struct {
		name    string
		columns int
		c       levelrail.Condition
		p       *pace
		want    string
	}{
		{"half", 80, levelrail.Condition{Reason: levelrail.Downloading, Progress: half}, moving,
			"chat  Downloading [=======>       ] 50%  512.0 MiB/1.0 GiB  64.0 MiB/s  8s left"},
		{"wide", 200, levelrail.Condition{Reason: levelrail.Downloading, Progress: half}, moving,
			"chat  Downloading [====================>                   ] 50%  512.0 MiB/1.0 GiB  64.0 MiB/s  8s left"},
		{"done", 100, levelrail.Condition{Progress: &levelrail.Progress{Phase: "verifying", DoneBytes: 10, TotalBytes: bytesOf(10)}}, &pace{},
			"chat  Verifying [========================================] 100%  10 B/10 B"},
		{"no room for a bar", 50, levelrail.Condition{Progress: half}, &pace{}, "chat  Downloading 50%  512.0 MiB/1.0 GiB"},
		{"narrow", 30, levelrail.Condition{Progress: half}, &pace{}, "chat  Downloading 50%  512.0…"},
		{"no total", 80, levelrail.Condition{Progress: &levelrail.Progress{Phase: "importing", DoneBytes: 5 << 20}}, &pace{}, "chat  Importing 5.0 MiB"},
		{"no bytes", 80, levelrail.Condition{Reason: levelrail.Loading, Progress: &levelrail.Progress{Phase: "loading"}}, &pace{}, "chat  Loading  12s"},
		{"message", 80, levelrail.Condition{Reason: levelrail.Starting, Message: "waiting\nfor systemd"}, &pace{}, "chat  Starting  12s  waiting for systemd"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := bar(tc.columns, "chat", tc.c, tc.p, 12*time.Second); got != tc.want {
				t.Errorf("got\n%q, want\n%q", got, tc.want)
			}
			for columns := range 140 {
				if got := bar(columns, "chat", tc.c, tc.p, 12*time.Second); utf8.RuneCountInString(got) > max(columns-1, 10) {
					t.Fatalf("%d columns: %q", columns, got)
				}
			}
		})
	}
}

// TestDisplayWithoutTerminal: a log gets one line for each change of phase, each tenth and each minute, not one a report.
func TestDisplayWithoutTerminal(t *testing.T) {
	var out bytes.Buffer
	d := &display{out: &output{w: &out, fd: -1}, name: "chat", began: fakeNow}
	for i := range 600 { // ten minutes at a byte a second, of 600
		d.observe(levelrail.Condition{Reason: levelrail.Downloading, Progress: &levelrail.Progress{Phase: "downloading", DoneBytes: int64(i), TotalBytes: bytesOf(600)}}, fakeNow.Add(time.Duration(i)*time.Second))
	}
	d.draw(fakeNow.Add(time.Hour)) // what a terminal would show is not for a log
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 10 || lines[9] != "chat: Downloading 540 B of 600 B (90%), 1 B/s, 1m left" {
		t.Errorf("got %d lines:\n%s", len(lines), out.String())
	}
	out.Reset()
	for i := range 300 { // five minutes without a total
		d.observe(levelrail.Condition{Reason: levelrail.Downloading, Progress: &levelrail.Progress{Phase: "importing", DoneBytes: int64(i)}}, fakeNow.Add(time.Hour+time.Duration(i)*time.Second))
	}
	if n := strings.Count(out.String(), "\n"); n != 5 {
		t.Errorf("got %d lines:\n%s", n, out.String())
	}
}
