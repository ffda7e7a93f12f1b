package link

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levelrail/levelrail/client/wire"
)

// staleLine is a model whose control plane wants gateways to serve for so long without it.
func staleLine(seconds int64) wire.WatchLine {
	return line(wire.WatchRoute, wire.WatchPut, "chat", "", wire.Route{Model: "chat", Engine: "llamacpp", Limits: wire.Limits{MaxStaleSeconds: seconds}})
}

// TestStale: a gateway that is cut off serves for as long as it may, says before and when it ends, and serves on once it is
// connected again.
func TestStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource()
		l, log := newLink(src, "")
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { l.Run(ctx); close(ended) }()
		sync := func() {
			for _, x := range []wire.WatchLine{{Type: wire.WatchReset}, staleLine(7200), {Type: wire.WatchSynced, Token: "c.1"}} {
				src.lines <- x
			}
			src.lines <- wire.WatchLine{Type: wire.WatchHeartbeat}
		}
		sync()
		time.Sleep(1000 * time.Hour)
		if l.Stale() {
			t.Error("connected, and stale")
		}
		src.breakUp <- context.DeadlineExceeded
		src.fail(context.DeadlineExceeded)
		time.Sleep(time.Hour - 10*time.Second)
		if strings.Contains(log.String(), "will be refused") {
			t.Error("it is said too early")
		}
		time.Sleep(20 * time.Second)
		if l.Stale() || strings.Count(log.String(), "will be refused") != 1 || !strings.Contains(log.String(), "APP_MODEL_GATEWAY_MAX_STALE") {
			t.Errorf("half of the time is over: %v\n%s", l.Stale(), log)
		}
		time.Sleep(time.Hour)
		if !l.Stale() || strings.Count(log.String(), "requests are refused") != 1 {
			t.Errorf("all of the time is over: %v\n%s", l.Stale(), log)
		}
		src.fail(nil)
		sync()
		time.Sleep(2 * time.Second)
		if l.Stale() || !strings.Contains(log.String(), "serving again") {
			t.Error("connected again, and still stale")
		}
		stop()
		<-ended
	})
}

// TestStaleCounts: the time goes on over restarts, from when the table was last known to be the newest and not from when it was
// written; a table that is too old serves nothing from the first request on.
func TestStaleCounts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	src := newFakeSource()
	l, _ := newLink(src, dir)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { l.Run(ctx); close(ended) }()
	for _, x := range []wire.WatchLine{{Type: wire.WatchReset}, staleLine(3600), {Type: wire.WatchSynced, Token: "c.1"}, {Type: wire.WatchHeartbeat}} {
		src.lines <- x
	}
	stop()
	<-ended
	if heard(dir).IsZero() {
		t.Fatal("nothing tells when the table was last heard")
	}
	for _, c := range []struct {
		heard time.Duration // ago
		stale bool
	}{{30 * time.Minute, false}, {2 * time.Hour, true}, {-time.Hour, false}} {
		s, err := load(dir, l.o.Log)
		if err != nil {
			t.Fatal(err)
		}
		old := time.Now().Add(-1000 * time.Hour) // written long ago, and unchanged since
		if err := write(dir, s.table, s.cluster, s.token, old); err != nil {
			t.Fatal(err)
		}
		if err := mark(dir, time.Now().Add(-c.heard)); err != nil {
			t.Fatal(err)
		}
		again, _ := newLink(newFakeSource(), dir)
		again.Load()
		age, known := again.Age()
		if !known || again.Stale() != c.stale || age < max(c.heard, 0) || age > max(c.heard, 0)+time.Minute {
			t.Errorf("heard %s ago: age %s, %v, stale %v", c.heard, age, known, again.Stale())
		}
	}
}
