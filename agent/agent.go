// Package agent looks after one node: it keeps the node's systemd units equal to the replicas that the control plane
// assigned to it, brings their weights, tells when their engines are ready, and reports all of it.
//
// It compares what is wanted with what is there, decides steps in a pure function (steps.go), and acts in a thin loop
// (execute.go). One goroutine owns all state; everything slow runs beside it and hands results back. It promises that
// engines never depend on it: they serve on while it is stopped, killed or upgraded, the next start adopts them without
// touching them, a reboot brings them back without it, and without a control plane every unit is left as it is. It never
// touches a unit file that does not carry its mark.
//
// Unit text is package systemd's, what an engine is package engine's, files are brought by agent/fetch inside a unit of
// its own. agent/sdbus, agent/journal and agent/gpu meet the interfaces declared here, agent/agenttest meets them in
// memory.
package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/agent/gpu"
	"github.com/levelrail/levelrail/agent/journal"
	"github.com/levelrail/levelrail/agent/units"
	"github.com/levelrail/levelrail/beneath"
	"github.com/levelrail/levelrail/client"
	"github.com/levelrail/levelrail/client/wire"
)

// Units is what the agent asks of systemd.
type Units interface {
	Reload(ctx context.Context) error             // reads all unit files again
	Start(ctx context.Context, unit string) error // returns when the job has ended; *units.JobError unless done
	Stop(ctx context.Context, unit string) error  // returns when its processes are gone
	ResetFailed(ctx context.Context, unit string) error
	Clean(ctx context.Context, unit string) error // removes a stopped unit's cache
	States(ctx context.Context, names []string) (map[string]units.State, error)
	Changes() <-chan struct{} // something may have changed
}

// Journal is what the agent asks of the journal.
type Journal interface {
	Each(ctx context.Context, q journal.Query, each func(journal.Entry) error) error
	LastRun(ctx context.Context, unit, invocation string, ended bool) (run string, lines []string, err error)
}

// GPUs reads the node's cards.
type GPUs interface {
	Read(ctx context.Context) gpu.Snapshot
}

// ControlPlane is what the agent asks of the server; *client.Client meets it.
type ControlPlane interface {
	Hello(ctx context.Context, h wire.Hello) (wire.Welcome, error)
	Watch(ctx context.Context, o client.WatchOptions, each func(wire.WatchLine) error) error
	Report(ctx context.Context, r wire.Report) error
	HubToken(ctx context.Context, nodeID, model string) (string, error)
	PostLogs(ctx context.Context, id string, write func(ctx context.Context, send func(wire.LogLine) error) error) error
}

// Config is what an agent needs.
type Config struct {
	Settings     Settings
	Paths        Paths
	Units        Units
	Journal      Journal
	GPUs         GPUs
	ControlPlane ControlPlane
	Program      string                                                     // of this agent, for the fetch unit
	Host         Host                                                       // what the machine is
	Mounts       string                                                     // mountinfo of the host; empty: that of process 1
	Dial         func(ctx context.Context, socket string) (net.Conn, error) // to an engine; nil: its Unix socket
	Notify       func(state string)                                         // to the service manager; nil: nobody
	Watchdog     time.Duration                                              // how often to say that all is well; 0: never
	Log          *slog.Logger                                               // nil: the default
}

// Agent looks after one node.
type Agent struct {
	Config
	id     identity
	events chan func(*state) // run in the goroutine that owns the state
	ending <-chan struct{}   // closed when Run is to return
	work   sync.WaitGroup    // everything that runs beside it
	reload sync.Mutex        // one change of unit files at a time, so that a reload sees whole ones
}

// New returns an idle agent for this node. It reads the agent's own directory, and fails when that cannot be read or
// belongs to something else.
func New(c Config) (*Agent, error) {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Notify == nil {
		c.Notify = func(string) {}
	}
	if c.Dial == nil {
		c.Dial = func(ctx context.Context, socket string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			// The directory of a socket is its engine's, which could put a link to any socket of the host there.
			engines, replica := filepath.Split(filepath.Dir(socket))
			return beneath.Dial(ctx, engines, filepath.Join(replica, filepath.Base(socket)))
		}
	}
	if c.Mounts == "" {
		c.Mounts = "/proc/1/mountinfo"
	}
	if c.Program == "" {
		return nil, errors.New("the agent does not know its own program, which fetches run")
	}
	if err := c.Settings.check(); err != nil {
		return nil, err
	}
	id, err := loadIdentity(c.Paths.State)
	if err != nil {
		return nil, err
	}
	return &Agent{Config: c, id: id, events: make(chan func(*state), 64)}, nil
}

