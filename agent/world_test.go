package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/agent/agenttest"
	"github.com/levelrail/levelrail/agent/fetch"
	"github.com/levelrail/levelrail/agent/gpu"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/engine"
	"github.com/levelrail/levelrail/hub"
	"github.com/levelrail/levelrail/systemd"
)

func init() {
	engine.Register(echo{name: "echo"})
	engine.Register(echo{name: "doored", door: "127.0.0.1:99"})
	engine.Register(echo{name: "local", local: true})
}

// echo is an engine whose readiness the test sets: by socket, in answers. It runs from one file of a Hub, or of the node.
type echo struct {
	engine.Engine
	name, door string
	local      bool
}

var (
	answers sync.Map     // socket to engine.Readiness
	program atomic.Value // where that engine's program lies
)

func (e echo) Name() string     { return e.name }
func (echo) Programs() []string { return []string{program.Load().(string)} }
func (e echo) InstallHint(d, v string) string {
	return "apt install " + e.name + " on " + d + " " + v
}

func (echo) Check(spec levelrail.ModelSpec) error {
	if spec.Options["bad"] != "" {
		return levelrail.Errorf(levelrail.ErrInvalid, "echo has no option bad")
	}
	return nil
}

func (e echo) Weights(spec levelrail.ModelSpec) (engine.WeightsPlan, error) {
	if e.local {
		return engine.WeightsPlan{From: engine.FromFile, Files: []engine.LocalFile{{Path: spec.Source, Role: levelrail.RoleModel}}}, nil
	}
	return engine.WeightsPlan{From: engine.FromHub, Repo: "org/echo", Choose: func(files []engine.HubFile) ([]engine.HubFile, error) {
		if spec.SHA256 != "" && spec.SHA256 != files[0].SHA256 {
			return nil, levelrail.Errorf(levelrail.ErrNotFound, "the repository has not the expected %s", spec.SHA256)
		}
		files[0].Role = levelrail.RoleModel
		return files[:1], nil
	}}, nil
}

// sourceHub is a Hub whose one repository is one file of this machine.
type sourceHub struct{ path string }

func (h sourceHub) Resolve(context.Context, string, string) (hub.Repo, error) {
	b, err := os.ReadFile(h.path)
	sum := sha256.Sum256(b)
	return hub.Repo{Commit: "c1", Files: []hub.File{{Path: filepath.Base(h.path), Bytes: int64(len(b)), SHA256: hex.EncodeToString(sum[:])}}}, err
}

func (h sourceHub) Download(_ context.Context, _, _ string, f hub.File, dst string, _ func(int64)) (hub.Got, error) {
	b, err := os.ReadFile(h.path)
	return hub.Got{SHA256: f.SHA256, Bytes: f.Bytes}, errors.Join(err, os.WriteFile(dst, b, 0o644))
}

func (e echo) Launch(p engine.Params) (engine.Launch, error) {
	return engine.Launch{Args: []string{p.Program, "--model", filepath.Join(p.WeightsDir, p.Files[0].Path), "--key-file", p.KeyFile}, Door: e.door}, nil
}

func (echo) Ready(_ context.Context, _ *http.Client, p engine.Params) engine.Readiness {
	if r, ok := answers.Load(p.Socket); ok {
		return r.(engine.Readiness)
	}
	return engine.Readiness{State: engine.Down}
}

func (echo) Diagnose(lines []string) (levelrail.Reason, string) {
	for _, l := range lines {
		if strings.HasPrefix(l, "fatal: ") {
			return levelrail.EngineFailed, strings.TrimPrefix(l, "fatal: ")
		}
	}
	return "", ""
}

func (echo) Compute(lines []string) string {
	for _, l := range lines {
		if c, ok := strings.CutPrefix(l, "computes on "); ok {
			return c
		}
	}
	return ""
}

// noGPU is a node without cards.
type noGPU struct{}

func (noGPU) Read(context.Context) gpu.Snapshot { return gpu.Snapshot{Note: "no cards here"} }

// node is one machine with an agent, in memory but for its files.
type node struct {
	t       *testing.T
	paths   Paths
	units   *agenttest.Units
	journal *agenttest.Journal
	server  *agenttest.Server
	source  string // a weights file of the node
	config  Config
	stop    func() // the running agent
	fetches int
}

