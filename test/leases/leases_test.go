// Package leases holds the two halves of shared limits against each other, the gateway's and the control plane's, both as
// they are, in virtual time: with messages that are late or lost, and processes that come and go.
package leases

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/caddymodule/limit"
	gateway "github.com/levelrail/levelrail/caddymodule/limit/lease"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/controlplane/lease"
)

const key = "key_a"

// world is one key of one cluster, and the truth about it.
type world struct {
	t      *testing.T
	limits levelrail.KeyLimits
	delay  time.Duration // a message takes up to this long, each way
	loss   float64       // of messages
	engine time.Duration // an answer takes up to this long

	mu       sync.Mutex
	r        *rand.Rand
	book     *lease.Book
	admitted []time.Time
	refused  int
	inFlight int64
	busy     time.Duration // of all requests
	spent    int64
	most     struct{ rpm, parallel int64 }
}

func newWorld(t *testing.T, l levelrail.KeyLimits) *world {
	w := &world{t: t, limits: l, delay: 2 * time.Millisecond, engine: 400 * time.Millisecond, r: rand.New(rand.NewPCG(7, 11))}
	w.serverAnew()
	return w
}

// serverAnew is a server that has just started. Usage is stored, as it would be.
func (w *world) serverAnew() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.book = lease.New(lease.Options{Clock: time.Now, Log: slog.New(slog.DiscardHandler),
		Limits: func(string) (levelrail.KeyLimits, bool, error) { return w.limits, true, nil },
		Tokens: func(string, time.Time) (map[int64]int64, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return map[int64]int64{time.Now().Unix() / 3600: w.spent}, nil // a test takes less than an hour
		},
		Others: func(string) (bool, error) { return true, nil }})
}

func (w *world) server() *lease.Book { w.mu.Lock(); defer w.mu.Unlock(); return w.book }

func (w *world) between(d time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Duration(w.r.Int64N(int64(d) + 1))
}

func (w *world) chance(p float64) bool { w.mu.Lock(); defer w.mu.Unlock(); return w.r.Float64() < p }

// node is a gateway: its counts, what speaks for it, and its way to the server.
type node struct {
	w      *world
	id     string
	keys   *limit.Keys
	sharer *gateway.Sharer
	cut    bool // under the world's lock
	stop   context.CancelFunc
	done   sync.WaitGroup
	kept   []limit.Kept
	saved  time.Time
	heard  int
	alone  bool
}

var errCut = errors.New("cut off")

// Leases is the way to the control plane.
func (n *node) Leases(ctx context.Context, r wire.LeaseReport) (wire.Leases, error) {
	travel := func() error {
		select {
		case <-time.After(n.w.between(n.w.delay)):
		case <-ctx.Done():
			return ctx.Err()
		}
		if n.isCut() || n.w.chance(n.w.loss) {
			return errCut
		}
		return nil
	}
	if err := travel(); err != nil {
		return wire.Leases{}, err
	}
	out, err := n.w.server().Report(ctx, r)
	if err != nil {
		return out, err
	}
	return out, travel()
}

func (n *node) isCut() bool { n.w.mu.Lock(); defer n.w.mu.Unlock(); return n.cut }

func (n *node) setCut(cut bool) { n.w.mu.Lock(); defer n.w.mu.Unlock(); n.cut = cut }

