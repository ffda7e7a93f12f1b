package wake

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/caddymodule/route"
	"github.com/levelrail/levelrail/client/wire"
)

// world is a control plane and a gateway's table, in memory.
type world struct {
	t   *testing.T
	w   *Waker
	log bytes.Buffer

	mu       sync.Mutex
	table    *route.Table
	newer    chan struct{}
	wakes    []time.Time
	reports  []wire.Activity
	reported []time.Time
	fails    error
	onWake   func()
}

func newWorld(t *testing.T) *world {
	x := &world{t: t, table: new(route.Table).Edit().Table(), newer: make(chan struct{})}
	x.w = New(Options{ControlPlane: x, GatewayID: func() string { return "gw_test" }, Table: x.next, Touch: func() time.Duration { return 20 * time.Second },
		Log: slog.New(slog.NewTextHandler(&x.log, nil))})
	return x
}

func (x *world) next() (*route.Table, <-chan struct{}) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.table, x.newer
}

// put makes the model chat stand like that.
func (x *world) put(serving, asleep bool, reason levelrail.Reason) {
	x.t.Helper()
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.table.Edit()
	if err := e.PutModel(wire.Route{Model: "chat", Engine: "llamacpp", Serving: serving, Asleep: asleep, Reason: string(reason)}); err != nil {
		x.t.Fatal(err)
	}
	x.set(e)
}

func (x *world) set(e *route.Edit) {
	x.table = e.Table()
	close(x.newer)
	x.newer = make(chan struct{})
}

func (x *world) drop() {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.table.Edit()
	e.DropModel("chat")
	x.set(e)
}

func (x *world) Wake(_ context.Context, w wire.Wake) error {
	if w != (wire.Wake{GatewayID: "gw_test", Model: "chat"}) {
		x.t.Errorf("%+v", w)
	}
	x.mu.Lock()
	x.wakes = append(x.wakes, time.Now())
	fails, then := x.fails, x.onWake
	x.mu.Unlock()
	if fails == nil && then != nil {
		then()
	}
	return fails
}

func (x *world) Activity(_ context.Context, a wire.Activity) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.reports, x.reported = append(x.reports, a), append(x.reported, time.Now())
	return x.fails
}

func (x *world) fail(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.fails = err
}

// hold starts n holds and returns a function that counts those that have ended, by how.
func (x *world) hold(n int, ctx context.Context, wait time.Duration) func() map[error]int {
	var mu sync.Mutex
	ended := map[error]int{}
	for range n {
		go func() {
			_, err := x.w.Hold(ctx, "chat", wait)
			mu.Lock()
			defer mu.Unlock()
			ended[err]++
		}()
	}
	return func() map[error]int {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		out := map[error]int{}
		for k, v := range ended {
			out[k] = v
		}
		return out
	}
}

func want(t *testing.T, when string, got map[error]int, pairs ...any) {
	t.Helper()
	all := 0
	for _, n := range got {
		all += n
	}
	for i := 0; i < len(pairs); i += 2 {
		err, _ := pairs[i].(error)
		if got[err] != pairs[i+1].(int) {
			t.Errorf("%s: %v", when, got)
		}
		all -= pairs[i+1].(int)
	}
	if all != 0 {
		t.Errorf("%s: %v", when, got)
	}
}

// woken is how often the model was asked for.
func (x *world) woken() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.wakes)
}

// told are the reports of activity so far.
func (x *world) told() []wire.Activity {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.reports)
}

// TestOneWake is case C026: however many ask, the model is asked for once; those who leave end nothing for the others; all
// who stay are served when it serves, through every reason of a start.
func TestOneWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newWorld(t)
		x.put(false, true, levelrail.Idle)
		leaving, leave := context.WithCancel(t.Context())
		left, stay := x.hold(100, leaving, 90*time.Second), x.hold(100, t.Context(), 90*time.Second)
		synctest.Wait()
		if x.woken() != 1 {
			t.Fatalf("asked for %d times", x.woken())
		}
		pass(5 * time.Second)
		leave()
		want(t, "half have left", left(), context.Canceled, 100)
		want(t, "the others stay", stay())
		for _, r := range []levelrail.Reason{levelrail.WakingUp, levelrail.WaitingGPU, levelrail.WakingUp, levelrail.Starting, levelrail.Loading, levelrail.ModelLoaded} {
			x.put(false, false, r)
			pass(5 * time.Second)
			want(t, string(r), stay())
		}
		x.put(true, false, levelrail.ModelLoaded)
		want(t, "it serves", stay(), nil, 100)
		if x.woken() != 1 {
			t.Errorf("asked for %d times", x.woken())
		}
		x.put(false, true, levelrail.Idle)
		again := x.hold(1, t.Context(), 0)
		want(t, "at once", again(), ErrWaking, 1)
		if x.woken() != 2 {
			t.Errorf("asleep again, it is asked for %d times in all", x.woken())
		}
	})
}

// TestAllLeave: a model whose waiters have all left is asked for nevertheless, once.
func TestAllLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newWorld(t)
		x.put(false, true, levelrail.Idle)
		asked := make(chan struct{})
		x.onWake = func() { <-asked }
		ctx, leave := context.WithCancel(t.Context())
		left := x.hold(10, ctx, time.Minute)
		synctest.Wait()
		leave()
		want(t, "all have left", left(), context.Canceled, 10)
		close(asked)
		synctest.Wait()
		if x.woken() != 1 || !strings.Contains(x.log.String(), "asked for a sleeping model") {
			t.Errorf("%d wakes, log %s", x.woken(), x.log.String())
		}
	})
}