// inBubble runs a test with a node whose clock is the test's.
func inBubble(t *testing.T, f func(n *node)) {
	t.Helper()
	dir := t.TempDir()
	program.Store("/usr/bin/true")
	synctest.Test(t, func(t *testing.T) {
		n := &node{t: t, server: agenttest.NewServer("clu_1"), journal: agenttest.NewJournal(), source: filepath.Join(dir, "model.gguf"),
			paths: Paths{State: filepath.Join(dir, "state"), Weights: filepath.Join(dir, "weights"), Run: filepath.Join(dir, "run"), Units: filepath.Join(dir, "units")}}
		for _, d := range []string{n.paths.State, n.paths.Weights, n.paths.Run, n.paths.Units} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		n.write(n.source, "GGUF weights")
		n.units = agenttest.NewUnits(n.paths.Units)
		n.units.OnStart = n.process
		n.config = Config{
			Settings: Settings{GPUAttach: "auto", GPUCollectInterval: time.Minute, ImportDirs: dir}, Paths: n.paths, Units: n.units, Journal: n.journal, GPUs: noGPU{},
			ControlPlane: n.server, Program: "/usr/bin/levelrail-agent", Host: Host{Name: "n1", Distribution: "debian", Version: "12"},
			Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		}
		n.start()
		defer func() {
			n.stop()
			n.units.Close()
			answers.Clear()
		}()
		f(n)
	})
}

// process is what a started unit does: a fetch fetches; an engine runs until it is stopped.
func (n *node) process(ctx context.Context, unit string) error {
	if !strings.HasPrefix(unit, "levelrail-fetch-") {
		<-ctx.Done()
		return nil
	}
	n.fetches++
	model := strings.TrimSuffix(strings.TrimPrefix(unit, "levelrail-fetch-"), ".service")
	var spec fetch.Spec
	if err := json.Unmarshal([]byte(n.read(filepath.Join(n.paths.fetch(model), fetch.SpecName))), &spec); err != nil {
		return err
	}
	return fetch.Run(ctx, spec, sourceHub{n.source})
}

// start starts an agent; stop ends it as a kill would: nothing is said to anybody.
func (n *node) start() {
	n.t.Helper()
	a, err := New(n.config)
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	n.stop = func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			n.t.Errorf("the agent ended with %v", err)
		}
	}
}

func (n *node) write(path, text string) {
	n.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// assignment is one of the model chat.
func (n *node) assignment(change ...func(*wire.Assignment)) wire.Assignment {
	a := wire.Assignment{Replica: "chat", Model: "chat", Revision: 1, Run: true, ServedNames: []string{"chat"}, EngineKey: "lr-secret-of-the-engine",
		Spec: levelrail.ModelSpec{Engine: "echo", Source: n.source}}
	for _, c := range change {
		c(&a)
	}
	return a
}

// answer sets what an engine says when it is asked.
func answer(replica string, state engine.State, message ...string) {
	answers.Store(systemd.SocketPath(replica), engine.Readiness{State: state, Message: strings.Join(message, "")})
}

// status is a replica's part of the newest report.
func (n *node) status(replica string) *wire.ReplicaStatus {
	reports := n.server.Reports()
	if len(reports) == 0 {
		return nil
	}
	for _, s := range reports[len(reports)-1].Replicas {
		if s.Replica == replica {
			return &s
		}
	}
	return nil
}

// until waits, by the test's clock, until something holds.
func (n *node) until(what string, limit time.Duration, is func() bool) {
	n.t.Helper()
	deadline := time.Now().Add(limit)
	for synctest.Wait(); !is(); synctest.Wait() {
		if time.Now().After(deadline) {
			b, _ := json.MarshalIndent(n.status("chat"), "", " ")
			n.t.Fatalf("waited %s in vain until %s\ncalls %q\nlast status %s", limit, what, n.units.Calls(), b)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// hold makes sure that something goes on holding.
func (n *node) hold(what string, d time.Duration, is func() bool) {
	n.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		synctest.Wait()
		if !is() {
			n.t.Fatalf("it did not stay so that %s\ncalls %q", what, n.units.Calls())
		}
	}
}

func (n *node) reason(replica string, r levelrail.Reason) func() bool {
	return func() bool { s := n.status(replica); return s != nil && s.Condition.Reason == r }
}

const chat = "levelrail-model-chat.service"

// serve brings the model chat to where it serves.
func (n *node) serve(change ...func(*wire.Assignment)) *wire.ReplicaStatus {
	n.t.Helper()
	answer("chat", engine.Serving)
	n.server.Assign(n.assignment(change...))
	n.until("chat serves", time.Minute, n.reason("chat", levelrail.ModelLoaded))
	return n.status("chat")
}

// did tells whether a call was made.
func (n *node) did(call string) bool { return slices.Contains(n.units.Calls(), call) }

func (n *node) read(path string) string {
	n.t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		n.t.Fatal(err)
	}
	return string(b)
}

func (n *node) mode(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%o", info.Mode().Perm())
}
