package caddymodule

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// TestOverlappingRequests is the gateway's part of case C024 for two requests that overlap and for a whole answer that says nothing until its end:
// the control plane hears of use as long as one of them runs, and of the end only with the last.
func TestOverlappingRequests(t *testing.T) {
	h := newHost(t)
	h.limited(levelrail.KeyLimits{}, func(r *wire.Route) { r.Limits.ActivityTouchSeconds = 1 })
	entered, leaves := make(chan struct{}, 2), []chan struct{}{make(chan struct{}), make(chan struct{})}
	var all sync.WaitGroup
	for _, leave := range leaves {
		h.engine.on(blockUntil(entered, leave))
		all.Go(func() {
			resp, err := httpClient.Do(h.request("POST", chatPath, chatBody))
			if err != nil {
				t.Error(err)
				return
			}
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		})
		<-entered
	}
	told := func(inFlight int64) func() bool {
		_, before := h.cp.lastActivity("chat")
		return func() bool {
			last, times := h.cp.lastActivity("chat")
			return times > before && last.InFlight == inFlight && last.IdleSeconds == 0
		}
	}
	h.eventually("both are told of", told(2))
	close(leaves[0])
	h.eventually("the one that is left is told of, again and again", told(1))
	close(leaves[1])
	all.Wait()
	h.eventually("the end is told", func() bool { last, _ := h.cp.lastActivity("chat"); return last.InFlight == 0 })
}

// TestWakeOverTwoGateways is case C026 as it is told: many first requests over two gateways, of which half leave. Each gateway asks once, holds as many
// as it has slots and refuses the surplus; those who stay are served, and the engine never gets more than the limits of both. When all leave, the
// model wakes all the same, and nobody is left held.
func TestWakeOverTwoGateways(t *testing.T) {
	h := prepareHost(t)
	const slots, requests = 10, 50
	sleeping := func() {
		r := h.route("chat")
		asleep(60)(&r)
		r.Limits.MaxInflight = slots
		h.cp.putRoute(r)
	}
	loaded := func() {
		r := h.route("chat")
		r.Limits.MaxInflight, r.Limits.WakeWaitSeconds = slots, 60
		h.cp.putRoute(r)
	}
	sleeping()
	second := &host{t: t, dir: filepath.Join(h.dir, "b"), port: freePort(t), cp: h.cp, engine: h.engine, key: h.key, changes: h.changes}
	if err := os.Mkdir(second.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	h.process()
	second.process()
	h.eventually("both follow the control plane", func() bool { return len(h.cp.watched()) == 2 })
	var mu sync.Mutex
	atOnce, most, got := 0, 0, map[string]int{}
	h.engine.on(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		atOnce++
		most = max(most, atOnce)
		mu.Unlock()
		io.WriteString(w, `{"choices":[]}`)
		mu.Lock()
		atOnce--
		mu.Unlock()
	})
	count := func(what string) int { mu.Lock(); defer mu.Unlock(); return got[what] }
	var all sync.WaitGroup
	ask := func(ctx context.Context, g *host, n int) {
		for range n {
			req := g.request("POST", chatPath, chatBody).WithContext(ctx)
			all.Go(func() {
				what := "left"
				if resp, err := httpClient.Do(req); err == nil {
					b, _ := io.ReadAll(resp.Body)
					resp.Body.Close()
					what = resp.Status[:3] + errorCode(string(b))
				}
				mu.Lock()
				defer mu.Unlock()
				got[what]++
			})
		}
	}
	ctx, leave := context.WithCancel(t.Context())
	for _, g := range []*host{h, second} {
		ask(ctx, g, slots/2)
	}
	h.eventually("half of the slots of both are held", func() bool { return h.cp.wakesOf("chat") >= 1 && heldByBoth(h) == 2*slots/2 })
	for _, g := range []*host{h, second} {
		ask(t.Context(), g, requests-slots/2)
	}
	h.eventually("the surplus is refused", func() bool { return count("429rate_limit_exceeded") == 2*(requests-slots) })
	h.eventually("each has asked", func() bool { return h.cp.wakesOf("chat") == 2 })
	leave()
	h.eventually("half have left", func() bool { return count("left") == slots && heldByBoth(h) == slots })
	loaded()
	all.Wait()
	if count("200") != slots || most > 2*slots || h.cp.wakesOf("chat") != 2 {
		t.Errorf("%v, %d at once, %d wakes", got, most, h.cp.wakesOf("chat"))
	}

	// Again, and all leave.
	sleeping()
	ctx, leave = context.WithCancel(t.Context())
	h.eventually("some are held", func() bool { // those that come before the gateway knows are served
		ask(ctx, h, 1)
		return heldByBoth(h) >= 3
	})
	h.eventually("the model is asked for", func() bool { return h.cp.wakesOf("chat") == 3 })
	leave()
	all.Wait()
	h.eventually("nobody is held", func() bool { return heldByBoth(h) == 0 })
	loaded()
	h.eventually("who comes then is served", func() bool { resp, _ := h.do("POST", chatPath, chatBody); return resp.StatusCode == 200 })
	if count("left") < slots+3 || h.cp.wakesOf("chat") != 3 {
		t.Errorf("%v, %d wakes", got, h.cp.wakesOf("chat"))
	}
}

