// Package handover lets a new process of the gateway take the place of a running one without cutting a stream or refusing
// a connection. systemd sees one service all the time, whose main process changes.
//
// Three processes meet. The helper is what systemd runs for a reload (Replace): in the service's sandbox and environment as
// they are now, it starts the successor, waits until that serves, and names it to systemd as the main process. The
// successor (Begin, Successor) opens the same addresses, which SO_REUSEPORT allows to processes of one user, turns new
// connections to itself and tells its predecessor. The predecessor (Leave) takes what still reaches it, closes its listeners
// and ends when its last connection does, or when its time is up. Until the successor serves, nothing happens to the
// predecessor: a configuration or a program that does not start leaves it as it was.
//
// Each process has a slot: a place in the state directory for what is one process's only, which are the gateway's id and
// the numbers of its usage. A lock that the kernel holds for the process tells which slots are in use.
//
// It knows nothing of Caddy. What serves, and how it is stopped, is said by cmd/levelrail-gateway; what is kept in a slot
// is caddymodule's.
package handover

import (
	"os"
	"slices"
	"strings"
)

// Environment variables between helper and successor.
const (
	envReplaces = "LEVELRAIL_GATEWAY_REPLACES" // the predecessor's process id
	envNotify   = "LEVELRAIL_GATEWAY_NOTIFY"   // systemd's socket, which the successor may use once it is the main process
)

// Descriptors that the successor inherits.
const (
	readyFD = 3 // it writes a byte once it serves, and closes it once it has taken over
	goFD    = 4 // a byte comes once systemd knows it as the main process; an end without one means that it is not wanted
)

// passing are the beginnings of variables that differ between a service's main process and the helper of its reload, or
// from run to run.
var passing = []string{"INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID", "MAINPID", "MANAGERPID", "NOTIFY_SOCKET", "WATCHDOG_", "LISTEN_",
	"MEMORY_PRESSURE_", "OLDPWD", "PWD", "SHLVL", "_", envReplaces, envNotify}

// lasting is what of an environment decides how the gateway works, sorted.
func lasting(environ []string) []string {
	var out []string
	for _, v := range environ {
		if strings.Contains(v, "=") && !slices.ContainsFunc(passing, func(p string) bool { return strings.HasPrefix(v, p) }) {
			out = append(out, v)
		}
	}
	slices.Sort(out)
	return out
}

// value is a variable of an environment.
func value(environ []string, name string) string {
	for _, v := range environ {
		if text, ok := strings.CutPrefix(v, name+"="); ok {
			return text
		}
	}
	return ""
}

// environOf is the environment that a process was started with.
func environOf(pid string) ([]string, error) {
	b, err := os.ReadFile("/proc/" + pid + "/environ")
	if err != nil {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00"), nil
}
