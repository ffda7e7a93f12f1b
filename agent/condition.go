package agent

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/agent/fetch"
	"github.com/levelrail/levelrail/agent/units"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/engine"
	"github.com/levelrail/levelrail/systemd"
)

// crashes is how many times in a row an engine ends by itself, without having served in between, before the reason says
// that it fails: once may be bad luck.
const crashes = 2

// judge brings each replica's condition up to date.
func (a *Agent) judge(ctx context.Context, s *state, now time.Time) {
	for _, r := range keys(s.want, s.have) {
		want, wanted := s.want[r]
		if !wanted && !s.synced {
			continue // nobody has said yet whether it is wanted
		}
		have, t := s.have[r], s.track(r)
		// systemd forgets how a run ended as soon as the next begins, even between the two halves of one look.
		if (have.Engine.Failed() || have.Engine.Sub == "auto-restart") && have.Engine.ExitCode != 0 && t.busy == "" {
			t.ended = have.Engine
		}
		if t.served > have.Engine.Restarts { // the unit was started by somebody, and systemd counts anew
			t.served = 0
		}
		a.read(ctx, s, r)
		c := condition(want, wanted, have, s.fetches[want.Assignment.Model], s.orders[want.Assignment.Model], t)
		if c.Reason == levelrail.Downloading && c.Message == "" && c.Progress == nil {
			c.Message, c.Progress = s.behind(want)
		}
		c.Since = t.condition.Since
		// The same word about another order is a new word: the control plane tells by its time what it is about.
		order := fmt.Sprint(want.Assignment.Revision, "/", want.Assignment.Restarts)
		if c.Ready != t.condition.Ready || c.Reason != t.condition.Reason || t.judged != order || c.Since.IsZero() {
			t.judged = order
			c.Since = now.UTC()
			a.Log.Info("condition", "replica", r, "reason", c.Reason, "ready", c.Ready, "message", c.Message)
		}
		t.condition = c
	}
}

// condition says how a replica stands. Its reason is about what is wanted; Ready is about what runs: while a new revision
// is on its way, the old one may still serve.
func condition(want Want, wanted bool, have Have, f Fetch, o *order, t *track) levelrail.Condition {
	up := have.Engine.Up() && t.foundRun == have.Engine.Invocation
	serves := up && t.found.State == engine.Serving
	c := levelrail.Condition{Ready: serves}
	lack := func(reason levelrail.Reason, message, next string) levelrail.Condition {
		c.Reason, c.Message, c.Next = reason, message, next
		return c
	}
	as := want.Assignment
	file, written := have.Files[systemd.EngineUnit(have.Replica)]
	current := written && file.Marks.Hash == want.Hash
	switch {
	case !wanted:
		return lack(levelrail.Stopping, "", "")
	case !as.Run && (have.Engine.Running() || have.Busy):
		return lack(levelrail.Stopping, "", "")
	case !as.Run:
		return lack(levelrail.Idle, "", "")
	case serves && current:
		c.Reason = levelrail.ModelLoaded
		return c
	case want.Lack != nil:
		return lack(want.Lack.Reason, want.Lack.Message, want.Lack.Next)
	case want.Missing != "":
		return fetching(c, want, f, o)
	case !current:
		if t.err != nil {
			return lack(levelrail.EngineFailed, t.err.Error(), "journalctl -u levelrail-agent has the details; it is tried again by itself")
		}
		if len(as.Devices) > 0 && t.busy == "" && !have.Engine.Running() {
			return lack(levelrail.WaitingGPU, "another engine on this node is being stopped", "")
		}
		return lack(levelrail.Starting, "", "")
	}
	u := have.Engine
	next := "levelrail models logs " + as.Model
	if t.busy == "" && died(t, u) && (u.Failed() || u.Restarts-t.served >= crashes) || up && t.found.State == engine.Broken {
		message, how := t.message, t.ended
		if how.ExitCode == 0 { // it did not get as far as a process
			how = u
		}
		if up && t.found.State == engine.Broken {
			message, how = t.found.Message, u
		}
		reason := levelrail.EngineFailed
		if t.reason != "" {
			reason = t.reason
		}
		text, step := failureText(how, message)
		if step != "" {
			next = step + "; " + next
		}
		return lack(reason, text, next)
	}
	if !u.Running() && t.err != nil {
		return lack(levelrail.EngineFailed, t.err.Error(), "systemctl status "+systemd.EngineUnit(as.Replica))
	}
	if up && t.found.State == engine.Load {
		return lack(levelrail.Loading, t.found.Message, "")
	}
	return lack(levelrail.Starting, "", "")
}

