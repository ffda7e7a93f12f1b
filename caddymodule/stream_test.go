package caddymodule

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

const streamBody = `{"model":"chat","stream":true,"messages":[]}`

// h2Client speaks HTTP/2 without TLS, which the test's configuration allows beside HTTP/1.1.
func h2Client(t *testing.T) *http.Client {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: p, TLSClientConfig: &tls.Config{}}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 20 * time.Second}
}

// each runs a test over HTTP/1.1 and HTTP/2.
func (h *host) each(f func(t *testing.T, c *http.Client, proto int)) {
	whole := h.t
	defer func() { h.t = whole }()
	whole.Run("h1", func(t *testing.T) { h.t = t; f(t, httpClient, 1) })
	whole.Run("h2", func(t *testing.T) { h.t = t; f(t, h2Client(t), 2) })
}

// script is an engine that streams pieces, each when the test says so.
type script struct {
	pieces  chan string // closing it ends the stream properly
	started chan struct{}
}

func newScript() *script {
	return &script{pieces: make(chan string), started: make(chan struct{}, 8)}
}

func (s *script) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.WriteHeader(200)
	rc := http.NewResponseController(w)
	rc.Flush()
	s.started <- struct{}{}
	for {
		select {
		case p, more := <-s.pieces:
			if !more {
				return
			}
			if p == cut {
				panic(http.ErrAbortHandler)
			}
			io.WriteString(w, p)
			rc.Flush()
		case <-r.Context().Done():
			return
		}
	}
}

const cut = "the engine dies"

// TestStream: the headers come before the first token, each piece when it is written, and the bytes are the engine's own:
// comments, line ends, split events and a last line without an end.
func TestStream(t *testing.T) {
	h := newHost(t)
	h.each(func(t *testing.T, c *http.Client, proto int) {
		s := newScript()
		h.engine.on(s.serve)
		resp, err := c.Do(h.request("POST", chatPath, streamBody, "X-Request-Id", fmt.Sprintf("stream-%d", proto)))
		if err != nil {
			t.Fatal(err) // the client would time out if headers waited for a token
		}
		defer resp.Body.Close()
		if resp.ProtoMajor != proto || resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream; charset=utf-8" || resp.Header.Get("X-Accel-Buffering") != "no" ||
			!strings.Contains(resp.Header.Get("Cache-Control"), "no-cache") || resp.Header.Get("Content-Encoding") != "" {
			t.Errorf("HTTP/%d %d %v", resp.ProtoMajor, resp.StatusCode, resp.Header)
		}
		for _, piece := range []string{": ping\n\n", ":\r\n\r\n", "event: x\nid: 7\r\n", `data: {"choices":[{"del`, `ta":{"content":"a`, "\xe4\xbd", "\xa0" + `"}}]}` + "\n\n", "data:{\"no\":\"blank\"}\r\n\r\n",
			"data: a\ndata: b\n\n", "data: \"" + strings.Repeat("x", 200<<10) + "\"\n\n", "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":22}}\n\n", ": between\n\n", "data: [DONE]"} {
			s.pieces <- piece
			got := make([]byte, len(piece))
			if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != piece {
				t.Fatalf("wrote %.40q, read %.40q %v", piece, got, err)
			}
		}
		close(s.pieces)
		if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) != 0 {
			t.Errorf("after the end: %q %v", rest, err)
		}
		if r := h.recordOf(fmt.Sprintf("stream-%d", proto)); r["end"] != "complete" || r["input_tokens"] != 11.0 || r["output_tokens"] != 22.0 {
			t.Errorf("recorded as %v", r)
		}
	})
}

