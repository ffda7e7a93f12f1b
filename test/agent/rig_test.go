package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/agent/agenttest"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/test/engines/hubstub"
	"github.com/levelrail/levelrail/test/fixtures"
	hosttest "github.com/levelrail/levelrail/test/host"
)

const (
	hubAddress  = "127.0.0.1:8081"
	cdnAddress  = "127.0.0.1:8082"
	repository  = "levelrail/SmolLM2-GGUF"
	tree        = "../.." // of the project
	agentSocket = "/run/levelrail/agent.sock"
)

// program builds levelrail-agent once for all tests.
var program = sync.OnceValues(func() (string, error) {
	path := filepath.Join(buildDir, "levelrail-agent")
	cmd := exec.Command("go", "build", "-o", path, "./cmd/levelrail-agent")
	cmd.Dir = tree
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build levelrail-agent: %w\n%s", err, out)
	}
	return path, nil
})

var buildDir string

func TestMain(m *testing.M) {
	var err error
	if buildDir, err = os.MkdirTemp("", "levelrail-agent-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	status := m.Run()
	os.RemoveAll(buildDir)
	os.Exit(status)
}

// rig is a host with an agent, and the stand-ins that it talks to.
type rig struct {
	*hosttest.Host
	t      *testing.T
	server *agenttest.Server
	hub    *hubstub.Stub
	key    string
	close  []func()
}

// newRig boots a host, installs the agent as the package does and starts it.
func newRig(t *testing.T, suite hosttest.Suite, opts ...hosttest.Option) *rig {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("booting hosts takes root")
	}
	binary, err := program()
	if err != nil {
		t.Fatal(err)
	}
	opts = append(opts, hosttest.WithWeights(), hosttest.WithFile("/etc/default/levelrail-agent", "APP_HF_BASE_URL=http://"+hubAddress+"\n", 0o600))
	if suite != hosttest.Forky {
		opts = append(opts, hosttest.WithEngine(hosttest.LlamaCpp))
	}
	r := &rig{t: t, server: agenttest.NewServer("clu_test"), key: levelrail.NewSecret("lr")}
	r.Host = hosttest.New(t, suite, opts...)
	t.Cleanup(func() {
		for _, f := range r.close {
			f()
		}
	})
	r.install(binary)
	r.serve()
	r.Run("systemctl enable --quiet levelrail-engines.target levelrail-agent.service && systemctl start levelrail-engines.target levelrail-agent.service")
	return r
}

// install puts the agent's files where its package puts them.
func (r *rig) install(binary string) {
	r.t.Helper()
	put := func(source, target string, mode os.FileMode) {
		if err := r.CopyIn(source, target, mode); err != nil {
			r.t.Fatal(err)
		}
	}
	put(binary, "/usr/bin/levelrail-agent", 0o755)
	for _, unit := range []string{"levelrail-agent.service", "levelrail-engines.slice", "levelrail-engines.target"} {
		put(filepath.Join(tree, "systemd/units", unit), "/usr/lib/systemd/system/"+unit, 0o644)
	}
	put(filepath.Join(tree, "packaging/sysusers/levelrail-gateway.conf"), "/usr/lib/sysusers.d/levelrail-gateway.conf", 0o644)
	put(filepath.Join(tree, "packaging/tmpfiles/levelrail-agent.conf"), "/usr/lib/tmpfiles.d/levelrail-agent.conf", 0o644)
	r.Run("systemd-sysusers && systemd-tmpfiles --create levelrail-agent.conf && systemctl daemon-reload && useradd -m stranger")
}

// serve starts the stand-ins: the control plane on the agent's socket, and the Hub in the host's network. After a reboot
// of the host they have to be started again.
func (r *rig) serve() {
	r.t.Helper()
	r.listenAgent()
	if r.hub == nil {
		weights, err := fixtures.WeightsPath(context.Background())
		if err != nil {
			r.t.Fatal(err)
		}
		r.hub, err = hubstub.New(hubstub.Options{Repos: []hubstub.Repo{{ID: repository, Files: map[string]string{fixtures.WeightsFile: weights}}},
			Tokens: map[string]hubstub.User{"hf_TopSecretToken": {Name: "tester"}}})
		if err != nil {
			r.t.Fatal(err)
		}
		r.hub.SetCDN("http://" + cdnAddress)
	}
	for address, handler := range map[string]http.Handler{hubAddress: r.hub.Hub(), cdnAddress: r.hub.CDN()} {
		l, err := r.Listen("tcp", address)
		if err != nil {
			r.t.Fatal(err)
		}
		r.run(l, handler)
	}
}

