package lease

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// world is all that happens to one key at many gateways, and the truth about it.
type world struct {
	t      *testing.T
	limits levelrail.KeyLimits
	book   *Book
	delay  time.Duration // a message takes up to this long, each way
	loss   float64       // of messages

	mu       sync.Mutex
	admitted []time.Time
	refused  int
	tokens   []spent
	inFlight int64
	most     struct{ rpm, parallel, tpm int64 }
}

type spent struct {
	at time.Time
	n  int64
}

func newBook(limits levelrail.KeyLimits, tokens map[int64]int64) *Book {
	return New(Options{Clock: time.Now, Log: slog.New(slog.DiscardHandler),
		Limits: func(string) (levelrail.KeyLimits, bool, error) { return limits, true, nil },
		Tokens: func(string, time.Time) (map[int64]int64, error) {
			own := map[int64]int64{}
			for h, n := range tokens {
				own[h] = n
			}
			return own, nil
		},
		Others: func(string) (bool, error) { return false, nil }})
}

// admit notes that a gateway has admitted a request somewhere, and end that it is over.
func (w *world) admit(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.admitted = append(w.admitted, now)
	n := int64(0)
	for i := len(w.admitted) - 1; i >= 0 && now.Sub(w.admitted[i]) < time.Minute; i-- {
		n++
	}
	w.inFlight++
	w.most.rpm, w.most.parallel = max(w.most.rpm, n), max(w.most.parallel, w.inFlight)
}

func (w *world) end(now time.Time, tokens int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inFlight--
	w.tokens = append(w.tokens, spent{now, tokens})
	n := int64(0)
	for i := len(w.tokens) - 1; i >= 0 && now.Sub(w.tokens[i].at) < time.Minute; i-- {
		n += w.tokens[i].n
	}
	w.most.tpm = max(w.most.tpm, n)
}

// simulated is a gateway that keeps to the protocol: what caddymodule/limit does, in few words.
type simulated struct {
	w    *world
	id   string
	boot int
	r    *rand.Rand

	mu       sync.Mutex
	contact  bool
	share    wire.Share
	said     wire.Share // under which everything was said
	lease    amounts
	seq      int64
	requests []time.Time
	tokens   []spent
	inFlight int64
	asking   chan struct{}
	refused  time.Time
	life     context.Context
	unfollow context.CancelFunc
	stop     context.CancelFunc
	done     sync.WaitGroup
}

func (g *simulated) used(now time.Time) amounts {
	for len(g.requests) > 0 && now.Sub(g.requests[0]) > 61*time.Second {
		g.requests = g.requests[1:]
	}
	for len(g.tokens) > 0 && now.Sub(g.tokens[0].at) > 61*time.Second {
		g.tokens = g.tokens[1:]
	}
	out := amounts{rpm: int64(len(g.requests)), parallel: g.inFlight}
	for _, s := range g.tokens {
		out[tpm] += s.n
	}
	return out
}

// request is one request from its beginning to its end.
func (g *simulated) request(ctx context.Context) bool {
	for deadline := time.Now().Add(300 * time.Millisecond); ; {
		if g.take() {
			g.mu.Lock()
			took, n := time.Duration(g.r.Int64N(int64(400*time.Millisecond))), g.r.Int64N(20)
			g.mu.Unlock()
			g.done.Go(func() {
				select {
				case <-ctx.Done():
				case <-time.After(took):
				}
				g.mu.Lock()
				g.inFlight--
				g.tokens = append(g.tokens, spent{time.Now(), n})
				g.mu.Unlock()
				g.w.end(time.Now(), n)
			})
			return true
		}
		if time.Now().After(deadline) || !g.ask(ctx) {
			return false
		}
	}
}

func (g *simulated) take() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	used, most := g.used(now), limitsOf(g.w.limits)
	for l := range most {
		bound := most[l]
		if !g.share.Alone {
			bound = min(bound, g.lease[l])
		}
		if most[l] > 0 && used[l] >= bound {
			return false
		}
	}
	g.requests = append(g.requests, now)
	g.inFlight++
	g.w.admit(now)
	return true
}

