// Package link keeps the gateway's table the same as the control plane's: it follows the watch of routes and keys,
// publishes every change as a new route.Table, and keeps a copy on disk from which a gateway without a control plane
// serves. It tells the control plane how far it has come, and takes its questions to whoever can answer them.
//
// It promises that a table is never half of another one: while the control plane says everything anew, the last table
// stands until the new one is complete. A lost control plane changes nothing. Requests read Table and nothing else. The
// connection itself is package client's, what a table is caddymodule/route's.
package link

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/caddymodule/route"
	"github.com/levelrail/levelrail/client"
	"github.com/levelrail/levelrail/client/wire"
)

// Source is what the link asks of the control plane. *client.Client meets it.
type Source interface {
	Watch(ctx context.Context, o client.WatchOptions, each func(wire.WatchLine) error) error
	Seen(ctx context.Context, s wire.Seen) error
	Answer(ctx context.Context, question string, a wire.Answer) error
}

// Options say what a link needs. Directory may be empty: then nothing is kept.
type Options struct {
	Source    Source
	Where     string // names the control plane in the log
	Directory string // the gateway's state directory, made when missing
	Serves    func() Serves
	Log       *slog.Logger
	// Answer answers a question of the control plane's, quickly; its GatewayID is filled in. Nil: there is nothing to ask.
	Answer func(wire.Question) wire.Answer
	// Synced is called each time a watch has said everything. May be nil.
	Synced func()
	// Shares hears who else serves. Nil: the gateway does not ask.
	Shares Shares
}

// Shares is told what the watch says of other gateways. Its calls come one after another.
type Shares interface {
	Boot() (boot string, gateways int) // what a watch says of this process
	Begin()                            // a watch begins
	Share(wire.Share)
	Recall(key string)
	Synced() // the watch has said everything
	Away()   // the watch has ended, or could not begin
}

// Serves is what the gateway tells the control plane of itself.
type Serves struct {
	URL    string // the base address of the shared address, /v1 included; empty: not known
	Public bool   // it has a public site, https for any host name that a model has
}

// Pauses between attempts to reach the control plane.
const (
	firstPause = 200 * time.Millisecond
	mostPause  = 5 * time.Second
)

// Link follows one control plane.
type Link struct {
	o     Options
	table atomic.Pointer[route.Table]
	mu    sync.Mutex
	newer chan struct{} // closed at the next table
	live  atomic.Bool   // a watch is connected and has said everything
	again chan struct{}
	id    func() string
	fresh atomic.Int64 // Unix nanoseconds of when the table was last known to be the control plane's; 0: never
	stale atomic.Bool  // the table is too old to serve by
	state state        // Run's alone, and Load's before it
	// When the age was last warned of, and kept on the disk. They are watchAge's alone.
	warned, marked time.Time
	save           *saver
	seen           seen
}

// New returns a link with an empty table. It starts nothing and touches no file.
func New(o Options) *Link {
	l := &Link{o: o, save: newSaver(o.Directory, o.Log), again: make(chan struct{}, 1), newer: make(chan struct{}), seen: seen{token: make(chan string, 1)}}
	l.id = sync.OnceValue(func() string { return gatewayID(o.Directory, o.Log) })
	l.state.table, l.state.log = new(route.Table), o.Log
	l.table.Store(l.state.table)
	return l
}

// Table is the newest table.
func (l *Link) Table() *route.Table { return l.table.Load() }

// Next is the newest table, and a channel that is closed once there is a newer one.
func (l *Link) Next() (*route.Table, <-chan struct{}) {
	l.mu.Lock()
	newer := l.newer
	l.mu.Unlock()
	return l.table.Load(), newer
}

// publish makes a table the newest one.
func (l *Link) publish(t *route.Table) {
	l.table.Store(t)
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.newer)
	l.newer = make(chan struct{})
}

// Live tells whether the table is the control plane's present one, as far as the connection shows.
func (l *Link) Live() bool { return l.live.Load() }

// ID is the gateway's id, kept in the state directory. The first call makes it there if it is missing.
func (l *Link) ID() string { return l.id() }