// TestHoldEnds: a hold ends when its time is over, when the model turns out not to come, is gone, or the gateway stops, and
// then nobody waits any more.
func TestHoldEnds(t *testing.T) {
	for name, c := range map[string]struct {
		then func(*world)
		err  error
	}{
		"late":     {func(x *world) { pass(10 * time.Second) }, ErrWaking},
		"failed":   {func(x *world) { x.put(false, false, levelrail.DownloadFailed) }, ErrNotSoon},
		"stopping": {func(x *world) { x.put(false, false, levelrail.Stopping) }, ErrNotSoon},
		"gone":     {func(x *world) { x.drop() }, ErrNotSoon},
		"draining": {func(x *world) { x.w.Drain(); x.w.Drain() }, ErrDraining},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newWorld(t)
				x.put(false, true, levelrail.Idle)
				got := x.hold(5, t.Context(), 10*time.Second)
				want(t, "held", got())
				c.then(x)
				want(t, "ended", got(), c.err, 5)
				if name == "draining" {
					want(t, "after", x.hold(1, t.Context(), 10*time.Second)(), ErrDraining, 1)
					if x.woken() != 1 {
						t.Errorf("a gateway that stops asks for models: %d", x.woken())
					}
				}
			})
		})
	}
}

// TestLostWake: a wake that cannot be said is said again while somebody waits, is told once in the log, and one that the
// control plane took and forgot is said again too, though not at once.
func TestLostWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newWorld(t)
		x.put(false, true, levelrail.Idle)
		x.fail(errors.New("nobody there"))
		got := x.hold(3, t.Context(), time.Minute)
		pass(9 * time.Second)
		want(t, "held", got())
		if n := x.woken(); n < 3 || n > 6 || strings.Count(x.log.String(), "nobody there") != 1 {
			t.Errorf("in 9 s asked %d times; the log: %s", n, x.log.String())
		}
		x.fail(nil)
		pass(3 * time.Second)
		n := x.woken()
		pass(5 * time.Second)
		if x.woken() != n {
			t.Errorf("asked again at once: %d then %d", n, x.woken())
		}
		pass(10 * time.Second)
		if x.woken() <= n {
			t.Error("a wake that was forgotten is not said again")
		}
		x.put(true, false, levelrail.ModelLoaded)
		want(t, "it serves", got(), nil, 3)
	})
}

// TestActivity is the gateway's half of case C024: the first use is told at once, then at most every 20 s; a long request
// keeps being told; when the last ends the idle time runs from its end; a quiet gateway says nothing.
func TestActivity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newWorld(t)
		x.put(true, false, levelrail.ModelLoaded)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { x.w.Run(ctx); close(done) }()
		begun := time.Now()
		said := func(when string, times int, idle, inFlight int64) {
			t.Helper()
			synctest.Wait()
			if len(x.told()) != times {
				t.Fatalf("%s: reported %d times, want %d", when, len(x.told()), times)
			}
			if times > 0 {
				a := x.told()[times-1]
				if a.GatewayID != "gw_test" || len(a.Models) != 1 || a.Models[0] != (wire.ModelActivity{Model: "chat", IdleSeconds: idle, InFlight: inFlight}) {
					t.Errorf("%s at %s: %+v", when, time.Since(begun), a)
				}
			}
		}
		pass(time.Hour)
		said("nothing is used", 0, 0, 0)
		a := x.w.Begin("chat")
		said("the first use", 1, 0, 1)
		b := x.w.Begin("chat")
		for range 1000 {
			x.w.Begin("chat").End()
		}
		said("much use", 1, 0, 1)
		pass(19 * time.Second)
		said("not yet again", 1, 0, 1)
		pass(time.Second)
		said("again", 2, 0, 2)
		a.End()
		pass(3 * time.Minute)
		said("a long request is told again and again", 11, 0, 1)
		pass(5 * time.Second)
		b.End()
		pass(15 * time.Second)
		said("its end", 12, 15, 0)
		pass(time.Hour)
		said("quiet", 12, 15, 0)

		x.w.Renew()
		said("to a new listener", 13, 3615, 0)
		x.fail(errors.New("nobody there"))
		pass(time.Minute)
		x.w.Begin("chat").End()
		pass(time.Minute)
		if n := len(x.told()); n < 15 || n > 17 || strings.Count(x.log.String(), "nobody there") != 1 {
			t.Errorf("%d tries; the log: %s", n, x.log.String())
		}
		x.fail(nil)
		pass(20 * time.Second)
		n := len(x.told())
		if m := x.told()[n-1].Models[0]; m.IdleSeconds < 60 || m.IdleSeconds > 80 {
			t.Errorf("told later: %+v", m)
		}
		pass(time.Hour)
		if len(x.told()) != n {
			t.Errorf("told again: %d then %d", n, len(x.told()))
		}
		x.drop()
		x.w.Renew()
		pass(time.Minute)
		if len(x.told()) != n {
			t.Errorf("a model that is gone is told: %+v", x.told()[len(x.told())-1])
		}
		stop()
		<-done
	})
}

// pass lets the test's clock run, and then everything come to rest.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