// behind says which other model is bringing what a want waits for, and how far that has come.
func (s *state) behind(want Want) (message string, progress *levelrail.Progress) {
	model := want.Assignment.Model
	if s.fetches[model].State.Running() || s.order(model).busy != "" {
		return "", nil
	}
	for _, other := range keys(s.fetches, map[string]int{}) {
		if w := s.needs(other); other != model && w.FetchKey != "" && origin(w) == origin(want) && s.fetches[other].State.Running() {
			return "the same files are on their way for the model " + other, s.fetches[other].Said.Progress
		}
	}
	return "", nil
}

// fetching says how the weights come along.
func fetching(c levelrail.Condition, want Want, f Fetch, o *order) levelrail.Condition {
	c.Reason = levelrail.Downloading
	switch {
	case f.Key == want.FetchKey && !f.Busy && f.State.Failed() && f.State.ExitStatus == 243: // its start job fails as well
		if c.Reason, c.Message = levelrail.HFTokenUnavailable, "the download could not be given the Hub token"; !want.Assignment.HubTokenSet {
			c.Reason, c.Message = levelrail.DownloadFailed, "the download could not be given its order (243/CREDENTIALS)"
		}
	case o != nil && o.err != nil && o.key == want.FetchKey:
		c.Reason, c.Message, c.Next = o.err.Reason, o.err.Message, o.err.Next
	case o != nil && o.busy != "" && o.key == want.FetchKey:
		c.Progress = o.progress
	case f.Key != want.FetchKey || f.Busy:
	case f.Known && f.Said.Key == want.FetchKey && f.Said.Step == fetch.Failed && !f.State.Running() && f.Said.Failure != nil:
		fail := f.Said.Failure
		c.Reason, c.Message, c.Next = fail.Reason, fail.Message, fail.Next
	case f.State.Running() && f.Known && f.Said.Key == want.FetchKey:
		c.Progress = f.Said.Progress
	case f.State.Failed():
		c.Message = "the download was ended from outside (" + f.State.Result + "); it goes on where it was"
	}
	return c
}

// failureText is one sentence on an engine that does not stay up: the first cause when the journal told it, else how it
// ended.
func failureText(u units.State, cause string) (text, next string) {
	how := "the engine does not stay up"
	switch {
	case u.Up():
		how = "the engine runs and does not serve the model"
	case u.Load == "bad-setting" || u.Load == "error":
		how = "systemd does not accept the unit (" + u.Load + "), perhaps because of a drop-in"
	case u.Result == "oom-kill":
		how = "the kernel killed the engine because the machine ran out of memory"
	case u.ExitCode == 1 && u.ExitStatus == 203:
		how = "the engine's program cannot be run inside the unit: a library or an interpreter that it needs may lie where engines cannot see (/home, /root, /tmp)"
	case u.ExitCode == 1 && u.ExitStatus == 226:
		how = "systemd cannot set up the engine's file system (226/NAMESPACE)"
	case u.ExitCode == 1 && u.ExitStatus == 243:
		how = "systemd cannot give the engine its key (243/CREDENTIALS)"
	case u.ExitCode == 1 && u.ExitStatus > 128 && endings[u.ExitStatus-128].means != "": // a script or a parent process tells a signal so
		e := endings[u.ExitStatus-128]
		how, next = fmt.Sprintf("the engine ends with status %d, which stands for signal %d: %s", u.ExitStatus, u.ExitStatus-128, e.means), e.next
	case u.ExitCode == 1 && u.ExitStatus > 0:
		how = fmt.Sprintf("the engine ends with status %d", u.ExitStatus)
	case u.ExitCode == 1:
		how = "the engine ends by itself, with status 0"
	case u.ExitCode > 1:
		e := endings[u.ExitStatus]
		how, next = fmt.Sprintf("the engine is ended by signal %d", u.ExitStatus), e.next
		if e.means != "" {
			how += " (" + e.name + "): " + e.means
		}
	}
	if u.Result == "oom-kill" {
		next = outOfMemory
	}
	if cause == "" {
		return how, next
	}
	return strings.TrimSuffix(how, ".") + ": " + cause, next
}

