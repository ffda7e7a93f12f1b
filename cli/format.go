package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// size writes bytes in binary units with one decimal: 0 B, 512 B, 4.0 KiB, 48.0 GiB.
func size(n int64) string {
	if n < 1024 {
		return strconv.FormatInt(n, 10) + " B"
	}
	f := float64(n)
	for _, unit := range []string{"KiB", "MiB", "GiB", "TiB"} {
		f /= 1024
		if f < 1023.95 || unit == "TiB" {
			return fmt.Sprintf("%.1f %s", f, unit)
		}
	}
	return ""
}

func itoa(n int) string { return strconv.Itoa(n) }

// orDash writes an optional size; what is unknown is a dash, never 0.
func orDash(n *int64) string {
	if n == nil {
		return "-"
	}
	return size(*n)
}

// span writes a duration in its one or two largest units, rounded: 45s, 3m5s, 12m, 3h5m, 26h, 400d.
func span(d time.Duration) string {
	d = max(d, 0)
	if r := d.Round(time.Second); r < time.Minute {
		return fmt.Sprintf("%ds", r/time.Second)
	} else if r < 10*time.Minute {
		if r%time.Minute == 0 {
			return fmt.Sprintf("%dm", r/time.Minute)
		}
		return fmt.Sprintf("%dm%ds", r/time.Minute, r%time.Minute/time.Second)
	}
	if r := d.Round(time.Minute); r < time.Hour {
		return fmt.Sprintf("%dm", r/time.Minute)
	} else if r < 10*time.Hour && r%time.Hour != 0 {
		return fmt.Sprintf("%dh%dm", r/time.Hour, r%time.Hour/time.Minute)
	}
	if r := d.Round(time.Hour); r < 48*time.Hour {
		return fmt.Sprintf("%dh", r/time.Hour)
	}
	return fmt.Sprintf("%dd", d.Round(24*time.Hour)/(24*time.Hour))
}

// age is how long ago a time is: "3h".
func (s *session) age(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return span(s.now().Sub(t))
}

// ago is a time for people: "2026-01-02 03:04:05 UTC (3h ago)".
func (s *session) ago(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC") + " (" + s.age(t) + " ago)"
}

// until is an expiry for people.
func (s *session) until(t *time.Time) string {
	switch {
	case t == nil:
		return "never"
	case !t.After(s.now()):
		return "expired " + span(s.now().Sub(*t)) + " ago"
	}
	return "in " + span(t.Sub(s.now()))
}

// parseSpan reads a duration with a unit; days are known too.
func parseSpan(flag, text string) (time.Duration, error) {
	bad := func(say string) (time.Duration, error) { return 0, usagef("", "--%s %q %s", flag, text, say) }
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.ParseFloat(days, 64)
		if err != nil || n < 0 || n > 36500 {
			return bad("is not a duration; write it like 90s, 20m, 12h or 30d")
		}
		return time.Duration(n * float64(24*time.Hour)), nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		if n, numErr := strconv.Atoi(text); numErr == nil && n > 0 {
			return bad(fmt.Sprintf("has no unit; write %dm or %ds", n, n))
		}
		return bad("is not a duration; write it like 90s, 20m, 12h or 30d")
	}
	if d < 0 {
		return bad("is in the past")
	}
	return d, nil
}

// shellQuote writes a word so that a shell reads it as it is.
func shellQuote(w string) string {
	if w != "" && !strings.ContainsFunc(w, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:,=@%+", r))
	}) {
		return w
	}
	return "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
}

// plain replaces what could steer a terminal: server texts may hold what an engine printed.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		if r < ' ' || r >= 0x7f && r < 0xa0 || r == utf8.RuneError {
			return '?'
		}
		return r
	}, text)
}
