package caddymodule

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/caddymodule/late"
	"github.com/levelrail/levelrail/client/wire"
)

// host is one machine of a test: a control plane, an engine, and Caddy with the packaged configuration between them.
type host struct {
	t       *testing.T
	dir     string
	port    string
	cp      *controlPlane
	engine  *stubEngine
	key     string // opens the model chat
	busy    string // of fill: a key whose one slot is taken
	changes []string
	loads   atomic.Int64 // of configurations
	loaded  atomic.Int64 // when the last one was, by the clock's nanoseconds
}

// newHost starts everything and waits until the gateway knows the model chat (engine llamacpp). The packaged Caddyfile is
// used as it is but for addresses and what edits replace ("old", "new", …).
func newHost(t *testing.T, edits ...string) *host {
	t.Helper()
	h := prepareHost(t, edits...)
	h.load()
	h.settled()
	return h
}

// prepareHost is newHost without Caddy.
func prepareHost(t *testing.T, edits ...string) *host {
	t.Helper()
	dir, err := os.MkdirTemp("", "lr") // short: a socket's path has 107 bytes at most
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	h := &host{t: t, dir: dir, port: freePort(t), changes: edits}
	h.engine = newStubEngine(t, filepath.Join(dir, "engine.sock"))
	h.cp = newControlPlane(t, filepath.Join(dir, "gateway.sock"))
	h.cp.putRoute(h.route("chat"))
	h.key = h.cp.newKey("key_a", "chat")
	t.Cleanup(func() {
		if err := caddy.Stop(); err != nil {
			t.Errorf("stop Caddy: %v", err)
		}
		if t.Failed() {
			b, _ := os.ReadFile(h.logFile())
			t.Logf("Caddy's log:\n%s", b)
		}
	})
	return h
}

// route is a serving route to the stub engine, with the server's default limits.
func (h *host) route(model string, names ...string) wire.Route {
	return wire.Route{Model: model, Engine: "llamacpp", Names: append([]string{model}, names...), Serving: true, Reason: string(levelrail.ModelLoaded),
		Targets: []wire.RouteTarget{{Kind: "replica", ID: model, Network: "unix", Address: h.engine.socket, Weight: 1, Key: "engine-secret", Serving: true}},
		Limits: wire.Limits{MaxBodyBytes: 32 << 20, MaxInflight: 32, RetryAfterSeconds: 5, DialTimeoutSeconds: 5, HeaderTimeout: 300, IdleTimeout: 120, UsageScanBytes: 16 << 10,
			UnknownFields: "pass"}, // tests tell the stub what to do by a field of their own
		CreatedAt: time.Unix(1700000000, 0)}
}

func (h *host) logFile() string { return filepath.Join(h.dir, "caddy.log") }
func (h *host) url() string     { return "http://127.0.0.1:" + h.port }

// caddyfile is the packaged Caddyfile at this test's addresses.
func (h *host) caddyfile() string {
	b, err := os.ReadFile("../packaging/caddy/Caddyfile")
	if err != nil {
		h.t.Fatal(err)
	}
	text := string(b)
	for i, pairs := 0, append([]string{
		"http://:7421 {\n\tbind", "http://:" + h.port + " {\n\tbind",
		"unix//run/levelrail/gateway.sock", "unix/" + h.cp.socket,
		"{$STATE_DIRECTORY:/var/lib/levelrail/gateway}", filepath.Join(h.dir, "state"),
		"/etc/levelrail/sites", filepath.Join(h.dir, "sites"),
		"protocols h1 h2", "protocols h1 h2 h2c",
		"grace_period 1m", "grace_period 2s",
		"log default {", "log default {\n\t\toutput file " + h.logFile(),
		"log gateway {", "log gateway {\n\t\toutput file " + h.logFile(),
	}, h.changes...); i < len(pairs); i += 2 {
		if !strings.Contains(text, pairs[i]) {
			h.t.Fatalf("the packaged Caddyfile has no %q", pairs[i])
		}
		text = strings.ReplaceAll(text, pairs[i], pairs[i+1])
	}
	return text
}

// load gives Caddy the configuration, as a start or a reload does.
func (h *host) load() {
	h.t.Helper()
	if err := h.tryLoad(h.caddyfile()); err != nil {
		h.t.Fatalf("load: %v", err)
	}
}

func (h *host) tryLoad(text string) error {
	config, _, err := caddyconfig.GetAdapter(late.AdapterName).Adapt([]byte(text), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		return err
	}
	defer func() {
		h.loads.Add(1)
		h.loaded.Store(time.Now().UnixNano())
	}()
	return caddy.Load(config, true)
}

// settled waits until the gateway has all that the control plane has said.
func (h *host) settled() {
	h.t.Helper()
	h.eventually("the gateway follows the control plane", func() bool {
		resp, body := h.do("GET", "/v1/models", "")
		return resp.StatusCode == 200 && strings.Contains(body, `"chat"`)
	})
}

func (h *host) eventually(what string, ok func() bool) {
	h.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			h.t.Fatalf("not within 10 s: %s", what)
		}
		time.Sleep(5 * time.Millisecond) // a poll's pause: the condition is asked anew
	}
}