// Age is how long ago the table was known to be the control plane's present one; false: it never was.
func (l *Link) Age() (time.Duration, bool) {
	if l.live.Load() {
		return 0, true
	}
	at := l.fresh.Load()
	return max(0, time.Since(time.Unix(0, at))), at != 0
}

// MaxStale is how long the control plane wants a gateway to serve that hears nothing of it; 0: for ever.
func (l *Link) MaxStale() time.Duration {
	for _, m := range l.table.Load().Models() {
		return time.Duration(max(m.Limits.MaxStaleSeconds, 0)) * time.Second
	}
	return 0
}

// Stale tells whether routes and keys are too old to serve by. It is one atomic load for whoever asks at each request.
func (l *Link) Stale() bool { return l.stale.Load() }

// judge notes whether the table is too old, and says so, once an hour before it is.
func (l *Link) judge() {
	age, known := l.Age()
	most := l.MaxStale()
	stale := known && most > 0 && age >= most
	if stale && !l.stale.Swap(true) {
		l.o.Log.Error("no connection to the control plane for too long: requests are refused, since keys may have been revoked meanwhile", "control_plane", l.o.Where,
			"age", age.Round(time.Second), "setting", "APP_MODEL_GATEWAY_MAX_STALE", "next", "systemctl status levelrail-server")
	}
	if known && !stale && most > 0 && age >= most/2 && time.Since(l.warned) >= warnEvery {
		l.warned = time.Now()
		l.o.Log.Warn("routes and keys are old: without a connection to the control plane requests will be refused", "control_plane", l.o.Where,
			"age", age.Round(time.Second), "refused_in", (most - age).Round(time.Second), "setting", "APP_MODEL_GATEWAY_MAX_STALE", "next", "systemctl status levelrail-server")
	}
}

