package controlplane

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/raftstore"
)

// rig is one whole server: its own sockets and TLS port, the store in memory unless a directory is given.
type rig struct {
	t     *testing.T
	dir   string
	tls   string
	from  string // the address that requests over TLS come from; empty: the system's choice
	log   *safeBuffer
	store *raftstore.Store
	stop  func() // tells the server to stop and waits for it

	people, gateway, agent *client.Client
}

type rigOptions struct {
	dir       string // state that outlives the rig; the store is then on disk
	env       map[string]string
	heartbeat time.Duration
	network   time.Duration // for a request on the TLS port
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}
func (s *safeBuffer) String() string { s.mu.Lock(); defer s.mu.Unlock(); return s.b.String() }

// shortDir is a directory whose path leaves room for a socket's name.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "lr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func start(t *testing.T, o rigOptions) *rig {
	t.Helper()
	r, err := tryStart(t, o)
	if err != nil {
		t.Fatalf("the server did not start: %v\n%s", err, r.log)
	}
	return r
}

func tryStart(t *testing.T, o rigOptions) (*rig, error) {
	t.Helper()
	r := &rig{t: t, dir: o.dir, log: &safeBuffer{}}
	inMemory := o.dir == ""
	if inMemory {
		r.dir = shortDir(t)
	}
	run := filepath.Join(shortDir(t), "run")
	env := map[string]string{"STATE_DIRECTORY": r.dir, "LEVELRAIL_RUNTIME_DIR": run, "LEVELRAIL_LISTEN": "127.0.0.1:0"}
	for k, v := range o.env {
		env[k] = v
	}
	ready := make(chan string, 1)
	c := Config{Getenv: func(k string) string { return env[k] }, Log: slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Ready: func(address string) { ready <- address }, heartbeat: o.heartbeat, networkTime: o.network}
	c.open = func(ctx context.Context, rc raftstore.Config) (s *raftstore.Store, err error) {
		if s = raftstore.OpenMemory(rc); !inMemory {
			s, err = raftstore.Open(ctx, rc)
		}
		r.store = s
		return s, err
	}
	s, err := New(c)
	if err != nil {
		return r, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("the server ended with %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Error("the server does not stop")
		}
	})
	select {
	case r.tls = <-ready:
	case err := <-ended:
		cancel()
		if err == nil {
			err = errors.New("it ended by itself")
		}
		return r, err
	case <-time.After(20 * time.Second):
		cancel()
		return r, errors.New("not ready after 20 s")
	}
	t.Cleanup(r.stop)
	for file, c := range map[string]**client.Client{"api.sock": &r.people, "gateway.sock": &r.gateway, "agent.sock": &r.agent} {
		if *c, err = client.New(client.Options{Socket: filepath.Join(run, file)}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup((*c).Close)
	}
	return r, nil
}

// answer is what a plain request got.
type answer struct {
	status int
	header http.Header
	body   string
}

// refused is the error of a refusal, whose shape it checks.
func (a answer) refused(t *testing.T) levelrail.Error {
	t.Helper()
	var e wire.ErrorBody
	d := json.NewDecoder(strings.NewReader(a.body))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil || e.Error.Kind == "" || e.Error.Message == "" || e.Error.Next == "" {
		t.Errorf("the refusal %d has not the shape of one: %s", a.status, a.body)
	}
	return e.Error
}

// ask sends a request over TLS with a token ("" for none) and a body as it is.
func (r *rig) ask(token, method, path, body string, headers ...string) answer {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, "https://"+r.tls+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	c := r.http()
	defer c.CloseIdleConnections() // one address has only so many
	resp, err := c.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "application/x-ndjson") {
		return answer{resp.StatusCode, resp.Header, ""}
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(b)}
}

func (r *rig) http() *http.Client {
	pem, err := r.people.CA(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	from := &net.Dialer{}
	if r.from != "" {
		from.LocalAddr = &net.TCPAddr{IP: net.ParseIP(r.from)}
	}
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, DialContext: from.DialContext}
	r.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 20 * time.Second}
}

// over asks on one of the sockets.
func (r *rig) over(socket, method, path, body string) answer {
	r.t.Helper()
	where := map[string]*client.Client{"api": r.people, "gateway": r.gateway, "agent": r.agent}[socket].Where()
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", where)
	}}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(r.t.Context(), method, "http://localhost"+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := (&http.Client{Transport: tr, Timeout: 20 * time.Second}).Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "application/x-ndjson") {
		return answer{resp.StatusCode, resp.Header, ""}
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(b)}
}

func (r *rig) token(name string, abilities ...levelrail.Ability) string {
	r.t.Helper()
	made, err := r.people.CreateToken(r.t.Context(), wire.CreateToken{Name: name, Abilities: abilities})
	if err != nil {
		r.t.Fatal(err)
	}
	return made.Secret
}

const smol = "bartowski/SmolLM2-135M-Instruct-GGUF:Q4_K_M"

