package hosttest

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// UnitProps is what systemd says of a unit.
type UnitProps struct {
	Name          string
	LoadState     string // loaded, not-found, masked…
	ActiveState   string // active, activating, inactive, failed…
	SubState      string // running, auto-restart…
	Result        string // success, exit-code, watchdog…
	MainPID       int    // as the host sees it, 0 without one
	NRestarts     int
	ExecMainCode  int // how the main process ended last: 1 exited, 2 killed
	ExecMainState int // its exit status or signal
	All           map[string]string
}

// Show asks systemd for a unit. A unit that does not exist has LoadState not-found.
func (h *Host) Show(ctx context.Context, unit string) (UnitProps, error) {
	out, _, err := h.Exec(ctx, "systemctl show --no-pager -- "+quote(unit))
	if err != nil {
		return UnitProps{}, fmt.Errorf("systemctl show %s: %w", unit, err)
	}
	u := UnitProps{Name: unit, All: map[string]string{}}
	for line := range strings.Lines(out) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		u.All[key] = value
	}
	number := func(key string) int {
		n, _ := strconv.Atoi(u.All[key])
		return n
	}
	u.LoadState, u.ActiveState, u.SubState, u.Result = u.All["LoadState"], u.All["ActiveState"], u.All["SubState"], u.All["Result"]
	u.MainPID, u.NRestarts = number("MainPID"), number("NRestarts")
	u.ExecMainCode, u.ExecMainState = number("ExecMainCode"), number("ExecMainStatus")
	return u, nil
}

// WaitActive waits up to a minute until a unit is active. It fails the test, with the unit's status and journal, when time
// is up or when the unit failed for good.
func (h *Host) WaitActive(unit string) UnitProps {
	if h.tb != nil {
		h.tb.Helper()
	}
	return h.WaitActiveFor(unit, time.Minute)
}

// WaitActiveFor is WaitActive with another limit.
func (h *Host) WaitActiveFor(unit string, limit time.Duration) UnitProps {
	if h.tb != nil {
		h.tb.Helper()
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		u, err := h.Show(ctx, unit)
		if err == nil && u.ActiveState == "active" {
			return u
		}
		if ctx.Err() != nil || err == nil && u.ActiveState == "failed" {
			h.fatalf("%s is not active: %s (%s), result %s\n%s", unit, u.ActiveState, u.SubState, u.Result, h.unitStatus([]string{quote(unit)}))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// Eventually calls check until it returns nil, 20 times a second, and fails the test with its last error after limit.
// what completes the sentence "waited for …".
func (h *Host) Eventually(what string, limit time.Duration, check func() error) {
	if h.tb != nil {
		h.tb.Helper()
	}
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-deadline.C:
			h.fatalf("waited %s for %s: %v", limit, what, err)
		case <-tick.C:
		}
	}
}

// Kill9 kills a process of the host, by its number there, as the kernel's memory killer would.
func (h *Host) Kill9(pid int) {
	if h.tb != nil {
		h.tb.Helper()
	}
	if pid < 2 { // 0 is the caller's group, 1 the whole host
		h.fatalf("kill -9 %d: not a process to kill", pid)
	}
	h.Run("kill -9 " + strconv.Itoa(pid))
}

// Journal returns what journalctl prints with these arguments, for example ("-u", "levelrail-agent", "-b").
func (h *Host) Journal(args ...string) string {
	if h.tb != nil {
		h.tb.Helper()
	}
	script := "journalctl --no-pager"
	for _, a := range args {
		script += " " + quote(a)
	}
	return h.Run(script)
}

// printJournal logs the state and journal of Levelrail's units, for a test that failed.
func (h *Host) printJournal() {
	if h.PID() == 0 {
		h.cfg.logf("host %s is off; its console:\n%s", h.Name, h.console())
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	out, errText, err := h.Exec(ctx, `
systemctl --no-pager --no-legend --all list-units 'levelrail*'
echo "failed units:"; systemctl --no-pager --no-legend --plain --failed
journalctl --no-pager -n 400 -o short-precise -u 'levelrail*' 2>/dev/null || {
  echo "no such units; the end of the whole journal:"
  journalctl --no-pager -n 50 -o short-precise
}`)
	if err != nil {
		out += fmt.Sprintf("\n(%v %s)", err, errText)
	}
	h.cfg.logf("host %s, Levelrail's units and their journal:\n%s", h.Name, out)
}

// quote makes one shell word.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
