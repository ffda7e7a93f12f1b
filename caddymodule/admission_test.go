package caddymodule

import (
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
	"github.com/levelrail/levelrail/caddymodule/link"
	"github.com/levelrail/levelrail/client/wire"
)

// status sends a request and hands its status over when it is there; 0: there was no answer.
func (h *host) status(key, body string) <-chan int {
	got := make(chan int, 1)
	req := h.request("POST", chatPath, body, "Authorization", "Bearer "+key)
	go func() {
		resp, err := httpClient.Do(req)
		if err != nil {
			got <- 0
			return
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		got <- resp.StatusCode
	}()
	return got
}

// TestQueueIsFair: an engine works on one request at a time. While a key has twenty, another key's one is next, each waits in the
// gateway and not in the engine, is seen to wait, and a client that leaves is gone from the queue.
func TestQueueIsFair(t *testing.T) {
	h := newHost(t)
	other := h.cp.newKey("key_b", "chat")
	h.limited(levelrail.KeyLimits{}, func(r *wire.Route) { r.Parallel, r.Limits.QueueWaitSeconds = 1, 20 })
	h.eventually("the other key is known", func() bool { _, ok := h.table().Key(hashOf(other)); return ok })
	entered, leave := make(chan struct{}, 64), make(chan struct{})
	h.engine.on(func(w http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		<-leave
		io.WriteString(w, "{}")
	})
	many := []<-chan int{h.status(h.key, chatBody)}
	<-entered
	for len(many) < 20 {
		many = append(many, h.status(h.key, chatBody))
	}
	h.eventually("nineteen wait", func() bool { return h.inState("queued") == 19 })
	conn, err := net.Dial("tcp", "127.0.0.1:"+h.port)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\nX-Request-Id: leaver\r\n\r\n%s", chatPath, other, len(chatBody), chatBody)
	h.eventually("it waits, too", func() bool { return h.inState("queued") == 20 })
	conn.Close()
	if r := h.recordOf("leaver"); r["end"] != "client_gone" {
		t.Errorf("%v", r)
	}
	h.eventually("it is gone from the queue", func() bool { return h.inState("queued") == 19 })

	one := h.status(other, chatBody)
	h.eventually("the other key waits", func() bool { return h.inState("queued") == 20 })
	if n := len(h.engine.requests()); n != 1 {
		t.Errorf("the engine has been given %d at once", n)
	}
	for range 2 { // the one that is served, and at most one before the other key's
		leave <- struct{}{}
		<-entered
	}
	leave <- struct{}{}
	if got := <-one; got != 200 {
		t.Errorf("the other key's got %d", got)
	}
	close(leave)
	for _, c := range many {
		if got := <-c; got != 200 {
			t.Errorf("one of the many got %d", got)
		}
	}
	h.eventually("all is free", func() bool { return pooledSlots("chat") == 0 })
}

// TestQueueEnds: what finds no slot in time is told to come again, with the true wait where that is asked for; so is, at once,
// whoever is over a limit of the key's.
func TestQueueEnds(t *testing.T) {
	h := newHost(t)
	h.limited(levelrail.KeyLimits{RPM: 2}, func(r *wire.Route) {
		r.Limits.MaxInflight, r.Limits.QueueWaitSeconds, r.Limits.RetryAfterExact = 1, 2, true
	})
	entered, leave := make(chan struct{}, 8), make(chan struct{})
	h.engine.on(blockUntil(entered, leave))
	first := h.status(h.key, chatBody)
	<-entered
	began := time.Now()
	resp, body := h.do("POST", chatPath, chatBody)
	h.refused(resp, body, 429, "rate_limit_exceeded")
	if took := time.Since(began); took < 1900*time.Millisecond || took > 8*time.Second || resp.Header.Get("Retry-After") != "2" && resp.Header.Get("Retry-After") != "3" {
		t.Errorf("after %s: %v", took, resp.Header)
	}
	if used := h.usedOf("rpm"); used != 1 {
		t.Errorf("waiting has cost %d requests", used-1)
	}
	h.limited(levelrail.KeyLimits{RPM: 1}, func(r *wire.Route) { r.Limits.MaxInflight, r.Limits.QueueWaitSeconds = 1, 60 })
	began = time.Now()
	resp, body = h.do("POST", chatPath, chatBody)
	h.refused(resp, body, 429, "rate_limit_exceeded")
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("who is over a limit is told so after %s", took)
	}
	close(leave)
	if got := <-first; got != 200 {
		t.Errorf("the first got %d", got)
	}
}