func (r *rig) deploy(name string, change ...func(*wire.Deploy)) wire.Deployed {
	r.t.Helper()
	w := wire.Deploy{Name: name, Engine: "llamacpp", Model: smol, GPUs: levelrail.GPURequest{Mode: levelrail.GPUNone}}
	for _, c := range change {
		c(&w)
	}
	got, err := r.people.Deploy(r.t.Context(), w)
	if err != nil {
		r.t.Fatal(err)
	}
	return got
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !holds(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 seconds: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// following is what a watch has told so far.
type following struct {
	mu    sync.Mutex
	state map[string]json.RawMessage // KIND/ID
	lines []wire.WatchLine
	token string
	sync  int
	err   error
	ended chan struct{}
	stop  func()
}

func follow(t *testing.T, c *client.Client, o client.WatchOptions) *following {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	f := &following{state: map[string]json.RawMessage{}, ended: make(chan struct{})}
	go func() {
		defer close(f.ended)
		err := c.Watch(ctx, o, func(l wire.WatchLine) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			if l.Type != wire.WatchHeartbeat {
				f.lines = append(f.lines, l)
			}
			switch l.Type {
			case wire.WatchReset:
				f.state = map[string]json.RawMessage{}
			case wire.WatchPut:
				f.state[l.Kind+"/"+l.ID] = l.Object
			case wire.WatchDelete:
				delete(f.state, l.Kind+"/"+l.ID)
			case wire.WatchSynced:
				f.sync++
			}
			if l.Token != "" {
				f.token = l.Token
			}
			return nil
		})
		f.mu.Lock()
		f.err = err
		f.mu.Unlock()
	}()
	f.stop = func() { cancel(); <-f.ended }
	t.Cleanup(f.stop)
	return f
}

func (f *following) synced() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.sync > 0 }

func (f *following) failed() error { f.mu.Lock(); defer f.mu.Unlock(); return f.err }

func (f *following) has(id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, ok := f.state[id]
	return ok
}

func get[T any](t *testing.T, f *following, id string) (v T) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if b, ok := f.state[id]; ok {
		if err := json.Unmarshal(b, &v); err != nil {
			t.Fatal(err)
		}
	}
	return v
}

// node is an agent that keeps to the protocol and runs nothing: it reports what it is told to.
type node struct {
	t      *testing.T
	r      *rig
	id     string
	seq    uint64
	report wire.Report
	watch  *following
}

func (r *rig) join(gpus int) *node {
	r.t.Helper()
	n := &node{t: r.t, r: r, id: levelrail.NewID("node")}
	if _, err := r.agent.Hello(r.t.Context(), wire.Hello{NodeID: n.id, Name: "gpu-01", Version: "0.1.0", OS: "debian 13"}); err != nil {
		r.t.Fatal(err)
	}
	n.report = wire.Report{NodeID: n.id, Boot: "boot_1", Devices: []levelrail.Device{}, Readings: []levelrail.DeviceReading{}, Replicas: []wire.ReplicaStatus{}}
	for i := range gpus {
		n.report.Devices = append(n.report.Devices, levelrail.Device{UUID: "GPU-" + string(rune('a'+i)), Index: i, Kind: "card", Class: "NVIDIA H200"})
	}
	n.send()
	n.watch = follow(r.t, r.agent, client.WatchOptions{Kinds: []string{wire.WatchAssignment, wire.WatchLogRequest}, Body: wire.WatchAgent{NodeID: n.id}})
	eventually(r.t, "the agent's watch is synced", n.watch.synced)
	return n
}

func (n *node) send() {
	n.t.Helper()
	n.seq++
	n.report.Sequence, n.report.At = n.seq, time.Now().UTC()
	if err := n.r.agent.Report(n.t.Context(), n.report); err != nil {
		n.t.Fatal(err)
	}
}

// assigned waits for an assignment that fits.
func (n *node) assigned(replica string, fits func(wire.Assignment) bool) wire.Assignment {
	n.t.Helper()
	var a wire.Assignment
	eventually(n.t, "the assignment of "+replica, func() bool {
		a = get[wire.Assignment](n.t, n.watch, wire.WatchAssignment+"/"+replica)
		return a.Replica == replica && fits(a)
	})
	return a
}

// say reports how a replica stands, in place of what was said of it before.
func (n *node) say(a wire.Assignment, c levelrail.Condition) {
	n.t.Helper()
	c.Since = time.Now().UTC()
	n.forget(a.Replica)
	n.report.Replicas = append(n.report.Replicas, wire.ReplicaStatus{Replica: a.Replica, Model: a.Model, Revision: a.Revision, Restarts: a.Restarts, Condition: c})
	n.send()
}

func (n *node) forget(replica string) {
	var rest []wire.ReplicaStatus
	for _, r := range n.report.Replicas {
		if r.Replica != replica {
			rest = append(rest, r)
		}
	}
	n.report.Replicas = rest
}

var loaded = levelrail.Condition{Ready: true, Reason: levelrail.ModelLoaded}

func anyAssignment(wire.Assignment) bool { return true }
