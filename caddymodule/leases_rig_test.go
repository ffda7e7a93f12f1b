package caddymodule

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client"
	"github.com/levelrail/levelrail/client/wire"
)

// cluster is a real control plane, an agent that keeps to the protocol, one stub engine, and gateways as processes of
// their own.
type cluster struct {
	t       *testing.T
	dir     string
	program string
	server  *exec.Cmd
	ended   chan error
	people  *client.Client
	engine  *stubEngine
	log     *os.File
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	dir, err := os.MkdirTemp("", "lr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := &cluster{t: t, dir: dir, program: filepath.Join(dir, "levelrail-server")}
	build := exec.Command("go", "build", "-o", c.program, "../cmd/levelrail-server")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the server: %v\n%s", err, out)
	}
	if c.log, err = os.Create(filepath.Join(dir, "server.log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			logs, _ := filepath.Glob(filepath.Join(dir, "*", "caddy.log"))
			for _, file := range append(logs, c.log.Name()) {
				b, _ := os.ReadFile(file)
				for line := range strings.Lines(string(b)) {
					if !strings.Contains(line, `"msg":"request"`) {
						t.Logf("%s: %s", filepath.Base(filepath.Dir(file)), strings.TrimSpace(line))
					}
				}
			}
		}
	})
	c.engine = newStubEngine(t, filepath.Join(dir, "engine.sock"))
	c.start()
	t.Cleanup(func() { c.stop(syscall.SIGKILL) })
	if c.people, err = client.New(client.Options{Socket: filepath.Join(dir, "run", "api.sock")}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.people.Close)
	c.eventually("the server answers", func() bool { _, err := c.people.Status(t.Context()); return err == nil })
	c.serve()
	if _, err := c.people.Deploy(t.Context(), wire.Deploy{Name: "chat", Engine: "llamacpp", Model: "bartowski/SmolLM2-135M-Instruct-GGUF:Q4_K_M", GPUs: levelrail.GPURequest{Mode: levelrail.GPUNone}}); err != nil {
		t.Fatal(err)
	}
	c.eventually("the model is loaded", func() bool { m, err := c.people.Model(t.Context(), "chat"); return err == nil && m.Condition.Ready })
	return c
}

func (c *cluster) start() {
	c.t.Helper()
	c.server = exec.Command(c.program, "run")
	c.server.Env = append(os.Environ(), "STATE_DIRECTORY="+filepath.Join(c.dir, "server"), "LEVELRAIL_RUNTIME_DIR="+filepath.Join(c.dir, "run"), "LEVELRAIL_LISTEN=127.0.0.1:0",
		"APP_MODEL_USAGE_FLUSH_INTERVAL=1s")
	c.server.Stderr = c.log
	if err := c.server.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.ended = make(chan error, 1)
	go func(cmd *exec.Cmd, ended chan error) { ended <- cmd.Wait(); close(ended) }(c.server, c.ended)
}

func (c *cluster) stop(with syscall.Signal) {
	c.server.Process.Signal(with)
	<-c.ended
}

func (c *cluster) eventually(what string, ok func() bool) {
	c.t.Helper()
	(&host{t: c.t}).eventually(what, ok)
}

// serve is the agent: it says that whatever it is assigned is loaded, for as long as the test runs.
func (c *cluster) serve() {
	agent, err := client.New(client.Options{Socket: filepath.Join(c.dir, "run", "agent.sock")})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	c.t.Cleanup(func() { cancel(); <-done; agent.Close() })
	node, seq := levelrail.NewID("node"), uint64(0)
	go func() {
		defer close(done)
		for ctx.Err() == nil { // over restarts of the server
			_, err := agent.Hello(ctx, wire.Hello{NodeID: node, Name: "gpu-01", Version: levelrail.Version, OS: "debian 13"})
			report := wire.Report{NodeID: node, Boot: "boot_1", Devices: []levelrail.Device{}, Readings: []levelrail.DeviceReading{}, Replicas: []wire.ReplicaStatus{}}
			send := func() error {
				seq++
				report.Sequence, report.At = seq, time.Now().UTC()
				return agent.Report(ctx, report)
			}
			if err == nil {
				err = send()
			}
			if err == nil {
				agent.Watch(ctx, client.WatchOptions{Kinds: []string{wire.WatchAssignment}, Body: wire.WatchAgent{NodeID: node}}, func(l wire.WatchLine) error {
					var a wire.Assignment
					if l.Type != wire.WatchPut || json.Unmarshal(l.Object, &a) != nil {
						return nil
					}
					report.Replicas = []wire.ReplicaStatus{{Replica: a.Replica, Model: a.Model, Revision: a.Revision, Restarts: a.Restarts,
						Condition: levelrail.Condition{Ready: true, Reason: levelrail.ModelLoaded, Since: time.Now().UTC()}}}
					return send()
				})
			}
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond): // between attempts to reach a server that is away
			}
		}
	}()
}

