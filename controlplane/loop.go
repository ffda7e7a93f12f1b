package controlplane

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/controlplane/ledger"
	"github.com/levelrail/levelrail/controlplane/reconcile"
	"github.com/levelrail/levelrail/controlplane/seal"
	"github.com/levelrail/levelrail/controlplane/stored"
	"github.com/levelrail/levelrail/controlplane/view"
	"github.com/levelrail/levelrail/raftstore"
	"github.com/levelrail/levelrail/raftstore/command"
)

// Store is what a server asks of its store. *raftstore.Store meets it.
type Store interface {
	Propose(ctx context.Context, by command.By, cmd command.Command) (command.Result, error)
	View(fn func(tx *raftstore.Tx) error) error
	ViewAt(ctx context.Context, index uint64, fn func(tx *raftstore.Tx) error) error
	Watch(ctx context.Context, after string, kinds ...levelrail.Kind) (*raftstore.Subscription, error)
	Status() raftstore.Status
	LeaderChanged() <-chan struct{}
}

const (
	slowTick   = 10 * time.Second // looks at everything again, although nothing was told
	pruneEvery = time.Minute
	firstRetry = 5 * time.Second // of a step that was refused
	lastRetry  = 5 * time.Minute
)

// loop keeps views and steps up with what is stored and reported. It runs on every server; only the leader takes steps.
type loop struct {
	store  Store
	reader *stored.Reader
	ledger *ledger.Ledger
	board  *view.Board
	sealer *seal.Sealer
	world  func(d *reconcile.Desired) view.World
	// settings is told of every state, for the settings document in it.
	settings func(d *reconcile.Desired)
	// retention is how long usage is kept; 0: for ever.
	retention func() time.Duration
	newID     func(prefix string) string
	log       *slog.Logger

	failed  map[string]failure // by why
	reasons map[string]levelrail.Reason
	prune   time.Time // when to look for usage that is too old
}

type failure struct {
	again time.Time
	pause time.Duration
}

// run works until ctx ends.
func (l *loop) run(ctx context.Context) {
	l.failed, l.reasons = map[string]failure{}, map[string]levelrail.Reason{}
	ctx, cancel := context.WithCancel(ctx)
	changes := make(chan struct{}, 1)
	done := make(chan struct{})
	go func() { defer close(done); l.follow(ctx, changes) }()
	defer func() { cancel(); <-done }()

	tick := time.NewTicker(slowTick)
	defer tick.Stop()
	for {
		reports, leader := l.ledger.Changed(), l.store.LeaderChanged()
		l.round(ctx)
		select {
		case <-ctx.Done():
			return
		case <-changes:
		case <-reports:
		case <-leader:
		case <-l.board.Asked():
		case <-tick.C:
		}
	}
}

// follow tells of every change of the state. Several changes may be told as one. Keys are not followed: nothing here
// depends on them, and there may be a million.
func (l *loop) follow(ctx context.Context, changes chan<- struct{}) {
	for ctx.Err() == nil {
		sub, err := l.store.Watch(ctx, "", stored.Kinds...)
		for err == nil {
			if _, err = sub.Next(ctx); err == nil {
				select {
				case changes <- struct{}{}:
				default:
				}
			}
		}
		if errors.Is(err, raftstore.ErrClosed) || ctx.Err() != nil {
			return
		}
		l.log.Error("cannot follow the store; looking every 10 seconds", "error", err)
		select {
		case <-time.After(slowTick):
		case <-ctx.Done():
		}
	}
}

