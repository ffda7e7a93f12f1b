package caddymodule

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/caddymodule/limit"
	"github.com/levelrail/levelrail/client/wire"
)

// whole is everything of a refusal that a client may compare.
func whole(resp *http.Response, body string) string {
	return fmt.Sprint(resp.StatusCode, resp.Header["Content-Type"], resp.Header["Retry-After"], body)
}

// TestLimitsLookAlike: a key that has used up any of its limits, or finds the model full, is told the same, and no engine
// sees the request.
func TestLimitsLookAlike(t *testing.T) {
	h := newHost(t)
	var answers []string
	refused := func(what string) {
		t.Helper()
		before := len(h.engine.requests())
		resp, body := h.do("POST", chatPath, chatBody)
		h.refused(resp, body, 429, "rate_limit_exceeded")
		if len(h.engine.requests()) != before {
			t.Errorf("%s: the engine saw it", what)
		}
		answers = append(answers, whole(resp, body))
	}
	spend := func() {
		t.Helper()
		if resp, body := h.do("POST", chatPath, chatBody); resp.StatusCode != 200 {
			t.Fatalf("%d %s", resp.StatusCode, body)
		}
	}
	for i, l := range []levelrail.KeyLimits{{RPM: 1}, {TPM: 7}, {TPD: 7}} {
		h.key = h.cp.newKey(fmt.Sprintf("key_%d", i), "chat")
		h.cp.mu.Lock()
		k := h.cp.keys[fmt.Sprintf("key_%d", i)]
		h.cp.mu.Unlock()
		k.Limits = l
		h.cp.putKey(k)
		h.eventually("the key is known", func() bool { k, ok := h.table().Key(hashOf(h.key)); return ok && k.Limits == l })
		spend()
		refused(fmt.Sprintf("%+v", l))
	}
	h.key = h.cp.newKey("key_a", "chat")
	entered, leave := make(chan struct{}, 8), make(chan struct{})
	h.engine.on(blockUntil(entered, leave))
	for _, full := range []func(){
		func() { h.limited(levelrail.KeyLimits{MaxParallel: 1}, nil) },
		func() { h.limited(levelrail.KeyLimits{}, func(r *wire.Route) { r.Limits.MaxInflight = 1 }) },
	} {
		full()
		done := make(chan error)
		go func() {
			resp, err := httpClient.Do(h.request("POST", chatPath, chatBody))
			if err == nil {
				resp.Body.Close()
			}
			done <- err
		}()
		<-entered
		refused("in flight")
		leave <- struct{}{}
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	for _, a := range answers[1:] {
		if a != answers[0] || !strings.Contains(a, "[5]") {
			t.Errorf("%s\nis not %s", a, answers[0])
		}
	}
}

// TestRetryAfterExact: where the operator wants it, a refusal says how long it holds.
func TestRetryAfterExact(t *testing.T) {
	h := newHost(t)
	h.limited(levelrail.KeyLimits{RPM: 1, TPD: 7}, func(r *wire.Route) { r.Limits.RetryAfterExact = true })
	h.do("POST", chatPath, chatBody)
	resp, body := h.do("POST", chatPath, chatBody)
	h.refused(resp, body, 429, "rate_limit_exceeded")
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err != nil || s < 24*3600-60 || s > 24*3600+300 {
		t.Errorf("Retry-After %q, want that of the day", resp.Header.Get("Retry-After"))
	}
}

// TestRefusedByOneChargesNone is case C010: a request refused for another that runs uses up nothing of the minute, and
// requests that an engine refuses use up one each, so that a loop of bad ones ends.
func TestRefusedByOneChargesNone(t *testing.T) {
	h := newHost(t)
	h.limited(levelrail.KeyLimits{RPM: 2, MaxParallel: 1}, nil)
	s := newScript()
	h.engine.on(s.serve)
	a, err := httpClient.Do(h.request("POST", chatPath, streamBody))
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		resp, body := h.do("POST", chatPath, streamBody)
		h.refused(resp, body, 429, "rate_limit_exceeded")
	}
	close(s.pieces)
	if _, err := io.ReadAll(a.Body); err != nil {
		t.Error(err)
	}
	a.Body.Close()
	h.eventually("A has ended", func() bool { return pooledSlots("chat") == 0 })
	h.engine.on(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(400)
		io.WriteString(w, `{"error":{"message":"no","type":"invalid_request_error","param":null,"code":"engine_says_no"}}`)
	})
	resp, body := h.do("POST", chatPath, chatBody)
	h.refused(resp, body, 400, "engine_says_no") // C passes the limits
	resp, body = h.do("POST", chatPath, chatBody, "X-Request-Id", "third")
	h.refused(resp, body, 429, "rate_limit_exceeded") // and has counted
	if r := h.recordOf("third"); r["end"] != "refused" || r["code"] != "rate_limit_exceeded" {
		t.Errorf("%v", r)
	}
}

