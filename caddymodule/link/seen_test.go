package link

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// TestSeenTokens: how far the watch has come is said when it has said everything and when a key is made or taken away, not
// for anything else; what cannot be said is tried once more; and it never holds up the watch.
func TestSeenTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource()
		l, _ := newLink(src, "")
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { l.Run(ctx); close(ended) }()
		said := func(when string, want ...string) {
			t.Helper()
			synctest.Wait()
			src.mu.Lock()
			defer src.mu.Unlock()
			if !slices.Equal(src.seen, want) {
				t.Errorf("%s: said %q, want %q", when, src.seen, want)
			}
			src.seen = nil
		}
		fails := func(err error) {
			src.mu.Lock()
			defer src.mu.Unlock()
			src.deaf = err
		}
		gone := func(token string) { src.lines <- line(wire.WatchRouteKey, wire.WatchDelete, "k1", token, nil) }
		src.lines <- wire.WatchLine{Type: wire.WatchReset}
		src.lines <- keyLine("k1", "")
		said("before synced")
		src.lines <- wire.WatchLine{Type: wire.WatchSynced, Token: "c.1"}
		said("synced", "c.1")
		src.lines <- keyLine("k2", "c.2")
		said("a key is made", "c.2")
		src.lines <- routeLine("chat")
		src.lines <- line(wire.WatchRoute, wire.WatchDelete, "chat", "", nil)
		said("what is no key")
		gone("c.3")
		said("a key is gone", "c.3")

		fails(errors.New("deaf"))
		gone("c.4")
		time.Sleep(time.Minute)
		said("tried twice", "c.4", "c.4")
		fails(levelrail.Errorf(levelrail.ErrNotFound, "no such route"))
		gone("c.5")
		time.Sleep(time.Minute)
		said("a server that knows no such thing", "c.5")
		fails(errors.New("deaf"))
		gone("c.6")
		gone("c.7")
		synctest.Wait()
		gone("c.8")
		time.Sleep(time.Minute)
		src.mu.Lock()
		if n := len(src.seen); n < 2 || src.seen[n-1] != "c.8" {
			t.Errorf("the newest is said last: %q", src.seen)
		}
		src.mu.Unlock()
		stop()
		<-ended
	})
}

// TestNext: whoever has a table learns of the next one.
func TestNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource()
		l, _ := newLink(src, "")
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go l.Run(ctx)
		old, newer := l.Next()
		if _, same := l.Next(); old != l.Table() || same != newer {
			t.Error("not the newest")
		}
		src.lines <- wire.WatchLine{Type: wire.WatchReset}
		src.lines <- routeLine("chat")
		synctest.Wait()
		select {
		case <-newer:
			t.Error("half a table is told")
		default:
		}
		src.lines <- wire.WatchLine{Type: wire.WatchSynced, Token: "c.1"}
		<-newer
		if now, _ := l.Next(); now == old || content(now) != "chat" {
			t.Error("the next is not the newest")
		}
	})
}

// TestQuestionsOfTheWatch: a question is answered beside the watch, which goes on while the answer is made; one that is
// taken back or cannot be understood is not, and many at once are not all.
func TestQuestionsOfTheWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource()
		l, log := newLink(src, "")
		var mu sync.Mutex
		hold := make(chan struct{})
		asked := 0
		l.o.Answer = func(q wire.Question) wire.Answer {
			mu.Lock()
			asked++
			mu.Unlock()
			if q.Ask == "slow" {
				<-hold
			}
			return wire.Answer{Requests: []wire.InFlight{{ID: q.Request}}, Limits: []wire.LimitState{{Limit: "rpm"}}}
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { l.Run(ctx); close(ended) }()
		ask := func(id, ask string) {
			src.lines <- line(wire.WatchQuestion, wire.WatchPut, id, "", wire.Question{ID: id, Ask: ask, Request: "req_1"})
		}
		answers := func(n int) {
			t.Helper()
			synctest.Wait()
			src.mu.Lock()
			defer src.mu.Unlock()
			if len(src.answers) != n {
				t.Errorf("%d answers, want %d", len(src.answers), n)
			}
		}
		src.lines <- wire.WatchLine{Type: wire.WatchReset}
		ask("q_1", "requests")
		answers(1)
		if a := src.answers["q_1"]; a.GatewayID != l.ID() || a.Requests[0] != (wire.InFlight{ID: "req_1", GatewayID: l.ID()}) || a.Limits[0].GatewayID != l.ID() {
			t.Errorf("%+v", a)
		}
		src.lines <- line(wire.WatchQuestion, wire.WatchDelete, "q_1", "", nil)
		src.lines <- line(wire.WatchQuestion, wire.WatchPut, "q_2", "", []int{1})
		answers(1)
		for i := range 100 {
			ask(string(rune('a'+i%26))+string(rune('a'+i/26)), "slow")
		}
		src.lines <- routeLine("chat")
		src.lines <- wire.WatchLine{Type: wire.WatchSynced, Token: "c.1"}
		answers(1)
		if content(l.Table()) != "chat" || asked != 1+mostQuestions {
			t.Errorf("%q, %d asked; the log: %s", content(l.Table()), asked, log)
		}
		close(hold)
		answers(1 + mostQuestions)
		ask("q_3", "requests")
		answers(2 + mostQuestions)
		stop()
		<-ended
	})
}
