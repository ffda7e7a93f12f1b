package caddymodule

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// told is what gateways say to a test's control plane besides usage.
type told struct {
	onWake   func(model string) int // called without the lock; returns a status, 0 for 204
	wakes    []string
	activity []wire.Activity
	seen     []wire.Seen
	answers  map[string]wire.Answer
	every    map[string][]wire.Answer // to a question that several gateways get
}

// gatewaySays takes what a gateway says.
func (c *controlPlane) gatewaySays(w http.ResponseWriter, r *http.Request) {
	decode := func(into any) bool {
		err := json.NewDecoder(r.Body).Decode(into)
		if err != nil {
			http.Error(w, err.Error(), 400)
		}
		return err == nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	status := http.StatusNoContent
	switch path := strings.TrimPrefix(r.URL.Path, "/api/v1/gateway/"); {
	case path == "wake":
		var wake wire.Wake
		if !decode(&wake) {
			return
		}
		c.wakes = append(c.wakes, wake.Model)
		if f := c.onWake; f != nil {
			c.mu.Unlock()
			status = max(f(wake.Model), http.StatusNoContent)
			c.mu.Lock()
		}
	case path == "activity":
		var a wire.Activity
		if !decode(&a) {
			return
		}
		c.activity = append(c.activity, a)
	case path == "seen":
		var s wire.Seen
		if !decode(&s) {
			return
		}
		c.seen = append(c.seen, s)
	case strings.HasPrefix(path, "answers/"):
		var a wire.Answer
		if !decode(&a) {
			return
		}
		if c.answers == nil {
			c.answers, c.every = map[string]wire.Answer{}, map[string][]wire.Answer{}
		}
		id := strings.TrimPrefix(path, "answers/")
		c.answers[id] = a
		c.every[id] = append(c.every[id], a)
	default:
		status = http.StatusNotFound
	}
	w.WriteHeader(status)
}

// wakesOf counts how often a model was asked for.
func (c *controlPlane) wakesOf(model string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.wakes {
		if m == model {
			n++
		}
	}
	return n
}

// lastActivity is the last that was said of a model.
func (c *controlPlane) lastActivity(model string) (last wire.ModelActivity, times int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.activity {
		for _, m := range a.Models {
			if m.Model == model {
				last, times = m, times+1
			}
		}
	}
	return last, times
}

// ask asks the gateway a question and waits for its answer.
func (h *host) ask(q wire.Question) (a wire.Answer) {
	h.t.Helper()
	q.ID = levelrail.NewID("q")
	h.cp.change(func() { h.cp.log = append(h.cp.log, putLine(wire.WatchQuestion, q.ID, q)) })
	h.eventually("the gateway answers "+q.Ask, func() (there bool) {
		h.cp.mu.Lock()
		defer h.cp.mu.Unlock()
		a, there = h.cp.answers[q.ID]
		return there
	})
	if a.GatewayID == "" {
		h.t.Errorf("an answer of nobody: %+v", a)
	}
	return a
}

// limited gives the host's key those limits and the model what edit says, and waits until the gateway has them.
func (h *host) limited(limits levelrail.KeyLimits, edit func(*wire.Route)) {
	h.t.Helper()
	r := h.route("chat")
	if edit != nil {
		edit(&r)
	}
	h.cp.putRoute(r)
	h.cp.mu.Lock()
	k := h.cp.keys["key_a"]
	h.cp.mu.Unlock()
	k.Limits = limits
	h.cp.putKey(k)
	h.eventually("the gateway has the new limits", func() bool {
		m, ok := h.table().Model("chat")
		key, there := h.table().Key(hashOf(h.key))
		return ok && there && key.Limits == limits && m.Limits == r.Limits && m.Engine == r.Engine && m.Asleep == r.Asleep && m.Serving == r.Serving
	})
}

// TestSeen: the control plane hears at once how far the gateway has come when a key is taken away, and at each start of a
// watch.
func TestSeen(t *testing.T) {
	h := newHost(t)
	said := func() string {
		h.cp.mu.Lock()
		defer h.cp.mu.Unlock()
		if len(h.cp.seen) == 0 || h.cp.seen[0].GatewayID != h.cp.hello.GatewayID {
			return ""
		}
		return h.cp.seen[len(h.cp.seen)-1].Token
	}
	h.eventually("the gateway says where it begins", func() bool { return said() == "lineage.1" })
	secret := h.cp.newKey("key_b", "chat")
	began := time.Now()
	h.cp.revoke("key_b")
	h.eventually("the gateway says that the key is gone", func() bool { return said() == "lineage.3" })
	if took := time.Since(began); took > time.Second {
		t.Errorf("it took %s", took)
	}
	if resp, _ := h.do("GET", "/v1/models", "", "Authorization", "Bearer "+secret); resp.StatusCode != 401 {
		t.Errorf("a key that is said to be gone: %d", resp.StatusCode)
	}
}

// TestQuestions: an operator sees what is in flight with its key, age and tokens so far, and where the limits of a key stand.
func TestQuestions(t *testing.T) {
	h := newHost(t)
	h.limited(levelrail.KeyLimits{RPM: 2, MaxParallel: 5, TPD: 1000}, nil)
	if a := h.ask(wire.Question{Ask: wire.AskRequests, Model: "chat"}); len(a.Requests) != 0 {
		t.Errorf("nothing is in flight: %+v", a)
	}
	s := newScript()
	h.engine.on(s.serve)
	resp, err := httpClient.Do(h.request("POST", chatPath, streamBody, "X-Request-Id", "watched-1"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for range 3 {
		s.pieces <- engineChunk
	}
	h.eventually("three events are counted", func() bool {
		a := h.ask(wire.Question{Ask: wire.AskRequests, Model: "chat"})
		return len(a.Requests) == 1 && a.Requests[0].Tokens == 3
	})
	a := h.ask(wire.Question{Ask: wire.AskRequests, Model: "chat"})
	if r := a.Requests[0]; r.ID != "watched-1" || r.GatewayID != a.GatewayID || r.KeyID != "key_a" || r.KeyPrefix != h.key[:8] || r.Route != chatPath || !r.Stream ||
		r.State != "answering" || r.Bytes == 0 || time.Since(r.StartedAt) > time.Minute {
		t.Errorf("%+v", r)
	}
	if a := h.ask(wire.Question{Ask: wire.AskRequests, Model: "other"}); len(a.Requests) != 0 {
		t.Errorf("another model's: %+v", a)
	}
	h.engine.on(nil)
	if resp, body := h.do("POST", chatPath, chatBody); resp.StatusCode != 200 {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	again, body := h.do("POST", chatPath, chatBody)
	h.refused(again, body, 429, "rate_limit_exceeded")
	a = h.ask(wire.Question{Ask: wire.AskExplain, Model: "chat", KeyID: "key_a"})
	got := map[string]wire.LimitState{}
	for _, l := range a.Limits {
		got[l.Limit] = l
	}
	if l := got["rpm"]; len(got) != 4 || l.Most != 2 || l.Used != 2 || l.RefusedLast == nil || time.Since(*l.RefusedLast) > time.Minute || l.ResetSeconds < 50 || l.ResetSeconds > 61 || l.GatewayID != a.GatewayID {
		t.Errorf("rpm: %+v", a.Limits)
	}
	if l := got["tpd"]; l.Used != 7 || l.RefusedLast != nil || l.ResetSeconds != 0 {
		t.Errorf("tpd: %+v", l)
	}
	if l, m := got["max_parallel"], got["model_inflight"]; l.Used != 1 || m.Used != 1 || m.Most != 32 {
		t.Errorf("in flight: %+v %+v", l, m)
	}
	if a := h.ask(wire.Question{Ask: wire.AskExplain, Model: "nothing", KeyID: "nobody"}); len(a.Limits) != 0 {
		t.Errorf("of nothing: %+v", a)
	}
	if a := h.ask(wire.Question{Ask: "of the future", Model: "chat"}); len(a.Limits)+len(a.Requests) != 0 || a.Cancelled {
		t.Errorf("%+v", a)
	}
}

// TestOperatorCancels: an operator ends a request whatever it is doing: its client sees a cut or a refusal and never a clean end, the
// engine's work ends, the slots come free and the record says who did it.
func TestOperatorCancels(t *testing.T) {
	h := newHost(t)
	h.limited(levelrail.KeyLimits{MaxParallel: 1}, nil)
	free := func() {
		t.Helper()
		h.eventually("the slots are free", func() bool {
			return pooledSlots("chat") == 0 && len(h.ask(wire.Question{Ask: wire.AskRequests, Model: "chat"}).Requests) == 0
		})
	}
	if a := h.ask(wire.Question{Ask: wire.AskCancel, Model: "chat", Request: "nobody"}); a.Cancelled {
		t.Error("what is not there is cancelled")
	}

	s := newScript()
	h.engine.on(s.serve)
	resp, err := httpClient.Do(h.request("POST", chatPath, streamBody, "X-Request-Id", "cancelled-stream"))
	if err != nil {
		t.Fatal(err)
	}
	s.pieces <- engineChunk
	if _, err := io.ReadFull(resp.Body, make([]byte, len(engineChunk))); err != nil {
		t.Fatal(err)
	}
	if a := h.ask(wire.Question{Ask: wire.AskCancel, Model: "other", Request: "cancelled-stream"}); a.Cancelled {
		t.Error("a request of one model is cancelled through another")
	}
	if a := h.ask(wire.Question{Ask: wire.AskCancel, Model: "chat", Request: "cancelled-stream"}); !a.Cancelled {
		t.Error("the stream is not cancelled")
	}
	if rest, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("the stream ends cleanly after %q", rest)
	}
	resp.Body.Close()
	h.engine.leftWithin(t, time.Second)
	if r := h.recordOf("cancelled-stream"); r["end"] != "cancelled" || r["status"] != 200.0 {
		t.Errorf("%v", r)
	}
	free()

	// One whose engine has not begun to answer.
	begun := make(chan struct{}, 8)
	h.engine.on(blockUntil(begun, nil))
	done := make(chan string)
	go func() {
		resp, err := httpClient.Do(h.request("POST", chatPath, chatBody, "X-Request-Id", "cancelled-wait"))
		if err != nil {
			done <- err.Error()
			return
		}
		resp.Body.Close()
		done <- resp.Status
	}()
	<-begun
	h.ask(wire.Question{Ask: wire.AskCancel, Model: "chat", Request: "cancelled-wait"})
	if got := <-done; !strings.HasPrefix(got, "403") {
		t.Errorf("it got %s", got)
	}
	h.engine.leftWithin(t, time.Second)
	if r := h.recordOf("cancelled-wait"); r["end"] != "cancelled" || r["code"] != "request_cancelled" {
		t.Errorf("%v", r)
	}
	free()

	// One whose client does not read: the gateway stands in a write.
	h.engine.on(func(w http.ResponseWriter, r *http.Request) {
		for piece := []byte("data: " + strings.Repeat("x", 32<<10) + "\n\n"); r.Context().Err() == nil; {
			if _, err := w.Write(piece); err != nil {
				return
			}
		}
	})
	conn, err := net.Dial("tcp", "127.0.0.1:"+h.port)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nX-Request-Id: stalled\r\nContent-Length: %d\r\n\r\n%s", chatPath, h.key, len(streamBody), streamBody)
	var before int64 = -1
	h.eventually("the gateway stands in a write", func() bool {
		a := h.ask(wire.Question{Ask: wire.AskRequests, Model: "chat"})
		stands := len(a.Requests) == 1 && a.Requests[0].Bytes > 0 && a.Requests[0].Bytes == before
		if len(a.Requests) == 1 {
			before = a.Requests[0].Bytes
		}
		return stands
	})
	h.ask(wire.Question{Ask: wire.AskCancel, Model: "chat", Request: "stalled"})
	h.engine.leftWithin(t, 2*time.Second)
	free()
	if r := h.recordOf("stalled"); r["end"] != "cancelled" {
		t.Errorf("%v", r)
	}
}
