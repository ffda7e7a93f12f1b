package rig

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// ControlPlane is the gateway's socket of a server: it speaks the watch, with tokens and resets, and takes what gateways
// report. It is safe for concurrent use.
type ControlPlane struct {
	Socket string
	server *http.Server
	cancel context.CancelFunc

	mu      sync.Mutex
	changed chan struct{} // closed at each change
	routes  map[string]wire.Route
	version int // of the routes
	keys    map[string]wire.RouteKey
	log     []wire.WatchLine // changes of keys; a token is a position in it
	many    int              // further keys, not kept
	make    func(i int) wire.RouteKey
	reports []Report
	answer  func(path string, body []byte) (int, any)
}

// Report is what a gateway has sent beside its watch.
type Report struct {
	Path string // below /api/v1
	Body []byte
	At   time.Time
}

// heartbeat is how often a watch says that it is alive.
const heartbeat = 10 * time.Second

// mostReports bounds what is remembered of a gateway that reports for ever.
const mostReports = 1000

// NewControlPlane listens on a socket.
func NewControlPlane(socket string) (*ControlPlane, error) {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &ControlPlane{Socket: socket, cancel: cancel, changed: make(chan struct{}), routes: map[string]wire.Route{}, keys: map[string]wire.RouteKey{}}
	c.server = &http.Server{Handler: c, BaseContext: func(net.Listener) context.Context { return ctx }}
	go c.server.Serve(l)
	return c, nil
}

// Close ends all watches and takes the socket away.
func (c *ControlPlane) Close() error {
	c.cancel()
	err := c.server.Close()
	os.Remove(c.Socket)
	return err
}

func (c *ControlPlane) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	close(c.changed)
	c.changed = make(chan struct{})
}

// PutRoute adds a route or replaces the model's.
func (c *ControlPlane) PutRoute(r wire.Route) {
	c.change(func() { c.routes[r.Model] = r; c.version++ })
}

// PutKey adds a key or replaces the one of that id.
func (c *ControlPlane) PutKey(k wire.RouteKey) {
	c.change(func() { c.keys[k.ID] = k; c.log = append(c.log, line(wire.WatchRouteKey, k.ID, k)) })
}

// Revoke takes a key back.
func (c *ControlPlane) Revoke(id string) {
	c.change(func() {
		delete(c.keys, id)
		c.log = append(c.log, wire.WatchLine{Type: wire.WatchDelete, Kind: wire.WatchRouteKey, ID: id})
	})
}

// NewKey makes a key that opens the models, and returns its text.
func (c *ControlPlane) NewKey(id string, limits levelrail.KeyLimits, models ...string) string {
	secret := levelrail.NewSecret("lr")
	c.PutKey(wire.RouteKey{ID: id, Name: "default", SHA256: levelrail.HashSecret(secret), Prefix: levelrail.SecretPrefix(secret), Models: models, Limits: limits, Owner: levelrail.DefaultOwner})
	return secret
}

// Many has watches that begin later begin with n further keys, each made when it is sent.
func (c *ControlPlane) Many(n int, make func(i int) wire.RouteKey) {
	c.change(func() { c.many, c.make = n, make })
}

// Answer sets how reports are answered: the path below /api/v1 and the body to a status and what is sent as JSON. Without
// it, or when it returns 0, each gets 200 and {}.
func (c *ControlPlane) Answer(f func(path string, body []byte) (int, any)) {
	c.change(func() { c.answer = f })
}

// Reports are the newest reports, oldest first, of a path below /api/v1.
func (c *ControlPlane) Reports(path string) []Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []Report
	for _, r := range c.reports {
		if r.Path == path {
			out = append(out, r)
		}
	}
	return out
}

func line(kind, id string, object any) wire.WatchLine {
	b, err := json.Marshal(object)
	if err != nil {
		panic(err) // declared in package wire
	}
	return wire.WatchLine{Type: wire.WatchPut, Kind: kind, ID: id, Object: b}
}

// ServeHTTP answers a gateway.
func (c *ControlPlane) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, ok := strings.CutPrefix(r.URL.Path, "/api/v1")
	switch {
	case ok && path == "/watch" && r.Method == http.MethodPost:
		c.watch(w, r)
	case ok && strings.HasPrefix(path, "/gateway/"):
		c.report(w, r, path)
	default:
		http.Error(w, "no such route", http.StatusNotFound)
	}
}

func (c *ControlPlane) report(w http.ResponseWriter, r *http.Request, path string) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 64<<20))
	if err != nil {
		return
	}
	c.mu.Lock()
	if c.reports = append(c.reports, Report{path, body, time.Now()}); len(c.reports) > mostReports {
		c.reports = slices.Delete(c.reports, 0, len(c.reports)-mostReports)
	}
	answer := c.answer
	c.mu.Unlock()
	status, object := 0, any(nil)
	if answer != nil {
		status, object = answer(path, body)
	}
	if status == 0 {
		status, object = http.StatusOK, struct{}{}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(object)
}

// watch sends keys from a token on, or all; routes whole; then changes until the gateway leaves.
func (c *ControlPlane) watch(w http.ResponseWriter, r *http.Request) {
	buf := bufio.NewWriterSize(w, 256<<10)
	enc := json.NewEncoder(buf)
	send := func(l wire.WatchLine) { enc.Encode(l) }
	token := func(at int) string { return "rig." + strconv.Itoa(at) }
	flush := func() { buf.Flush(); http.NewResponseController(w).Flush() }

	c.mu.Lock()
	at, many := 0, 0
	if after := r.URL.Query().Get("after"); after != "" {
		if _, err := fmt.Sscanf(after, "rig.%d", &at); err != nil || at > len(c.log) {
			c.mu.Unlock()
			w.WriteHeader(http.StatusGone)
			json.NewEncoder(w).Encode(wire.ErrorBody{Error: levelrail.Error{Kind: levelrail.ErrInvalid, Message: "the token is of another history"}})
			return
		}
	} else {
		send(wire.WatchLine{Type: wire.WatchReset})
		for id, k := range c.keys {
			send(line(wire.WatchRouteKey, id, k))
		}
		at, many = len(c.log), c.many
	}
	more := c.make
	c.mu.Unlock()
	for i := range many { // unlocked: it takes a while
		k := more(i)
		send(line(wire.WatchRouteKey, k.ID, k))
		if r.Context().Err() != nil {
			return
		}
	}

	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	synced, version := false, -1
	for {
		c.mu.Lock()
		for ; at < len(c.log); at++ {
			l := c.log[at]
			l.Token = token(at + 1)
			send(l)
		}
		if version != c.version {
			for name, route := range c.routes {
				send(line(wire.WatchRoute, name, route))
			}
			version = c.version
		}
		if !synced {
			send(wire.WatchLine{Type: wire.WatchSynced, Token: token(at)})
			synced = true
		}
		changed := c.changed
		c.mu.Unlock()
		flush()
		select {
		case <-changed:
		case <-beat.C:
			send(wire.WatchLine{Type: wire.WatchHeartbeat})
		case <-r.Context().Done():
			return
		}
	}
}