// heldByBoth asks both gateways how many requests they hold for a model that sleeps.
func heldByBoth(h *host) (n int) {
	h.t.Helper()
	q := wire.Question{ID: levelrail.NewID("q"), Ask: wire.AskRequests, Model: "chat"}
	h.cp.change(func() { h.cp.log = append(h.cp.log, putLine(wire.WatchQuestion, q.ID, q)) })
	var answers []wire.Answer
	h.eventually("both answer", func() bool {
		h.cp.mu.Lock()
		defer h.cp.mu.Unlock()
		answers = h.cp.every[q.ID]
		return len(answers) == 2
	})
	for _, a := range answers {
		for _, f := range a.Requests {
			if f.State == "waking" {
				n++
			}
		}
	}
	return n
}

// TestWakeWait is the last attempt of case C026: where the wait is over before the model serves, all who stayed are told to come back, and when; the
// wake goes on, and the next one is served.
func TestWakeWait(t *testing.T) {
	h := newHost(t)
	h.limited(levelrail.KeyLimits{}, asleep(1))
	began := time.Now()
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			resp, err := httpClient.Do(h.request("POST", chatPath, chatBody))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 503 || errorCode(string(body)) != "model_waking" || resp.Header.Get("Retry-After") != "15" {
				t.Errorf("%d %s %v, Retry-After %q", resp.StatusCode, body, err, resp.Header.Get("Retry-After"))
			}
		})
	}
	all.Wait()
	if took := time.Since(began); took < time.Second || took > 4*time.Second || h.cp.wakesOf("chat") != 1 {
		t.Errorf("after %s, %d wakes", took, h.cp.wakesOf("chat"))
	}
	h.eventually("the slots are free", func() bool { return pooledSlots("chat") == 0 })
	h.say(serving)
	h.eventually("the next is served", func() bool { resp, _ := h.do("POST", chatPath, chatBody); return resp.StatusCode == 200 })
}

// TestSleepsAgain: a model that is put to sleep again right after it woke is asked for again at once, and not only when the first asking would
// have counted as lost.
func TestSleepsAgain(t *testing.T) {
	h := newHost(t)
	for round := range 3 {
		h.limited(levelrail.KeyLimits{}, asleep(60))
		got := make(chan string, 1)
		go func() {
			resp, err := httpClient.Do(h.request("POST", chatPath, chatBody))
			if err != nil {
				got <- err.Error()
				return
			}
			resp.Body.Close()
			got <- resp.Status[:3]
		}()
		began := time.Now()
		h.eventually("it is asked for", func() bool { return h.cp.wakesOf("chat") == round+1 })
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("asked for after %s", took)
		}
		h.say(serving)
		if s := <-got; s != "200" {
			t.Errorf("the one that waited got %s", s)
		}
	}
}