// ask asks for more, one at a time, and not again for a while after a refusal.
func (g *simulated) ask(ctx context.Context) bool {
	g.mu.Lock()
	if g.share.Alone || !g.contact || time.Since(g.refused) < 100*time.Millisecond {
		g.mu.Unlock()
		return false
	}
	if asking := g.asking; asking != nil {
		g.mu.Unlock()
		<-asking
		return true
	}
	asking := make(chan struct{})
	g.asking = asking
	g.mu.Unlock()
	better := g.say(ctx, true, false, false)
	g.mu.Lock()
	if g.asking = nil; !better {
		g.refused = time.Now()
	}
	g.mu.Unlock()
	close(asking)
	return better
}

// say sends the gateway's word and takes the answer. recalled gives back what is not used.
func (g *simulated) say(ctx context.Context, want, recalled, leaving bool) (better bool) {
	g.mu.Lock()
	used := g.used(time.Now())
	if recalled {
		for l := range g.lease {
			g.lease[l] = min(g.lease[l], used[l])
		}
	}
	g.seq++
	share := g.share
	u := wire.LeaseUse{KeyID: "key_a", Seq: g.seq, Used: used.wire(), Held: g.lease.wire(), Want: want, Wait: want}
	r := wire.LeaseReport{GatewayID: g.id, Boot: fmt.Sprint(g.boot), Book: share.Book, Epoch: share.Epoch, Complete: true, Leaving: leaving, Keys: []wire.LeaseUse{u}}
	contact := g.contact
	g.mu.Unlock()
	if !contact || !g.travels(ctx) {
		return false
	}
	one, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	out, err := g.w.book.Report(one, r)
	if err != nil {
		g.w.t.Error(err)
	}
	if !g.travels(ctx) {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.said = share
	if g.share != share || len(out.Keys) != 1 || out.Keys[0].Seq != g.seq || !g.contact {
		return false
	}
	was := g.lease
	g.lease = amountsOf(out.Keys[0].May)
	_, short := (&hold{used: used}).lacks(g.lease, limitsOf(g.w.limits))
	return !short && g.lease != was || !short && want
}

// cutOff takes the gateway's contact away for a while.
func (g *simulated) cutOff(d time.Duration) {
	g.mu.Lock()
	unfollow := g.unfollow
	g.mu.Unlock()
	unfollow()
	time.Sleep(d)
	ctx, cancel := context.WithCancel(g.life)
	g.mu.Lock()
	g.unfollow = cancel
	g.mu.Unlock()
	g.done.Go(func() { g.follow(ctx) })
}

// travels takes as long as a message does, and tells whether it arrives.
func (g *simulated) travels(ctx context.Context) bool {
	g.mu.Lock()
	d, lost := time.Duration(g.r.Int64N(int64(g.w.delay)+1)), g.r.Float64() < g.w.loss
	g.mu.Unlock()
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return !lost
	}
}

// follow is the watch: shares and recalls.
func (g *simulated) follow(ctx context.Context) {
	defer g.w.book.Connect(g.id, fmt.Sprint(g.boot), max(g.share.Gateways, 1))()
	g.mu.Lock()
	g.contact = true
	g.mu.Unlock()
	defer func() { g.mu.Lock(); g.contact = false; g.mu.Unlock() }()
	sent := map[string]json.RawMessage{}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		changed, lines := g.w.book.Changed(g.id), g.w.book.Lines(g.id)
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(rand.Int64N(int64(g.w.delay) + 1))):
		}
		for id, text := range lines {
			if was, ok := sent[id]; ok && &was[0] == &text[0] {
				continue
			}
			if id != wire.ShareID {
				g.say(ctx, false, true, false)
				continue
			}
			var s wire.Share
			if err := json.Unmarshal(text, &s); err != nil {
				g.w.t.Error(err)
			}
			g.mu.Lock()
			if g.share.Alone && !s.Alone { // what it counted by itself, and its part of the rest
				used, most := g.used(time.Now()), limitsOf(g.w.limits)
				for l := range most {
					g.lease[l] = used[l] + max(0, most[l]-used[l])/int64(s.Gateways)
				}
			}
			g.share = s
			g.mu.Unlock()
			if !s.Alone {
				g.say(ctx, false, false, false)
			}
		}
		sent = lines
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-tick.C:
			g.mu.Lock()
			share, said := g.share, g.said
			g.mu.Unlock()
			if !share.Alone || said != share {
				g.say(ctx, false, false, false)
			}
		}
	}
}

