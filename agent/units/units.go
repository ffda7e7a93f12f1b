// Package units holds the words by which the agent and its ways to systemd (agent/sdbus, agent/agenttest) understand each
// other: what a unit's state is, and how a job failed. It is data only.
package units

import "time"

// State is what systemd says of one unit.
type State struct {
	Load       string // loaded, not-found, bad-setting, error, masked
	Active     string // active, activating, deactivating, inactive, failed, reloading
	Sub        string // running, auto-restart, dead, listening, …
	Result     string // of a service: success, exit-code, signal, oom-kill, start-limit-hit, …
	ExitCode   int    // how the main process ended: 1 exited, 2 killed, 3 dumped; 0 it runs
	ExitStatus int    // exit status or signal; 200 to 245 are systemd's own
	MainPID    int
	Restarts   int       // by systemd, since the unit was last started by somebody
	Invocation string    // of this run, 32 hex digits
	DropIns    []string  // an operator's changes in force
	NeedReload bool      // a file differs from what systemd has read
	Changed    time.Time // last change of state
	Entered    time.Time // last became active
}

// Running tells that the unit has, or is about to have, or not yet lost its processes. A unit between two automatic
// restarts is running: systemd will start it by itself.
func (s State) Running() bool {
	switch s.Active {
	case "active", "activating", "deactivating", "reloading":
		return true
	}
	return false
}

// Up tells that the unit has its process now.
func (s State) Up() bool { return s.Active == "active" || s.Active == "reloading" }

// Failed tells that systemd has given up on the unit.
func (s State) Failed() bool { return s.Active == "failed" }

// String is Active/Sub, as reports have it.
func (s State) String() string { return s.Active + "/" + s.Sub }

// JobError is a start or stop that did not end as it should.
type JobError struct {
	Verb   string // start, stop
	Unit   string
	Result string // failed, timeout, canceled, dependency, assert, skipped
}

func (e *JobError) Error() string {
	switch e.Result {
	case "assert":
		return e.Verb + " " + e.Unit + ": a condition of the unit does not hold (systemctl status " + e.Unit + " names it)"
	case "timeout":
		return e.Verb + " " + e.Unit + ": the job took too long"
	}
	return e.Verb + " " + e.Unit + ": job " + e.Result
}
