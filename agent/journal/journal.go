// Package journal reads the systemd journal through journalctl: what an engine said in one run, and the lines of a model
// as they come. It owns the command line and the JSON of journalctl, whose messages come in four forms. It needs neither
// cgo nor libsystemd. What the lines mean is package engine's to say.
package journal

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Reader runs journalctl.
type Reader struct {
	Program string // empty: journalctl from PATH
}

// Entry is one line of the journal.
type Entry struct {
	At         time.Time
	Unit       string // that said it; for systemd's own lines the unit that they are about
	Invocation string // of the unit's run
	Priority   int    // 0 emergency … 6 info, 7 debug
	Message    string // without colours and control characters
	Manager    bool   // systemd says it about the unit
}

// Query says which lines.
type Query struct {
	Units  []string // of these units, systemd's lines about them included; at least one
	Lines  int      // at most so many of the last ones; 0: all
	Since  string   // as journalctl takes it: "10 min ago", "2026-01-02 03:04:05"
	Follow bool     // go on until ctx ends
}

// maxLine is what one entry may take: journald splits lines at 48 KiB, and a byte can take four characters in JSON.
const maxLine = 4 << 20

// Each calls each with every entry, oldest first. A line belongs to a unit by what journald itself noted of its sender, never
// by a field that its sender may have set. A query without a unit is an error: it would be the whole machine's journal. It returns each's error, or nil at the end and when ctx ends.
func (r Reader) Each(ctx context.Context, q Query, each func(Entry) error) error {
	if len(q.Units) == 0 || slices.Contains(q.Units, "") {
		return errors.New("read the journal: no unit was named")
	}
	program := r.Program
	if program == "" {
		program = "journalctl"
	}
	args := []string{"-o", "json", "--no-pager", "--all", "--quiet", "--output-fields=MESSAGE,PRIORITY,UNIT,INVOCATION_ID,_SYSTEMD_UNIT,_SYSTEMD_INVOCATION_ID,_PID,_SOURCE_REALTIME_TIMESTAMP"}
	if q.Lines > 0 {
		args = append(args, "-n", strconv.Itoa(q.Lines))
	} else if q.Follow {
		args = append(args, "-n", "all")
	}
	if q.Since != "" {
		args = append(args, "--since="+q.Since)
	}
	if q.Follow {
		args = append(args, "--follow")
	}
	args = append(args, matches(q.Units)...)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = []string{"LC_ALL=C", "PATH=/usr/bin:/bin", "SYSTEMD_COLORS=0"}
	cmd.WaitDelay = 2 * time.Second
	var complaint strings.Builder
	cmd.Stderr = &limited{&complaint}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("read the journal: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("read the journal: %w", err)
	}
	scan := bufio.NewScanner(out)
	scan.Buffer(make([]byte, 0, 64<<10), maxLine)
	var eachErr error
	for eachErr == nil && scan.Scan() {
		if e, ok := Parse(scan.Bytes()); ok {
			eachErr = each(e)
		}
	}
	scanErr := scan.Err()
	stopped := ctx.Err() != nil
	cancel()
	waitErr := cmd.Wait()
	var exit *exec.ExitError
	switch {
	case eachErr != nil:
		return eachErr
	case stopped:
		return nil
	case scanErr != nil:
		return fmt.Errorf("read the journal: %w", scanErr)
	case errors.As(waitErr, &exit) && exit.ExitCode() > 0:
		return fmt.Errorf("read the journal: journalctl ended with %d: %s", exit.ExitCode(), strings.TrimSpace(complaint.String()))
	}
	return nil
}

// matches are the lines that the units' processes wrote, and those that systemd wrote about the units. Fields that begin with
// _ are journald's own; UNIT is believed from process 1 alone. --unit would also take what any process of root says of a unit.
func matches(units []string) []string {
	var args []string
	for i, u := range units {
		if i > 0 {
			args = append(args, "+")
		}
		args = append(args, "_SYSTEMD_UNIT="+u, "+", "_PID=1", "UNIT="+u)
	}
	return args
}

