package caddymodule

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// TestPatience: a stream that waits for a slot, or for an engine that says nothing yet, or nothing more, gets comments between its
// events, and then what it would have got; an error then comes as an event; what is no stream gets its status and not a byte before.
func TestPatience(t *testing.T) {
	h := newHost(t)
	h.limited(levelrail.KeyLimits{}, func(r *wire.Route) {
		r.Limits.KeepAliveSeconds, r.Limits.QueueWaitSeconds, r.Limits.MaxInflight, r.Limits.IdleTimeout, r.Limits.HeaderTimeout = 1, 3, 1, 3, 3
	})
	send := func(body string) (*http.Response, *bufio.Reader) {
		t.Helper()
		resp, err := httpClient.Do(h.request("POST", chatPath, body))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		return resp, bufio.NewReader(resp.Body)
	}
	all := func(r io.Reader) string {
		b, _ := io.ReadAll(r)
		return string(b)
	}

	// An engine that is silent before its headers, and between two events.
	release := make(chan struct{})
	h.engine.on(func(w http.ResponseWriter, r *http.Request) {
		<-release
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: {\"a\":1}\n\n")
		http.NewResponseController(w).Flush()
		<-release
		io.WriteString(w, "data: [DONE]\n\n")
	})
	resp, r := send(streamBody)
	if line, _ := r.ReadString('\n'); resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" || line != ": waiting\n" {
		t.Fatalf("%d %v %q", resp.StatusCode, resp.Header, line)
	}
	release <- struct{}{}
	for line := ""; line != "data: {\"a\":1}\n"; {
		var err error
		if line, err = r.ReadString('\n'); err != nil || line != "\n" && line != ": waiting\n" && !strings.HasPrefix(line, "data") {
			t.Fatalf("%q %v", line, err)
		}
	}
	if end, line := first(r), first(r); end != "\n" || line != ": waiting\n" {
		t.Errorf("between two events: %q %q", end, line)
	}
	release <- struct{}{}
	if rest := all(r); !strings.HasSuffix(rest, "\n\ndata: [DONE]\n\n") && rest != "\ndata: [DONE]\n\n" {
		t.Errorf("then %q", rest)
	}

	// Its refusal is told in the shape that clients know.
	h.engine.on(func(w http.ResponseWriter, r *http.Request) {
		<-release
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(400)
		io.WriteString(w, "{\"error\": {\n\"code\":400,\"message\":\"too long\"}}")
	})
	resp, r = send(streamBody)
	release <- struct{}{}
	if text := all(r); resp.StatusCode != 200 || !strings.HasPrefix(text, ": waiting\n\n") || !strings.HasSuffix(text, `data: {"error":{"message":"too long","type":"invalid_request_error","param":null,"code":null}}`+"\n\n") {
		t.Errorf("%d %q", resp.StatusCode, text)
	}

	// Silence is still bounded, before the headers and after.
	h.engine.on(func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	_, r = send(streamBody)
	if text := all(r); strings.Count(text, ": waiting\n\n") < 2 || !strings.Contains(text, `"code":"engine_timeout"`) {
		t.Errorf("an engine that never begins: %q", text)
	}
	resp, r = send(chatBody)
	if text := all(r); resp.StatusCode != 504 || errorCode(text) != "engine_timeout" || resp.Header.Get("X-Should-Retry") != "false" {
		t.Errorf("without a stream: %d %q %v", resp.StatusCode, text, resp.Header)
	}
	s := newScript()
	h.engine.on(s.serve)
	_, r = send(streamBody)
	<-s.started
	began := time.Now()
	if text := all(r); !strings.Contains(text, `"code":"engine_timeout"`) || time.Since(began) < 2500*time.Millisecond || time.Since(began) > 10*time.Second {
		t.Errorf("an engine that falls silent: %q after %s", text, time.Since(began))
	}

	// Who waits for a slot.
	entered, leave := make(chan struct{}, 8), make(chan struct{})
	h.engine.on(blockUntil(entered, leave))
	h.limited(levelrail.KeyLimits{}, func(r *wire.Route) {
		r.Limits.KeepAliveSeconds, r.Limits.QueueWaitSeconds, r.Limits.MaxInflight = 1, 2, 1
	})
	holds := h.status(h.key, chatBody)
	<-entered
	resp, r = send(streamBody)
	if text := all(r); resp.StatusCode != 200 || !strings.HasPrefix(text, ": waiting\n\n") || !strings.Contains(text, "data: {\"error\"") || !strings.Contains(text, "rate_limit_exceeded") {
		t.Errorf("a stream that waits: %d %q", resp.StatusCode, text)
	}
	resp, r = send(chatBody)
	if text := all(r); resp.StatusCode != 429 || strings.Contains(text, "waiting") || resp.Header.Get("Retry-After") != "5" {
		t.Errorf("without a stream: %d %q", resp.StatusCode, text)
	}
	close(leave)
	if got := <-holds; got != 200 {
		t.Errorf("the one that is served got %d", got)
	}
	h.eventually("all is free", func() bool { return pooledSlots("chat") == 0 })
}

func first(r *bufio.Reader) string {
	line, _ := r.ReadString('\n')
	return line
}