// round publishes the views and, on the leader, takes the steps.
func (l *loop) round(ctx context.Context) {
	d, err := l.reader.Read()
	if err != nil {
		if !errors.Is(err, raftstore.ErrClosed) {
			l.log.Error("the state cannot be read", "error", err)
		}
		return
	}
	l.settings(d)
	w := l.world(d)
	if _, err := l.board.Publish(w); err != nil {
		l.log.Error("the views cannot be made", "error", err)
	}
	l.tellReasons(w)
	status := l.store.Status()
	if status.Role != "leader" {
		return
	}
	by := command.By{Principal: levelrail.Principal{Kind: "server", ID: status.ServerID, Name: "reconciler"}, Ability: levelrail.AbilityRoot}
	now := time.Now()
	l.pruneUsage(ctx, by, now)
	for _, step := range reconcile.Steps(d, w.Observed, l.newID) {
		f, before := l.failed[step.Why]
		if before && now.Before(f.again) {
			continue
		}
		if err := l.take(ctx, d, by, step); err != nil {
			if ctx.Err() != nil || errors.Is(err, raftstore.ErrClosed) {
				return
			}
			f.pause = min(max(2*f.pause, firstRetry), lastRetry)
			f.again = now.Add(f.pause)
			l.failed[step.Why] = f
			l.log.Warn("a step was not taken", "command", step.Command.Kind(), "why", step.Why, "error", err, "again_in", f.pause)
			continue
		}
		delete(l.failed, step.Why)
		l.log.Info("step", "command", step.Command.Kind(), "why", step.Why)
	}
	for why, f := range l.failed {
		if now.Sub(f.again) > lastRetry {
			delete(l.failed, why) // not wanted any more
		}
	}
}

// pruneUsage deletes usage that is older than the retention, looking for it once a minute.
func (l *loop) pruneUsage(ctx context.Context, by command.By, now time.Time) {
	keep := l.retention()
	if keep <= 0 || now.Before(l.prune) {
		return
	}
	l.prune = now.Add(pruneEvery)
	before := now.Add(-keep).UTC().Truncate(time.Hour)
	var oldest time.Time
	err := l.store.View(func(tx *raftstore.Tx) (err error) { oldest, err = raftstore.OldestUsage(tx); return err })
	if err != nil || oldest.IsZero() || !oldest.Before(before) {
		if err != nil && !errors.Is(err, raftstore.ErrClosed) {
			l.log.Error("the oldest usage cannot be read", "error", err)
		}
		return
	}
	var done command.UsagePruned
	res, err := l.store.Propose(ctx, by, command.UsagePrune{Before: before})
	if err == nil {
		err = res.Decode(&done)
	}
	if err != nil {
		if ctx.Err() == nil && !errors.Is(err, raftstore.ErrClosed) {
			l.log.Warn("old usage was not deleted", "before", before, "error", err)
		}
		return
	}
	l.log.Info("usage that was kept long enough is deleted", "before", before, "rows", done.Removed)
	if done.More {
		l.prune = now // the next round goes on
	}
}

// take completes a step and proposes it.
func (l *loop) take(ctx context.Context, d *reconcile.Desired, by command.By, step reconcile.Step) error {
	cmd := step.Command
	if p, ok := cmd.(command.ReplicaPlace); ok {
		path := p.Replica.EngineKey.Path
		secret, err := l.sealer.Seal("replicas/"+p.Replica.ID, path, d.Secrets[path], []byte(levelrail.NewSecret("lre")))
		if err != nil {
			return err
		}
		p.EngineKey = &secret
		cmd = p
	}
	_, err := l.store.Propose(ctx, by, cmd)
	return err
}

// tellReasons logs each change of a model's reason once.
func (l *loop) tellReasons(w view.World) {
	seen := map[string]bool{}
	for _, m := range w.Desired.Models {
		c := w.Condition(m)
		seen[m.Name] = true
		if l.reasons[m.Name] != c.Reason {
			l.reasons[m.Name] = c.Reason
			l.log.Info("model", "model", m.Name, "ready", c.Ready, "reason", c.Reason, "message", c.Message)
		}
	}
	for name := range l.reasons {
		if !seen[name] {
			delete(l.reasons, name)
			l.ledger.ForgetModel(name)
			l.log.Info("model is gone", "model", name)
		}
	}
}