// follow is the watch, as caddymodule/link does it: again and again.
func (n *node) follow(ctx context.Context) {
	for ctx.Err() == nil {
		if !n.isCut() {
			n.watch(ctx)
		}
		if ctx.Err() == nil {
			n.sharer.Away()
		}
		wait(ctx, 200*time.Millisecond+n.w.between(200*time.Millisecond))
	}
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (n *node) watch(ctx context.Context) {
	book := n.w.server()
	boot, heard := n.sharer.Boot()
	if n.heard == 0 && heard == 1 {
		heard = 0 // it has never heard anything
	}
	defer book.Connect(n.id, boot, heard)()
	n.sharer.Begin()
	sent, synced := map[string]json.RawMessage{}, false
	for {
		changed, lines := book.Changed(n.id), book.Lines(n.id)
		wait(ctx, n.w.between(n.w.delay))
		for id, text := range lines {
			if was, ok := sent[id]; ok && &was[0] == &text[0] {
				continue
			}
			var s wire.Share
			if id != wire.ShareID {
				n.sharer.Recall(id)
			} else if err := json.Unmarshal(text, &s); err != nil {
				n.w.t.Error(err)
			} else {
				n.sharer.Share(s)
			}
		}
		if sent = lines; !synced {
			synced = true
			n.sharer.Synced()
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-time.After(100 * time.Millisecond): // so long until a cut is noticed
		}
		if n.isCut() || book != n.w.server() {
			return
		}
	}
}

// request is one request from its beginning to its end, as caddymodule/gateway takes it.
func (n *node) request(ctx context.Context) {
	l := n.w.limits
	var c limit.Key
	more := func(try func() bool) bool {
		if try() {
			return true
		}
		if !n.sharer.Asks() {
			return false
		}
		for since := time.Now(); n.keys.Short(key, time.Now()) && n.sharer.More(ctx, key, since); {
			if try() {
				return true
			}
			if !n.sharer.Asks() {
				return false
			}
		}
		n.keys.Refused(key, time.Now())
		return false
	}
	refused := func() { n.w.mu.Lock(); n.w.refused++; n.w.mu.Unlock() }
	if !more(func() (ok bool) { c, ok = n.keys.Enter(key, l, time.Now()); return ok }) {
		refused()
		return
	}
	defer c.Leave()
	if !more(func() bool { _, _, ok := c.Charge(l, time.Now()); return ok }) {
		refused()
		return
	}
	took, tokens := n.w.between(n.w.engine), int64(n.w.between(20))
	n.w.begin()
	wait(ctx, took)
	n.w.end(took, tokens)
	c.Spend(l, tokens, time.Now())
}

func (w *world) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	w.admitted = append(w.admitted, now)
	n := int64(0)
	for i := len(w.admitted) - 1; i >= 0 && now.Sub(w.admitted[i]) < time.Minute; i-- {
		n++
	}
	w.inFlight++
	w.most.rpm, w.most.parallel = max(w.most.rpm, n), max(w.most.parallel, w.inFlight)
}

func (w *world) end(took time.Duration, tokens int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inFlight--
	w.busy += took
	w.spent += tokens
}

// start begins a process of the gateway, to which requests come about so often.
func (n *node) start(every time.Duration) {
	ctx, cancel := context.WithCancel(context.Background())
	n.stop = cancel
	now := time.Now()
	n.keys = limit.NewKeys(now)
	n.sharer = gateway.New(gateway.Options{ControlPlane: n, Keys: n.keys, GatewayID: func() string { return n.id }, Log: slog.New(slog.DiscardHandler), Now: time.Now})
	if n.heard > 0 {
		n.sharer.Kept(n.heard, n.alone)
	}
	for _, k := range n.kept {
		n.keys.Restore(k, n.saved, now)
	}
	n.done.Go(func() { n.follow(ctx) })
	n.done.Go(func() { n.sharer.Run(ctx) })
	n.done.Go(func() {
		for ctx.Err() == nil {
			wait(ctx, n.w.between(2*every))
			if ctx.Err() == nil {
				n.done.Go(func() { n.request(ctx) })
			}
		}
	})
}

// end ends the process: with its last words, or killed.
func (n *node) end(killed bool) {
	n.stop()
	n.done.Wait()
	n.kept, n.saved = nil, time.Now()
	n.keys.Keep(n.saved, func(k limit.Kept) bool {
		for _, list := range []*[][2]int64{&k.RPM, &k.TPM, &k.TPD, &k.TPDOthers} {
			*list = slices.Clone(*list) // Keep uses it again
		}
		n.kept = append(n.kept, k)
		return true
	})
	n.heard, n.alone = n.sharer.Last()
	if !killed {
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		defer cancel()
		n.sharer.Leave(ctx)
	}
	time.Sleep(gateway.Patience) // a question for more that nobody waits for any more
}

