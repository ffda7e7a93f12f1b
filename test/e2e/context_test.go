package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
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
	"github.com/levelrail/levelrail/engine"
	"github.com/levelrail/levelrail/test/fixtures"
)

// startEngine runs a real llama-server as its unit would and returns a client that reaches it.
func startEngine(t *testing.T, spec levelrail.ModelSpec) *http.Client {
	t.Helper()
	e, err := engine.Get("llamacpp")
	if err != nil {
		t.Fatal(err)
	}
	weights, err := fixtures.Get(t.Context(), fixtures.Weights)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/tmp", "lr-context") // a short path, for the socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	spec.Options = maps.Clone(spec.Options)
	spec.Options["threads"], spec.Options["threads-batch"] = "1", "1" // several wait for each other on a busy machine
	spec.Engine, spec.Source = "llamacpp", filepath.Join(weights, fixtures.WeightsFile)
	if err := e.Check(spec); err != nil {
		t.Fatal(err)
	}
	p := engine.Params{Name: "chat", Model: "chat", ServedNames: []string{"chat"}, Spec: spec, Program: filepath.Join(llamaCpp(t), "bin/llama-server"),
		Socket: filepath.Join(dir, "engine.sock"), WeightsDir: weights, CacheDir: dir, Files: []levelrail.WeightsFile{{Path: fixtures.WeightsFile, Role: levelrail.RoleModel}}}
	launch, err := e.Launch(p)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := exec.Command(launch.Args[0], launch.Args[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = append([]string{"PATH=/usr/bin:/bin"}, launch.Env...), &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-ended
		if t.Failed() {
			t.Logf("the engine said:\n%s", log.String())
		}
	})
	c := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", p.Socket)
	}}}
	t.Cleanup(c.CloseIdleConnections)
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if found := e.Ready(t.Context(), c, p); found.State == engine.Serving {
			return c
		} else if time.Now().After(deadline) {
			t.Fatalf("the engine is not ready: %+v", found)
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("the engine ended: %v", err)
		default:
		}
	}
}

func post(t *testing.T, c *http.Client, path string, body any) (int, string) {
	t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.Post("http://localhost"+path, "application/json", bytes.NewReader(b))
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Errorf("%s: %v", path, err)
	}
	return res.StatusCode, string(text)
}

// TestContextIsEachRequests: four streams at a time, each of which nearly fills the context, all end as each would alone. So do
// more than there are slots.
func TestContextIsEachRequests(t *testing.T) {
	for _, options := range []levelrail.Options{{}, {"parallel": "2"}} {
		t.Run(options["parallel"], func(t *testing.T) {
			spec := levelrail.ModelSpec{Context: 256, Options: options}
			c := startEngine(t, spec)
			var all sync.WaitGroup
			for i := range 4 {
				all.Go(func() {
					// Prompts that begin differently share nothing.
					prompt := fmt.Sprintf("%d ", i) + strings.Repeat("word ", 200)
					status, body := post(t, c, "/v1/completions", map[string]any{"model": "chat", "prompt": prompt, "max_tokens": 40, "stream": true, "ignore_eos": true,
						"temperature": 0, "stream_options": map[string]any{"include_usage": true}})
					if status != http.StatusOK || strings.Contains(body, `"error"`) || !strings.HasSuffix(strings.TrimSpace(body), "data: [DONE]") ||
						!strings.Contains(body, `"completion_tokens":40`) {
						t.Errorf("options %v, stream %d ended with %d … %s", spec.Options, i, status, body[max(0, len(body)-600):])
					}
				})
			}
			all.Wait()
		})
	}
}

// TestEmbedFillsContext: a text of nearly the whole context is embedded, also where the engine's own batch is smaller.
func TestEmbedFillsContext(t *testing.T) {
	const size = 768
	c := startEngine(t, levelrail.ModelSpec{Context: size, Options: levelrail.Options{"embeddings": "true", "pooling": "mean"}})
	for _, words := range []int{10, size - 20} {
		status, body := post(t, c, "/v1/embeddings", map[string]any{"model": "chat", "input": strings.Repeat("word ", words)})
		if status != http.StatusOK || !strings.Contains(body, `"embedding"`) {
			t.Errorf("%d words: %d %.400s", words, status, body)
		}
	}
}
