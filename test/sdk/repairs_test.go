package sdk

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/test/fixtures"
	"github.com/levelrail/levelrail/test/rig"
)

// llamaServer starts a real llama-server, as an engine's unit has it, with more options, and returns its socket.
func llamaServer(t *testing.T, dir, name string, options ...string) string {
	t.Helper()
	bundle, err := fixtures.Get(t.Context(), fixtures.LlamaCpp)
	if err != nil {
		t.Fatal(err)
	}
	weights, err := fixtures.WeightsPath(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, name+".sock")
	args := append([]string{"--host", socket, "--model", weights, "--alias", name, "--ctx-size", "1024", "--parallel", "1", "--offline", "--no-slots", "--fit", "off", "--threads", "2"}, options...)
	p, err := rig.Start(rig.Options{CPU: -1, Log: filepath.Join(dir, name+".log")}, filepath.Join(bundle, "bin", "llama-server"), args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(30 * time.Second); err != nil {
			t.Errorf("stop llama-server: %v", err)
		}
	})
	eventually(t, 2*time.Minute, name+" serves", func() bool {
		status, _, err := overSocket(socket, "GET", "/health", "")
		return err == nil && status == 200
	})
	return socket
}

// overSocket asks an engine itself.
func overSocket(socket, method, path, body string) (int, string, error) {
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	req, err := http.NewRequest(method, "http://localhost"+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// realGateway starts the gateway's program before engines of one kind and returns its address and a key for each model.
func realGateway(t *testing.T, dir, engine string, sockets map[string]string) (url, key string) {
	t.Helper()
	program, err := rig.Build(t.Context(), "./cmd/levelrail-gateway", dir)
	if err != nil {
		t.Fatal(err)
	}
	cp, err := rig.NewControlPlane(filepath.Join(dir, "gateway.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cp.Close() })
	var models []string
	for model, socket := range sockets {
		cp.PutRoute(wire.Route{Model: model, Engine: engine, Names: []string{model}, Serving: true, Reason: string(levelrail.ModelLoaded), Context: 1024,
			Targets: []wire.RouteTarget{{Kind: "replica", ID: model, Network: "unix", Address: socket, Weight: 1, Serving: true}},
			Limits: wire.Limits{MaxBodyBytes: 32 << 20, MaxN: 8, MaxGenLen: 1 << 17, MaxInflight: 32, RetryAfterSeconds: 1, DialTimeoutSeconds: 5, HeaderTimeout: 300, IdleTimeout: 120,
				UsageFlushSeconds: 1, UsageScanBytes: 16 << 10, UsageStream: "limited"},
			CreatedAt: time.Unix(1700000000, 0), Owner: levelrail.DefaultOwner})
		models = append(models, model)
	}
	key = cp.NewKey("key_a", levelrail.KeyLimits{}, models...)
	port, err := rig.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	g := rig.Gateway{Dir: filepath.Join(dir, "gw"), Port: port, Control: cp.Socket}
	config, err := g.Write()
	if err != nil {
		t.Fatal(err)
	}
	p, err := rig.Start(rig.Options{CPU: -1, Log: filepath.Join(dir, "log")}, program, "run", "--config", config, "--adapter", "caddyfile")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(30 * time.Second); err != nil {
			t.Errorf("stop the gateway: %v", err)
		}
		if t.Failed() {
			t.Logf("the gateway's log ends with:\n%s", p.Tail())
		}
	})
	eventually(t, 20*time.Second, "the gateway knows all models", func() bool {
		_, body, err := post(g.URL(), key, "GET", "/v1/models", "")
		return err == nil && strings.Count(body, `"context_window":1024`) == len(models)
	})
	return g.URL(), key
}

// post asks the gateway.
func post(url, key, method, path, body string) (int, string, error) {
	req, err := http.NewRequest(method, url+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Authorization", "Bearer "+key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// TestRepairsOfLlamaCpp: each fault of a real llama-server that the gateway mends is there, and is mended. A fault that is
// found no more has been mended by llama.cpp: then its repair in engine/llamacpp_repair.go can go.
func TestRepairsOfLlamaCpp(t *testing.T) {
	dir, err := os.MkdirTemp("", "lr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	sockets := map[string]string{"chat": llamaServer(t, dir, "chat"), "embed": llamaServer(t, dir, "embed", "--embeddings", "--pooling", "mean"), "rank": llamaServer(t, dir, "rank", "--reranking")}
	url, key := realGateway(t, dir, "llamacpp", sockets)
	long := strings.Repeat("word ", 900)
	picture := `{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo="}}`
	for _, c := range []struct {
		model, path, body string
		engine            int // status of the engine itself
		code, says        string
	}{
		{"chat", "/v1/embeddings", `"input":"x"`, 501, "unsupported_by_model", "--option embeddings=true"},
		{"chat", "/v1/rerank", `"query":"x","documents":["a"]`, 501, "unsupported_by_model", "--option reranking=true"},
		{"chat", "/v1/chat/completions", `"messages":[{"role":"user","content":[` + picture + `]}]`, 500, "unsupported_by_model", "--option mmproj"},
		{"chat", "/v1/responses", `"input":[{"role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,iVBORw0KGgo="}]}]`, 500, "unsupported_by_model", "--option mmproj"},
		{"chat", "/v1/chat/completions", `"messages":[{"content":"x"}]`, 500, "invalid_request", "role"},
		{"chat", "/v1/chat/completions", `"messages":[{"role":"user","content":"x"}],"tools":[{}]`, 500, "invalid_request", "tool"},
		{"chat", "/v1/chat/completions", `"messages":[{"role":"user","content":"` + long + long + `"}]`, 400, "context_length_exceeded", "exceeds the available context size"},
		{"embed", "/v1/embeddings", `"input":"` + long + `"`, 500, "context_length_exceeded", "longer than embed takes"},
		{"rank", "/v1/rerank", `"query":"x","documents":["` + long + long + `"]`, 400, "context_length_exceeded", "exceeds the available context size"},
		{"chat", "/v1/chat/completions", `"messages":[{"role":"user"}]`, 400, "", "content"},
	} {
		body := `{"model":"` + c.model + `","max_tokens":4,` + c.body + `}`
		status, said, err := overSocket(sockets[c.model], "POST", c.path, body)
		if err != nil || status != c.engine || !strings.Contains(said, fmt.Sprintf(`"code":%d`, status)) {
			t.Errorf("%s of %.60s: the engine says %d %s %v, not %d with a number for a code", c.path, c.body, status, said, err, c.engine)
		}
		status, said, err = post(url, key, "POST", c.path, body)
		var e struct {
			Error struct {
				Message, Type string
				Code, Param   *string
			}
		}
		if err != nil || json.Unmarshal([]byte(said), &e) != nil || status != 400 || !strings.Contains(e.Error.Message, c.says) || e.Error.Code == nil != (c.code == "") || e.Error.Code != nil && *e.Error.Code != c.code || e.Error.Type == "" {
			t.Errorf("%s of %.60s: the gateway says %d %s %v, want 400 %q with %q", c.path, c.body, status, said, err, c.code, c.says)
		}
	}
	if status, said, err := post(url, key, "POST", "/v1/rerank", `{"model":"rank","query":"x","documents":["a","b"]}`); err != nil || status != 200 || strings.Count(said, "relevance_score") != 2 {
		t.Errorf("reranking: %d %s %v", status, said, err)
	}

	ask := `{"model":"chat","input":"Say hello.","max_output_tokens":8,"temperature":0`
	missing := func(stream string) (out []string) {
		for line := range strings.Lines(stream) {
			data, ok := strings.CutPrefix(line, "data: ")
			if !ok {
				continue
			}
			var e map[string]json.RawMessage
			if err := json.Unmarshal([]byte(data), &e); err != nil {
				t.Fatalf("%s: %v", data, err)
			}
			want := []string{"sequence_number"}
			if e["response"] == nil {
				want = append(want, "output_index")
			}
			if bytes.Contains(e["type"], []byte("output_text")) || bytes.Contains(e["type"], []byte("content_part")) {
				want = append(want, "content_index")
			}
			for _, name := range want {
				if e[name] == nil {
					out = append(out, string(e["type"])+" "+name)
				}
			}
			if e["response"] != nil {
				out = append(out, missingOf(string(e["type"]), e["response"])...)
			}
		}
		return out
	}
	_, raw, err := overSocket(sockets["chat"], "POST", "/v1/responses", ask+`,"stream":true}`)
	if err != nil {
		t.Fatal(err)
	}
	for _, fault := range []string{`"response.created" output`, `"response.output_text.delta" output_index`, `"response.created" sequence_number`, `"response.completed" output_tokens_details`} {
		if !strings.Contains(strings.Join(missing(raw), "\n"), fault) {
			t.Errorf("llama-server's stream lacks no %s any more", fault)
		}
	}
	_, mended, err := post(url, key, "POST", "/v1/responses", ask+`,"stream":true}`)
	if err != nil || !strings.Contains(mended, "response.completed") || len(missing(mended)) > 0 {
		t.Errorf("the gateway's stream lacks %q: %v %s", missing(mended), err, mended)
	}
	_, whole, err := post(url, key, "POST", "/v1/responses", ask+`}`)
	if err != nil || len(missingOf("whole", []byte(whole))) > 0 {
		t.Errorf("the gateway's answer lacks %q: %v %s", missingOf("whole", []byte(whole)), err, whole)
	}

	root, err := rig.Root()
	if err != nil {
		t.Fatal(err)
	}
	python, err := Python(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	nodeDir, err := Node(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	for program, script := range map[string]string{python: "repairs.py", "node": "repairs.mjs"} {
		checks, err := Suite(t.Context(), program, filepath.Join(root, "test", "sdk", script), "LEVELRAIL_URL="+url, "LEVELRAIL_KEY="+key, "SDK_DIR="+nodeDir)
		if err != nil || len(checks) != 2 {
			t.Errorf("%s: %d checks, %v", script, len(checks), err)
		}
		for _, k := range checks {
			if k.Error != "" {
				t.Errorf("%s: %s: %s", script, k.Name, k.Error)
			}
		}
	}
}

// missingOf is what a response object lacks of what OpenAI's has.
func missingOf(event string, response []byte) (out []string) {
	var r map[string]json.RawMessage
	if json.Unmarshal(response, &r) != nil {
		return []string{event + " is no object"}
	}
	for _, name := range []string{"id", "object", "created_at", "model", "output", "parallel_tool_calls", "tool_choice", "tools"} {
		if r[name] == nil {
			out = append(out, event+" "+name)
		}
	}
	if u := r["usage"]; u != nil && !bytes.Contains(u, []byte(`"output_tokens_details"`)) {
		out = append(out, event+" output_tokens_details")
	}
	return out
}
