package caddymodule

import (
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
)

// counting is an engine's answer that takes a while and counts how many it gives at once.
type counting struct {
	took          time.Duration
	now, most, in atomic.Int64
}

func (c *counting) serve(w http.ResponseWriter, r *http.Request) {
	c.in.Add(1)
	n := c.now.Add(1)
	for m := c.most.Load(); n > m && !c.most.CompareAndSwap(m, n); m = c.most.Load() {
	}
	select {
	case <-time.After(c.took):
	case <-r.Context().Done():
	}
	c.now.Add(-1)
	w.Header().Set("Content-Type", "application/json")
	io.WriteString(w, `{"object":"chat.completion","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}`)
}

// hammered is what came of requests that were sent all at the same time.
type hammered struct {
	passed, refused, other int
	waits                  []time.Duration // of those that were refused
	at                     []time.Time     // when those that passed had their answer
}

// hammer sends requests with a key to all gateways, by so many clients each, for a while.
func hammer(key string, clients int, d time.Duration, all ...*member) (h hammered) {
	var mu sync.Mutex
	var work sync.WaitGroup
	until := time.Now().Add(d)
	for _, m := range all {
		for range clients {
			work.Go(func() {
				for time.Now().Before(until) {
					began := time.Now()
					status := m.status(key)
					took := time.Since(began)
					mu.Lock()
					switch status {
					case 200:
						h.passed++
						h.at = append(h.at, time.Now())
					case 429:
						h.refused++
						h.waits = append(h.waits, took)
					default:
						h.other++
					}
					mu.Unlock()
					if status != 200 {
						time.Sleep(10 * time.Millisecond) // a client's pause after a refusal
					}
				}
			})
		}
	}
	work.Wait()
	slices.Sort(h.waits)
	return h
}

// add adds what came of more requests.
func (h *hammered) add(more hammered) {
	h.passed, h.refused, h.other, h.waits, h.at = h.passed+more.passed, h.refused+more.refused, h.other+more.other, more.waits, append(h.at, more.at...)
}

// send sends one request and tells whether it passed.
func (h *hammered) send(m *member, key string) bool {
	ok := m.status(key) == 200
	if ok {
		h.add(hammered{passed: 1, at: []time.Time{time.Now()}})
	}
	return ok
}

// mostInMinute is how many passed in the minute that had most.
func (h *hammered) mostInMinute() (most int) {
	slices.SortFunc(h.at, time.Time.Compare)
	for i, from := 0, 0; i < len(h.at); i++ {
		for h.at[i].Sub(h.at[from]) >= time.Minute {
			from++
		}
		most = max(most, i-from+1)
	}
	return most
}

// hammerUntil hammers until enough have passed in all, or for so long that a busy machine has had its time.
func (h *hammered) hammerUntil(enough int, key string, clients int, all ...*member) {
	for deadline := time.Now().Add(30 * time.Second); h.passed < enough && time.Now().Before(deadline); {
		h.add(hammer(key, clients, 500*time.Millisecond, all...))
	}
	h.add(hammer(key, clients, 2*time.Second, all...)) // and nothing beyond
}

func (h hammered) slowest() time.Duration {
	if len(h.waits) == 0 {
		return 0
	}
	return h.waits[len(h.waits)*99/100]
}

// TestSharedRPM: three gateways hammered on one key admit its hundred requests a minute in sum, and not one more: not
// when one of them is started anew in the middle, not when one is killed, and not through one that joins with an empty
// state directory. A limit smaller than the number of gateways is used up whole.
func TestSharedRPM(t *testing.T) {
	c := newCluster(t)
	engine := &counting{took: time.Millisecond}
	c.engine.on(engine.serve)
	k, small, idle := c.key("shared", levelrail.KeyLimits{RPM: 100}), c.key("small", levelrail.KeyLimits{RPM: 2}), c.key("idle", levelrail.KeyLimits{RPM: 3})
	one := c.join("one", k.Secret)
	var h hammered
	for range 10 { // alone, and exact without a word
		if !h.send(one, k.Secret) {
			t.Fatal("alone it refuses")
		}
	}
	if n := one.way.words(); n != 0 {
		t.Errorf("a gateway that is alone has asked for leases %d times", n)
	}
	began := time.Now()
	two := c.join("two", k.Secret)
	if !h.send(two, k.Secret) {
		t.Error("the first request to the newcomer is refused")
	}
	three := c.join("three", k.Secret)
	h.hammerUntil(95, k.Secret, 4, one, two, three)
	t.Logf("three gateways, rpm 100: %d admitted in sum, %d refused (99 %% of them within %s), %s since the first", h.mostInMinute(), h.refused, h.slowest(), time.Since(began).Round(time.Second))
	if most := h.mostInMinute(); most > 100 || h.passed < 95 || h.other > 0 {
		t.Errorf("%d of 100 are admitted, %d ended otherwise", most, h.other)
	}
	before := h.passed
	two.end(syscall.SIGTERM)
	two.begin()
	three.end(syscall.SIGKILL)
	four := c.join("four", k.Secret)
	three.begin()
	h.add(hammer(k.Secret, 2, 2*time.Second, one, two, three, four))
	t.Logf("after a restart, a kill and a join: %d more, %s since the first", h.passed-before, time.Since(began).Round(time.Second))
	if most := h.mostInMinute(); most > 100 {
		t.Errorf("%d of 100 are admitted in a minute", most)
	}

	all := []*member{one, two, three, four}
	for _, m := range all {
		m.knows(small.Secret)
	}
	statuses := []int{}
	for _, m := range all {
		statuses = append(statuses, m.status(small.Secret))
	}
	if !slices.Equal(statuses, []int{200, 200, 429, 429}) {
		t.Errorf("rpm 2 at four gateways: %v", statuses)
	}
	for range 3 { // what a first one has and does not use is called back
		if s := four.status(idle.Secret); s != 200 {
			t.Errorf("rpm 3, all at the fourth gateway: %d", s)
		}
	}
	e, err := c.people.Explain(t.Context(), "chat", k.ID)
	if err != nil || len(e.Total) != 1 || e.Total[0].Used > 100 || e.Total[0].Most != 100 || e.RefusedBy == nil || len(e.Limits) < 4 || len(e.Silent) > 0 {
		t.Errorf("explained: %+v, %v", e, err)
	} else {
		t.Logf("explained: %d of %d used in sum, %d of it by gateways that are gone, passes in %d s at least", e.Total[0].Used, e.Total[0].Most, e.Total[0].Gone, e.Total[0].ResetSeconds)
	}
}