// listenAgent makes the control plane's socket for agents, root's alone as the real one.
func (r *rig) listenAgent() {
	r.t.Helper()
	l, err := net.Listen("unix", r.Path(agentSocket))
	if err != nil {
		r.t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // the path is one in a namespace that may be gone by then
	if err := os.Chmod(r.Path(agentSocket), 0o600); err != nil {
		r.t.Fatal(err)
	}
	r.run(l, r.server.Handler())
}

func (r *rig) run(l net.Listener, h http.Handler) {
	s := &http.Server{Handler: h}
	go s.Serve(l) // ends with Close
	r.close = append(r.close, func() { s.Close() })
}

// program is llama-server as the host has it.
func (r *rig) llamaServer() string {
	if r.Suite == hosttest.Forky {
		return "/usr/bin/llama-server"
	}
	return hosttest.LlamaCppProgram
}

// assignment is a model from the Hub on llama.cpp.
func (r *rig) assignment(model string, change ...func(*wire.Assignment)) wire.Assignment {
	a := wire.Assignment{Replica: model, Model: model, Revision: 1, Run: true, EngineKey: r.key,
		Spec: levelrail.ModelSpec{Engine: "llamacpp", Source: repository, GPUs: levelrail.GPURequest{Mode: levelrail.GPUNone}, Context: 512}}
	for _, c := range change {
		c(&a)
	}
	a.ServedNames = levelrail.ServedNames(a.Model, a.Spec)
	return a
}

// fromFile takes the weights from a file of the node.
func fromFile(path string) func(*wire.Assignment) {
	return func(a *wire.Assignment) { a.Spec.Source = path }
}

func revision(n int, change func(*levelrail.ModelSpec)) func(*wire.Assignment) {
	return func(a *wire.Assignment) { a.Revision = n; change(&a.Spec) }
}

// status is a replica's part of the newest report, nil when it has none.
func (r *rig) status(replica string) *wire.ReplicaStatus {
	reports := r.server.Reports()
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

// until waits until a replica's status is as wanted, and returns it.
func (r *rig) until(replica, what string, limit time.Duration, is func(*wire.ReplicaStatus) bool) *wire.ReplicaStatus {
	r.t.Helper()
	var last *wire.ReplicaStatus
	r.Eventually(replica+" to be "+what, limit, func() error {
		if last = r.status(replica); last != nil && is(last) {
			return nil
		}
		b, err := json.Marshal(last)
		if err != nil {
			return err
		}
		return fmt.Errorf("its last status is %s", b)
	})
	return last
}

// serving waits until a revision of a model serves.
func (r *rig) serving(replica string, revision int) *wire.ReplicaStatus {
	r.t.Helper()
	return r.until(replica, fmt.Sprintf("serving revision %d", revision), 2*time.Minute, func(s *wire.ReplicaStatus) bool {
		return s.Condition.Reason == levelrail.ModelLoaded && s.Condition.Ready && s.Revision == revision
	})
}

// reason waits for a reason and returns the condition.
func (r *rig) reason(replica string, reason levelrail.Reason) levelrail.Condition {
	r.t.Helper()
	return r.until(replica, string(reason), 2*time.Minute, func(s *wire.ReplicaStatus) bool { return s.Condition.Reason == reason }).Condition
}

// chat asks a model over its socket as the gateway does, and returns the answer.
func (r *rig) chat(replica, model string) (string, error) {
	body, err := json.Marshal(map[string]any{"model": model, "max_tokens": 8, "temperature": 0, "messages": []map[string]string{{"role": "user", "content": "Say hello."}}})
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Authorization", "Bearer "+r.key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := r.UnixClient("/run/levelrail/engines/" + replica + "/engine.sock").Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	var answer struct {
		Choices []struct {
			Message struct {
				Content string `json:"content"`
			} `json:"message"`
		} `json:"choices"`
	}
	if resp.StatusCode != http.StatusOK || json.Unmarshal(b, &answer) != nil || len(answer.Choices) != 1 || answer.Choices[0].Message.Content == "" {
		return "", fmt.Errorf("answer %d: %s", resp.StatusCode, b)
	}
	return answer.Choices[0].Message.Content, nil
}

// must is chat that has to work.
func (r *rig) must(replica, model string) string {
	r.t.Helper()
	text, err := r.chat(replica, model)
	if err != nil {
		r.t.Fatalf("ask %s: %v", replica, err)
	}
	return text
}

// unit is a unit's state.
func (r *rig) unit(name string) hosttest.UnitProps {
	r.t.Helper()
	u, err := r.Show(context.Background(), name)
	if err != nil {
		r.t.Fatal(err)
	}
	return u
}

// try runs a script in the host that may fail, and returns what it said.
func (r *rig) try(script string) (string, error) {
	out, talk, err := r.Exec(context.Background(), script)
	return strings.TrimSpace(out + talk), err
}
