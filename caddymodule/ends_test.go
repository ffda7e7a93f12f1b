package caddymodule

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// mistaken is a handler before ours whose writer panics, quoting what it was given, once that holds the word mistake.
type mistaken struct{}

const mistake = "a mistake is made here"

func init() {
	caddy.RegisterModule(mistaken{})
	httpcaddyfile.RegisterHandlerDirective("mistaken", func(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) { return mistaken{}, nil })
}

func (mistaken) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.mistaken", New: func() caddy.Module { return new(mistaken) }}
}

func (mistaken) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	return next.ServeHTTP(mistakenWriter{&caddyhttp.ResponseWriterWrapper{ResponseWriter: w}}, r)
}

type mistakenWriter struct {
	*caddyhttp.ResponseWriterWrapper
}

func (w mistakenWriter) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(mistake)) {
		panic("cannot write " + string(p))
	}
	return w.ResponseWriterWrapper.Write(p)
}

// TestPanicInAStream: a mistake of the gateway's in the middle of a stream cuts it, never ends it cleanly; the engine is told, slots and counts
// come back, it is recorded and counted once as the server's failure, nothing of the body is logged, and the gateway serves on.
func TestPanicInAStream(t *testing.T) {
	h := newHost(t, "\tlevelrail\n}", "\troute {\n\t\tmistaken\n\t\tlevelrail\n\t}\n}")
	h.put("vllm", "asked", levelrail.KeyLimits{MaxParallel: 1, RPM: 1000})
	requests := int64(0)
	h.each(func(t *testing.T, c *http.Client, proto int) {
		s := newScript()
		h.engine.on(s.serve)
		id := fmt.Sprintf("mistake-%d", proto)
		resp, err := c.Do(h.request("POST", chatPath, streamBody, "X-Request-Id", id))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		s.pieces <- engineChunk
		if _, err := io.ReadFull(resp.Body, make([]byte, len(engineChunk))); err != nil {
			t.Fatal(err)
		}
		s.pieces <- "data: {\"secret words\":\"" + mistake + "\"}\n\n"
		if rest, err := io.ReadAll(resp.Body); err == nil {
			t.Errorf("the stream ends cleanly after %q", rest)
		}
		h.engine.leftWithin(t, time.Second)
		if r := h.recordOf(id); r["end"] != "panic" || r["status"] != 200.0 || r["bytes"] == 0.0 {
			t.Errorf("recorded as %v", r)
		}
		h.eventually("the slots are free", func() bool { return pooledSlots("chat") == 0 && h.usedOf("max_parallel") == 0 })
		if n := len(h.ask(wire.Question{Ask: wire.AskRequests, Model: "chat"}).Requests); n != 0 {
			t.Errorf("%d are in flight", n)
		}
		h.engine.on(nil)
		if resp, body := h.do("POST", chatPath, chatBody); resp.StatusCode != 200 {
			t.Errorf("after it: %d %s", resp.StatusCode, body)
		}
		requests += 2
	})
	h.eventually("both are counted", func() bool { return h.cp.sum("key_a").Requests >= requests })
	if got := h.cp.sum("key_a"); got.Requests != requests || got.ServerErrors != requests/2 || got.OK != requests/2 || got.Aborted != 0 {
		t.Errorf("usage: %+v", got)
	}
	if n := h.usedOf("rpm"); n != requests {
		t.Errorf("%d of %d are charged", n, requests)
	}
	if log := h.log(); strings.Contains(log, "secret words") || strings.Contains(log, mistake) || !strings.Contains(log, "the gateway made a mistake") {
		t.Errorf("the log holds what was written, or nothing of the mistake:\n%s", log)
	}
}

// TestReloadWhileHeld: a request that is held for a sleeping model lives through reloads, is served by the old configuration when the model is
// loaded, and frees what it held; a held one that leaves after a reload frees it too.
func TestReloadWhileHeld(t *testing.T) {
	h := newHost(t)
	h.each(func(t *testing.T, c *http.Client, proto int) {
		h.limited(levelrail.KeyLimits{MaxParallel: 2}, asleep(60))
		ask := func(ctx context.Context) chan string {
			got := make(chan string, 1)
			go func() {
				resp, err := c.Do(h.request("POST", chatPath, chatBody).WithContext(ctx))
				if err != nil {
					got <- "left"
					return
				}
				b, _ := io.ReadAll(resp.Body)
				resp.Body.Close()
				got <- resp.Status[:3] + errorCode(string(b))
			}()
			return got
		}
		stays := ask(t.Context())
		ctx, leave := context.WithCancel(t.Context())
		leaves := ask(ctx)
		h.eventually("both are held", func() bool { return h.holds() == 2 })
		h.load()
		h.changes = append(h.changes, "idle 2m", "idle 4m")
		h.load()
		h.changes = h.changes[:len(h.changes)-2]
		if n := h.holds(); n != 2 {
			t.Errorf("%d are held after reloads", n)
		}
		leave()
		if s := <-leaves; s != "left" {
			t.Errorf("the leaver got %s", s)
		}
		h.eventually("the leaver's slots are free", func() bool { return h.holds() == 1 && pooledSlots("chat") == 1 && h.usedOf("max_parallel") == 1 })
		h.say(serving)
		if s := <-stays; s != "200" {
			t.Errorf("the one that stayed got %s", s)
		}
		h.eventually("the slots are free", func() bool { return pooledSlots("chat") == 0 && h.usedOf("max_parallel") == 0 })
	})
}