// TestRevokedNow: a key's revocation ends what it has under way, whatever that is doing; other keys' requests go on.
func TestRevokedNow(t *testing.T) {
	h := newHost(t)
	other := h.cp.newKey("key_b", "chat")
	h.limited(levelrail.KeyLimits{}, func(r *wire.Route) { r.Limits.MaxInflight, r.Limits.QueueWaitSeconds = 2, 60 })
	h.eventually("the other key is known", func() bool { _, ok := h.table().Key(hashOf(other)); return ok })
	s := newScript()
	h.engine.on(s.serve)
	resp, err := httpClient.Do(h.request("POST", chatPath, streamBody))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	<-s.started
	s.pieces <- engineChunk
	if _, err := io.ReadFull(resp.Body, make([]byte, len(engineChunk))); err != nil {
		t.Fatal(err)
	}
	entered, leave := make(chan struct{}, 8), make(chan struct{})
	h.engine.on(blockUntil(entered, leave))
	theirs := h.status(other, chatBody)
	<-entered
	waits := h.status(h.key, chatBody)
	h.eventually("one waits", func() bool { return h.inState("queued") == 1 })
	conn, err := net.Dial("tcp", "127.0.0.1:"+h.port)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 1000\r\nX-Request-Id: half\r\n\r\n{", chatPath, h.key)
	h.eventually("one is read", func() bool { return h.inState("reading") == 1 })

	h.cp.revoke("key_a")
	h.eventually("the key is refused", func() bool {
		_, ok := h.table().Key(hashOf(h.key))
		return !ok
	})
	if a := h.ask(wire.Question{Ask: wire.AskRevoke, KeyID: "key_a"}); a.Ended != 3 {
		t.Errorf("%d requests are ended, want a stream, one that waits and one that is read", a.Ended)
	}
	if rest, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("the stream ends cleanly after %q", rest)
	}
	h.engine.leftWithin(t, time.Second)
	if got := <-waits; got != 401 {
		t.Errorf("the one that waited got %d", got)
	}
	if r := h.recordOf("half"); r["status"] != 401.0 || r["end"] != "cancelled" {
		t.Errorf("the one that was read: %v", r)
	}
	close(leave)
	if got := <-theirs; got != 200 {
		t.Errorf("the other key's got %d", got)
	}
	h.eventually("all is free", func() bool { return pooledSlots("chat") == 0 })
}

// TestRefusesWhenStale: a gateway that starts with routes and keys that are too old answers 503 and says why, never 401, and
// serves as soon as the control plane is there.
func TestRefusesWhenStale(t *testing.T) {
	h := newHost(t)
	h.limited(levelrail.KeyLimits{}, func(r *wire.Route) { r.Limits.MaxStaleSeconds = 3600 })
	h.stop()
	h.cp.stop()
	old := time.Now().Add(-2 * time.Hour)
	text, err := os.ReadFile(h.tableFile())
	if err != nil {
		t.Fatal(err)
	}
	head, rest, _ := strings.Cut(string(text), "\n")
	at := strings.Index(head, `"saved_at":"`)
	if at < 0 {
		t.Fatal(head)
	}
	head = head[:at] + `"saved_at":"` + old.UTC().Format(time.RFC3339) + `"}}`
	if err := os.WriteFile(h.tableFile(), []byte(head+"\n"+rest), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(filepath.Join(filepath.Dir(h.tableFile()), link.HeardFile), old, old); err != nil {
		t.Fatal(err)
	}
	h.load()
	for _, key := range []string{h.key, "lr-no-such-key"} {
		resp, body := h.do("POST", chatPath, chatBody, "Authorization", "Bearer "+key)
		h.refused(resp, body, 503, "gateway_stale")
		if resp.Header.Get("X-Should-Retry") != "false" {
			t.Errorf("%v", resp.Header)
		}
	}
	if resp, body := h.do("GET", "/health", ""); resp.StatusCode != 503 || !strings.Contains(body, "stale") {
		t.Errorf("a load balancer is told %d %s", resp.StatusCode, body)
	}
	h.cp.start()
	h.settled()
	if resp, body := h.do("POST", chatPath, chatBody); resp.StatusCode != 200 {
		t.Errorf("connected again: %d %s", resp.StatusCode, body)
	}
}