// TestSharedSlots: of four requests at once no more than four are ever with the engine, whichever gateways they come
// through, and all four are used, also when only one of the gateways has something to do.
func TestSharedSlots(t *testing.T) {
	c := newCluster(t)
	engine := &counting{took: 40 * time.Millisecond}
	c.engine.on(engine.serve)
	k := c.key("shared", levelrail.KeyLimits{MaxParallel: 4})
	all := []*member{c.join("one", k.Secret), c.join("two", k.Secret), c.join("three", k.Secret)}
	began := time.Now()
	h := hammer(k.Secret, 4, 5*time.Second, all...)
	busy := float64(engine.in.Load()) * engine.took.Seconds() / time.Since(began).Seconds()
	t.Logf("three gateways, max_parallel 4: at most %d at once, %.1f on average, %d passed, %d refused (99 %% of them within %s)", engine.most.Load(), busy, h.passed, h.refused, h.slowest())
	if engine.most.Load() != 4 || h.other > 0 || engine.in.Load() != int64(h.passed) {
		t.Errorf("%d at once, want 4; %d passed, the engine saw %d; %d ended otherwise", engine.most.Load(), h.passed, engine.in.Load(), h.other)
	}
	for _, m := range all {
		engine.most.Store(0)
		began := time.Now()
		for engine.most.Load() < 4 && time.Since(began) < 10*time.Second {
			hammer(k.Secret, 6, 200*time.Millisecond, m)
		}
		t.Logf("one gateway with something to do: at most %d at once after %s", engine.most.Load(), time.Since(began).Round(time.Millisecond))
		if engine.most.Load() != 4 {
			t.Errorf("%d at once, want 4", engine.most.Load())
		}
	}
}

// TestSharedWithoutServer: while the server is away its gateways serve by what they have, and no more; when it is back it
// gives nobody a fresh allowance. A gateway that was cut off and has gone on counts again.
func TestSharedWithoutServer(t *testing.T) {
	c := newCluster(t)
	engine := &counting{took: time.Millisecond}
	c.engine.on(engine.serve)
	k := c.key("shared", levelrail.KeyLimits{RPM: 100, TPD: 10_000})
	one, two := c.join("one", k.Secret), c.join("two", k.Secret)
	var h hammered
	for range 10 {
		h.send(one, k.Secret)
		h.send(two, k.Secret)
	}
	c.stop(syscall.SIGKILL)
	before := h.passed
	h.add(hammer(k.Secret, 2, time.Second, one, two))
	t.Logf("the server is away: %d passed, %d in sum", h.passed-before, h.passed)
	if h.passed == before || h.mostInMinute() > 100 {
		t.Errorf("without the server %d pass, %d in a minute", h.passed-before, h.mostInMinute())
	}
	c.start()
	c.eventually("the server is back", func() bool { _, err := c.people.Status(t.Context()); return err == nil })
	h.hammerUntil(95, k.Secret, 2, one, two)
	t.Logf("with the server again: %d in sum", h.mostInMinute())
	if most := h.mostInMinute(); most > 100 || h.passed < 95 {
		t.Errorf("%d of 100 are admitted, %d in all", most, h.passed)
	}
	two.end(syscall.SIGTERM)
	three := c.join("three", k.Secret)
	h.add(hammer(k.Secret, 2, time.Second, one, three))
	if most := h.mostInMinute(); most > 100 {
		t.Errorf("one in the place of another has more: %d in a minute", most)
	}
}