func (w *world) tick(ctx context.Context) {
	for ctx.Err() == nil {
		w.server().Tick()
		wait(ctx, time.Second)
	}
}

// share is how much of rpm was used: a window of a second more than a minute at a time, as windows slide by seconds.
func (w *world) share(minutes float64) float64 {
	return float64(len(w.admitted)) / float64(max(w.limits.RPM, 1)) / (math.Floor(minutes*60/61) + 1)
}

func (w *world) tell(minutes float64) {
	w.t.Logf("%d admitted (%.1f %% of the limit) and %d refused in %.0f minutes; at most %d a minute (limit %d), %d at once (limit %d), %.2f on average",
		len(w.admitted), 100*w.share(minutes), w.refused, minutes, w.most.rpm, w.limits.RPM, w.most.parallel, w.limits.MaxParallel, w.busy.Minutes()/minutes)
}

// TestShared: in contact, with messages that come late or not at all and gateways that end, are started anew or replaced,
// no minute and no moment sees more than the limit, and those that stay use nearly all of it.
func TestShared(t *testing.T) {
	for _, c := range []struct {
		name     string
		limits   levelrail.KeyLimits
		nodes    int
		every    time.Duration
		delay    time.Duration
		loss     float64
		restarts int
		least    float64 // of rpm, or of slots
	}{
		{"three that stay", levelrail.KeyLimits{RPM: 100}, 3, 150 * time.Millisecond, 2 * time.Millisecond, 0, 0, 0.97},
		{"slots", levelrail.KeyLimits{MaxParallel: 4}, 3, 50 * time.Millisecond, 2 * time.Millisecond, 0, 0, 0.8},
		{"one slot", levelrail.KeyLimits{MaxParallel: 1}, 4, 50 * time.Millisecond, 5 * time.Millisecond, 0.02, 20, 0.5},
		{"a small limit", levelrail.KeyLimits{RPM: 2}, 5, 500 * time.Millisecond, 2 * time.Millisecond, 0, 0, 0.95},
		{"late messages", levelrail.KeyLimits{RPM: 100, MaxParallel: 6}, 4, 150 * time.Millisecond, 150 * time.Millisecond, 0.1, 20, 0.6},
		{"comings and goings", levelrail.KeyLimits{RPM: 100, MaxParallel: 4, TPD: 1 << 30}, 3, 100 * time.Millisecond, 2 * time.Millisecond, 0, 40, 0.6},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, c.limits)
				w.delay, w.loss = c.delay, c.loss
				ctx, cancel := context.WithCancel(t.Context())
				go w.tick(ctx)
				time.Sleep(lease.LostAfter)
				began := time.Now()
				var all []*node
				for i := range c.nodes {
					n := &node{w: w, id: fmt.Sprint("gw_", i)}
					n.start(c.every)
					all = append(all, n)
					time.Sleep(w.between(5 * time.Second))
				}
				if c.restarts == 0 {
					time.Sleep(15 * time.Minute)
				}
				for range c.restarts {
					time.Sleep(w.between(time.Minute))
					n := all[w.between(time.Duration(len(all)-1))]
					n.end(false)
					time.Sleep(w.between(2 * time.Second))
					if w.chance(0.3) { // another one takes its place
						n.id, n.kept, n.heard = n.id+"'", nil, 0
					}
					n.start(c.every)
				}
				minutes := time.Since(began).Minutes()
				for _, n := range all {
					n.end(false)
				}
				cancel()
				w.tell(minutes)
				if l := c.limits; l.RPM > 0 && w.most.rpm > l.RPM || l.MaxParallel > 0 && w.most.parallel > l.MaxParallel {
					t.Errorf("%d in a minute, %d at once", w.most.rpm, w.most.parallel)
				}
				used := w.busy.Minutes() / minutes / float64(max(c.limits.MaxParallel, 1))
				if c.limits.RPM > 0 {
					used = w.share(minutes)
				}
				if used < c.least {
					t.Errorf("%.0f %% are used, want %.0f %%", 100*used, 100*c.least)
				}
			})
		})
	}
}

