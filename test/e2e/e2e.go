// Package e2e drives the whole product as its users do: the packages installed by apt on a clean Debian host, the CLI,
// real engines with real weights, and OpenAI clients. It owns what its tests share; the host itself is test/host, the
// engines and weights are test/fixtures, the stand-ins for hubs are in test/engines.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	hosttest "github.com/levelrail/levelrail/test/host"
)

// Gateway is where the gateway listens on a host without configuration.
const Gateway = "http://127.0.0.1:7421"

// Install boots a clean host, installs the packages of dist/ with apt and waits until all daemons are up.
func Install(t testing.TB, suite hosttest.Suite, opts ...hosttest.Option) *Host {
	t.Helper()
	h := &Host{Host: hosttest.New(t, suite, opts...), t: t}
	h.InstallDebs(Debs(t)...)
	for _, unit := range []string{"levelrail-server.service", "levelrail-agent.service", "levelrail-gateway.service"} {
		h.WaitActive(unit)
	}
	return h
}

// Debs lists the packages that `make deb` left in dist/.
func Debs(t testing.TB) []string {
	t.Helper()
	dist := os.Getenv("LEVELRAIL_DIST")
	if dist == "" {
		dist = "../../dist"
	}
	debs, _ := filepath.Glob(filepath.Join(dist, "*.deb"))
	if len(debs) == 0 {
		t.Fatalf("there are no packages in %s; run make deb", dist)
	}
	return debs
}

// Host is a test host with Levelrail on it.
type Host struct {
	*hosttest.Host
	t testing.TB
}

// CLI runs the levelrail command and returns what it printed; any failure fails the test.
func (h *Host) CLI(args string) (stdout, stderr string) {
	h.t.Helper()
	stdout, stderr, code := h.Try(args)
	if code != 0 {
		h.t.Fatalf("levelrail %s ended with %d\nstdout:\n%s\nstderr:\n%s", args, code, stdout, stderr)
	}
	return stdout, stderr
}

// Try runs the levelrail command and returns its exit code as well.
func (h *Host) Try(args string) (stdout, stderr string, code int) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	stdout, stderr, err := h.Exec(ctx, "levelrail "+args)
	if exit, ok := err.(*hosttest.ExitError); ok {
		return stdout, stderr, exit.Status
	} else if err != nil {
		h.t.Fatalf("levelrail %s: %v", args, err)
	}
	return stdout, stderr, 0
}

// JSON runs the levelrail command with --json and decodes its answer.
func (h *Host) JSON(into any, args string) {
	h.t.Helper()
	stdout, _ := h.CLI(args + " --json")
	if err := json.Unmarshal([]byte(stdout), into); err != nil {
		h.t.Fatalf("levelrail %s --json printed no JSON document: %v\n%s", args, err, stdout)
	}
}

// Deploy deploys a model, waits until the gateway serves it and returns its key. What the control plane knows reaches
// every gateway within a second.
func (h *Host) Deploy(flags string) string {
	h.t.Helper()
	var deployed struct {
		Model struct {
			Name string `json:"name"`
		} `json:"model"`
		Key struct {
			Secret string `json:"secret"`
		} `json:"key"`
	}
	h.JSON(&deployed, "models deploy --wait --timeout 4m "+flags)
	if !strings.HasPrefix(deployed.Key.Secret, "lr-") {
		h.t.Fatalf("deploy %s gave no key: %+v", flags, deployed)
	}
	h.Eventually("the gateway to serve it", time.Second, func() error {
		if res, body := h.Ask("POST", "/v1/completions", deployed.Key.Secret, fmt.Sprintf(`{"model":%q,"prompt":"one","max_tokens":1}`, deployed.Model.Name)); res.StatusCode != http.StatusOK {
			return fmt.Errorf("answered with %s %s", res.Status, body)
		}
		return nil
	})
	return deployed.Key.Secret
}

// Model is what the tests read of `levelrail models get NAME --json`.
type Model struct {
	Name        string   `json:"name"`
	Revision    int      `json:"revision"`
	ServedNames []string `json:"served_names"`
	Condition   struct {
		Ready                 bool
		Reason, Message, Next string
	}
	Replicas []struct {
		MainPID int    `json:"main_pid"`
		Unit    string `json:"unit"`
	}
}

// Get reads a model.
func (h *Host) Get(name string) Model {
	h.t.Helper()
	var m Model
	h.JSON(&m, "models get "+name)
	return m
}

// WaitReason waits until a model's Ready condition has a reason.
func (h *Host) WaitReason(name, reason string, limit time.Duration) Model {
	h.t.Helper()
	var m Model
	h.Eventually(fmt.Sprintf("%s to be %s", name, reason), limit, func() error {
		m = h.Get(name)
		if m.Condition.Reason != reason {
			return fmt.Errorf("it is %s: %s", m.Condition.Reason, m.Condition.Message)
		}
		return nil
	})
	return m
}

// Ask sends a request to the gateway and returns the answer with its body read.
func (h *Host) Ask(method, path, key, body string, header ...string) (*http.Response, string) {
	h.t.Helper()
	res, err := h.Send(context.Background(), method, path, key, body, header...)
	if err != nil {
		h.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer res.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(res.Body); err != nil {
		h.t.Fatalf("%s %s: read the answer: %v", method, path, err)
	}
	return res, b.String()
}

// Send sends a request to the gateway. The caller closes the body.
func (h *Host) Send(ctx context.Context, method, path, key, body string, header ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, Gateway+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return h.HTTPClient().Do(req)
}

// Chat is a small chat request body.
func Chat(model string, tokens int, stream bool) string {
	body, _ := json.Marshal(map[string]any{
		"model": model, "max_tokens": tokens, "temperature": 0, "seed": 1, "stream": stream,
		"stream_options": streamOptions(stream),
		"messages":       []map[string]string{{"role": "user", "content": "Count from one upwards."}},
	})
	return string(body)
}

func streamOptions(stream bool) any {
	if !stream {
		return nil
	}
	return map[string]bool{"include_usage": true}
}
