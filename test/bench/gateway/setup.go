package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/test/engines/stub"
	"github.com/levelrail/levelrail/test/rig"
)

// bench is one run.
type bench struct {
	quick, check bool
	soakFor      time.Duration
	profiles     string
	manyKeys     int
	ctx          context.Context
	dir          string
	core         int // of the proxies

	engine *rig.Process
	plain  *proxy
	ours   *proxy
	stops  []func() error // last first

	discarded int // rounds that other processes spoiled

	result map[string]float64
}

// keys is how many keys the gateway has where nothing else is said.
const keys = 1000

// proxy is one program under test.
type proxy struct {
	*rig.Process
	target  target
	admin   string // Caddy's administration; empty: none
	control *rig.ControlPlane
	asked   int64   // whole requests that were sent to it and answered
	counted counted // what it has reported of them
}

// counted is what a gateway has told its control plane.
type counted struct {
	requests, withUsage atomic.Int64
}

// take is a control plane that accepts what it is told.
func (n *counted) take(path string, body []byte) (int, any) {
	if path != "/gateway/usage" {
		return 0, nil
	}
	var batch wire.UsageBatch
	if err := json.Unmarshal(body, &batch); err != nil {
		return 400, wire.ErrorBody{Error: levelrail.Error{Kind: levelrail.ErrInvalid, Message: err.Error()}}
	}
	for _, row := range batch.Rows {
		n.requests.Add(row.Requests)
		n.withUsage.Add(row.WithUsage)
	}
	return 200, wire.UsageAccepted{Sequence: batch.Sequence}
}

// metered waits until a gateway has reported every request that it answered, each with its usage: what is measured is what
// counts, too.
func (b *bench) metered(p *proxy) error {
	err := b.until("the gateway reports what it has counted", 90*time.Second, func() bool { return p.counted.withUsage.Load() >= p.asked })
	fmt.Printf("  metered: %d requests, %d of them with their usage, of %d that were answered\n", p.counted.requests.Load(), p.counted.withUsage.Load(), p.asked)
	return err
}

// start starts the stub, plain Caddy and the gateway.
func (b *bench) start() error {
	load, err := rig.CPUs() // one: this process is bound
	if err != nil {
		return err
	}
	b.engine, err = rig.Start(rig.Options{CPU: load[0], Log: b.path("stub.log")}, b.path("stub"), "-listen", "unix:"+b.path("engine.sock"))
	if err != nil {
		return err
	}
	b.stops = append(b.stops, func() error { return b.engine.Stop(10 * time.Second) })
	if err := b.until("the stub answers", 10*time.Second, func() bool { _, err := b.counters(); return err == nil }); err != nil {
		return err
	}
	if b.plain, err = b.startPlain("plain"); err != nil {
		return err
	}
	b.ours, err = b.startOurs("ours", keys)
	return err
}

// end stops everything, last started first.
func (b *bench) end() error {
	var err error
	for i := len(b.stops) - 1; i >= 0; i-- {
		err = errors.Join(err, b.stops[i]())
	}
	b.stops = nil
	return err
}

func (b *bench) adminOf(name string) string {
	if b.profiles == "" {
		return ""
	}
	return b.path(name + ".admin")
}

// startPlain starts a Caddy that is nothing but a reverse proxy to the stub.
func (b *bench) startPlain(name string) (*proxy, error) {
	port, err := rig.FreePort()
	if err != nil {
		return nil, err
	}
	config, err := rig.WritePlain(b.path(name), port, b.path("engine.sock"), b.adminOf(name))
	if err != nil {
		return nil, err
	}
	p := &proxy{target: target{"plain Caddy", "tcp", fmt.Sprintf("127.0.0.1:%d", port)}, admin: b.adminOf(name)}
	return p, b.launch(p, name, config, 30*time.Second)
}

