package caddymodule

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/levelrail/levelrail"
)

// answersHundred is an engine whose every answer costs 100 tokens, 40 of them read, told in that engine's own way and only where it does so.
func answersHundred(h *host, engine string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		seen := h.engine.requests()
		asked := strings.Contains(string(seen[len(seen)-1].body), `"include_usage":true`)
		w.Header().Set("Content-Type", "text/event-stream")
		http.NewResponseController(w).Flush() // a stream has no length
		switch {
		case r.URL.Path == "/v1/responses":
			io.WriteString(w, "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"w\"}\n\n"+
				"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"r\",\"usage\":{\"input_tokens\":40,\"output_tokens\":60}}}\n\n")
		case engine == "llamacpp":
			io.WriteString(w, engineChunk+`data: {"choices":[{"finish_reason":"stop","index":0,"delta":{}}],"timings":{"cache_n":10,"prompt_n":30,"predicted_n":60}}`+"\n\n"+engineDone)
		case asked:
			io.WriteString(w, engineChunk+`data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"chat","choices":[],"usage":{"prompt_tokens":40,"completion_tokens":60,"total_tokens":100}}`+"\n\n"+engineDone)
		default:
			io.WriteString(w, engineChunk+engineDone)
		}
	}
}

// TestPlainStreamsAreBound is the attempt of case C019: fifty streams of 100 tokens whose clients do not ask for usage, against 1000 tokens a day;
// ten pass, on every engine and route, and the report has the tokens and says of each request that it told them.
func TestPlainStreamsAreBound(t *testing.T) {
	h := newHost(t)
	var ids []string
	for _, engine := range []string{"ollama", "vllm", "llamacpp"} {
		for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/v1/responses"} {
			h.put(engine, "limited", levelrail.KeyLimits{})
			id := "key_" + engine + strings.ReplaceAll(path, "/", "_")
			key := h.cp.newKey(id, "chat")
			h.cp.mu.Lock()
			k := h.cp.keys[id]
			h.cp.mu.Unlock()
			k.Limits = levelrail.KeyLimits{TPD: 1000}
			h.cp.putKey(k)
			h.eventually("the key is known", func() bool { k, ok := h.table().Key(hashOf(key)); return ok && k.Limits.TPD == 1000 })
			h.engine.on(answersHundred(h, engine))
			got := map[int]int{}
			for i := range 50 {
				options := []string{"", `,"stream_options":null`, `,"stream_options":{"include_usage":false}`, `,"stream_options":{}`}[i%4]
				resp, body := h.do("POST", path, `{"model":"chat","stream":true,"prompt":"x","input":"x","messages":[]`+options+`}`, "Authorization", "Bearer "+key)
				if got[resp.StatusCode]++; resp.StatusCode == 200 && path != "/v1/responses" && strings.Contains(body, `"choices":[]`) {
					t.Errorf("%s %s: a client that did not ask got %q", engine, path, body)
				}
			}
			if got[200] != 10 || got[429] != 40 {
				t.Errorf("%s %s: %v", engine, path, got)
			}
			ids = append(ids, id)
		}
	}
	for _, id := range ids {
		h.eventually("all are counted", func() bool { return h.cp.sum(id).Requests >= 50 })
		if u := h.cp.sum(id); u.Requests != 50 || u.OK != 10 || u.WithUsage != 10 || u.InputTokens != 400 || u.OutputTokens != 600 {
			t.Errorf("%s: usage %+v", id, u)
		}
	}
}

// TestLastWriteFails is the end of case C020: usage that has been read counts in full and once although the write after it fails, also where the
// gateway hides it from a client that is gone by then.
func TestLastWriteFails(t *testing.T) {
	h := newHost(t)
	n := int64(0)
	h.each(func(t *testing.T, c *http.Client, proto int) {
		for _, mode := range []string{"asked", "always"} {
			h.put("vllm", mode, levelrail.KeyLimits{})
			first, wrote := make(chan struct{}), make(chan struct{})
			h.engine.on(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				io.WriteString(w, engineChunk)
				http.NewResponseController(w).Flush()
				<-first
				io.WriteString(w, engineUsage+engineDone) // the client is gone, and the gateway may not know it yet
				http.NewResponseController(w).Flush()
				close(wrote)
			})
			ctx, leave := context.WithCancel(t.Context())
			id := fmt.Sprintf("last-%s-%d", mode, proto)
			resp, err := c.Do(h.request("POST", chatPath, streamBody, "X-Request-Id", id).WithContext(ctx))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(resp.Body, make([]byte, len(engineChunk))); err != nil {
				t.Fatal(err)
			}
			close(first)
			leave()
			<-wrote
			resp.Body.Close()
			n++
			r := h.recordOf(id)
			// Which of the two came first is the clock's to say. Told or not, it is told whole, and the bytes are those that went out.
			counted := r["input_tokens"] == 11.0 && r["output_tokens"] == 22.0
			if !counted && (r["input_tokens"] != nil || r["end"] != "client_gone") {
				t.Errorf("%s: recorded as %v", id, r)
			}
			if b, _ := r["bytes"].(float64); b < float64(len(engineChunk)) {
				t.Errorf("%s: %v bytes", id, r["bytes"])
			}
		}
	})
	h.eventually("all are counted", func() bool { return h.cp.sum("key_a").Requests >= n })
	if u := h.cp.sum("key_a"); u.Requests != n || u.InputTokens != 11*u.WithUsage || u.OutputTokens != 22*u.WithUsage {
		t.Errorf("%d requests, usage %+v", n, u)
	}
}