// TestStalledReaderH2: a client that stops reading one stream over HTTP/2 is given up after the server's write timeout: the engine is told and its
// slot is free.
func TestStalledReaderH2(t *testing.T) {
	h := newHost(t, "write_idle 1m", "write_idle 1s")
	h.limited(levelrail.KeyLimits{MaxParallel: 1}, nil)
	h.engine.on(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for piece := "data: " + strings.Repeat("x", 30<<10) + "\n\n"; r.Context().Err() == nil; {
			if _, err := io.WriteString(w, piece); err != nil {
				return
			}
		}
	})
	c := dialH2(t, h.port)
	id := c.begin("POST", chatPath, "authorization", "Bearer "+h.key, "x-request-id", "stalled-h2")
	c.body(id, streamBody, true) // and no frame is read from now on
	h.engine.leftWithin(t, 8*time.Second)
	if r := h.recordOf("stalled-h2"); r["end"] != "client_gone" || r["status"] != 200.0 {
		t.Errorf("recorded as %v", r)
	}
	h.eventually("the slots are free", func() bool { return pooledSlots("chat") == 0 && h.usedOf("max_parallel") == 0 })
}

// TestCutOverHTTP10: over HTTP/1.0 a body ends where its connection does, so a cut has to be a reset, or a proxy in front that speaks it would
// take half an answer for a whole one.
func TestCutOverHTTP10(t *testing.T) {
	h := newHost(t)
	for name, sent := range map[string]string{"between events": engineChunk, "within an event": `data: {"choices":[{"del`} {
		s := newScript()
		h.engine.on(s.serve)
		conn, err := net.Dial("tcp", "127.0.0.1:"+h.port)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(5 * time.Second))
		fmt.Fprintf(conn, "POST %s HTTP/1.0\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", chatPath, h.key, len(streamBody), streamBody)
		s.pieces <- sent
		r := bufio.NewReader(conn)
		resp, err := http.ReadResponse(r, &http.Request{Method: "POST"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(resp.Body, make([]byte, len(sent))); err != nil {
			t.Fatal(err)
		}
		s.pieces <- cut
		if rest, err := io.ReadAll(resp.Body); err == nil {
			t.Errorf("%s: a clean end after %q", name, rest)
		}
	}
}

// TestTwoInstances is the upgrade of docs/decisions/0012: a second process of the same user takes the same address, the first is told to end; the
// stream that it has goes on to its own end, new connections are served all along, and both report what they have counted.
func TestTwoInstances(t *testing.T) {
	h := prepareHost(t, "grace_period 2s", "grace_period 20s")
	said := newNotify(t, filepath.Join(h.dir, "notify.sock"))
	old, oldEnded := h.process("NOTIFY_SOCKET=" + said.path)
	h.eventually("READY", func() bool { return said.count("READY=1") == 1 })
	s := newScript()
	h.engine.on(s.serve)
	resp, err := httpClient.Do(h.request("POST", chatPath, streamBody))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	r := bufio.NewReader(resp.Body)
	say := func(what string) {
		t.Helper()
		s.pieces <- "data: " + what + "\n\n"
		line, err := r.ReadString('\n')
		if rest, _ := r.ReadString('\n'); err != nil || line+rest != "data: "+what+"\n\n" {
			t.Fatalf("%s: %q %v", what, line+rest, err)
		}
	}
	say("before the upgrade")

	// The second instance has a state directory of its own, and the same control plane.
	second := &host{t: t, dir: filepath.Join(h.dir, "b"), port: h.port, cp: h.cp, engine: h.engine, key: h.key, changes: h.changes}
	if err := os.Mkdir(second.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	newSaid := newNotify(t, filepath.Join(second.dir, "notify.sock"))
	_, _ = second.process("NOTIFY_SOCKET=" + newSaid.path)
	h.eventually("READY of the second", func() bool { return newSaid.count("READY=1") == 1 })
	h.eventually("both follow the control plane", func() bool { return len(h.cp.watched()) == 2 })
	h.eventually("the second has heard all routes and keys", func() bool {
		text, _ := os.ReadFile(filepath.Join(second.dir, "caddy.log"))
		return bytes.Contains(text, []byte(`"connected to the control plane"`))
	})
	say("while both serve")
	old.Process.Signal(syscall.SIGTERM)
	h.eventually("STOPPING", func() bool { return said.count("STOPPING=1") == 1 })
	for i := range 50 {
		resp, err := httpClient.Do(h.request("GET", "/v1/models", ""))
		if err != nil {
			if i == 0 {
				continue // it stood in the queue of the listener that was just closed
			}
			t.Fatalf("request %d of those during the upgrade: %v", i, err)
		}
		resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Errorf("request %d of those during the upgrade: %s", i, resp.Status)
		}
	}
	say("while the first ends")
	select {
	case err := <-oldEnded:
		t.Fatalf("the first ended with a stream open: %v", err)
	default:
	}
	close(s.pieces)
	if rest, err := io.ReadAll(r); err != nil || len(rest) != 0 {
		t.Errorf("the stream's end: %q %v", rest, err)
	}
	select {
	case err := <-oldEnded:
		if err != nil {
			t.Errorf("the first ended with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the first does not end although its stream has")
	}
}
