package caddymodule

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/caddymodule/gateway"
	"github.com/levelrail/levelrail/caddymodule/limit"
	"github.com/levelrail/levelrail/caddymodule/limit/keep"
	"github.com/levelrail/levelrail/caddymodule/limit/lease"
	"github.com/levelrail/levelrail/caddymodule/link"
	"github.com/levelrail/levelrail/caddymodule/meter"
	"github.com/levelrail/levelrail/caddymodule/proxy"
	"github.com/levelrail/levelrail/caddymodule/wake"
	"github.com/levelrail/levelrail/client"
	"github.com/levelrail/levelrail/client/wire"
)

// pool holds what outlives configurations.
var pool = caddy.NewUsagePool()

// sharedKey says what is connected to what. Two configurations with the same key share everything.
type sharedKey struct{ socket, dir string }

// shared is one link and all that serves by its table.
type shared struct {
	gateway *gateway.Gateway
	link    *link.Link
	engines *proxy.Engines
	client  *client.Client
	meter   *meter.Meter
	keeper  *keep.Keeper
	sharer  *lease.Sharer
	wake    *wake.Waker
	metrics *metrics
	log     *currentLog
	serves  atomic.Pointer[link.Serves]
	dir     string // of the state

	started sync.Once
	cancel  context.CancelFunc
	done    chan struct{} // closed when the link has ended; nil before start

	requests atomic.Int64 // running, those of old configurations included
	ended    atomic.Bool  // no configuration uses this any more
}

func newShared(key sharedKey, log *zap.Logger) (*shared, error) {
	c, err := client.New(client.Options{Socket: key.socket, UserAgent: "levelrail-gateway/" + levelrail.Version})
	if err != nil {
		return nil, err
	}
	s := &shared{client: c, engines: proxy.NewEngines(), log: newCurrentLog(log), dir: key.dir}
	s.serves.Store(new(link.Serves))
	text := slog.New(s.log.handler())
	keys := limit.NewKeys(time.Now())
	s.sharer = lease.New(lease.Options{ControlPlane: c, Keys: keys, GatewayID: func() string { return s.link.ID() }, Log: text, Now: time.Now})
	s.link = link.New(link.Options{Source: c, Shares: s.sharer, Where: key.socket, Directory: key.dir, Serves: func() link.Serves { return *s.serves.Load() }, Log: text,
		Answer: func(q wire.Question) wire.Answer { return s.gateway.Answer(q) }, Synced: func() { s.wake.Renew() }})
	s.keeper = keep.New(keep.Options{Keys: keys, Directory: key.dir, Log: text, Now: time.Now, Shares: s.sharer})
	s.wake = wake.New(wake.Options{ControlPlane: c, GatewayID: s.link.ID, Table: s.link.Next, Touch: s.touch, Log: text})
	s.meter = meter.New(meter.Options{ControlPlane: c, GatewayID: s.link.ID, Directory: key.dir, Settings: s.metering, Log: text})
	s.metrics = newMetrics(s)
	s.gateway = &gateway.Gateway{Table: s.link.Table, Engines: s.engines, Slots: new(limit.Slots), Keys: keys, Leases: s.sharer, Wake: s.wake,
		Sink: meter.Sinks{s.meter, s.metrics, s.log}, Log: text, Now: time.Now, ClientIP: clientIP, Stopping: caddy.Exiting, Stale: s.link.Stale}
	s.link.Load()
	s.keeper.Load()
	return s, nil
}

// clientIP is the client's address as Caddy sees it: what a proxy says that the option trusted_proxies names, else the other
// end of the connection.
func clientIP(r *http.Request) string {
	ip, _ := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
	return ip
}

// start follows the control plane from the first call on; later calls hand over the new configuration's log, and what it
// serves.
func (s *shared) start(log *zap.Logger, serves link.Serves) {
	s.log.use(log)
	if old := s.serves.Swap(&serves); *old != serves && s.done != nil {
		s.link.Announce()
	}
	s.started.Do(func() {
		ctx, cancel := context.WithCancel(context.Background())
		s.cancel, s.done = cancel, make(chan struct{})
		var all sync.WaitGroup
		for _, run := range []func(context.Context){s.link.Run, s.meter.Run, s.keeper.Run, s.sharer.Run, s.wake.Run, s.sendLeft} {
			all.Go(func() { run(ctx) })
		}
		go func() { defer close(s.done); all.Wait() }()
	})
}

// enter and leave surround a request.
func (s *shared) enter() { s.requests.Add(1) }

func (s *shared) leave() {
	if s.requests.Add(-1) == 0 && s.ended.Load() {
		s.engines.CloseIdle()
		s.keeper.Save()
		s.meter.Save() // what the last requests of an old configuration have cost; the next run sends it
	}
}

// limits are what the control plane says of all models. It says it with every one, and the same with each.
func (s *shared) limits() wire.Limits {
	for _, m := range s.link.Table().Models() {
		return m.Limits
	}
	return wire.Limits{}
}

// metering is what the control plane wants of the meter.
func (s *shared) metering() meter.Settings {
	l := s.limits()
	return meter.Settings{Flush: time.Duration(l.UsageFlushSeconds) * time.Second, BatchRows: int(l.UsageBatchRows), MaxRows: l.UsageMaxBuffered}
}

// touch is how often the control plane wants to hear which models are used.
func (s *shared) touch() time.Duration {
	return time.Duration(s.limits().ActivityTouchSeconds) * time.Second
}

// draining lets go of requests that wait for a model when the process ends. A reload lets them wait on.
func (s *shared) draining() {
	if caddy.Exiting() {
		s.wake.Drain()
	}
}

// exitTime is how long the end waits for requests that are being cut, so that they are counted.
const exitTime = time.Second

// leaveTime is how long the last word to the control plane may take.
const leaveTime = 500 * time.Millisecond

// Destruct ends the link, which writes its table, and the meter and the limits, which write their counts. Requests that still
// run have all they need: the table they began with, and connections that are closed when the last of them is done.
func (s *shared) Destruct() error {
	s.started.Do(func() {}) // a start that comes too late does nothing
	s.wake.Drain()          // nobody would hear of a model that wakes
	if s.cancel != nil {
		s.cancel()
		<-s.done
	}
	for wait := time.Now().Add(exitTime); caddy.Exiting() && s.requests.Load() > 0 && time.Now().Before(wait); {
		time.Sleep(time.Millisecond)
	}
	s.ended.Store(true)
	if s.keeper.Save() && s.done != nil {
		leaving, cancel := context.WithTimeout(context.Background(), leaveTime)
		s.sharer.Leave(leaving) // it counts for the others, and comes back with the next process
		cancel()
	}
	s.meter.Save()
	s.client.Close()
	s.engines.CloseIdle()
	return nil
}
