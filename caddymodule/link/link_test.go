package link

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/caddymodule/route"
	"github.com/levelrail/levelrail/client"
	"github.com/levelrail/levelrail/client/wire"
)

// fakeSource is a control plane: each watch sends the lines that are put into it, until it is broken.
type fakeSource struct {
	mu      sync.Mutex
	asked   []client.WatchOptions
	at      []time.Time
	refuse  error // what a watch fails with at once
	lines   chan wire.WatchLine
	breakUp chan error

	seen    []string // the tokens said
	deaf    error    // what saying one fails with
	answers map[string]wire.Answer
}

func (f *fakeSource) Seen(_ context.Context, s wire.Seen) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = append(f.seen, s.Token)
	return f.deaf
}

func (f *fakeSource) Answer(_ context.Context, question string, a wire.Answer) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.answers == nil {
		f.answers = map[string]wire.Answer{}
	}
	f.answers[question] = a
	return nil
}

func newFakeSource() *fakeSource {
	return &fakeSource{lines: make(chan wire.WatchLine), breakUp: make(chan error)}
}

func (f *fakeSource) Watch(ctx context.Context, o client.WatchOptions, each func(wire.WatchLine) error) error {
	f.mu.Lock()
	f.asked, f.at = append(f.asked, o), append(f.at, time.Now())
	refuse := f.refuse
	f.mu.Unlock()
	if refuse != nil {
		return refuse
	}
	for {
		select {
		case line := <-f.lines:
			if err := each(line); err != nil {
				return err
			}
		case err := <-f.breakUp:
			return err
		case <-ctx.Done():
			return context.Canceled
		}
	}
}

func (f *fakeSource) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuse = err
}

func (f *fakeSource) watches() []client.WatchOptions {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]client.WatchOptions(nil), f.asked...)
}

func line(kind, what, id, token string, object any) wire.WatchLine {
	b, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	return wire.WatchLine{Type: what, Kind: kind, ID: id, Token: token, Object: b}
}

func routeLine(name string) wire.WatchLine {
	return line(wire.WatchRoute, wire.WatchPut, name, "", wire.Route{Model: name, Engine: "llamacpp", Names: []string{name}})
}

func hashOf(name string) (h route.Hash) {
	copy(h[:], name+strings.Repeat("-", 32))
	return h
}

func keyLine(name, token string) wire.WatchLine {
	return line(wire.WatchRouteKey, wire.WatchPut, name, token, wire.RouteKey{ID: name, SHA256: fmt.Sprintf("%x", hashOf(name)), Models: []string{"chat"}})
}

// logged is what a link writes to its log, from several goroutines.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func newLink(src Source, dir string) (*Link, *logged) {
	log := new(logged)
	return New(Options{Source: src, Where: "test", Directory: dir, Serves: func() Serves { return Serves{URL: "http://here/v1"} }, Log: slog.New(slog.NewTextHandler(log, nil))}), log
}

// content is the table in words: its models, then the keys of those asked for that are there.
func content(t *route.Table, keys ...string) string {
	var out []string
	for _, m := range t.Models() {
		out = append(out, m.Name)
	}
	for _, k := range keys {
		if _, ok := t.Key(hashOf(k)); ok {
			out = append(out, k)
		}
	}
	return strings.Join(out, " ")
}