// TestUsageByRoute: what each route's answer says of its cost is counted: whole answers, embeddings, responses and transcriptions, in tokens where
// the engine tells tokens; one that tells seconds is a request without usage; dying words are the engine's failure.
func TestUsageByRoute(t *testing.T) {
	h := newHost(t)
	requests := func(w http.ResponseWriter, kind, text string) {
		w.Header().Set("Content-Type", kind)
		io.WriteString(w, text)
	}
	const js, sse = "application/json", "text/event-stream"
	var want levelrail.Usage
	for i, c := range []struct {
		path, kind, answer string
		input, output      int64 // -1: not told
		failed             bool
	}{
		{"/v1/chat/completions", js, `{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}`, 1, 2, false},
		{"/v1/completions", js, `{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":20,"total_tokens":30,"prompt_tokens_details":{"cached_tokens":5}}}`, 10, 20, false},
		{"/v1/embeddings", js, `{"object":"list","data":[{"embedding":[` + strings.Repeat("0.1,", 20000) + `0]}],"usage":{"prompt_tokens":100,"total_tokens":100}}`, 100, 0, false},
		{"/v1/embeddings", js, `{"usage":{"prompt_tokens":1000,"total_tokens":1000},"data":[]}`, 1000, 0, false},
		{"/v1/responses", js, `{"output":[],"usage":{"input_tokens":10000,"output_tokens":20000,"output_tokens_details":{"reasoning_tokens":7}}}`, 10000, 20000, false},
		{"/v1/responses", sse, "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":100000,\"output_tokens\":1}}}\n\n", 100000, 1, false},
		{"/v1/audio/transcriptions", js, `{"text":"hi","usage":{"type":"tokens","input_tokens":1000000,"output_tokens":2000000,"total_tokens":3000000}}`, 1000000, 2000000, false},
		{"/v1/audio/transcriptions", js, `{"text":"hi","usage":{"type":"duration","seconds":3}}`, -1, -1, false},
		{"/v1/audio/translations", "text/plain", `hi`, -1, -1, false},
		{"/v1/chat/completions", sse, engineChunk + "data: {\"error\": {\"message\": \"EngineCore encountered an issue.\", \"code\": 500}}\n\n" + engineDone, -1, -1, true},
		{"/v1/chat/completions", js, `{"choices":[]}`, -1, -1, false},
	} {
		h.put("vllm", "asked", levelrail.KeyLimits{})
		h.engine.on(func(w http.ResponseWriter, r *http.Request) { requests(w, c.kind, c.answer) })
		contentType, body := js, `{"model":"chat","prompt":"x","input":"x","messages":[]}`
		if strings.HasPrefix(c.path, "/v1/audio/") {
			contentType, body = upload("chat")
		}
		id := fmt.Sprint("route-", i)
		resp, got := h.do("POST", c.path, body, "Content-Type", contentType, "X-Request-Id", id)
		if resp.StatusCode != 200 || got != c.answer {
			t.Errorf("%s: %d, %d bytes of %d", c.path, resp.StatusCode, len(got), len(c.answer))
		}
		want.Requests++
		if want.OK++; c.failed {
			want.OK--
			want.ServerErrors++
		}
		r := h.recordOf(id)
		if c.input < 0 {
			if r["input_tokens"] != nil {
				t.Errorf("%s: recorded %v", c.path, r)
			}
			continue
		}
		want.WithUsage++
		want.InputTokens += c.input
		want.OutputTokens += c.output
		if r["input_tokens"] != float64(c.input) || r["output_tokens"] != float64(c.output) || r["route"] != c.path {
			t.Errorf("%s: recorded %v", c.path, r)
		}
	}
	h.eventually("all are counted", func() bool { return h.cp.sum("key_a").Requests >= want.Requests })
	if u := h.cp.sum("key_a"); u.Requests != want.Requests || u.OK != want.OK || u.ServerErrors != want.ServerErrors || u.WithUsage != want.WithUsage || u.InputTokens != want.InputTokens || u.OutputTokens != want.OutputTokens {
		t.Errorf("usage %+v, want %+v", u, want)
	}
}

// TestKilledLosesOneInterval: a gateway that is killed loses at most what one flush interval counted: what was counted before, and could not be
// sent, is sent once by its next run, and nothing twice.
func TestKilledLosesOneInterval(t *testing.T) {
	h := prepareHost(t)
	r := h.route("chat")
	r.Engine, r.Limits.UsageFlushSeconds = "vllm", 1
	h.cp.putRoute(r)
	cmd, ended := h.process()
	ask := func(n int) {
		for range n {
			if resp, body := h.do("POST", chatPath, chatBody); resp.StatusCode != 200 {
				t.Fatalf("%d %s", resp.StatusCode, body)
			}
		}
	}
	ask(3)
	h.eventually("the first are sent", func() bool { return h.cp.sum("key_a").Requests == 3 })
	h.cp.stop()
	ask(2)
	kept := func() string {
		b, _ := os.ReadFile(filepath.Join(h.dir, "state", "usage.json")) // it is replaced whole
		return string(b)
	}
	h.eventually("what cannot be sent is on disk", func() bool { return strings.Contains(kept(), `"requests":2`) })
	ask(1) // in the interval that is lost
	cmd.Process.Signal(syscall.SIGKILL)
	<-ended
	h.cp.start()
	h.process()
	ask(1)
	h.eventually("what was kept arrives", func() bool { return h.cp.sum("key_a").Requests >= 6 })
	arrived := h.cp.sum("key_a").Requests
	ask(1)
	h.eventually("the next arrives", func() bool { return h.cp.sum("key_a").Requests > arrived })
	// Eight were asked in all, one of them in the interval that the kill may have taken.
	if u := h.cp.sum("key_a"); u.Requests < 7 || u.Requests > 8 || u.InputTokens != 3*u.Requests || u.OK != u.Requests {
		t.Errorf("%+v have arrived", u)
	}
}
