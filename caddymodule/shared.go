package caddymodule

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/caddymodule/gateway"
	"github.com/levelrail/levelrail/caddymodule/limit"
	"github.com/levelrail/levelrail/caddymodule/link"
	"github.com/levelrail/levelrail/caddymodule/meter"
	"github.com/levelrail/levelrail/caddymodule/proxy"
	"github.com/levelrail/levelrail/client"
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
	metrics *metrics
	log     *currentLog
	serves  atomic.Pointer[link.Serves]

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
	s := &shared{client: c, engines: proxy.NewEngines(), log: newCurrentLog(log)}
	s.serves.Store(new(link.Serves))
	text := slog.New(s.log.handler())
	s.link = link.New(link.Options{Source: c, Where: key.socket, Directory: key.dir, Serves: func() link.Serves { return *s.serves.Load() }, Log: text})
	s.meter = meter.New(meter.Options{ControlPlane: c, GatewayID: s.link.ID, Directory: key.dir, Settings: s.metering, Log: text})
	s.metrics = newMetrics(s)
	s.gateway = &gateway.Gateway{Table: s.link.Table, Engines: s.engines, Slots: new(limit.Slots), Sink: meter.Sinks{s.meter, s.metrics, s.log}, Log: text, Now: time.Now}
	s.link.Load()
	return s, nil
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
		var both sync.WaitGroup
		both.Go(func() { s.link.Run(ctx) })
		both.Go(func() { s.meter.Run(ctx) })
		go func() { defer close(s.done); both.Wait() }()
	})
}

// enter and leave surround a request.
func (s *shared) enter() { s.requests.Add(1) }

func (s *shared) leave() {
	if s.requests.Add(-1) == 0 && s.ended.Load() {
		s.engines.CloseIdle()
		s.meter.Save() // what the last requests of an old configuration have cost; the next run sends it
	}
}

// metering is what the control plane wants of the meter. It says it with every model, and the same with each.
func (s *shared) metering() meter.Settings {
	for _, m := range s.link.Table().Models() {
		l := m.Limits
		return meter.Settings{Flush: time.Duration(l.UsageFlushSeconds) * time.Second, BatchRows: int(l.UsageBatchRows), MaxRows: l.UsageMaxBuffered}
	}
	return meter.Settings{}
}

// exitTime is how long the end waits for requests that are being cut, so that they are counted.
const exitTime = time.Second

// Destruct ends the link, which writes its table, and the meter, which writes its counts. Requests that still run have all they need: the table they began with,
// and connections that are closed when the last of them is done.
func (s *shared) Destruct() error {
	s.started.Do(func() {}) // a start that comes too late does nothing
	if s.cancel != nil {
		s.cancel()
		<-s.done
	}
	for wait := time.Now().Add(exitTime); caddy.Exiting() && s.requests.Load() > 0 && time.Now().Before(wait); {
		time.Sleep(time.Millisecond)
	}
	s.ended.Store(true)
	s.meter.Save()
	s.client.Close()
	s.engines.CloseIdle()
	return nil
}