// TestCancel is case C015: a client that leaves ends the engine's request within a second and frees its slot, in a stream,
// while a whole answer is awaited, and by a reset.
func TestCancel(t *testing.T) {
	h := newHost(t)
	h.each(func(t *testing.T, c *http.Client, proto int) {
		s := newScript()
		h.engine.on(s.serve)
		ctx, leave := context.WithCancel(t.Context())
		resp, err := c.Do(h.request("POST", chatPath, streamBody, "X-Request-Id", fmt.Sprintf("cancel-%d", proto)).WithContext(ctx))
		if err != nil {
			t.Fatal(err)
		}
		read := bufio.NewReader(resp.Body)
		for range 3 {
			s.pieces <- "data: {}\n\n"
			if _, err := read.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
			read.ReadString('\n')
		}
		leave()
		h.engine.leftWithin(t, time.Second)
		resp.Body.Close()
		if r := h.recordOf(fmt.Sprintf("cancel-%d", proto)); r["end"] != "client_gone" || r["status"] != 200.0 {
			t.Errorf("the stream is recorded as %v", r)
		}

		entered := make(chan struct{}, 8)
		h.engine.on(blockUntil(entered, nil))
		ctx, leave = context.WithCancel(t.Context())
		failed := make(chan error)
		go func() {
			_, err := c.Do(h.request("POST", chatPath, chatBody, "X-Request-Id", fmt.Sprintf("cancel-whole-%d", proto)).WithContext(ctx))
			failed <- err
		}()
		<-entered
		leave()
		h.engine.leftWithin(t, time.Second)
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Errorf("the client got %v", err)
		}
		if r := h.recordOf(fmt.Sprintf("cancel-whole-%d", proto)); r["end"] != "client_gone" || r["status"] != 499.0 {
			t.Errorf("the whole answer is recorded as %v", r)
		}
		h.eventually("the slots are free", func() bool { return pooledSlots("chat") == 0 })
	})
	t.Run("reset", func(t *testing.T) {
		entered := make(chan struct{}, 8)
		h.engine.on(blockUntil(entered, nil))
		conn, err := net.Dial("tcp", "127.0.0.1:"+h.port)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", chatPath, h.key, len(chatBody), chatBody)
		<-entered
		conn.(*net.TCPConn).SetLinger(0)
		conn.Close()
		h.engine.leftWithin(t, time.Second)
		h.eventually("the slot is free", func() bool { return pooledSlots("chat") == 0 })
	})
}

// TestEngineDies: an engine that ends in the middle of its answer leaves a visible cut, never a clean end. Between events a
// last one says why.
func TestEngineDies(t *testing.T) {
	h := newHost(t)
	h.each(func(t *testing.T, c *http.Client, proto int) {
		for name, sent := range map[string]string{"between events": "data: {\"a\":1}\n\n", "within an event": "data: {\"a\":"} {
			s := newScript()
			h.engine.on(s.serve)
			id := fmt.Sprintf("dies-%d-%s", proto, strings.ReplaceAll(name, " ", "-"))
			resp, err := c.Do(h.request("POST", chatPath, streamBody, "X-Request-Id", id))
			if err != nil {
				t.Fatal(err)
			}
			s.pieces <- sent
			s.pieces <- cut
			got, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err == nil {
				t.Errorf("%s: a clean end after %q", name, got)
			}
			rest, _ := strings.CutPrefix(string(got), sent)
			if name == "between events" && !strings.HasPrefix(rest, `data: {"error":{"message":`) || name != "between events" && rest != "" {
				t.Errorf("%s: the stream ended with %q", name, rest)
			}
			if r := h.recordOf(id); r["end"] != "engine_gone" || r["status"] != 200.0 {
				t.Errorf("%s: recorded as %v", name, r)
			}
		}
		// A whole answer that breaks off is cut too.
		h.engine.on(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100000")
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, strings.Repeat("x", 50000))
			http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		})
		resp, err := c.Do(h.request("POST", chatPath, chatBody))
		if err == nil {
			_, err = io.ReadAll(resp.Body)
			resp.Body.Close()
		}
		if err == nil {
			t.Error("half a whole answer ended cleanly")
		}
	})
	h.eventually("the slots are free", func() bool { return pooledSlots("chat") == 0 })
}

// TestEngineErrorEvent: vLLM's dying words are an event, then a proper end. The bytes pass and the record says the truth.
func TestEngineErrorEvent(t *testing.T) {
	h := newHost(t)
	const words = "data: {\"choices\":[]}\n\ndata: {\"error\": {\"message\": \"EngineCore encountered an issue.\", \"type\": \"InternalServerError\", \"param\": null, \"code\": 500}}\n\ndata: [DONE]\n\n"
	h.engine.on(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, words)
	})
	resp, body := h.do("POST", chatPath, streamBody, "X-Request-Id", "words")
	if resp.StatusCode != 200 || body != words {
		t.Errorf("%d %q", resp.StatusCode, body)
	}
	if r := h.recordOf("words"); r["end"] != "engine_error" {
		t.Errorf("recorded as %v", r)
	}
}