// TestSharedDay: a day's tokens are spent once, though gateways are replaced by fresh ones, killed, and the server starts
// anew; the last gateway, which is alone, knows what all have spent.
func TestSharedDay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, levelrail.KeyLimits{TPD: 20_000})
		ctx, cancel := context.WithCancel(t.Context())
		go w.tick(ctx)
		time.Sleep(lease.LostAfter)
		var all []*node
		for i := range 3 {
			n := &node{w: w, id: fmt.Sprint("gw_", i)}
			n.start(100 * time.Millisecond)
			all = append(all, n)
		}
		for i := range 6 {
			time.Sleep(20 * time.Second)
			n := all[i%3]
			n.end(i%2 == 0)
			if i%3 == 1 {
				n.id, n.kept, n.heard = n.id+"'", nil, 0
			}
			n.start(100 * time.Millisecond)
			if i == 3 {
				w.serverAnew()
			}
		}
		time.Sleep(2 * time.Minute)
		for _, n := range all {
			n.end(false)
		}
		time.Sleep(3 * time.Minute)
		last := &node{w: w, id: "gw_last"}
		last.start(100 * time.Millisecond)
		time.Sleep(time.Minute)
		last.end(false)
		cancel()
		// Soft by what is in flight when the limit is reached, at any gateway that still had something left of its part.
		t.Logf("%d tokens of %d are spent", w.spent, w.limits.TPD)
		if w.spent < w.limits.TPD || w.spent > w.limits.TPD+3*100*20 {
			t.Errorf("%d tokens are spent, limit %d", w.spent, w.limits.TPD)
		}
	})
}

// TestSharedBound: gateways that are killed, gateways that are cut off for minutes, and servers that start anew make the
// sum go over the limit by no more than the limit; in the contact that follows it holds again.
func TestSharedBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, levelrail.KeyLimits{RPM: 100, MaxParallel: 8})
		ctx, cancel := context.WithCancel(t.Context())
		go w.tick(ctx)
		time.Sleep(lease.LostAfter)
		began := time.Now()
		var all []*node
		for i := range 4 {
			n := &node{w: w, id: fmt.Sprint("gw_", i)}
			n.start(200 * time.Millisecond)
			all = append(all, n)
		}
		for range 30 {
			time.Sleep(w.between(time.Minute))
			n := all[w.between(3)]
			switch w.between(2) {
			case 0:
				n.end(true)
				n.start(200 * time.Millisecond)
			case 1:
				n.setCut(true)
				time.Sleep(w.between(3 * time.Minute))
				n.setCut(false)
			case 2:
				w.serverAnew()
			}
		}
		time.Sleep(2 * time.Minute)
		w.mu.Lock()
		worst := w.most
		w.most.rpm, w.most.parallel = 0, 0
		w.mu.Unlock()
		time.Sleep(5 * time.Minute)
		t.Logf("with losses: at most %d a minute (limit %d) and %d at once (limit %d)", worst.rpm, w.limits.RPM, worst.parallel, w.limits.MaxParallel)
		minutes := time.Since(began).Minutes()
		for _, n := range all {
			n.end(false)
		}
		cancel()
		w.tell(minutes)
		if worst.rpm > 2*w.limits.RPM || worst.parallel > 2*w.limits.MaxParallel {
			t.Errorf("with losses %d in a minute, %d at once", worst.rpm, worst.parallel)
		}
		if w.most.rpm > w.limits.RPM || w.most.parallel > w.limits.MaxParallel {
			t.Errorf("in contact %d in a minute, %d at once", w.most.rpm, w.most.parallel)
		}
	})
}