// TestFollow: the life of a link, line by line: nothing is published before a first table is complete, single changes are
// published one by one, and a table that is said anew replaces the old one only when it is whole.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource()
		l, _ := newLink(src, "")
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { l.Run(ctx); close(ended) }()
		send := func(lines ...wire.WatchLine) {
			for _, x := range lines {
				src.lines <- x
			}
			synctest.Wait()
		}
		expect := func(when, want string, live bool) {
			t.Helper()
			if got := content(l.Table(), "k1", "k2", "k3"); got != want || l.Live() != live {
				t.Errorf("%s: %q live %v, want %q %v", when, got, l.Live(), want, live)
			}
		}
		reset, synced := wire.WatchLine{Type: wire.WatchReset}, func(token string) wire.WatchLine {
			return wire.WatchLine{Type: wire.WatchSynced, Token: token}
		}
		send(reset, keyLine("k1", ""), routeLine("chat"), routeLine("other"))
		expect("before synced", "", false)
		if l.Table().Known() {
			t.Error("half a table is called known")
		}
		send(synced("c.1"))
		expect("synced", "chat other k1", true)
		send(keyLine("k2", "c.2"), wire.WatchLine{Type: wire.WatchHeartbeat, Token: "ignored"})
		expect("a new key", "chat other k1 k2", true)
		send(line(wire.WatchRouteKey, wire.WatchDelete, "k1", "c.3", nil), line(wire.WatchRoute, wire.WatchDelete, "other", "", nil))
		expect("deletes", "chat k2", true)
		send(line("of the future", wire.WatchPut, "x", "c.4", map[string]int{}), wire.WatchLine{Type: "of the future"}, line(wire.WatchRouteKey, wire.WatchDelete, "nobody", "c.5", nil))
		expect("unknown lines", "chat k2", true)

		src.breakUp <- errors.New("broken")
		synctest.Wait()
		expect("broken", "chat k2", false)
		time.Sleep(mostPause) // the link's pause, in the test's clock
		synctest.Wait()
		if w := src.watches(); len(w) != 2 || w[0].After != "" || w[1].After != "c.5" {
			t.Fatalf("watches %+v", w)
		}
		send(keyLine("k3", "c.6"), routeLine("new"))
		expect("going on", "chat new k2 k3", false)
		send(synced("c.6"))
		expect("routes not said again are gone", "new k2 k3", true)

		src.breakUp <- &client.GoneError{Err: levelrail.Errorf(levelrail.ErrInvalid, "too old")}
		time.Sleep(mostPause)
		synctest.Wait()
		if w := src.watches(); w[len(w)-1].After != "" {
			t.Fatalf("after gone: %+v", w[len(w)-1])
		}
		send(reset, routeLine("newest"))
		expect("while said anew", "new k2 k3", false)
		src.breakUp <- errors.New("broken in the middle")
		time.Sleep(mostPause)
		synctest.Wait()
		expect("broken in the middle", "new k2 k3", false)
		send(reset, routeLine("newest"), keyLine("k1", ""), synced("d.1"))
		expect("whole again", "newest k1", true)

		l.Announce()
		synctest.Wait() // without a pause
		if w := src.watches(); w[len(w)-1].After != "d.1" {
			t.Errorf("an announcement did not go on from d.1: %+v", w[len(w)-1])
		}
		send(routeLine("newest"), synced("d.1"))
		expect("announced", "newest k1", true)

		stop()
		<-ended
		body := src.watches()[0].Body.(wire.WatchGateway)
		if body.URL != "http://here/v1" || body.Version != levelrail.Version || !strings.HasPrefix(body.GatewayID, "gw_") {
			t.Errorf("the gateway says of itself %+v", body)
		}
	})
}

// TestPauses: a control plane that is away is asked again and again, ever less often up to a bound, and the log says so once.
func TestPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource()
		src.fail(levelrail.Errorf(levelrail.ErrUnavailable, "nobody there"))
		l, log := newLink(src, "")
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { l.Run(ctx); close(ended) }()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		n := len(src.watches())
		if n < 60 || n > 400 {
			t.Errorf("%d attempts in ten minutes", n)
		}
		for i := 1; i < len(src.at); i++ {
			if gap := src.at[i].Sub(src.at[i-1]); gap > 3*mostPause/2 || gap < firstPause/2 {
				t.Errorf("a pause of %s", gap)
			}
		}
		if got := strings.Count(log.String(), "no connection to the control plane"); got != 1 {
			t.Errorf("the log says it %d times", got)
		}
		src.fail(nil)
		time.Sleep(2 * mostPause)
		src.lines <- wire.WatchLine{Type: wire.WatchReset}
		src.lines <- wire.WatchLine{Type: wire.WatchSynced, Token: "c.1"}
		synctest.Wait()
		if !l.Live() {
			t.Error("the control plane is back and the link is not")
		}
		stop()
		<-ended
	})
}

// TestKept: what was published last is on disk when Run returns, and is the same table when it is loaded.
func TestKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	src := newFakeSource()
	l, _ := newLink(src, dir)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { l.Run(ctx); close(ended) }()
	for _, x := range []wire.WatchLine{{Type: wire.WatchReset}, routeLine("chat"), keyLine("k1", ""), {Type: wire.WatchSynced, Token: "c.1"}, keyLine("k2", "c.2")} {
		src.lines <- x
	}
	src.lines <- wire.WatchLine{Type: wire.WatchHeartbeat} // taken only when the line before has been applied
	stop()
	<-ended
	again, _ := newLink(src, dir)
	again.Load()
	if got := content(again.Table(), "k1", "k2"); got != "chat k1 k2" || again.state.token != "c.2" || !again.Table().Known() {
		t.Errorf("%q after %q", got, again.state.token)
	}
	if first, second := gatewayID(dir, l.o.Log), gatewayID(dir, l.o.Log); first != second {
		t.Errorf("the id is %s, then %s", first, second)
	}
	// The id of a deleted key is known from the disk too.
	again.state.begin()
	again.state.apply(line(wire.WatchRouteKey, wire.WatchDelete, "k1", "c.3", nil))
	if got := content(again.state.table, "k1", "k2"); got != "chat k2" {
		t.Errorf("after a delete: %q", got)
	}
}