// Intervals of the loop.
const (
	calm   = 5 * time.Second        // between two looks when nothing is on its way
	brisk  = 500 * time.Millisecond // when something is
	settle = 30 * time.Millisecond  // after a sign of change, for its companions
)

// Run keeps the node's units equal to its assignments until ctx is done, then returns with all its goroutines finished.
// Engines keep serving while no agent runs; the next Run adopts them.
func (a *Agent) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer a.work.Wait()
	defer cancel()
	a.ending = ctx.Done()

	s := newState()
	if err := a.adopt(ctx, s); err != nil {
		return err
	}
	a.Notify("READY=1\nSTATUS=Waiting for the control plane")

	reports := make(chan wire.Report, 1)
	a.beside(func() { a.link(ctx, reports) })
	a.beside(func() { a.watchGPUs(ctx) })

	var pat <-chan time.Time
	if a.Watchdog > 0 {
		t := time.NewTicker(a.Watchdog)
		defer t.Stop()
		pat = t.C
	}
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		look := true
		select {
		case <-ctx.Done():
			a.Notify("STOPPING=1\nSTATUS=Stopping; engines keep serving")
			return nil
		case <-pat:
			a.Notify("WATCHDOG=1")
			look = false
		case event := <-a.events:
			event(s)
			a.drain(s)
		case <-a.Units.Changes():
			pause(ctx, settle)
			a.drain(s)
		case <-next.C:
		}
		if look && a.remounted(s) {
			a.Notify("STOPPING=1\nSTATUS=Starting anew; engines keep serving")
			return errRemounted
		}
		if look {
			next.Reset(a.turn(ctx, s, reports))
		}
	}
}

// drain runs what else has happened meanwhile, so that many events cost one turn.
func (a *Agent) drain(s *state) {
	for {
		select {
		case event := <-a.events:
			event(s)
		default:
			return
		}
	}
}

// turn looks, decides and acts once, and says when to look again.
func (a *Agent) turn(ctx context.Context, s *state, reports chan wire.Report) time.Duration {
	if err := a.observe(ctx, s); err != nil {
		if ctx.Err() == nil {
			a.Log.Warn("cannot look at the units", "error", err)
			a.Notify("STATUS=Cannot look at the units: " + oneLine(err.Error()))
		}
		return calm
	}
	s.storeLack = a.lookAtStore()
	a.plan(s)
	now := time.Now()
	for _, step := range steps(s.world(now)) {
		a.begin(ctx, s, step)
	}
	a.probe(ctx, s)
	a.judge(ctx, s, now)
	a.report(s, now, reports)
	if s.moving() {
		return brisk
	}
	return calm
}

// beside runs f in a goroutine that Run waits for.
func (a *Agent) beside(f func()) { a.work.Go(f) }

// tell hands a change of state to the goroutine that owns it. Once Run is ending, nobody cares any more.
func (a *Agent) tell(event func(*state)) {
	select {
	case a.events <- event:
	case <-a.ending:
	}
}

// pause waits, or less when ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// watchGPUs reads the cards now and then.
func (a *Agent) watchGPUs(ctx context.Context) {
	for ctx.Err() == nil {
		snapshot := a.GPUs.Read(ctx)
		if ctx.Err() != nil {
			return
		}
		a.tell(func(s *state) {
			if s.gpus.Note != snapshot.Note && snapshot.Note != "" {
				a.Log.Info("cards", "note", snapshot.Note)
			}
			s.gpus, s.gpusRead = snapshot, true
		})
		pause(ctx, a.Settings.GPUCollectInterval)
	}
}

// lackOf makes a lack out of an error that carries a next step.
func lackOf(reason levelrail.Reason, err error) *Lack {
	l := &Lack{Reason: reason, Message: err.Error()}
	var e *levelrail.Error
	if errors.As(err, &e) {
		l.Message, l.Next = e.Message, e.Next
	}
	return l
}

func oneLine(s string) string {
	for i, r := range s {
		if r == '\n' {
			return s[:i] + " …"
		}
	}
	return s
}
