package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
)

// TestSize: binary units with one decimal.
func TestSize(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 1<<20 - 1: "1.0 MiB", 48 << 30: "48.0 GiB", 5 << 40: "5.0 TiB", 2000 << 40: "2000.0 TiB"} {
		if got := size(n); got != want {
			t.Errorf("size(%d) = %s, want %s", n, got, want)
		}
	}
}

// TestSpan: one or two units, rounded, never 60 of anything.
func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 400 * time.Millisecond: "0s", 59*time.Second + 600*time.Millisecond: "1m", 3*time.Minute + 5*time.Second: "3m5s", 4 * time.Minute: "4m",
		59*time.Minute + 40*time.Second: "1h", 3*time.Hour + 5*time.Minute: "3h5m", 12*time.Hour - 5*time.Second: "12h", 26 * time.Hour: "26h",
		30*24*time.Hour - time.Second: "30d",
	} {
		if got := span(d); got != want {
			t.Errorf("span(%s) = %s, want %s", d, got, want)
		}
	}
}

// TestShellQuote: what a shell reads back is what went in; plain words stay plain.
func TestShellQuote(t *testing.T) {
	for in, want := range map[string]string{"": "''", "org/name-GGUF:Q4_K_M": "org/name-GGUF:Q4_K_M", "a b": "'a b'", "$HOME": "'$HOME'", "it's": `'it'\''s'`, "a\nb": "'a\nb'", "~": "'~'"} {
		if got := shellQuote(in); got != want {
			t.Errorf("shellQuote(%q) = %s, want %s", in, got, want)
		}
	}
}

// TestPlain: a text of an engine cannot steer the terminal.
func TestPlain(t *testing.T) {
	if got := plain("a\x1b[2Jb\rc\x9bd\te\nü"); got != "a?[2Jb?c?d\te\nü" {
		t.Errorf("got %q", got)
	}
	if got := oneLine(" a\n b\tc "); got != "a  b c" {
		t.Errorf("got %q", got)
	}
}

// TestTableColours: colours do not shift columns, and are there only where they are shown.
func TestTableColours(t *testing.T) {
	tb := table{head: []string{"NAME", "STATUS", "AGE"}}
	tb.row("chat", styled{"ready", styleGreen}, "3h")
	tb.row("größer", styled{"EngineFailed", styleRed}, "")
	var plainOut, colour bytes.Buffer
	tb.print(&output{w: &plainOut, fd: -1})
	tb.print(&output{w: &colour, fd: -1, color: true})
	if want := "NAME    STATUS        AGE\nchat    ready         3h\ngrößer  EngineFailed  -\n"; plainOut.String() != want {
		t.Errorf("got\n%s", plainOut.String())
	}
	if got := withoutColour.ReplaceAllString(colour.String(), ""); got != plainOut.String() || got == colour.String() {
		t.Errorf("got\n%q", colour.String())
	}
}

// TestExitCodes: each kind of error has its code, however deep it is wrapped.
func TestExitCodes(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want int
	}{
		{nil, 0}, {errors.New("x"), 1}, {usagef("", "x"), 2}, {errInterrupted, 130}, {syscall.EPIPE, 141}, {io.ErrClosedPipe, 141},
		{levelrail.Errorf(levelrail.ErrInternal, ""), 1}, {levelrail.Errorf(levelrail.ErrUnauthorized, ""), 1}, {levelrail.Errorf(levelrail.ErrNotFound, ""), 3},
		{levelrail.Errorf(levelrail.ErrInvalid, ""), 4}, {levelrail.Errorf(levelrail.ErrForbidden, ""), 4}, {levelrail.Errorf(levelrail.ErrConflict, ""), 4},
		{levelrail.Errorf(levelrail.ErrRefused, ""), 4}, {levelrail.Errorf(levelrail.ErrUnavailable, ""), 5}, {levelrail.Errorf(levelrail.ErrTimeout, ""), 6},
	} {
		err := tc.err
		if err != nil {
			err = fmt.Errorf("deeper: %w", err)
		}
		if got := exitCode(err); got != tc.want {
			t.Errorf("exitCode(%v) = %d, want %d", tc.err, got, tc.want)
		}
	}
}