// key makes a key of the model and returns it with its text.
func (c *cluster) key(name string, l levelrail.KeyLimits) *wire.NewKey {
	c.t.Helper()
	k, err := c.people.CreateKey(c.t.Context(), "chat", wire.CreateKey{Name: name, Limits: l})
	if err != nil {
		c.t.Fatal(err)
	}
	return &k
}

// member is a gateway of the cluster. Its way to the server can be cut.
type member struct {
	*host
	c     *cluster
	cmd   *exec.Cmd
	ended chan error
	way   *way
}

// join starts a gateway with a state directory of its own and waits until it serves the key.
func (c *cluster) join(name, key string) *member {
	c.t.Helper()
	dir := filepath.Join(c.dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		c.t.Fatal(err)
	}
	m := &member{c: c, way: newWay(c, filepath.Join(dir, "cp.sock"))}
	m.host = &host{t: c.t, dir: dir, port: freePort(c.t), cp: &controlPlane{socket: m.way.socket}, engine: c.engine, key: key}
	m.begin()
	return m
}

func (m *member) begin() { m.cmd, m.ended = m.process() }

func (m *member) end(with syscall.Signal) {
	m.cmd.Process.Signal(with)
	<-m.ended
}

// status sends a request with a key and returns the answer's status; 0 when there was none.
func (m *member) status(key string) int {
	req, err := http.NewRequest("POST", m.url()+chatPath, strings.NewReader(chatBody))
	if err != nil {
		return 0
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := httpClient.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// knows waits until a gateway serves a key.
func (m *member) knows(key string) {
	m.t.Helper()
	m.eventually("the gateway knows the key", func() bool {
		req, _ := http.NewRequest("GET", m.url()+"/v1/models", nil)
		req.Header.Set("Authorization", "Bearer "+key)
		resp, err := httpClient.Do(req)
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == 200
	})
}

// way is a gateway's way to the server. It puts the test's engine in the place of that of the machine, and can be cut.
type way struct {
	socket string
	server *http.Server
	c      *cluster
	mu     sync.Mutex
	leases int // words about leases that went by
}

func newWay(c *cluster, socket string) *way {
	w := &way{socket: socket, c: c}
	w.open()
	c.t.Cleanup(w.cut)
	return w
}

func (w *way) open() {
	w.c.t.Helper()
	os.Remove(w.socket)
	l, err := net.Listen("unix", w.socket)
	if err != nil {
		w.c.t.Fatal(err)
	}
	to := filepath.Join(w.c.dir, "run", "gateway.sock")
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", to)
	}}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "server"})
	proxy.Transport, proxy.FlushInterval = transport, -1
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	proxy.ErrorHandler = func(rw http.ResponseWriter, _ *http.Request, err error) {
		if !errors.Is(err, context.Canceled) {
			rw.WriteHeader(http.StatusBadGateway)
		}
	}
	proxy.ModifyResponse = func(r *http.Response) error {
		if r.Request.URL.Path == "/api/v1/watch" {
			from, into := io.Pipe()
			body := r.Body
			go func() {
				lines := bufio.NewScanner(body)
				lines.Buffer(nil, 1<<20)
				for lines.Scan() {
					if _, err := fmt.Fprintln(into, strings.ReplaceAll(lines.Text(), "/run/levelrail/engines/chat/engine.sock", w.c.engine.socket)); err != nil {
						break
					}
				}
				body.Close()
				into.CloseWithError(io.ErrUnexpectedEOF)
			}()
			r.Body = from
		}
		return nil
	}
	w.server = &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/v1/gateway/leases" {
			w.mu.Lock()
			w.leases++
			w.mu.Unlock()
		}
		proxy.ServeHTTP(rw, r)
	})}
	w.server.RegisterOnShutdown(transport.CloseIdleConnections)
	go w.server.Serve(l)
}

func (w *way) cut() { w.server.Close() }

func (w *way) words() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.leases
}