// TestDiskTrouble: a directory that cannot be written is said in the log, stops nothing, and is written as soon as it can be.
func TestDiskTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "state")
		if err := os.WriteFile(dir, nil, 0o600); err != nil { // a file where the directory should be
			t.Fatal(err)
		}
		src := newFakeSource()
		l, log := newLink(src, dir)
		l.Load()
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { l.Run(ctx); close(ended) }()
		for _, x := range []wire.WatchLine{{Type: wire.WatchReset}, routeLine("chat"), {Type: wire.WatchSynced, Token: "c.1"}} {
			src.lines <- x
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if !strings.Contains(log.String(), "cannot be kept") || content(l.Table()) != "chat" {
			t.Errorf("the table is %q, the log %s", content(l.Table()), log)
		}
		os.Remove(dir)
		time.Sleep(2 * retryPause)
		synctest.Wait()
		if s, err := load(dir, l.o.Log); err != nil || s == nil || content(s.table) != "chat" {
			t.Errorf("after the trouble: %v %v", s, err)
		}
		stop()
		<-ended
	})
}

// BenchmarkApply is one key's change in a table of a million: what a watch line costs until the next request sees it.
func BenchmarkApply(b *testing.B) {
	s := state{table: new(route.Table), log: slog.New(slog.DiscardHandler)}
	s.begin()
	s.apply(wire.WatchLine{Type: wire.WatchReset})
	for i := range 1_000_000 {
		s.apply(line(wire.WatchRouteKey, wire.WatchPut, fmt.Sprint("key_", i), "", wire.RouteKey{ID: fmt.Sprint("key_", i), SHA256: levelrail.HashSecret(fmt.Sprint(i)), Models: []string{"chat"}}))
	}
	s.apply(wire.WatchLine{Type: wire.WatchSynced, Token: "c.1"})
	change := line(wire.WatchRouteKey, wire.WatchPut, "key_7", "c.2", wire.RouteKey{ID: "key_7", SHA256: levelrail.HashSecret("7"), Models: []string{"chat"}})
	b.ReportAllocs()
	for b.Loop() {
		s.apply(change)
	}
}

// TestOtherCluster: a control plane of another cluster, such as one that began anew on an emptied disk, takes nothing away,
// also after a restart of the gateway; one that a restored backup put in the place of this gateway's own is followed.
func TestOtherCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		cluster := func(what, token, id string, replaced ...string) wire.WatchLine {
			return wire.WatchLine{Type: what, Token: token, Cluster: &wire.WatchCluster{ID: id, Replaced: replaced}}
		}
		var src *fakeSource
		run := func() (l *Link, log *logged, stop func()) {
			src = newFakeSource()
			l, log = newLink(src, dir)
			l.Load()
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { l.Run(ctx); close(ended) }()
			synctest.Wait()
			return l, log, func() { cancel(); <-ended }
		}
		send := func(lines ...wire.WatchLine) {
			for _, x := range lines {
				src.lines <- x
			}
			synctest.Wait()
		}
		l, log, stop := run()
		send(cluster(wire.WatchReset, "", "clu_1"), keyLine("k1", ""), routeLine("chat"), cluster(wire.WatchSynced, "c.1", "clu_1"))
		src.breakUp <- &client.GoneError{Err: levelrail.Errorf(levelrail.ErrNotFound, "of another history")}
		time.Sleep(2 * mostPause)
		synctest.Wait()
		send(cluster(wire.WatchReset, "", "clu_2"))
		if got := content(l.Table(), "k1"); got != "chat k1" || l.Live() {
			t.Errorf("after a reset by another cluster: %q, live %v", got, l.Live())
		}
		if !strings.Contains(log.String(), "belongs to the cluster clu_1, and the control plane to clu_2") || !strings.Contains(log.String(), "levelrail-gateway leave") {
			t.Errorf("the log says\n%s", log)
		}
		stop()

		l, _, stop = run()
		if got := content(l.Table(), "k1"); got != "chat k1" {
			t.Errorf("after a restart: %q", got)
		}
		send(cluster(wire.WatchReset, "", "clu_2"))
		if got := content(l.Table(), "k1"); got != "chat k1" {
			t.Errorf("after a restart and a reset by another cluster: %q", got)
		}
		time.Sleep(2 * mostPause)
		synctest.Wait()
		send(cluster(wire.WatchReset, "", "clu_3", "clu_1"), routeLine("new"), cluster(wire.WatchSynced, "d.1", "clu_3", "clu_1"))
		if got := content(l.Table(), "k1"); got != "new" || !l.Live() {
			t.Errorf("after the restored cluster: %q, live %v", got, l.Live())
		}
		stop()
		if b := src.watches(); b[len(b)-1].Body.(wire.WatchGateway).ClusterID != "clu_1" {
			t.Errorf("the gateway says that it belongs to %+v", b[len(b)-1].Body)
		}

		if left, err := Leave(dir); !left || err != nil {
			t.Errorf("leaving: %v, %v", left, err)
		}
		l, _, stop = run()
		send(cluster(wire.WatchReset, "", "clu_9"), routeLine("chat"), cluster(wire.WatchSynced, "e.1", "clu_9"))
		if got := content(l.Table()); got != "chat" {
			t.Errorf("after leaving: %q", got)
		}
		stop()
	})
}