// request makes a request with the host's key. Headers are name, value pairs; a value of "" removes the header.
func (h *host) request(method, path, body string, headers ...string) *http.Request {
	h.t.Helper()
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req, err := http.NewRequest(method, h.url()+path, r)
	if err != nil {
		h.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+h.key)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		} else if req.Header.Del(headers[i]); headers[i+1] != "" {
			req.Header.Set(headers[i], headers[i+1])
		}
	}
	return req
}

// do sends a request and returns the answer and its whole body. In the moments after a reload it tries again as clients do:
// Caddy closes the old listener beside the new one on the same port, and a connection that still stood in the old one's
// queue is reset before anybody read from it.
func (h *host) do(method, path, body string, headers ...string) (*http.Response, string) {
	h.t.Helper()
	for tries := 1; ; tries++ {
		resp, err := httpClient.Do(h.request(method, path, body, headers...))
		if tries < 5 && h.justReloaded() && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)) {
			continue
		}
		if err != nil {
			h.t.Fatalf("%s %s: %v", method, path, err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			h.t.Fatalf("%s %s: %v", method, path, err)
		}
		return resp, string(b)
	}
}

func (h *host) justReloaded() bool {
	return h.loads.Load() > 1 && time.Since(time.Unix(0, h.loaded.Load())) < 5*time.Second
}

// httpClient takes a new connection for each request: Caddy closes kept ones on a reload, and a request on its way then
// sees a reset that says nothing of the handler.
var httpClient = &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// refused sends a request and holds the refusal against a status and a code.
func (h *host) refused(resp *http.Response, body string, status int, code string) {
	h.t.Helper()
	if got := errorCode(body); resp.StatusCode != status || got != code {
		h.t.Errorf("%s %s: %d %s %s, want %d %s", resp.Request.Method, resp.Request.URL.Path, resp.StatusCode, got, body, status, code)
	}
}

// errorCode is the code in an error of OpenAI's shape, or "" when it has none.
func errorCode(body string) string {
	var e struct {
		Error *struct {
			Message, Type, Code string
			Param               any
		}
	}
	d := json.NewDecoder(strings.NewReader(body))
	d.DisallowUnknownFields()
	if d.Decode(&e) != nil || e.Error == nil || e.Error.Message == "" || e.Error.Type == "" {
		return ""
	}
	return e.Error.Code
}

// records are the request lines of Caddy's log.
func (h *host) records() []map[string]any {
	b, err := os.ReadFile(h.logFile())
	if err != nil {
		h.t.Fatal(err)
	}
	var out []map[string]any
	for line := range bytes.Lines(b) {
		var m map[string]any
		if json.Unmarshal(line, &m) == nil && m["msg"] == "request" {
			out = append(out, m)
		}
	}
	return out
}

// lastRecord waits for the line of the request with that id.
func (h *host) recordOf(id string) map[string]any {
	h.t.Helper()
	var found map[string]any
	h.eventually("the log has request "+id, func() bool {
		for _, r := range h.records() {
			if r["request_id"] == id {
				found = r
				return true
			}
		}
		return false
	})
	return found
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// stubEngine is an engine on a Unix socket: it answers as a test says and remembers what it was sent.
type stubEngine struct {
	socket string
	server *http.Server

	mu     sync.Mutex
	answer http.HandlerFunc
	seen   []seenRequest
	ended  chan string // the route of each request whose client (the gateway) left
}

type seenRequest struct {
	method, target, host string
	header               http.Header
	body                 []byte
	length               int64
}

func newStubEngine(t *testing.T, socket string) *stubEngine {
	e := &stubEngine{socket: socket, ended: make(chan string, 64)}
	e.listen(t)
	t.Cleanup(func() { e.server.Close() })
	return e
}

func (e *stubEngine) listen(t *testing.T) {
	t.Helper()
	os.Remove(e.socket)
	l, err := net.Listen("unix", e.socket)
	if err != nil {
		t.Fatal(err)
	}
	e.server = &http.Server{Handler: http.HandlerFunc(e.serve)}
	go e.server.Serve(l)
}

func (e *stubEngine) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	e.mu.Lock()
	e.seen = append(e.seen, seenRequest{r.Method, r.RequestURI, r.Host, r.Header.Clone(), body, r.ContentLength})
	answer := e.answer
	e.mu.Unlock()
	if answer == nil {
		answer = func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `{"object":"chat.completion","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}`)
		}
	}
	answer(w, r)
	if r.Context().Err() != nil {
		e.ended <- r.URL.Path
	}
}

// on sets how the engine answers from now on.
func (e *stubEngine) on(answer http.HandlerFunc) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answer = answer
}

func (e *stubEngine) requests() []seenRequest {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]seenRequest(nil), e.seen...)
}

// leftWithin waits for the engine to notice that the gateway left its request.
func (e *stubEngine) leftWithin(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-e.ended:
	case <-time.After(d):
		t.Errorf("the engine's request was not cancelled within %s", d)
	}
}

