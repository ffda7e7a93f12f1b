package caddymodule

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestEarlyAnswers: an answer that needs no body comes at once, whether the client waits for leave to send, trickles, or
// sends on; and it says that the connection ends.
func TestEarlyAnswers(t *testing.T) {
	h := newHost(t)
	r := h.route("small")
	r.Limits.MaxBodyBytes = 1000
	h.cp.putRoute(r)
	small := h.cp.newKey("key_small", "small")
	h.caughtUp()
	for _, c := range []struct {
		name, method, path, key string
		status                  int
	}{
		{"401", "POST", chatPath, "wrong", 401},
		{"404", "POST", "/v1/nothing", h.key, 404},
		{"405", "PUT", chatPath, h.key, 405},
		{"413", "POST", chatPath, small, 413},
		{"200", "GET", "/v1/models", h.key, 200},
	} {
		for _, body := range []struct{ name, headers, sent string }{
			{"waits", "Content-Length: 100000\r\nExpect: 100-continue\r\n", ""},
			{"trickles", "Content-Length: 100000\r\n", "{"},
			{"stands still", "Content-Length: 100000\r\n", ""},
			{"chunked", "Transfer-Encoding: chunked\r\n", ""},
			{"sends much", "Content-Length: 100000\r\n", strings.Repeat("x", 50000)},
		} {
			if c.name == "413" && body.name == "chunked" {
				continue // its size is not known yet
			}
			began := time.Now()
			resp, text := h.raw(5*time.Second, fmt.Sprintf("%s %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n%s\r\n%s", c.method, c.path, c.key, body.headers, body.sent))
			if took := time.Since(began); resp.StatusCode != c.status || took > time.Second {
				t.Errorf("%s, client %s: %d %s after %s", c.name, body.name, resp.StatusCode, text, took)
			}
			if !resp.Close {
				t.Errorf("%s, client %s: the connection stays open with a body unread", c.name, body.name)
			}
		}
	}
	// Without a body there is nothing unread, and the connection stays.
	resp, _ := h.raw(5*time.Second, "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
	if resp.StatusCode != 401 || resp.Close {
		t.Errorf("a refused GET: %d, close %v", resp.StatusCode, resp.Close)
	}
}

// TestEarlyAnswerIsReceived: a client in the middle of sending a large body gets the refusal, and no reset instead.
func TestEarlyAnswerIsReceived(t *testing.T) {
	h := newHost(t)
	for range 5 {
		conn, err := net.Dial("tcp", "127.0.0.1:"+h.port)
		if err != nil {
			t.Fatal(err)
		}
		conn.SetDeadline(time.Now().Add(10 * time.Second))
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer wrong\r\nContent-Length: %d\r\n\r\n", chatPath, 8<<20)
		piece := make([]byte, 64<<10)
		for range 128 { // all of it, without looking for an answer
			if _, err := conn.Write(piece); err != nil {
				t.Errorf("sending: %v", err)
				break
			}
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("the refusal got lost: %v", err)
		}
		if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 401 || errorCode(string(body)) != "invalid_api_key" {
			t.Errorf("%d %s %v", resp.StatusCode, body, err)
		}
		conn.Close()
	}
}

// TestBodyCap: a body of exactly the cap passes, one byte more does not, with and without a length.
func TestBodyCap(t *testing.T) {
	h := newHost(t)
	r := h.route("chat")
	r.Limits.MaxBodyBytes = 100 << 10
	h.cp.putRoute(r)
	body := func(n int) string {
		const frame = `{"model":"chat","x":""}`
		return `{"model":"chat","x":"` + strings.Repeat("y", n-len(frame)) + `"}`
	}
	h.caughtUp()
	for _, c := range []struct {
		size   int
		status int
	}{{100 << 10, 200}, {100<<10 + 1, 413}, {1 << 20, 413}} {
		for _, chunked := range []bool{false, true} {
			before := len(h.engine.requests())
			req := h.request("POST", chatPath, body(c.size))
			if chunked {
				req.ContentLength = -1
			}
			resp, err := httpClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode != c.status {
				t.Errorf("%d bytes, chunked %v: %d %s, want %d", c.size, chunked, resp.StatusCode, text, c.status)
			}
			if got := len(h.engine.requests()) - before; got != map[int]int{200: 1}[c.status] {
				t.Errorf("%d bytes, chunked %v: the engine saw %d requests", c.size, chunked, got)
			}
		}
	}
	if n := pooledSlots("chat"); n != 0 {
		t.Errorf("%d slots are still taken", n)
	}
}

// TestStalledBody: a client that stops in the middle of its body gets 408 and gives its slot back.
func TestStalledBody(t *testing.T) {
	h := newHost(t, "read_body_idle 30s", "read_body_idle 300ms")
	resp, body := h.raw(5*time.Second, fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 1000\r\n\r\n{", chatPath, h.key))
	if resp.StatusCode != 408 || errorCode(body) != "request_timeout" || !resp.Close {
		t.Errorf("%d %s, close %v", resp.StatusCode, body, resp.Close)
	}
	h.eventually("the slot is free", func() bool { return pooledSlots("chat") == 0 })
	// One that leaves in the middle is nobody's fault and reaches no engine.
	conn, err := net.Dial("tcp", "127.0.0.1:"+h.port)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nX-Request-Id: leaver\r\nContent-Length: 1000\r\n\r\n{", chatPath, h.key)
	h.eventually("its body is read", func() bool { return h.inState("reading") == 1 })
	conn.Close()
	if r := h.recordOf("leaver"); r["end"] != "client_gone" || r["status"] != 499.0 {
		t.Errorf("recorded as %v", r)
	}
	h.eventually("the slot is free", func() bool { return pooledSlots("chat") == 0 })
	if n := len(h.engine.requests()); n != 0 {
		t.Errorf("the engine saw %d requests", n)
	}
}