// TestTimeouts: an engine that does not begin is 504, one that falls silent is cut, and one that keeps talking is not,
// however long it takes in all.
func TestTimeouts(t *testing.T) {
	h := newHost(t)
	r := h.route("chat")
	r.Limits.HeaderTimeout, r.Limits.IdleTimeout = 1, 1
	h.cp.putRoute(r)
	h.caughtUp()
	h.engine.on(blockUntil(make(chan struct{}, 1), nil))
	began := time.Now()
	resp, body := h.do("POST", chatPath, chatBody, "X-Request-Id", "header-timeout")
	h.refused(resp, body, 504, "engine_timeout")
	if took := time.Since(began); took < 900*time.Millisecond || took > 3*time.Second {
		t.Errorf("the header timeout came after %s", took)
	}
	h.engine.leftWithin(t, time.Second)
	if r := h.recordOf("header-timeout"); r["end"] != "header_timeout" || r["status"] != 504.0 {
		t.Errorf("recorded as %v", r)
	}

	s := newScript()
	h.engine.on(s.serve)
	resp, err := httpClient.Do(h.request("POST", chatPath, streamBody, "X-Request-Id", "gap"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	tick := time.NewTicker(250 * time.Millisecond) // the engine's pace: 1.5 s in all, each gap far below a second
	defer tick.Stop()
	for range 6 {
		<-tick.C
		s.pieces <- ": still here\n\n"
	}
	began = time.Now()
	got, err := io.ReadAll(resp.Body)
	if took := time.Since(began); err == nil || took < 800*time.Millisecond || took > 4*time.Second {
		t.Errorf("a silent engine: %v after %s", err, took)
	}
	if !strings.Contains(string(got), `"code":"engine_timeout"`) || strings.Count(string(got), "still here") != 6 {
		t.Errorf("the stream was %q", got)
	}
	h.engine.leftWithin(t, time.Second)
	if r := h.recordOf("gap"); r["end"] != "gap_timeout" {
		t.Errorf("recorded as %v", r)
	}
}

// TestUnreachable: an engine that is not there, drops the request, redirects, or does not take the gateway's key is an
// answer of the gateway's own, and the client is told when to come back.
func TestUnreachable(t *testing.T) {
	h := newHost(t)
	drop := func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }
	status := func(code int, header ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			for i := 0; i < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(code)
			io.WriteString(w, `{"error":{"message":"Invalid API Key","type":"authentication_error","code":401}}`)
		}
	}
	for _, c := range []struct {
		name   string
		engine http.HandlerFunc
		status int
		code   string
	}{
		{"drops", drop, 502, "engine_error"},
		{"refuses the key", status(401), 502, "engine_error"},
		{"forbids", status(403), 502, "engine_error"},
		{"redirects", status(307, "Location", "http://evil.example.com/"), 502, "engine_error"},
	} {
		h.engine.on(c.engine)
		resp, body := h.do("POST", chatPath, chatBody)
		h.refused(resp, body, c.status, c.code)
		if resp.Header.Get("Location") != "" {
			t.Errorf("%s: a redirect passed", c.name)
		}
	}
	h.engine.on(status(503))
	if resp, body := h.do("POST", chatPath, chatBody); resp.StatusCode != 503 || resp.Header.Get("Retry-After") != "5" || !strings.Contains(body, "Invalid API Key") {
		t.Errorf("an engine's own 503: %d %v %s", resp.StatusCode, resp.Header, body)
	}
	h.engine.on(status(422))
	if resp, _ := h.do("POST", chatPath, chatBody); resp.StatusCode != 422 {
		t.Errorf("an engine's refusal: %d", resp.StatusCode)
	}
	h.engine.server.Close()
	resp, body := h.do("POST", chatPath, chatBody, "X-Request-Id", "down")
	h.refused(resp, body, 503, "model_unavailable")
	if resp.Header.Get("Retry-After") != "5" {
		t.Errorf("Retry-After %q", resp.Header.Get("Retry-After"))
	}
	if r := h.recordOf("down"); r["end"] != "dial_failed" {
		t.Errorf("recorded as %v", r)
	}
	h.engine.on(nil)
	h.engine.listen(t)
	if resp, body := h.do("POST", chatPath, chatBody); resp.StatusCode != 200 {
		t.Errorf("the engine is back: %d %s", resp.StatusCode, body)
	}
	if n := pooledSlots("chat"); n != 0 {
		t.Errorf("%d slots are still taken", n)
	}
}