// LastRun returns the lines that the unit itself said in the run named, or, with invocation empty or over being set, in
// the last run that has ended: with ended, the run of that name is the one going on and is passed over.
func (r Reader) LastRun(ctx context.Context, unit, invocation string, ended bool) (run string, lines []string, err error) {
	var entries []Entry
	err = r.Each(ctx, Query{Units: []string{unit}, Lines: 2000}, func(e Entry) error {
		if !e.Manager && e.Invocation != "" {
			entries = append(entries, e)
		}
		return nil
	})
	if err != nil {
		return "", nil, err
	}
	run = invocation
	if run == "" || ended {
		run = ""
		for i := len(entries) - 1; i >= 0; i-- {
			if entries[i].Invocation != invocation || !ended {
				run = entries[i].Invocation
				break
			}
		}
	}
	for _, e := range entries {
		if e.Invocation == run {
			lines = append(lines, e.Message)
		}
	}
	return run, lines, nil
}

// Parse reads one line of journalctl's JSON. A message is a string; an array of byte numbers when it holds a control
// character or is not UTF-8; null when it was too large; and an array of those when the field came more than once.
func Parse(b []byte) (Entry, bool) {
	var raw struct {
		Message    json.RawMessage `json:"MESSAGE"`
		Priority   json.RawMessage `json:"PRIORITY"`
		Unit       json.RawMessage `json:"_SYSTEMD_UNIT"`
		About      json.RawMessage `json:"UNIT"`
		Invocation json.RawMessage `json:"_SYSTEMD_INVOCATION_ID"`
		PID        json.RawMessage `json:"_PID"`
		AboutRun   json.RawMessage `json:"INVOCATION_ID"`
		Realtime   string          `json:"__REALTIME_TIMESTAMP"`
	}
	if json.Unmarshal(b, &raw) != nil {
		return Entry{}, false
	}
	e := Entry{Unit: text(raw.Unit), Invocation: text(raw.Invocation), Message: Clean(text(raw.Message)), Priority: 6}
	// UNIT says what a line is about where systemd itself wrote it. Any other process may set the field too.
	if about := text(raw.About); about != "" && about != e.Unit && text(raw.PID) == "1" {
		e.Unit, e.Invocation, e.Manager = about, text(raw.AboutRun), true
	}
	if n, err := strconv.Atoi(text(raw.Priority)); err == nil {
		e.Priority = n
	}
	if us, err := strconv.ParseInt(raw.Realtime, 10, 64); err == nil {
		e.At = time.UnixMicro(us).UTC()
	}
	return e, true
}

// text reads a field in any of its forms.
func text(b json.RawMessage) string {
	var s string
	if len(b) == 0 || json.Unmarshal(b, &s) == nil {
		return s // also null, which leaves s empty
	}
	var bytes []int
	if json.Unmarshal(b, &bytes) == nil {
		out := make([]byte, 0, len(bytes))
		for _, n := range bytes {
			if n >= 0 && n < 256 {
				out = append(out, byte(n))
			}
		}
		return string(out)
	}
	var several []json.RawMessage
	if json.Unmarshal(b, &several) == nil {
		parts := make([]string, 0, len(several))
		for _, one := range several {
			parts = append(parts, text(one))
		}
		return strings.Join(parts, "\n")
	}
	return ""
}

// Clean takes colours and control characters out of a line; of text that was overwritten in place (a progress bar with
// carriage returns) it keeps what stood last.
func Clean(s string) string {
	s = strings.TrimRight(s, "\r\n")
	if i := strings.LastIndexByte(s, '\r'); i >= 0 {
		s = s[i+1:]
	}
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\uFFFD")
	}
	if strings.IndexFunc(s, func(r rune) bool { return r < 0x20 && r != '\t' && r != '\n' || r == 0x7f }) < 0 {
		return s
	}
	var b strings.Builder
	escape := false // within ESC [ … letter
	for i, r := range s {
		switch {
		case escape:
			escape = !(r >= '@' && r <= '~') || r == '['
		case r == 0x1b:
			escape = i+1 < len(s)
		case r < 0x20 && r != '\t' && r != '\n' || r == 0x7f:
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// limited keeps the first 4 KiB.
type limited struct{ b *strings.Builder }

func (l *limited) Write(p []byte) (int, error) {
	if room := 4096 - l.b.Len(); room > 0 {
		l.b.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
