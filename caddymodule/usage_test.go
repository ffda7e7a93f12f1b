package caddymodule

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// usage takes a batch as the control plane does: once, by its number.
func (c *controlPlane) usage(w http.ResponseWriter, r *http.Request) {
	var b wire.UsageBatch
	if err := json.NewDecoder(r.Body).Decode(&b); err != nil {
		http.Error(w, err.Error(), 400)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counted == nil {
		c.counted = map[string]uint64{}
	}
	if b.Sequence > c.counted[b.GatewayID] {
		c.counted[b.GatewayID] = b.Sequence
		c.batches = append(c.batches, b)
	}
	json.NewEncoder(w).Encode(wire.UsageAccepted{Sequence: c.counted[b.GatewayID]})
}

// sum is what has arrived of a key's usage.
func (c *controlPlane) sum(key string) (u levelrail.Usage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range c.batches {
		for _, r := range b.Rows {
			if r.KeyID == key {
				u.Requests += r.Requests
				u.OK += r.OK
				u.ClientErrors += r.ClientErrors
				u.ServerErrors += r.ServerErrors
				u.Aborted += r.Aborted
				u.WithUsage += r.WithUsage
				u.InputTokens += r.InputTokens
				u.OutputTokens += r.OutputTokens
				u.ResponseBytes += r.ResponseBytes
				u.DurationMS += r.DurationMS
			}
		}
	}
	return u
}

// put gives the host's key and model those limits, and waits until the gateway has them.
func (h *host) put(engine, mode string, limits levelrail.KeyLimits) {
	h.t.Helper()
	r := h.route("chat")
	r.Engine, r.Limits.UsageStream, r.Limits.UsageFlushSeconds = engine, mode, 1
	h.cp.putRoute(r)
	h.cp.mu.Lock()
	k := h.cp.keys["key_a"]
	h.cp.mu.Unlock()
	k.Limits = limits
	h.cp.putKey(k)
	h.eventually("the gateway has the new limits", func() bool {
		m, ok := h.table().Model("chat")
		sum := hashOf(h.key)
		key, there := h.table().Key(sum)
		return ok && there && m.Engine == engine && m.Limits.UsageStream == mode && key.Limits == limits
	})
}

const (
	engineChunk  = `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"chat","choices":[{"index":0,"delta":{"content":"w"}}]}` + "\n\n"
	engineUsage  = `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"chat","choices":[],"usage":{"prompt_tokens":11,"completion_tokens":22,"total_tokens":33}}` + "\n\n"
	engineText   = `data: {"id":"c","object":"text_completion","created":1,"choices":[{"text":"w","index":0,"finish_reason":null}],"model":"chat","system_fingerprint":"fp"`
	engineZeros  = `,"usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}`
	engineTiming = `data: {"choices":[{"finish_reason":"stop","index":0,"delta":{}}],"timings":{"cache_n":4,"prompt_n":7,"predicted_n":22}}` + "\n\n"
	engineDone   = "data: [DONE]\n\n"
)

// streams answers like an engine: with usage if it is asked for, in that engine's way.
func streams(engine string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, streamOf(engine, r.URL.Path, r.Header.Get("X-Test-Asked") != ""))
	}
}

func streamOf(engine, path string, asked bool) string {
	text := strings.HasSuffix(path, "/v1/completions")
	switch {
	case engine == "llamacpp":
		return engineChunk + engineTiming + engineDone
	case engine == "ollama" && text && asked:
		return engineText + engineZeros + "}\n\n" + engineText + engineZeros + "}\n\n" + engineUsage + engineDone
	case text && asked:
		return engineText + "}\n\n" + engineText + "}\n\n" + engineUsage + engineDone
	case text:
		return engineText + "}\n\n" + engineText + "}\n\n" + engineDone
	case asked:
		return engineChunk + engineChunk + engineUsage + engineDone
	}
	return engineChunk + engineChunk + engineDone
}

