package caddymodule

import (
	"context"
	"io"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// asleep makes a route one of a model that sleeps and is waited for so many seconds.
func asleep(wait int64) func(*wire.Route) {
	return func(r *wire.Route) {
		r.Serving, r.Asleep, r.Reason = false, true, string(levelrail.Idle)
		r.Limits.WakeWaitSeconds, r.Limits.WakeRetryAfterSeconds, r.Limits.ActivityTouchSeconds = wait, 15, 1
		for i := range r.Targets {
			r.Targets[i].Serving = false
		}
	}
}

// say gives the route of chat as edit makes it.
func (h *host) say(edit func(*wire.Route)) {
	r := h.route("chat")
	asleep(60)(&r)
	edit(&r)
	h.cp.putRoute(r)
}

func waking(r *wire.Route) { r.Asleep, r.Reason = false, string(levelrail.WakingUp) }
func serving(r *wire.Route) {
	r.Asleep, r.Serving, r.Reason, r.Targets[0].Serving = false, true, string(levelrail.ModelLoaded), true
}

// TestWake is case C026: two hundred first requests wake a sleeping model once; as many as there are slots are held and the
// surplus is refused at once; half of the held leave and end nothing for the others, who are served when the engine is
// loaded, and the engine never has more than the limit.
func TestWake(t *testing.T) {
	h := newHost(t)
	const slots = 20
	h.limited(levelrail.KeyLimits{}, func(r *wire.Route) { asleep(60)(r); r.Limits.MaxInflight = slots })
	var atOnce, most atomic.Int64
	h.engine.on(func(w http.ResponseWriter, r *http.Request) {
		n := atOnce.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		defer atOnce.Add(-1)
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"choices":[]}`)
	})
	var mu sync.Mutex
	got := map[string]int{}
	count := func(what string) { mu.Lock(); got[what]++; mu.Unlock() }
	counted := func(what string) int { mu.Lock(); defer mu.Unlock(); return got[what] }
	leaving, leave := context.WithCancel(t.Context())
	defer leave()
	var all sync.WaitGroup
	ask := func(ctx context.Context) {
		all.Go(func() {
			resp, err := httpClient.Do(h.request("POST", chatPath, chatBody).WithContext(ctx))
			if err != nil {
				count("left")
				return
			}
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if count(resp.Status[:3] + errorCode(string(body))); resp.StatusCode == 429 && resp.Header.Get("Retry-After") != "5" {
				t.Errorf("Retry-After %q", resp.Header.Get("Retry-After"))
			}
		})
	}
	held := func() int { return len(h.ask(wire.Question{Ask: wire.AskRequests, Model: "chat"}).Requests) }
	for range slots / 2 {
		ask(leaving)
	}
	h.eventually("half of the slots are held", func() bool { return held() == slots/2 })
	for range 200 - slots/2 {
		ask(t.Context())
	}
	h.eventually("the surplus is refused", func() bool { return counted("429rate_limit_exceeded") == 200-slots })
	h.eventually("the control plane is asked", func() bool { return h.cp.wakesOf("chat") == 1 })
	for _, r := range h.ask(wire.Question{Ask: wire.AskRequests, Model: "chat"}).Requests {
		if r.State != "waking" {
			t.Errorf("%+v", r)
		}
	}
	h.say(func(r *wire.Route) { waking(r); r.Limits.MaxInflight = slots })
	leave()
	h.eventually("half have left and their slots are free", func() bool { return counted("left") == slots/2 && pooledSlots("chat") == slots/2 })
	if counted("200") != 0 || len(h.engine.requests()) != 0 {
		t.Error("somebody is served by an engine that is not loaded")
	}
	h.say(func(r *wire.Route) { serving(r); r.Limits.MaxInflight = slots })
	all.Wait()
	if counted("200") != slots/2 || most.Load() > slots || h.cp.wakesOf("chat") != 1 {
		t.Errorf("%v, %d at once, %d wakes", got, most.Load(), h.cp.wakesOf("chat"))
	}
	h.eventually("the slots are free", func() bool { return pooledSlots("chat") == 0 })
	h.eventually("the control plane hears of the use and of its end", func() bool {
		last, _ := h.cp.lastActivity("chat")
		return last.Model == "chat" && last.InFlight == 0
	})
}

// TestWakeRefusals: when the wait is over, or there is none, the answer says what happens and when to come back, and has
// cost nothing; a model that fails while it is waited for is said to; a key that is revoked meanwhile opens nothing.
func TestWakeRefusals(t *testing.T) {
	h := newHost(t)
	h.limited(levelrail.KeyLimits{RPM: 2}, asleep(0))
	for range 3 {
		resp, body := h.do("POST", chatPath, chatBody)
		h.refused(resp, body, 503, "model_waking")
		if resp.Header.Get("Retry-After") != "15" {
			t.Errorf("Retry-After %q", resp.Header.Get("Retry-After"))
		}
	}
	h.eventually("asked once", func() bool { return h.cp.wakesOf("chat") == 1 })
	h.limited(levelrail.KeyLimits{RPM: 2}, asleep(1))
	began := time.Now()
	resp, body := h.do("POST", chatPath, chatBody)
	h.refused(resp, body, 503, "model_waking")
	if took := time.Since(began); took < time.Second || took > 3*time.Second {
		t.Errorf("waited %s", took)
	}
	if n := h.usedOf("rpm"); n != 0 {
		t.Errorf("%d are charged", n)
	}

	ask := func() chan string {
		out := make(chan string, 1)
		go func() {
			resp, err := httpClient.Do(h.request("POST", chatPath, chatBody))
			if err != nil {
				out <- err.Error()
				return
			}
			b, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			out <- resp.Status[:3] + errorCode(string(b))
		}()
		h.eventually("it is held", func() bool { return pooledSlots("chat") == 1 && h.holds() == 1 })
		return out
	}
	h.limited(levelrail.KeyLimits{}, asleep(60))
	got := ask()
	h.say(func(r *wire.Route) { r.Asleep, r.Reason = false, string(levelrail.EngineFailed) })
	if s := <-got; s != "503model_unavailable" {
		t.Errorf("a model that fails: %s", s)
	}
	h.limited(levelrail.KeyLimits{}, asleep(60))
	got = ask()
	h.cp.revoke("key_a")
	h.say(serving)
	if s := <-got; s != "401invalid_api_key" || len(h.engine.requests()) != 0 {
		t.Errorf("a key that was revoked meanwhile: %s", s)
	}
}

// holds is how many requests wait for chat to wake.
func (h *host) holds() (n int) {
	for _, r := range h.ask(wire.Question{Ask: wire.AskRequests, Model: "chat"}).Requests {
		if r.State == "waking" {
			n++
		}
	}
	return n
}

// TestNothingElseWakes is case C025: neither a listing nor a refusal, nor what has no key, wakes a model or counts as use.
func TestNothingElseWakes(t *testing.T) {
	h := newHost(t)
	h.limited(levelrail.KeyLimits{}, func(r *wire.Route) { asleep(0)(r); r.Limits.MaxN, r.Limits.MaxGenLen = 16, 1000 })
	narrow := h.cp.newKey("key_n", "chat")
	h.cp.mu.Lock()
	k := h.cp.keys["key_n"]
	h.cp.mu.Unlock()
	k.AllowModels, k.AllowPaths = []string{"other"}, []string{"/v1/completions"}
	h.cp.putKey(k)
	spent := h.cp.newKey("key_s", "chat")
	k = h.cp.keys["key_s"]
	k.Limits = levelrail.KeyLimits{TPM: 1}
	h.cp.putKey(k)
	h.eventually("the keys are known", func() bool {
		a, ok := h.table().Key(hashOf(narrow))
		b, there := h.table().Key(hashOf(spent))
		return ok && there && len(a.AllowNames) == 1 && b.Limits.TPM == 1
	})
	pool.Range(func(_, v any) bool { // its minute is used up
		g := v.(*shared).gateway
		c, _ := g.Keys.Enter("key_s", k.Limits, time.Now())
		c.Spend(k.Limits, 10, time.Now())
		c.Leave()
		return true
	})
	for _, c := range []struct {
		method, path, body string
		headers            []string
		status             int
	}{
		{"GET", "/v1/models", "", nil, 200}, {"GET", "/v1/models/chat", "", nil, 200}, {"HEAD", "/v1/models", "", nil, 405}, {"GET", "/healthz", "", nil, 200}, {"GET", "/health", "", nil, 200}, {"GET", "/metrics", "", nil, 404},
		{"OPTIONS", chatPath, "", nil, 405}, {"GET", chatPath, "", nil, 405},
		{"POST", chatPath, chatBody, []string{"Authorization", ""}, 401}, {"POST", chatPath, chatBody, []string{"Authorization", "Bearer lr-wrong"}, 401},
		{"POST", "/v1/nothing", chatBody, nil, 404}, {"POST", chatPath, "{", nil, 400}, {"POST", chatPath, `{"model":"other"}`, nil, 404}, {"POST", chatPath, `{"model":"chat","n":17}`, nil, 400},
		{"POST", chatPath, `{"model":"chat","max_tokens":-1}`, nil, 400}, {"POST", chatPath, chatBody, []string{"Content-Type", "text/plain"}, 415},
		{"POST", chatPath, chatBody, []string{"Authorization", "Bearer " + narrow}, 403}, {"POST", "/v1/completions", chatBody, []string{"Authorization", "Bearer " + narrow}, 403},
		{"POST", chatPath, chatBody, []string{"Authorization", "Bearer " + spent}, 429},
	} {
		if resp, body := h.do(c.method, c.path, c.body, c.headers...); resp.StatusCode != c.status {
			t.Errorf("%s %s %s: %d %s, want %d", c.method, c.path, c.body, resp.StatusCode, body, c.status)
		}
	}
	// Reports are at most a second apart: the next one names whatever any of these has touched.
	resp, body := h.do("POST", chatPath, chatBody)
	h.refused(resp, body, 503, "model_waking")
	h.eventually("what is admitted counts", func() bool { _, times := h.cp.lastActivity("chat"); return times > 0 && h.cp.wakesOf("chat") > 0 })
	h.cp.mu.Lock()
	defer h.cp.mu.Unlock()
	if len(h.cp.wakes) != 1 || h.cp.activity[0].Models[0].IdleSeconds != 0 || len(h.cp.activity[0].Models) != 1 {
		t.Errorf("%d wakes, the first report %+v", len(h.cp.wakes), h.cp.activity[0])
	}
	if hits := h.requestsAdmitted(); hits != 1 {
		t.Errorf("%d requests count as use", hits)
	}
}

// requestsAdmitted is how many requests have gone past every check so far, by the log: those that were refused by none.
func (h *host) requestsAdmitted() (n int) {
	for _, r := range h.records() {
		if r["code"] == "model_waking" || r["end"] == "complete" && r["route"] == chatPath && r["status"] == 200.0 {
			n++
		}
	}
	return n
}

// TestActivityOfStreams is the gateway's half of case C024: while a stream runs the control plane hears of it again and
// again, and the idle time begins with its end.
func TestActivityOfStreams(t *testing.T) {
	h := newHost(t)
	h.limited(levelrail.KeyLimits{}, func(r *wire.Route) { r.Limits.ActivityTouchSeconds = 1 })
	s := newScript()
	h.engine.on(s.serve)
	resp, err := httpClient.Do(h.request("POST", chatPath, streamBody))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	h.eventually("the stream is told three times", func() bool {
		last, times := h.cp.lastActivity("chat")
		if times > 0 && (last.InFlight != 1 || last.IdleSeconds != 0) {
			t.Fatalf("%+v", last)
		}
		return times >= 3
	})
	close(s.pieces)
	if _, err := io.ReadAll(resp.Body); err != nil {
		t.Error(err)
	}
	h.eventually("its end is told", func() bool { last, _ := h.cp.lastActivity("chat"); return last.InFlight == 0 })
}

// TestDrainLetsGo: a gateway that is told to stop answers what it holds for a sleeping model, at once; a reload does not.
func TestDrainLetsGo(t *testing.T) {
	h := prepareHost(t, "grace_period 2s", "grace_period 20s")
	r := h.route("chat")
	asleep(60)(&r)
	h.cp.putRoute(r)
	said := newNotify(t, filepath.Join(h.dir, "notify.sock"))
	cmd, ended := h.process("NOTIFY_SOCKET=" + said.path)
	h.eventually("READY", func() bool { return said.count("READY=1") == 1 })
	got := make(chan string, 1)
	go func() {
		resp, err := httpClient.Do(h.request("POST", chatPath, chatBody))
		if err != nil {
			got <- err.Error()
			return
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		got <- resp.Status[:3] + errorCode(string(b)) + resp.Header.Get("Retry-After")
	}()
	h.eventually("it is held", func() bool { return h.cp.wakesOf("chat") == 1 })
	cmd.Process.Signal(syscall.SIGUSR1)
	h.eventually("the reload is over", func() bool { return said.count("READY=1") == 2 })
	h.eventually("it is held after a reload", func() bool { return h.holds() == 1 })
	began := time.Now()
	cmd.Process.Signal(syscall.SIGTERM)
	if s := <-got; s != "503model_waking15" {
		t.Errorf("at the end: %s", s)
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("it took %s", took)
	}
	if err := <-ended; err != nil {
		t.Errorf("ended with %v", err)
	}
}
