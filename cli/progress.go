package cli

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/levelrail/levelrail"
)

// rateSpan is how far back the rate of a download looks.
const rateSpan = 15 * time.Second

// pace works out how fast bytes come in from what was seen of them. A new phase, or a count that falls, begins anew.
type pace struct {
	phase string
	seen  []seenBytes
}

type seenBytes struct {
	at    time.Time
	bytes int64
}

// observe takes one sight of the progress.
func (p *pace) observe(pr *levelrail.Progress, at time.Time) {
	if pr == nil {
		p.phase, p.seen = "", nil
		return
	}
	if n := len(p.seen); pr.Phase != p.phase || n > 0 && pr.DoneBytes < p.seen[n-1].bytes {
		p.seen = nil
	}
	p.phase = pr.Phase
	p.seen = append(p.seen, seenBytes{at, pr.DoneBytes})
	for len(p.seen) > 2 && at.Sub(p.seen[0].at) > rateSpan {
		p.seen = p.seen[1:]
	}
}

// rate is in bytes a second, 0 while nothing can be said.
func (p *pace) rate() float64 {
	if len(p.seen) < 2 {
		return 0
	}
	first, last := p.seen[0], p.seen[len(p.seen)-1]
	if took := last.at.Sub(first.at).Seconds(); took > 0 {
		return float64(last.bytes-first.bytes) / took
	}
	return 0
}

// left is how long the rest takes at the present rate.
func (p *pace) left(pr *levelrail.Progress) (time.Duration, bool) {
	r := p.rate()
	if r <= 0 || pr.TotalBytes == nil || *pr.TotalBytes < pr.DoneBytes {
		return 0, false
	}
	return time.Duration(float64(*pr.TotalBytes-pr.DoneBytes) / r * float64(time.Second)), true
}

// phaseOf names where a model is: the phase of its progress, else its reason.
func phaseOf(c levelrail.Condition) string {
	if c.Progress != nil && c.Progress.Phase != "" {
		return strings.ToUpper(c.Progress.Phase[:1]) + c.Progress.Phase[1:]
	}
	return string(c.Reason)
}

// percent is how much of the total is done, -1 when there is no total.
func percent(pr *levelrail.Progress) int {
	if pr == nil || pr.TotalBytes == nil || *pr.TotalBytes <= 0 {
		return -1
	}
	return int(min(100, max(0, pr.DoneBytes*100 / *pr.TotalBytes)))
}

// hasBytes tells whether a progress counts bytes: a load may say its phase only.
func hasBytes(pr *levelrail.Progress) bool {
	return pr != nil && (pr.DoneBytes > 0 || pr.TotalBytes != nil && *pr.TotalBytes > 0)
}

// figures is the progress in numbers: "62.1 MiB of 138.2 MiB (45%), 12.3 MiB/s, 6s left".
func figures(pr *levelrail.Progress, p *pace) string {
	text := size(pr.DoneBytes)
	if n := percent(pr); n >= 0 {
		text += fmt.Sprintf(" of %s (%d%%)", size(*pr.TotalBytes), n)
	}
	return text + speed(p, pr, ", ")
}

// speed is the rate and the time left, each after the separator, "" while nothing can be said.
func speed(p *pace, pr *levelrail.Progress, separator string) string {
	text := ""
	if r := p.rate(); r > 0 {
		text += separator + size(int64(r)) + "/s"
	}
	if left, ok := p.left(pr); ok {
		text += separator + span(left) + " left"
	}
	return text
}

// progressLine is one line for a log: "Downloading 62.1 MiB of 138.2 MiB (45%), 12.3 MiB/s, 6s left".
func progressLine(c levelrail.Condition, p *pace) string {
	switch {
	case hasBytes(c.Progress):
		return phaseOf(c) + " " + figures(c.Progress, p)
	case c.Message != "":
		return phaseOf(c) + ": " + oneLine(c.Message)
	}
	return phaseOf(c)
}

// bar is one line for a terminal of so many columns, never longer than it:
// "chat  Downloading [=========>      ] 45%  62.1 MiB/138.2 MiB  12.3 MiB/s  6s left".
func bar(columns int, name string, c levelrail.Condition, p *pace, elapsed time.Duration) string {
	columns = max(columns-1, 10) // the last column stays free: some terminals wrap there
	line := name + "  " + phaseOf(c)
	if !hasBytes(c.Progress) {
		line += "  " + span(elapsed)
		if c.Message != "" {
			line += "  " + oneLine(c.Message)
		}
		return cut(line, columns)
	}
	text := size(c.Progress.DoneBytes)
	n := percent(c.Progress)
	if n >= 0 {
		text = fmt.Sprintf("%d%%  %s/%s", n, text, size(*c.Progress.TotalBytes))
	}
	text += speed(p, c.Progress, "  ")
	room := columns - utf8.RuneCountInString(line) - utf8.RuneCountInString(text) - 4
	if n >= 0 && room >= 10 {
		room = min(room, 40)
		full := room * n / 100
		body := strings.Repeat("=", full)
		if full < room {
			body += ">" + strings.Repeat(" ", room-full-1)
		}
		line += " [" + body + "]"
	}
	return cut(line+" "+text, columns)
}

// cut shortens text to so many columns, with an ellipsis where something is missing.
func cut(text string, columns int) string {
	if utf8.RuneCountInString(text) <= columns {
		return text
	}
	return string([]rune(text)[:columns-1]) + "…"
}

// display shows the progress of one model on stderr: a bar that moves on a terminal, else one line for each change.
type display struct {
	out     *output
	name    string
	began   time.Time
	pace    pace
	last    levelrail.Condition
	shown   string    // the line that stands on the terminal
	logged  string    // phase and message of the last line written to a log
	tenth   int       // of the total, in the last line written
	printed time.Time // when that line was written
}

// logEvery is how often a log hears of a slow download.
const logEvery = time.Minute

// observe takes a new condition.
func (d *display) observe(c levelrail.Condition, at time.Time) {
	d.pace.observe(c.Progress, at)
	d.last = c
	if d.out.terminal() {
		d.draw(at)
		return
	}
	change, tenth := phaseOf(c), percent(c.Progress)/10
	if !hasBytes(c.Progress) {
		change += c.Message
	}
	if change == d.logged && tenth == d.tenth && at.Sub(d.printed) < logEvery {
		return
	}
	d.logged, d.tenth, d.printed = change, tenth, at
	fmt.Fprintf(d.out, "%s: %s\n", d.name, progressLine(c, &d.pace))
}

// draw paints the line anew; on anything but a terminal it does nothing.
func (d *display) draw(at time.Time) {
	if !d.out.terminal() || d.last.Reason == "" {
		return
	}
	line := bar(d.out.width(), d.name, d.last, &d.pace, at.Sub(d.began))
	if line != d.shown {
		fmt.Fprintf(d.out, "\r%s\x1b[K", line)
		d.shown = line
	}
}

// clear takes the bar away, so that a line of text can follow.
func (d *display) clear() {
	if d.shown != "" {
		fmt.Fprint(d.out, "\r\x1b[K")
		d.shown = ""
	}
}

// say writes a line of talk between the progress.
func (d *display) say(format string, args ...any) {
	d.clear()
	fmt.Fprintf(d.out, format+"\n", args...)
}