// TestUsageOfStreams is case C019: a stream whose client did not ask is counted where the key has a token limit, or always,
// or is one more request without usage; and the client gets the bytes that the engine sends to who sent the client's body.
func TestUsageOfStreams(t *testing.T) {
	h := newHost(t)
	limited := levelrail.KeyLimits{TPD: 1 << 40}
	id := 0
	for _, c := range []struct {
		engine, mode string
		key          levelrail.KeyLimits
		plain        bool // a plain stream's usage becomes known
	}{
		{"ollama", "limited", limited, true},
		{"vllm", "limited", levelrail.KeyLimits{TPM: 1 << 40}, true},
		{"vllm", "limited", levelrail.KeyLimits{RPM: 1 << 30}, false},
		{"vllm", "always", levelrail.KeyLimits{}, true},
		{"ollama", "asked", limited, false},
		{"llamacpp", "asked", levelrail.KeyLimits{}, true}, // it says so by itself
		{"llamacpp", "always", limited, true},
	} {
		h.put(c.engine, c.mode, c.key)
		h.engine.on(func(w http.ResponseWriter, r *http.Request) {
			seen := h.engine.requests()
			var body struct {
				StreamOptions struct {
					IncludeUsage bool `json:"include_usage"`
				} `json:"stream_options"`
			}
			json.Unmarshal(seen[len(seen)-1].body, &body)
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, streamOf(c.engine, r.URL.Path, body.StreamOptions.IncludeUsage))
		})
		for _, path := range []string{"/v1/chat/completions", "/v1/completions"} {
			for options, asks := range map[string]bool{``: false, `,"stream_options":null`: false, `,"stream_options":{"include_usage":false}`: false,
				`,"stream_options":{"include_usage":true}`: true} {
				id++
				request := fmt.Sprint("stream-", id)
				body := `{"model":"chat","stream":true` + options + `,"prompt":"a","messages":[]}`
				resp, got := h.do("POST", path, body, "X-Request-Id", request)
				where := fmt.Sprintf("%s, %s, %+v, %s, %s", c.engine, c.mode, c.key, path, body)
				if want := streamOf(c.engine, path, asks); resp.StatusCode != 200 || got != want {
					t.Errorf("%s:\n got %d %q\nwant %q", where, resp.StatusCode, got, want)
				}
				seen := h.engine.requests()
				last := seen[len(seen)-1]
				if last.length != int64(len(last.body)) {
					t.Errorf("%s: the engine got %d bytes under a length of %d", where, len(last.body), last.length)
				}
				if changed := string(last.body) != body; changed != (c.plain && !asks && c.engine != "llamacpp") {
					t.Errorf("%s: the engine got %s", where, last.body)
				}
				r := h.recordOf(request)
				if counted := r["input_tokens"] == 11.0 && r["output_tokens"] == 22.0; counted != (c.plain || asks) {
					t.Errorf("%s: recorded %v", where, r)
				}
			}
		}
	}
}

// TestUsageArrives: what requests cost arrives at the control plane, through a reload, and how many of them said so.
func TestUsageArrives(t *testing.T) {
	h := newHost(t)
	h.put("vllm", "asked", levelrail.KeyLimits{})
	plain := `{"model":"chat","messages":[]}`
	h.do("POST", chatPath, plain)
	h.engine.on(streams("vllm"))
	h.do("POST", chatPath, streamBody)
	h.load() // sums outlive the configuration
	h.settled()
	h.do("POST", chatPath, `{"model":"other"}`)
	h.engine.on(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })
	h.do("POST", chatPath, plain)
	var got levelrail.Usage
	h.eventually("all usage has arrived", func() bool { got = h.cp.sum("key_a"); return got.Requests >= 4 })
	if got.Requests != 4 || got.OK != 2 || got.ClientErrors != 1 || got.ServerErrors != 1 || got.WithUsage != 1 || got.InputTokens != 3 || got.OutputTokens != 4 || got.ResponseBytes == 0 {
		t.Errorf("usage: %+v", got)
	}
	h.cp.mu.Lock()
	defer h.cp.mu.Unlock()
	used := false
	for _, b := range h.cp.batches {
		_, there := b.LastUsed["key_a"]
		used = used || there
	}
	if !used {
		t.Error("the key's last use is not told")
	}
}

