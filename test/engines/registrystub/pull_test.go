package registrystub_test

import (
	"crypto/tls"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail/test/engines/faults"
	"github.com/levelrail/levelrail/test/engines/registrystub"
	"github.com/levelrail/levelrail/test/engines/testca"
	"github.com/levelrail/levelrail/test/fixtures"
	hosttest "github.com/levelrail/levelrail/test/host"
)

// TestOllamaPulls: a real ollama on a real host pulls from the stand-in, by address over plain HTTP and by the registry's
// own name over TLS, goes on after a broken download, and answers from what it pulled.
func TestOllamaPulls(t *testing.T) {
	weights, err := fixtures.WeightsPath(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stub, err := registrystub.New(t.TempDir(), registrystub.Model{Name: "smollm2:135m", GGUF: weights})
	if err != nil {
		t.Fatal(err)
	}
	h := hosttest.New(t, hosttest.Bookworm, hosttest.WithEngine(hosttest.Ollama))
	serve := func(addr string, tlsConfig *tls.Config, handler http.Handler) {
		t.Helper()
		l, err := h.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if tlsConfig != nil {
			l = tls.NewListener(l, tlsConfig)
		}
		server := &http.Server{Handler: handler}
		go server.Serve(l)
		t.Cleanup(func() { server.Close() })
	}
	ca, err := testca.New()
	if err != nil {
		t.Fatal(err)
	}
	config, err := ca.Config("registry.ollama.ai")
	if err != nil {
		t.Fatal(err)
	}
	h.TrustCA(ca.PEM())
	h.Resolve("127.0.0.1", "registry.ollama.ai")
	serve("127.0.0.1:5000", nil, stub.Registry())
	serve("127.0.0.1:443", config, stub.Registry())
	serve("127.0.0.2:5000", nil, stub.Storage())
	stub.SetStorage("http://127.0.0.2:5000")
	h.Run("systemd-run --quiet --unit=levelrail-ollama -p StateDirectory=ollama -E HOME=/var/lib/ollama -E OLLAMA_MODELS=/var/lib/ollama/models ollama serve")
	client := h.HTTPClient()
	h.Eventually("ollama to answer", 20*time.Second, func() error {
		resp, err := client.Get("http://127.0.0.1:11434/api/version")
		if err == nil {
			resp.Body.Close()
		}
		return err
	})
	pull := func(body string) (last string) {
		t.Helper()
		resp, err := client.Post("http://127.0.0.1:11434/api/pull", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		lines := json.NewDecoder(resp.Body)
		for {
			var line struct{ Status, Error string }
			if lines.Decode(&line) != nil {
				return last
			}
			last = line.Status + line.Error
		}
	}

	if last := pull(`{"model":"127.0.0.1:5000/library/smollm2:135m"}`); last == "success" {
		t.Error("a plain HTTP registry was accepted without insecure")
	}
	stub.StorageFaults.Set(faults.Settings{CutAfter: 30 << 20, Cuts: 1})
	if last := pull(`{"model":"127.0.0.1:5000/library/smollm2:135m","insecure":true}`); last != "success" {
		t.Fatalf("over plain HTTP: %s", last)
	}
	resumed := false
	for _, r := range stub.Requests() {
		resumed = resumed || r.Storage && strings.HasPrefix(r.Range, "bytes=3")
	}
	if !resumed {
		t.Errorf("the broken download was not resumed: %+v", stub.Requests())
	}
	if last := pull(`{"model":"smollm2:135m"}`); last != "success" {
		t.Fatalf("by the registry's own name: %s", last)
	}
	if last := pull(`{"model":"smollm2:1.7b"}`); !strings.Contains(last, "file does not exist") {
		t.Errorf("a model that is not there: %s", last)
	}
	sum := h.Run("cd /var/lib/ollama/models/blobs && sha256sum " + strings.Replace(stub.WeightsDigest("smollm2:135m"), ":", "-", 1))
	if !strings.HasPrefix(sum, fixtures.WeightsSHA256) {
		t.Errorf("the weights' checksum: %s", sum)
	}

	resp, err := client.Post("http://127.0.0.1:11434/v1/chat/completions", "application/json", strings.NewReader(
		`{"model":"smollm2:135m","messages":[{"role":"user","content":"Say hello."}],"max_tokens":6,"temperature":0}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer struct {
		Choices []struct{ Message struct{ Content string } }
		Usage   struct {
			PromptTokens int `json:"prompt_tokens"`
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || len(answer.Choices) != 1 || answer.Choices[0].Message.Content == "" ||
		answer.Usage.PromptTokens == 0 {
		t.Errorf("%s %v %+v", resp.Status, err, answer)
	}
}

// TestAuthorityIsNotTrustedByDefault: TLS under the registry's name fails on a host that was not told to trust it.
func TestAuthorityIsNotTrustedByDefault(t *testing.T) {
	ca, err := testca.New()
	if err != nil {
		t.Fatal(err)
	}
	config, err := ca.Config("registry.ollama.ai", "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	h := hosttest.New(t, hosttest.Trixie)
	plain, err := h.Listen("tcp", "127.0.0.1:443")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.NotFoundHandler()}
	go server.Serve(tls.NewListener(plain, config))
	defer server.Close()
	h.Resolve("127.0.0.1", "registry.ollama.ai")
	ask := func() error {
		_, _, err := h.Exec(t.Context(), "curl -sS https://registry.ollama.ai/v2/ https://127.0.0.1/")
		return err
	}
	if err := ask(); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("before: %v", err)
	}
	h.TrustCA(ca.PEM())
	if err := ask(); err != nil {
		t.Errorf("after: %v", err)
	}
}