// watchAge judges the table's age now and then until ctx ends.
func (l *Link) watchAge(ctx context.Context) {
	tick := time.NewTicker(judgeEvery)
	defer tick.Stop()
	for {
		l.judge()
		if l.o.Directory != "" && l.live.Load() && time.Since(l.marked) >= markEvery {
			l.marked = time.Now()
			if err := mark(l.o.Directory, l.marked); err != nil {
				l.o.Log.Warn("when routes and keys were last heard cannot be kept; a restart without the control plane takes them for older", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

const (
	judgeEvery = time.Second
	warnEvery  = time.Hour
	markEvery  = time.Minute
)

// Load reads the copy on disk, so that the first request is served by it. It only reads, and a copy that is missing or
// broken leaves the table empty: the watch will say everything. Call it before Run.
func (l *Link) Load() {
	if l.o.Directory == "" {
		return
	}
	s, err := load(l.o.Directory, l.o.Log)
	switch {
	case err != nil:
		l.o.Log.Warn("the kept routes and keys cannot be read; waiting for the control plane", "error", err)
	case s != nil:
		l.state = *s
		l.publish(s.table)
		l.fresh.Store(freshest(s.savedAt, heard(l.o.Directory), time.Now()).UnixNano())
		l.judge()
		models, keys := s.table.Len()
		l.o.Log.Info("serving from kept routes and keys", "models", models, "keys", keys, "saved_at", s.savedAt)
	}
}

// Announce makes the link say anew what the gateway serves, which it says at the start of a watch. Nothing is lost or sent
// twice: the watch goes on from where it was.
func (l *Link) Announce() {
	select {
	case l.again <- struct{}{}:
	default:
	}
}

var errAnnounce = errors.New("announcing what the gateway serves")

// Run follows the control plane until ctx ends, then writes what is not yet on disk and returns.
func (l *Link) Run(ctx context.Context) {
	id := l.ID()
	var others sync.WaitGroup
	others.Go(func() { l.save.run(ctx) })
	others.Go(func() { l.watchAge(ctx) })
	others.Go(func() { l.seen.run(ctx, l.o, id) })
	defer func() {
		others.Wait()
		if at := l.fresh.Load(); at != 0 && l.o.Directory != "" {
			mark(l.o.Directory, time.Unix(0, at)) // without it the last one counts, which is a little older
		}
	}()

	pause, said := firstPause, ""
	for ctx.Err() == nil {
		began := time.Now()
		err := l.follow(ctx, id, func() { pause, said = firstPause, "" })
		if l.live.Swap(false) {
			l.fresh.Store(time.Now().UnixNano())
		}
		if ctx.Err() != nil {
			return
		}
		if l.o.Shares != nil && !errors.Is(err, errAnnounce) {
			l.o.Shares.Away()
		}
		if errors.Is(err, errAnnounce) {
			continue
		}
		if client.IsGone(err) {
			l.o.Log.Info("the control plane's history does not reach back to this gateway's state; reading everything anew")
			l.state.token = ""
			if time.Since(began) > firstPause {
				continue
			}
		} else if text := err.Error(); text != said { // once per cause, not once per attempt
			l.o.Log.Warn("no connection to the control plane; serving the last known routes and keys", "control_plane", l.o.Where, "error", err, "next", next(err))
			said = text
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + rand.N(pause)):
		}
		pause = min(2*pause, mostPause)
	}
}

// follow watches once. synced is called each time the control plane has said everything.
func (l *Link) follow(ctx context.Context, id string, synced func()) error {
	l.state.begin()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-ctx.Done():
		case <-l.again:
			cancel(errAnnounce)
		}
	}()
	serves := l.o.Serves()
	kinds, body := []string{wire.WatchRoute, wire.WatchRouteKey, wire.WatchQuestion}, wire.WatchGateway{GatewayID: id, Version: levelrail.Version,
		ClusterID: l.state.cluster, URL: serves.URL, Public: serves.Public}
	if l.o.Shares != nil {
		kinds = append(kinds, wire.WatchShare)
		body.Boot, body.Gateways = l.o.Shares.Boot()
		l.o.Shares.Begin()
	}
	err := l.o.Source.Watch(ctx, client.WatchOptions{After: l.state.token, Kinds: kinds, Body: body}, func(line wire.WatchLine) error {
		if line.Cluster != nil {
			if err := l.state.belongs(*line.Cluster); err != nil {
				return err
			}
		}
		switch line.Kind {
		case wire.WatchQuestion:
			l.answer(ctx, id, line)
			return nil
		case wire.WatchShare:
			l.shared(line)
			return nil
		}
		if line.Type == wire.WatchSynced && l.o.Shares != nil {
			l.o.Shares.Synced() // before the table that it completes is served by
		}
		changed := l.state.apply(line)
		if changed {
			l.publish(l.state.table)
			l.save.wish(l.state.table, l.state.cluster, l.state.token)
		}
		if changed && (line.Type == wire.WatchSynced || line.Kind == wire.WatchRouteKey) {
			l.seen.upTo(l.state.token)
		}
		if line.Type == wire.WatchSynced {
			synced()
			if l.o.Synced != nil {
				l.o.Synced()
			}
			if l.stale.Swap(false) {
				l.o.Log.Info("serving again", "control_plane", l.o.Where)
			}
			if !l.live.Swap(true) {
				models, keys := l.state.table.Len()
				l.o.Log.Info("connected to the control plane", "control_plane", l.o.Where, "models", models, "keys", keys)
			}
		}
		return nil
	})
	if cause := context.Cause(ctx); errors.Is(cause, errAnnounce) {
		return cause
	}
	return err
}

// shared passes on what the watch says of other gateways.
func (l *Link) shared(line wire.WatchLine) {
	if line.Type != wire.WatchPut || l.o.Shares == nil {
		return
	}
	if line.ID != wire.ShareID {
		l.o.Shares.Recall(line.ID)
		return
	}
	var s wire.Share
	if err := json.Unmarshal(line.Object, &s); err != nil {
		l.o.Log.Error("what the control plane says of other gateways cannot be understood", "error", err, "next", "upgrade levelrail-gateway to the control plane's version")
		return
	}
	l.o.Shares.Share(s)
}

func next(err error) string {
	var e *levelrail.Error
	if errors.As(err, &e) && e.Kind == levelrail.ErrForbidden {
		return "the gateway's user has to be in the group levelrail-gateway"
	}
	return "systemctl status levelrail-server"
}