// TestUsageSurvivesTheControlPlane: what is counted while there is no control plane, and before the gateway ends, arrives
// with the gateway's next life.
func TestUsageSurvivesTheControlPlane(t *testing.T) {
	h := newHost(t)
	h.put("vllm", "asked", levelrail.KeyLimits{})
	h.cp.stop()
	for range 3 {
		h.do("POST", chatPath, `{"model":"chat","messages":[]}`)
	}
	h.stop()
	h.cp.start()
	h.load()
	h.eventually("the usage has arrived", func() bool { return h.cp.sum("key_a").Requests >= 3 })
	if got := h.cp.sum("key_a"); got.Requests != 3 || got.InputTokens != 9 {
		t.Errorf("usage: %+v", got)
	}
}

// TestUsageOfLeavers is case C020: usage that the engine has told is counted when the client leaves after it; when it leaves
// before, the request is one without usage.
func TestUsageOfLeavers(t *testing.T) {
	h := newHost(t)
	h.put("vllm", "asked", levelrail.KeyLimits{})
	for name, c := range map[string]struct {
		events string
		usage  bool
	}{"after": {engineChunk + engineUsage, true}, "before": {engineChunk, false}} {
		h.engine.on(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, c.events)
			http.NewResponseController(w).Flush()
			<-r.Context().Done()
		})
		resp, err := httpClient.Do(h.request("POST", chatPath, streamBody, "X-Request-Id", name))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(resp.Body, make([]byte, len(c.events))); err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		r := h.recordOf(name)
		if r["end"] != "client_gone" || (r["input_tokens"] == 11.0) != c.usage || r["bytes"] != float64(len(c.events)) {
			t.Errorf("%s: %v", name, r)
		}
	}
	h.eventually("both have arrived", func() bool { return h.cp.sum("key_a").Requests >= 2 })
	if got := h.cp.sum("key_a"); got.Requests != 2 || got.Aborted != 2 || got.WithUsage != 1 || got.InputTokens != 11 || got.OutputTokens != 22 {
		t.Errorf("usage: %+v", got)
	}
}

// TestUsageOfCompressedAnswers is case C021: engines are asked for no compression; one that compresses all the same is
// passed on as it is and its usage found; with compression at the site, too, and statuses stay.
func TestUsageOfCompressedAnswers(t *testing.T) {
	h := newHost(t, "\tlevelrail\n}", "\tencode gzip\n\tlevelrail\n}")
	const body = `{"usage":{"prompt_tokens":11,"completion_tokens":22}}`
	id := 0
	for _, status := range []int{200, 422, 500} {
		for _, compressed := range []bool{false, true} {
			for _, accept := range []string{"gzip", "br", "identity", ""} {
				for kind, text := range map[string]string{"application/json": body, "text/event-stream": engineUsage + engineDone} {
					h.engine.on(func(w http.ResponseWriter, r *http.Request) {
						w.Header().Set("Content-Type", kind)
						if !compressed {
							w.WriteHeader(status)
							io.WriteString(w, text)
							return
						}
						w.Header().Set("Content-Encoding", "gzip")
						w.WriteHeader(status)
						z := gzip.NewWriter(w)
						io.WriteString(z, text)
						z.Close()
					})
					id++
					request := fmt.Sprint("compressed-", id)
					req := h.request("POST", chatPath, streamBody, "X-Request-Id", request)
					req.Header.Set("Accept-Encoding", accept)
					resp, err := httpClient.Do(req)
					if err != nil {
						t.Fatal(err)
					}
					raw, err := io.ReadAll(resp.Body)
					resp.Body.Close()
					where := fmt.Sprint(status, compressed, accept, kind)
					if err != nil || resp.StatusCode != status || !strings.HasPrefix(resp.Header.Get("Content-Type"), kind) {
						t.Errorf("%s: %d %s %v", where, resp.StatusCode, resp.Header, err)
					}
					if resp.Header.Get("Content-Encoding") == "gzip" {
						z, err := gzip.NewReader(bytes.NewReader(raw))
						if err != nil {
							t.Fatalf("%s: %v", where, err)
						}
						raw, _ = io.ReadAll(z)
					}
					if string(raw) != text {
						t.Errorf("%s: the client got %q", where, raw)
					}
					seen := h.engine.requests()
					if got := seen[len(seen)-1].header.Get("Accept-Encoding"); got != "identity" {
						t.Errorf("%s: the engine was asked for %q", where, got)
					}
					if r := h.recordOf(request); r["input_tokens"] != 11.0 || r["output_tokens"] != 22.0 || r["status"] != float64(status) {
						t.Errorf("%s: recorded %v", where, r)
					}
				}
			}
		}
	}
}