// TestUnreachedIsFree: a request that no engine could see has cost nothing.
func TestUnreachedIsFree(t *testing.T) {
	h := newHost(t)
	h.limited(levelrail.KeyLimits{RPM: 2}, nil)
	h.engine.server.Close()
	os.Remove(h.engine.socket)
	for range 4 {
		resp, body := h.do("POST", chatPath, chatBody)
		h.refused(resp, body, 503, "model_unavailable")
	}
	h.limited(levelrail.KeyLimits{RPM: 2}, func(r *wire.Route) { r.Serving, r.Reason = false, string(levelrail.Loading) })
	for range 4 {
		resp, body := h.do("POST", chatPath, chatBody)
		h.refused(resp, body, 503, "model_loading")
	}
	if n := h.usedOf("rpm"); n != 0 {
		t.Errorf("%d are charged", n)
	}
}

// TestCutStreamsCost: a client that leaves before a stream's usage has come pays for about what it got.
func TestCutStreamsCost(t *testing.T) {
	h := newHost(t)
	h.limited(levelrail.KeyLimits{TPM: 5}, func(r *wire.Route) { r.Limits.UsageStream = "asked" })
	s := newScript()
	h.engine.on(s.serve)
	ctx, leave := context.WithCancel(t.Context())
	resp, err := httpClient.Do(h.request("POST", chatPath, streamBody).WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	for range 6 {
		s.pieces <- engineChunk
		if _, err := io.ReadFull(resp.Body, make([]byte, len(engineChunk))); err != nil {
			t.Fatal(err)
		}
	}
	leave()
	resp.Body.Close()
	h.engine.leftWithin(t, time.Second)
	h.eventually("the request has ended", func() bool { return pooledSlots("chat") == 0 })
	if n := h.usedOf("tpm"); n != 6 {
		t.Errorf("%d tokens are charged for six events", n)
	}
	again, body := h.do("POST", chatPath, chatBody)
	h.refused(again, body, 429, "rate_limit_exceeded")
}

// TestSlotsComeBack is case C008: a key with one request in parallel is never locked out by requests that end badly,
// wherever they stand: in a stream, before the headers, while held for a wake, by a reset, by an engine that dies, by a body
// that is refused.
func TestSlotsComeBack(t *testing.T) {
	h := newHost(t)
	one := levelrail.KeyLimits{MaxParallel: 1}
	small := func(r *wire.Route) { r.Limits.MaxInflight = 2 }
	h.limited(one, small)
	back := func(what string) {
		t.Helper()
		h.eventually("after "+what+" the slots are free", func() bool { return pooledSlots("chat") == 0 && h.usedOf("max_parallel") == 0 })
		if n := len(h.ask(wire.Question{Ask: wire.AskRequests, Model: "chat"}).Requests); n != 0 {
			t.Errorf("after %s: %d are in flight", what, n)
		}
	}
	dial := func() *net.TCPConn {
		t.Helper()
		conn, err := net.Dial("tcp", "127.0.0.1:"+h.port)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", chatPath, h.key, len(streamBody), streamBody)
		return conn.(*net.TCPConn)
	}
	for i := range 20 {
		s := newScript()
		h.engine.on(s.serve)
		conn := dial()
		<-s.started
		if s.pieces <- engineChunk; i%2 == 0 {
			conn.SetLinger(0) // a reset
		}
		conn.Close()
		h.engine.leftWithin(t, 2*time.Second)
		back("a stream that is left")
	}
	entered := make(chan struct{}, 8)
	h.engine.on(blockUntil(entered, nil))
	conn := dial()
	<-entered
	conn.Close()
	back("one that left before the headers")
	for range 3 {
		s := newScript()
		h.engine.on(s.serve)
		conn := dial()
		<-s.started
		s.pieces <- cut
		io.Copy(io.Discard, bufio.NewReader(conn))
		conn.Close()
		back("an engine that died")
	}
	for _, bad := range []string{"{", `{"model":"other"}`, `{"model":"chat","n_predict":1}`} {
		if resp, _ := h.do("POST", chatPath, bad); resp.StatusCode != 400 && resp.StatusCode != 404 {
			t.Errorf("%s: %d", bad, resp.StatusCode)
		}
	}
	back("bad bodies")
	h.limited(one, func(r *wire.Route) {
		small(r)
		r.Serving, r.Asleep, r.Reason, r.Limits.WakeWaitSeconds = false, true, string(levelrail.Idle), 60
	})
	for range 3 {
		conn := dial()
		h.eventually("it is held", func() bool {
			a := h.ask(wire.Question{Ask: wire.AskRequests, Model: "chat"})
			return len(a.Requests) == 1 && a.Requests[0].State == "waking"
		})
		resp, body := h.do("POST", chatPath, chatBody)
		h.refused(resp, body, 429, "rate_limit_exceeded")
		conn.SetLinger(0)
		conn.Close()
		back("one that left while it was held")
	}
	h.engine.on(nil)
	h.limited(one, small)
	if resp, body := h.do("POST", chatPath, chatBody); resp.StatusCode != 200 {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}

// TestReloadKeepsLimits: neither a reload nor a restart gives a fresh allowance.
func TestReloadKeepsLimits(t *testing.T) {
	h := newHost(t)
	h.limited(levelrail.KeyLimits{RPM: 3, TPD: 1000}, nil)
	for range 3 {
		if resp, body := h.do("POST", chatPath, chatBody); resp.StatusCode != 200 {
			t.Fatalf("%d %s", resp.StatusCode, body)
		}
	}
	refused := func() {
		t.Helper()
		resp, body := h.do("POST", chatPath, chatBody)
		h.refused(resp, body, 429, "rate_limit_exceeded")
		if n := h.usedOf("tpd"); n != 21 {
			t.Errorf("%d tokens of the day are used", n)
		}
	}
	refused()
	h.changes = []string{"grace_period 2s", "grace_period 3s"}
	h.changes = append([]string{}, "idle 2m", "idle 3m")
	h.load()
	h.settled()
	refused()
	h.stop()
	h.load()
	h.settled()
	refused()
}

// process runs the gateway as a process of its own.
func (h *host) process(env ...string) (cmd *exec.Cmd, ended chan error) {
	h.t.Helper()
	config := filepath.Join(h.dir, "Caddyfile")
	if err := os.WriteFile(config, []byte(h.caddyfile()), 0o600); err != nil {
		h.t.Fatal(err)
	}
	cmd = exec.Command(os.Args[0], "run", "--config", config, "--adapter", "levelrail")
	cmd.Env = append(append(os.Environ(), "LEVELRAIL_TEST_AS_GATEWAY=1", "HOME="+h.dir), env...)
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	ended = make(chan error, 1)
	go func() { ended <- cmd.Wait(); close(ended) }()
	h.t.Cleanup(func() { cmd.Process.Kill(); <-ended })
	h.eventually("the process serves", func() bool {
		resp, err := httpClient.Do(h.request("GET", "/v1/models", ""))
		if err == nil {
			resp.Body.Close()
		}
		return err == nil && resp.StatusCode == 200
	})
	return cmd, ended
}

// tokensKept is how many tokens of the day the file of limits has for a key, in whichever steps they were counted.
func (h *host) tokensKept(key string) (sum int64) {
	f, err := os.Open(filepath.Join(h.dir, "state", "limits.jsonl"))
	if err != nil {
		return 0 // not written yet
	}
	defer f.Close()
	for d := json.NewDecoder(f); ; {
		var line struct{ Key limit.Kept }
		if err := d.Decode(&line); errors.Is(err, io.EOF) {
			return sum
		} else if err != nil {
			h.t.Fatal(err)
		}
		if line.Key.ID == key {
			for _, step := range line.Key.TPD {
				sum += step[1]
			}
		}
	}
}

// TestKilledKeepsLimits: a gateway that is killed and started again remembers what was used until a few seconds before.
func TestKilledKeepsLimits(t *testing.T) {
	h := prepareHost(t)
	h.cp.mu.Lock()
	k := h.cp.keys["key_a"]
	h.cp.mu.Unlock()
	k.Limits = levelrail.KeyLimits{TPD: 21} // a day's, which no slow start outlasts as it may a minute's
	h.cp.putKey(k)
	cmd, ended := h.process()
	for range 3 {
		if resp, body := h.do("POST", chatPath, chatBody); resp.StatusCode != 200 {
			t.Fatalf("%d %s", resp.StatusCode, body)
		}
	}
	h.eventually("the disk has it", func() bool { return h.tokensKept("key_a") == 21 })
	cmd.Process.Signal(syscall.SIGKILL)
	<-ended
	h.process()
	resp, body := h.do("POST", chatPath, chatBody)
	h.refused(resp, body, 429, "rate_limit_exceeded")
}