// controlPlane is the gateway's socket of a server: it speaks the watch with tokens, resets and 410.
type controlPlane struct {
	socket string
	server *http.Server
	t      *testing.T

	mu      sync.Mutex
	changed chan struct{} // closed at each change
	routes  map[string]wire.Route
	keys    map[string]wire.RouteKey
	log     []wire.WatchLine // every change of keys; a token is a position in it
	base    int              // tokens below it are gone
	watches []string         // the after= of each watch so far
	hello   wire.WatchGateway
	version int               // of the routes
	counted map[string]uint64 // the last batch of usage, by gateway
	batches []wire.UsageBatch
	told    // what gateways say besides
}

func newControlPlane(t *testing.T, socket string) *controlPlane {
	c := &controlPlane{socket: socket, t: t, changed: make(chan struct{}), routes: map[string]wire.Route{}, keys: map[string]wire.RouteKey{}}
	c.start()
	t.Cleanup(c.stop)
	return c
}

func (c *controlPlane) start() {
	c.t.Helper()
	os.Remove(c.socket)
	l, err := net.Listen("unix", c.socket)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	server := &http.Server{Handler: http.HandlerFunc(c.watch), BaseContext: func(net.Listener) context.Context { return ctx }}
	server.RegisterOnShutdown(cancel)
	c.server = server
	go server.Serve(l)
}

// stop is what stopping the server and its sockets does.
func (c *controlPlane) stop() {
	c.server.Close()
	os.Remove(c.socket)
}

func (c *controlPlane) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *controlPlane) putRoute(r wire.Route) {
	c.change(func() { c.routes[r.Model] = r; c.version++ })
}

func (c *controlPlane) dropRoute(model string) {
	c.change(func() { delete(c.routes, model); c.version++ })
}

func (c *controlPlane) putKey(k wire.RouteKey) {
	c.change(func() { c.keys[k.ID] = k; c.log = append(c.log, putLine(wire.WatchRouteKey, k.ID, k)) })
}

func (c *controlPlane) revoke(id string) {
	c.change(func() {
		delete(c.keys, id)
		c.log = append(c.log, wire.WatchLine{Type: wire.WatchDelete, Kind: wire.WatchRouteKey, ID: id})
	})
}

// newKey makes a key that opens the models, and returns its text.
func (c *controlPlane) newKey(id string, models ...string) string {
	secret := levelrail.NewSecret("lr")
	c.putKey(wire.RouteKey{ID: id, Name: "default", SHA256: levelrail.HashSecret(secret), Prefix: levelrail.SecretPrefix(secret), Models: models})
	return secret
}

func (c *controlPlane) forget() { c.change(func() { c.base = len(c.log) + 1 }) }

func putLine(kind, id string, object any) wire.WatchLine {
	b, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	return wire.WatchLine{Type: wire.WatchPut, Kind: kind, ID: id, Object: b}
}

func (c *controlPlane) watch(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/api/v1/gateway/usage" && r.Method == "POST" {
		c.usage(w, r)
		return
	}
	if strings.HasPrefix(r.URL.Path, "/api/v1/gateway/") && r.Method == "POST" {
		c.gatewaySays(w, r)
		return
	}
	if r.URL.Path != "/api/v1/watch" || r.Method != "POST" || r.URL.Query().Get("kinds") != "route,route_key,question,share" {
		http.Error(w, "no such route", 404)
		return
	}
	c.mu.Lock()
	json.NewDecoder(r.Body).Decode(&c.hello)
	after := r.URL.Query().Get("after")
	c.watches = append(c.watches, after)
	at, routes := 0, map[string]wire.Route{}
	send := func(line wire.WatchLine) { json.NewEncoder(w).Encode(line) }
	if after != "" {
		fmt.Sscanf(after, "lineage.%d", &at)
		if at < c.base {
			c.mu.Unlock()
			w.WriteHeader(http.StatusGone)
			json.NewEncoder(w).Encode(wire.ErrorBody{Error: levelrail.Error{Kind: levelrail.ErrInvalid, Message: "the token is too old"}})
			return
		}
	} else {
		send(wire.WatchLine{Type: wire.WatchReset})
		for id, k := range c.keys {
			send(putLine(wire.WatchRouteKey, id, k))
		}
		at = len(c.log)
	}
	synced, version := false, -1
	for {
		for ; at < len(c.log); at++ {
			line := c.log[at]
			line.Token = fmt.Sprintf("lineage.%d", at+1)
			send(line)
		}
		if version != c.version {
			for name := range routes {
				if _, there := c.routes[name]; !there {
					send(wire.WatchLine{Type: wire.WatchDelete, Kind: wire.WatchRoute, ID: name})
					delete(routes, name)
				}
			}
			for name, route := range c.routes {
				send(putLine(wire.WatchRoute, name, route))
				routes[name] = route
			}
			version = c.version
		}
		if !synced {
			send(wire.WatchLine{Type: wire.WatchSynced, Token: fmt.Sprintf("lineage.%d", max(at, c.base))})
			synced = true
		}
		changed := c.changed
		c.mu.Unlock()
		http.NewResponseController(w).Flush()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
		c.mu.Lock()
	}
}

func (c *controlPlane) watched() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.watches...)
}