// TestUsageOfSeveralChoices: an engine that tells the first choice's cost only is not taken to have told all.
func TestUsageOfSeveralChoices(t *testing.T) {
	h := newHost(t)
	for engine, known := range map[string]bool{"llamacpp": false, "vllm": true} {
		h.put(engine, "asked", levelrail.KeyLimits{})
		before := h.cp.sum("key_a")
		for _, body := range []string{`{"model":"chat","n":2,"messages":[]}`, `{"model":"chat","n":1,"messages":[]}`} {
			h.do("POST", chatPath, body)
		}
		want := int64(1)
		if known {
			want = 2
		}
		h.eventually(engine+"'s usage has arrived", func() bool { return h.cp.sum("key_a").Requests == before.Requests+2 })
		if got := h.cp.sum("key_a"); got.WithUsage-before.WithUsage != want || got.InputTokens-before.InputTokens != 6 {
			t.Errorf("%s: %+v, before %+v", engine, got, before)
		}
	}
}

// TestMetrics: collectors say how requests ended and outlive a reload; nothing in them names a key.
func TestMetrics(t *testing.T) {
	h := newHost(t, "\tlevelrail\n}", "\thandle /metrics {\n\t\tmetrics\n\t}\n\thandle {\n\t\tlevelrail\n\t}\n}")
	request := func() { h.do("POST", chatPath, `{"model":"chat","messages":[]}`) }
	request()
	h.load()
	h.settled()
	request()
	h.do("POST", chatPath, `{"model":"chat"`)
	var text string
	has := func(lines ...string) bool {
		_, text = h.do("GET", "/metrics", "")
		for _, l := range lines {
			if !strings.Contains(text, l+"\n") {
				return false
			}
		}
		return true
	}
	h.eventually("both requests are counted", func() bool {
		return has(`levelrail_gateway_requests_total{end="complete",model="chat",route="/v1/chat/completions",status="2xx"} 2`,
			`levelrail_gateway_requests_total{end="refused",model="chat",route="/v1/chat/completions",status="4xx"} 1`,
			`levelrail_gateway_tokens_total{direction="input",model="chat"} 6`,
			`levelrail_gateway_request_duration_seconds_count{model="chat",route="/v1/chat/completions"} 2`,
			`levelrail_gateway_request_duration_seconds_bucket{model="chat",route="/v1/chat/completions",le="600"} 2`,
			`levelrail_gateway_control_plane_connected 1`, `levelrail_gateway_table_age_seconds 0`, `levelrail_gateway_usage_rows_dropped_total 0`)
	})
	for _, secret := range []string{"key_a", h.key, levelrail.SecretPrefix(h.key)} {
		if strings.Contains(text, secret) {
			t.Errorf("the metrics hold %q", secret)
		}
	}
	h.cp.stop()
	h.eventually("the lost control plane shows", func() bool { return has(`levelrail_gateway_control_plane_connected 0`) })
}