// startOurs starts a gateway whose control plane has a model and so many keys.
func (b *bench) startOurs(name string, keys int) (*proxy, error) {
	control, err := rig.NewControlPlane(b.path(name + ".control"))
	if err != nil {
		return nil, err
	}
	b.stops = append(b.stops, control.Close)
	control.PutRoute(wire.Route{Model: "chat", Engine: "llamacpp", Names: []string{"chat"}, Serving: true, Reason: string(levelrail.ModelLoaded),
		Targets: []wire.RouteTarget{{Kind: "replica", ID: "chat", Network: "unix", Address: b.path("engine.sock"), Weight: 1, Key: levelrail.NewSecret("lr"), Serving: true}},
		// A server's defaults, but for the bounds that the load itself would reach.
		Limits: wire.Limits{UnknownFields: "pass", MaxPrompts: 256, MaxTextBytes: 2 << 20, MaxBodyBytes: 32 << 20, MaxN: 16, MaxGenLen: 1 << 15, MaxInflight: 4096, RetryAfterSeconds: 5, DialTimeoutSeconds: 5,
			HeaderTimeout: 300, IdleTimeout: 120, WakeWaitSeconds: 90, WakeRetryAfterSeconds: 15, ActivityTouchSeconds: 10,
			UsageFlushSeconds: 30, UsageBatchRows: 200, UsageMaxBuffered: max(10000, 4*int64(keys)), UsageScanBytes: 16 << 10, UsageStream: "limited"},
		CreatedAt: time.Now(), Owner: levelrail.DefaultOwner})
	control.Many(keys, routeKey)
	port, err := rig.FreePort()
	if err != nil {
		return nil, err
	}
	g := rig.Gateway{Dir: b.path(name), Port: port, Control: control.Socket, Admin: b.adminOf(name)}
	config, err := g.Write()
	if err != nil {
		return nil, err
	}
	p := &proxy{target: target{"levelrail-gateway", "tcp", fmt.Sprintf("127.0.0.1:%d", port)}, control: control, admin: g.Admin}
	control.Answer(p.counted.take)
	return p, b.launch(p, name, config, 30*time.Second+time.Duration(keys)*200*time.Microsecond)
}

// launch starts a proxy and waits until it serves the last key and has nothing more to do.
func (b *bench) launch(p *proxy, name, config string, patience time.Duration) (err error) {
	if p.Process, err = rig.Start(rig.Options{CPU: b.core, Log: b.path(name + ".log")}, b.path("levelrail-gateway"), "run", "--config", config, "--adapter", "levelrail"); err != nil {
		return err
	}
	b.stops = append(b.stops, func() error { return p.Stop(30 * time.Second) })
	c := newClient(p.target.network, p.target.address)
	defer c.close()
	ask := newRequest(1<<10, uniform(1), `"stub":{"bytes":1024}`)
	var last error
	err = b.until(p.target.name+" serves", patience, func() bool {
		select {
		case <-p.Done():
			return true
		default:
		}
		if last = c.whole(ask.next(), 200, 1<<10); last != nil {
			c.close()
		}
		return last == nil
	})
	if err == nil && last != nil {
		err = errors.New("it ended")
	}
	if err != nil {
		return fmt.Errorf("start %s: %w (%v)\n%s", p.target.name, err, last, p.Tail())
	}
	return b.settle(p, patience)
}

// settle waits until a proxy has used next to no CPU for a second: a gateway pauses before it writes a table to the disk.
func (b *bench) settle(p *proxy, patience time.Duration) error {
	const look = 250 * time.Millisecond
	before, err := p.CPU()
	if err != nil {
		return err
	}
	idle := 0
	return b.until(p.target.name+" is idle", patience, func() bool {
		time.Sleep(look)
		now, err := p.CPU()
		if idle++; err != nil || now-before >= look/25 {
			idle = 0
		}
		before = now
		return idle == 4
	})
}

func (b *bench) until(what string, patience time.Duration, ok func() bool) error {
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if b.ctx.Err() != nil {
			return errors.New("interrupted")
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %s: %s", patience, what)
		}
	}
	return nil
}

// counters are the stub's.
func (b *bench) counters() (stub.Counters, error) {
	var n stub.Counters
	nc, err := net.Dial("unix", b.path("engine.sock"))
	if err != nil {
		return n, err
	}
	nc.Close()
	c := newClient("unix", b.path("engine.sock"))
	defer c.close()
	if err := c.send([]byte("GET /stub/counters HTTP/1.1\r\nHost: stub\r\n\r\n")); err != nil {
		return n, err
	}
	_, rest, length, err := c.head()
	if err != nil {
		return n, err
	}
	if len(rest) != length { // it is written in one piece
		return n, fmt.Errorf("the stub's counters came as %d of %d bytes", len(rest), length)
	}
	return n, json.Unmarshal(rest, &n)
}

// cutLogs empties the proxies' logs, which have a line for each request.
func (b *bench) cutLogs(proxies ...*proxy) {
	for _, p := range proxies {
		os.Truncate(p.Log, 0)
	}
}
