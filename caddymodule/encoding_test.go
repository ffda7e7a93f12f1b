package caddymodule

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/levelrail/levelrail"
)

// TestUnreadableEncodings: an answer in an encoding that the gateway cannot read, which it never asks for, reaches the client
// byte for byte with the name of its encoding, and counts as a request whose usage is not known.
func TestUnreadableEncodings(t *testing.T) {
	h := newHost(t)
	h.put("vllm", "always", levelrail.KeyLimits{TPM: 1 << 40})
	coded := append([]byte{0x0b, 0x80, 0, '\r', '\n', 0xff}, bytes.Repeat([]byte(`"usage":{"prompt_tokens":1}`+"\n\ndata: {\x00"), 5000)...)
	id := 0
	for _, encoding := range []string{"br", "zstd", "BR", "gzip, br", "compress", "x-unknown"} {
		for _, kind := range []string{"application/json", "text/event-stream"} {
			h.engine.on(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", kind)
				w.Header().Set("Content-Encoding", encoding)
				w.Write(coded)
			})
			id++
			request, where := fmt.Sprint("coded-", id), encoding+" "+kind
			before := h.cp.sum("key_a")
			req := h.request("POST", chatPath, `{"model":"chat","stream":true,"messages":[]}`, "X-Request-Id", request)
			req.Header.Set("Accept-Encoding", "gzip, br, zstd")
			resp, err := httpClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode != 200 || resp.Header.Get("Content-Encoding") != encoding || !bytes.Equal(body, coded) {
				t.Errorf("%s: status %d, encoding %q, %d bytes of %d, %v", where, resp.StatusCode, resp.Header.Get("Content-Encoding"), len(body), len(coded), err)
			}
			if seen := h.engine.requests(); seen[len(seen)-1].header.Get("Accept-Encoding") != "identity" {
				t.Errorf("%s: the engine was asked for %q", where, seen[len(seen)-1].header.Get("Accept-Encoding"))
			}
			if r := h.recordOf(request); r["end"] != "complete" || r["bytes"] != float64(len(coded)) || r["input_tokens"] != nil {
				t.Errorf("%s: recorded %v", where, r)
			}
			h.eventually(where+" is counted", func() bool { return h.cp.sum("key_a").Requests == before.Requests+1 })
			if got := h.cp.sum("key_a"); got.OK != before.OK+1 || got.WithUsage != before.WithUsage || got.InputTokens != before.InputTokens {
				t.Errorf("%s: counted %+v, before %+v", where, got, before)
			}
		}
	}
}