// run begins a process of the gateway, with requests that come about so often.
func (g *simulated) run(every time.Duration) {
	ctx, cancel := context.WithCancel(context.Background())
	g.boot++
	g.contact, g.asking, g.refused, g.lease = false, nil, time.Time{}, amounts{}
	g.share = wire.Share{Gateways: g.share.Gateways}
	g.life, g.stop = ctx, cancel
	following, unfollow := context.WithCancel(ctx)
	g.unfollow = unfollow
	g.done.Go(func() { g.follow(following) })
	g.done.Go(func() {
		for ctx.Err() == nil {
			g.mu.Lock()
			pause := time.Duration(g.r.Int64N(2 * int64(every)))
			g.mu.Unlock()
			select {
			case <-ctx.Done():
			case <-time.After(pause):
				g.done.Go(func() {
					if ctx.Err() == nil && !g.request(ctx) {
						g.w.mu.Lock()
						g.w.refused++
						g.w.mu.Unlock()
					}
				})
			}
		}
	})
}

func (g *simulated) end(leaves bool) {
	g.stop()
	g.done.Wait()
	if leaves { // when nothing is in flight any more, it says its last word
		g.contact = true
		g.say(context.Background(), false, false, true)
	}
}

// TestNeverOverTheLimit: whatever messages do that come late or not at all, and whoever joins, leaves or starts anew, all
// gateways together admit no more than the limit in any minute and at any moment, and nearly as much as it when there is
// enough to do.
func TestNeverOverTheLimit(t *testing.T) {
	for _, c := range []struct {
		name    string
		limits  levelrail.KeyLimits
		members int
		every   time.Duration
		delay   time.Duration
		loss    float64
		restart int
		least   float64 // of the limit that has to be used
	}{
		{"three gateways that stay", levelrail.KeyLimits{RPM: 100, MaxParallel: 4}, 3, 200 * time.Millisecond, 2 * time.Millisecond, 0, 0, 0.97},
		{"small limits, many gateways", levelrail.KeyLimits{RPM: 2}, 5, 500 * time.Millisecond, 2 * time.Millisecond, 0, 0, 0.95},
		{"three that come and go", levelrail.KeyLimits{RPM: 100, MaxParallel: 4}, 3, 200 * time.Millisecond, 2 * time.Millisecond, 0, 40, 0.75},
		{"many that come and go", levelrail.KeyLimits{RPM: 2}, 5, 500 * time.Millisecond, 2 * time.Millisecond, 0, 40, 0.75},
		{"one at a time", levelrail.KeyLimits{MaxParallel: 1}, 4, 100 * time.Millisecond, 2 * time.Millisecond, 0, 40, 0},
		{"long ways and losses", levelrail.KeyLimits{RPM: 100, MaxParallel: 6}, 4, 200 * time.Millisecond, 120 * time.Millisecond, 0.1, 40, 0.7},
		{"tokens", levelrail.KeyLimits{TPM: 2000, MaxParallel: 5}, 3, 100 * time.Millisecond, 5 * time.Millisecond, 0, 40, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &world{t: t, limits: c.limits, book: newBook(c.limits, nil), delay: c.delay, loss: c.loss}
				r := rand.New(rand.NewPCG(1, uint64(len(c.name))))
				ctx, cancel := context.WithCancel(t.Context())
				go tick(ctx, w.book)
				var all []*simulated
				for i := range c.members {
					g := &simulated{w: w, id: fmt.Sprint("gw_", i), r: rand.New(rand.NewPCG(2, uint64(i)))}
					g.run(c.every)
					all = append(all, g)
					time.Sleep(time.Duration(r.Int64N(int64(20 * time.Second))))
				}
				if c.restart == 0 {
					time.Sleep(15 * time.Minute)
				}
				for range c.restart {
					time.Sleep(time.Duration(r.Int64N(int64(60 * time.Second))))
					g := all[r.IntN(len(all))]
					g.end(true)
					if r.IntN(2) == 0 {
						time.Sleep(time.Duration(r.Int64N(int64(15 * time.Second))))
					}
					if r.IntN(4) == 0 { // a fresh one takes its place
						g.id, g.requests, g.tokens = g.id+"'", nil, nil
					}
					g.run(c.every)
				}
				for _, g := range all {
					g.end(true)
				}
				cancel()
				w.check(c.least, 0)
			})
		})
	}
}