const outOfMemory = "give the model a smaller --context or another quantization, or the machine more memory (journalctl -k shows who was killed)"

// endings are what the signals by which engines end mean on this side of a crash, and what to do.
var endings = map[int]struct{ name, means, next string }{
	4: {"SIGILL", "an instruction that this CPU does not have: the program was built for a newer CPU",
		"install a build for this CPU: levelrail engines list says where programs come from, and APP_MODEL_ENGINE_… in " + EnvironmentFile + " names one"},
	6: {"SIGABRT", "the engine gave up on a fault that it found itself, which its log names", ""},
	7: {"SIGBUS", "a file that it had mapped into memory was cut short, or the disk or the memory failed", "look for errors of the disk: journalctl -k; then levelrail models restart"},
	8: {"SIGFPE", "a fault of arithmetic in the engine, such as a division by zero: often a damaged weights file", "try another file or another version of the engine"},
	9: {"SIGKILL", "it was killed from outside, most likely because the machine ran out of memory", outOfMemory},
	11: {"SIGSEGV", "the engine crashed: a fault of the program, of its GPU driver, or of what it was given to load",
		"try another version of the engine, or another file"},
	15: {"SIGTERM", "somebody or another service of this machine ended it", "the journal shows when"},
	31: {"SIGSYS", "it made a system call that its sandbox forbids", "report the line of journalctl -k that names the call"},
}

// status is a replica's part of the report.
func (a *Agent) status(s *state, r string) wire.ReplicaStatus {
	want, wanted := s.want[r]
	h, t := s.have[r], s.track(r)
	unit := systemd.EngineUnit(r)
	st := wire.ReplicaStatus{
		Replica: r, Model: want.Assignment.Model, Revision: want.Assignment.Revision, Restarts: want.Assignment.Restarts, Unit: unit,
		UnitState: h.Engine.String(), MainPID: h.Engine.MainPID, NRestarts: h.Engine.Restarts, Invocation: h.Engine.Invocation,
		Condition: t.condition, DropIns: h.Engine.DropIns, NotIsolated: a.notIsolated(want, h),
	}
	if h.Engine.Active == "" {
		st.UnitState = "inactive/dead"
	}
	file, written := h.Files[unit]
	if written && (h.Engine.Running() || !wanted) {
		st.Model, st.Revision, st.Restarts = file.Marks.Model, file.Marks.Revision, file.Marks.Restarts
	}
	if h.Engine.Running() {
		st.Socket = systemd.SocketPath(r)
	}
	if t.serving && t.computed == h.Engine.Invocation {
		st.Compute = t.compute
	}
	for _, u := range keys(h.Files, map[string]int{}) {
		if !h.Files[u].Intact {
			st.Notes = append(st.Notes, u+" was changed by hand; the change holds until the model's next update or restart. Use systemctl edit "+u+" for one that stays.")
		}
	}
	for _, text := range want.Units {
		f, ok := h.Files[text.Name]
		if ok && f.Intact && f.Text != text.Text && f.Marks.Hash == want.Hash {
			st.Notes = append(st.Notes, text.Name+" is of an earlier agent or setting; levelrail models restart "+want.Assignment.Model+" brings the present form.")
		}
	}
	if h.Engine.NeedReload {
		st.Notes = append(st.Notes, unit+" differs from what systemd has read; systemctl daemon-reload, then levelrail models restart "+st.Model+", brings it into force.")
	}
	return st
}
