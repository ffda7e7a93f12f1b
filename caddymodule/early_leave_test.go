package caddymodule

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// TestLeavingEarlyIsNotFree: limits on tokens bind for a client that always leaves before an answer says what it cost: before
// the answer begins, after its first token, in a stream that said what the prompt costs and not yet the rest, and where the
// engine does not say it at all. What an engine refuses costs nothing, and what an answer says counts as it says.
func TestLeavingEarlyIsNotFree(t *testing.T) {
	h := newHost(t)
	prompt := strings.Repeat("word ", 800) // about 1000 tokens
	stream := func(events ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, strings.Join(events, ""))
			http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
	}
	whole := func(status int, kind, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.WriteHeader(status)
			io.WriteString(w, body)
		}
	}
	started := make(chan struct{}, 1)
	silent := func(w http.ResponseWriter, r *http.Request) { started <- struct{}{}; <-r.Context().Done() }
	begun := `data: {"type":"message_start","message":{"usage":{"input_tokens":700,"output_tokens":1}}}` + "\n\n"
	for name, c := range map[string]struct {
		serve       http.HandlerFunc
		read        int // bytes of the answer before the client leaves; -1: it leaves before; -2: it stays
		least, most int64
		estimated   bool
	}{
		"before the answer":       {silent, -1, 1000, 1050, true},
		"after a token":           {stream(engineChunk, engineChunk), 2 * len(engineChunk), 1002, 1052, true},
		"after the prompt's cost": {stream(begun, engineChunk, engineChunk), len(begun) + 2*len(engineChunk), 703, 703, true},
		"of Ollama's zeros":       {stream(strings.Replace(engineChunk, `}]}`, `}],"usage":{"prompt_tokens":0,"completion_tokens":0}}`, 1)), 20, 1001, 1051, true},
		"an answer without usage": {whole(200, "application/json", `{"data":[]}`), -2, 1000, 1050, true},
		"an answer with usage":    {whole(200, "application/json", `{"usage":{"prompt_tokens":300},"data":[`+strings.Repeat("[0.1],", 20000)+`1]}`), -2, 300, 300, false},
		"a refusal":               {whole(400, "application/json", `{"error":{"message":"no"}}`), -2, 0, 0, false},
		"an engine's failure":     {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, -2, 0, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			h.t = t
			h.limited(levelrail.KeyLimits{TPD: 1 << 40}, func(r *wire.Route) { r.Engine, r.Limits.UsageStream = "ollama", "limited" })
			before := h.usedOf("tpd")
			h.engine.on(c.serve)
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			id := "early-" + strings.NewReplacer(" ", "-", "'", "").Replace(name)
			req := h.request("POST", chatPath, `{"model":"chat","stream":true,"messages":[{"role":"user","content":"`+prompt+`"}]}`, "X-Request-Id", id).WithContext(ctx)
			if c.read == -1 {
				go func() { <-started; leave() }()
			}
			resp, err := httpClient.Do(req)
			if (err == nil) == (c.read == -1) {
				t.Fatal(err)
			}
			if c.read >= 0 {
				if _, err := io.ReadFull(resp.Body, make([]byte, c.read)); err != nil {
					t.Fatal(err)
				}
				leave()
			}
			if err == nil {
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
			r := h.recordOf(id)
			if used := h.usedOf("tpd") - before; used < c.least || used > c.most || (r["estimated_tokens"] != nil) != c.estimated || c.estimated && r["estimated_tokens"] != float64(used) {
				t.Errorf("%d tokens are charged, want %d to %d; recorded as %v", used, c.least, c.most, r)
			}
		})
	}
	h.t = t
	// The limit binds in the end.
	h.limited(levelrail.KeyLimits{TPM: 5000}, nil)
	for i := 0; ; i++ {
		h.engine.on(silent)
		ctx, leave := context.WithCancel(t.Context())
		id := fmt.Sprintf("again-%d", i)
		go func() {
			select {
			case <-started:
				leave()
			case <-ctx.Done():
			}
		}()
		resp, err := httpClient.Do(h.request("POST", chatPath, `{"model":"chat","prompt":"`+prompt+`"}`, "X-Request-Id", id).WithContext(ctx))
		leave()
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode != 429 {
				t.Fatal(resp.Status)
			}
			if i < 1 || i > 5 {
				t.Errorf("it was refused after %d requests of 1000 tokens against 5000", i)
			}
			break
		}
		h.recordOf(id)
		if i > 20 {
			t.Fatal("the limit does not bind")
		}
	}
}