// TestBoundOfLosses: gateways that are cut off for up to half a minute and ones that are killed, with what they admitted in
// their last two seconds forgotten, go over the limit by what they held at most, so that no minute sees twice the limit.
// Two minutes after the last loss the limit holds again.
func TestBoundOfLosses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := levelrail.KeyLimits{RPM: 100, MaxParallel: 50}
		w := &world{t: t, limits: limits, book: newBook(limits, nil), delay: 20 * time.Millisecond, loss: 0.02}
		r := rand.New(rand.NewPCG(3, 4))
		ctx, cancel := context.WithCancel(t.Context())
		go tick(ctx, w.book)
		var all []*simulated
		for i := range 4 {
			g := &simulated{w: w, id: fmt.Sprint("gw_", i), r: rand.New(rand.NewPCG(5, uint64(i)))}
			g.run(300 * time.Millisecond)
			all = append(all, g)
		}
		for range 40 {
			time.Sleep(time.Duration(r.Int64N(int64(40 * time.Second))))
			g := all[r.IntN(len(all))]
			if r.IntN(2) == 0 {
				g.cutOff(time.Duration(r.Int64N(int64(30 * time.Second))))
				continue
			}
			g.end(false)
			for n := len(g.requests); n > 0 && time.Since(g.requests[n-1]) < 2*time.Second; n-- {
				g.requests = g.requests[:n-1]
			}
			g.run(300 * time.Millisecond)
		}
		time.Sleep(2 * time.Minute)
		w.mu.Lock()
		worst := w.most.rpm
		w.most.rpm = 0
		w.mu.Unlock()
		time.Sleep(3 * time.Minute)
		for _, g := range all {
			g.end(true)
		}
		cancel()
		t.Logf("while gateways were lost: at most %d in a minute, limit %d", worst, limits.RPM)
		if worst >= 2*limits.RPM {
			t.Errorf("%d in a minute", worst)
		}
		w.check(0.7, 0)
	})
}

func tick(ctx context.Context, b *Book) {
	for ctx.Err() == nil {
		b.Tick()
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// check holds the truth against the limits. beyond is how many requests more a minute may have seen.
func (w *world) check(least float64, beyond int64) {
	w.t.Helper()
	l := w.limits
	first, last := w.admitted[0], w.admitted[len(w.admitted)-1]
	minutes := last.Sub(first).Minutes()
	part := 0.0
	if l.RPM > 0 { // a window begins anew a second late at most, and slides in seconds
		part = float64(len(w.admitted)) / (float64(l.RPM) * (minutes*60/61 + 1))
	}
	w.t.Logf("%d admitted and %d refused in %.0f minutes; at most %d a minute (limit %d), %d at once (%d), %d tokens a minute (%d); %.1f %% of rpm used",
		len(w.admitted), w.refused, minutes, w.most.rpm, l.RPM, w.most.parallel, l.MaxParallel, w.most.tpm, l.TPM, 100*part)
	if l.RPM > 0 && w.most.rpm > l.RPM+beyond {
		w.t.Errorf("%d requests in a minute, limit %d", w.most.rpm, l.RPM)
	}
	if l.MaxParallel > 0 && w.most.parallel > l.MaxParallel {
		w.t.Errorf("%d at once, limit %d", w.most.parallel, l.MaxParallel)
	}
	if soft := 2 * l.MaxParallel * 20; l.TPM > 0 && (w.most.tpm > l.TPM+soft || w.most.tpm < l.TPM*9/10) {
		w.t.Errorf("%d tokens in a minute, limit %d", w.most.tpm, l.TPM)
	}
	if part < least {
		w.t.Errorf("only %.1f %% of the limit were used, want %.0f %%", 100*part, 100*least)
	}
	if w.inFlight != 0 || !slices.IsSortedFunc(w.admitted, time.Time.Compare) {
		w.t.Error("the truth is none")
	}
}
