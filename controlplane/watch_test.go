package controlplane

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client"
	"github.com/levelrail/levelrail/client/wire"
)

// TestWatchOrder: a watch begins with reset, then everything there is, then synced; only then come changes.
func TestWatchOrder(t *testing.T) {
	r := start(t, rigOptions{})
	n := r.join(0)
	r.deploy("b")
	r.deploy("a")
	n.assigned("a", anyAssignment)
	f := follow(t, r.people, client.WatchOptions{Kinds: []string{wire.WatchModel, wire.WatchNode}})
	eventually(t, "it is synced", f.synced)
	var got []string
	for _, l := range f.lines {
		got = append(got, l.Type+" "+l.Kind+"/"+l.ID)
	}
	if want := fmt.Sprintf("[reset / put model/a put model/b put node/%s synced /]", n.id); fmt.Sprint(got) != want {
		t.Errorf("got  %v\nwant %s", got, want)
	}
	if f.token == "" {
		t.Error("synced has no token")
	}
	one := follow(t, r.people, client.WatchOptions{Kinds: []string{wire.WatchNode}, ID: "gpu-01"})
	eventually(t, "a watch on a node by its name", func() bool { return one.synced() && one.has("node/"+n.id) })
}

// TestWatchKeys: keys come as they change; a watch that comes back with its token is told what it missed, a key that was
// revoked meanwhile is a deletion, and routes are whole each time.
func TestWatchKeys(t *testing.T) {
	r := start(t, rigOptions{heartbeat: 50 * time.Millisecond})
	ctx := t.Context()
	r.join(0)
	first := r.deploy("chat").Key
	o := clientWatchGateway(false)
	f := follow(t, r.gateway, o)
	eventually(t, "the key is told", func() bool { return f.synced() && f.has("route_key/"+first.ID) && f.has("route/chat") })
	second, err := r.people.CreateKey(ctx, "chat", wire.CreateKey{Name: "second"})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "a new key is told", func() bool { return f.has("route_key/" + second.ID) })
	if _, err := r.people.RevokeKey(ctx, "chat", second.ID, false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a revoked key is taken back", func() bool { return !f.has("route_key/" + second.ID) })
	soon, err := r.people.CreateKey(ctx, "chat", wire.CreateKey{Name: "soon", ExpiresInSeconds: 3}) // the watch says nothing, so this takes one of them
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "a key with an end is told", func() bool { return get[wire.RouteKey](t, f, "route_key/"+soon.ID).ExpiresAt != nil })
	eventually(t, "an expired key is taken back", func() bool { return !f.has("route_key/" + soon.ID) })

	f.stop()
	o.After = f.token
	third, err := r.people.CreateKey(ctx, "chat", wire.CreateKey{Name: "third"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.people.RevokeKey(ctx, "chat", first.ID, false); err != nil {
		t.Fatal(err)
	}
	r.deploy("more")
	back := follow(t, r.gateway, o)
	taken := func() bool {
		back.mu.Lock()
		defer back.mu.Unlock()
		return slices.ContainsFunc(back.lines, func(l wire.WatchLine) bool { return l.Type == wire.WatchDelete && l.ID == first.ID })
	}
	eventually(t, "what was missed is told, a deletion of the key that was revoked meanwhile too", func() bool {
		return back.synced() && back.has("route_key/"+third.ID) && back.has("route/chat") && back.has("route/more") && taken()
	})
	back.mu.Lock()
	defer back.mu.Unlock()
	for _, l := range back.lines {
		if l.Type == wire.WatchReset {
			t.Error("a watch with a token began anew")
		}
		if l.Type == wire.WatchPut && l.ID == second.ID {
			t.Error("a dead key was told")
		}
	}
}

// TestWatchGone: a token that is too old is 410 with the address to begin anew.
func TestWatchGone(t *testing.T) {
	r := start(t, rigOptions{})
	o := clientWatchGateway(false)
	o.After = "0123456789abcdef.5"
	f := follow(t, r.gateway, o)
	eventually(t, "it has ended", func() bool { return f.failed() != nil })
	if err := f.failed(); !client.IsGone(err) || !strings.Contains(err.Error(), "/api/v1/watch?kinds=route%2Croute_key") {
		t.Errorf("got %v", err)
	}
}

// TestWatchEnds: a stopping server ends its watches at once and says so; a revoked token ends the watch of who has it.
func TestWatchEnds(t *testing.T) {
	r := start(t, rigOptions{heartbeat: 20 * time.Millisecond})
	made, err := r.people.CreateToken(t.Context(), wire.CreateToken{Name: "reader", Abilities: []levelrail.Ability{levelrail.AbilityRead}})
	if err != nil {
		t.Fatal(err)
	}
	ca := shortDir(t) + "/ca.pem"
	pem, err := r.people.CA(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, ca, pem)
	far, err := client.New(client.Options{URL: "https://" + r.tls, Token: made.Secret, CAFile: ca})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(far.Close)
	theirs := follow(t, far, client.WatchOptions{Kinds: []string{wire.WatchModel}})
	mine := follow(t, r.people, client.WatchOptions{Kinds: []string{wire.WatchModel}})
	eventually(t, "both are synced", func() bool { return theirs.synced() && mine.synced() })
	if _, err := r.people.RevokeToken(t.Context(), made.ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the watch of the revoked token ends", func() bool { return levelrail.KindOf(theirs.failed()) == levelrail.ErrUnauthorized })
	if mine.failed() != nil {
		t.Error("the other watch ended as well")
	}
	began := time.Now()
	r.stop()
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("stopping took %s while a watch was open", took)
	}
	<-mine.ended
	if err := mine.failed(); levelrail.KindOf(err) != levelrail.ErrUnavailable || !strings.Contains(err.Error(), "stopping") {
		t.Errorf("the watch ended with %v", err)
	}
}

// TestWatchSlowReader: a reader that takes nothing holds up neither the server nor other readers, who miss nothing.
func TestWatchSlowReader(t *testing.T) {
	r := start(t, rigOptions{})
	n := r.join(0)
	r.deploy("chat")
	a := n.assigned("chat", anyAssignment)
	conn, err := net.Dial("unix", r.people.Where())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET /api/v1/watch?kinds=model HTTP/1.1\r\nHost: localhost\r\n\r\n")
	if _, err := bufio.NewReaderSize(conn, 16).ReadByte(); err != nil { // the answer has begun; nothing more is read
		t.Fatal(err)
	}
	f := follow(t, r.people, client.WatchOptions{Kinds: []string{wire.WatchModel}})
	eventually(t, "it is synced", f.synced)
	long := strings.Repeat("x", 64<<10)
	for i := range 40 { // 2.5 MiB, far more than a socket holds
		n.say(a, levelrail.Condition{Reason: levelrail.Loading, Message: fmt.Sprintf("%d %s", i, long)})
		eventually(t, "a line reaches the reader who reads", func() bool {
			return strings.HasPrefix(get[wire.Model](t, f, "model/chat").Condition.Message, fmt.Sprintf("%d ", i))
		})
	}
}

// TestLogs: lines go from the agent to who asked, while they come; either side ends it for the other, and a node that does
// not answer is told as such.
func TestLogs(t *testing.T) {
	r := start(t, rigOptions{})
	ctx := t.Context()
	r.deploy("chat")
	if err := r.people.Logs(ctx, "chat", client.LogOptions{}, nil); levelrail.KindOf(err) != levelrail.ErrUnavailable || !strings.Contains(err.Error(), "levelrail models get chat") {
		t.Errorf("on no node yet: %v", err)
	}
	n := r.join(0)
	n.assigned("chat", anyAssignment)
	asked := func() (q wire.LogRequest) {
		t.Helper()
		eventually(t, "the agent is asked", func() bool {
			n.watch.mu.Lock()
			defer n.watch.mu.Unlock()
			for id := range n.watch.state {
				if kind, rest, _ := strings.Cut(id, "/"); kind == wire.WatchLogRequest {
					q.ID = rest
				}
			}
			return q.ID != ""
		})
		return get[wire.LogRequest](t, n.watch, wire.WatchLogRequest+"/"+q.ID)
	}
	read := func(ctx context.Context, o client.LogOptions, each func(wire.LogLine) error) chan error {
		done := make(chan error, 1)
		go func() { done <- r.people.Logs(ctx, "chat", o, each) }()
		return done
	}

	got := make(chan string, 10)
	done := read(ctx, client.LogOptions{Lines: 2, Since: "-1h"}, func(l wire.LogLine) error { got <- l.Message; return nil })
	q := asked()
	if q.Model != "chat" || q.Lines != 2 || q.Follow || q.Since != "-1h" {
		t.Errorf("asked %+v", q)
	}
	err := r.agent.PostLogs(ctx, q.ID, func(_ context.Context, send func(wire.LogLine) error) error {
		if err := send(wire.LogLine{Message: "one"}); err != nil {
			return err
		}
		if first := <-got; first != "one" {
			t.Errorf("the first line is %q", first)
		}
		return send(wire.LogLine{Message: "two"})
	})
	if err != nil {
		t.Errorf("the agent's end: %v", err)
	}
	if err := <-done; err != nil {
		t.Errorf("the reader's end: %v", err)
	}
	if second := <-got; second != "two" {
		t.Errorf("the second line is %q", second)
	}
	eventually(t, "the request is taken back", func() bool { return !n.watch.has(wire.WatchLogRequest + "/" + q.ID) })

	readerCtx, leave := context.WithCancel(ctx)
	done = read(readerCtx, client.LogOptions{Follow: true}, func(wire.LogLine) error { leave(); return nil })
	q = asked()
	began := time.Now()
	if err := r.agent.PostLogs(ctx, q.ID, func(ctx context.Context, send func(wire.LogLine) error) error {
		if err := send(wire.LogLine{Message: "x"}); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	}); err != nil || time.Since(began) > 5*time.Second {
		t.Errorf("after the reader left: %v, %s", err, time.Since(began))
	}
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the reader who left: %v", err)
	}
	eventually(t, "the request is taken back", func() bool { return !n.watch.has(wire.WatchLogRequest + "/" + q.ID) })

	done = read(ctx, client.LogOptions{Follow: true}, func(wire.LogLine) error { return nil })
	q = asked()
	agentCtx, crash := context.WithCancel(ctx)
	r.agent.PostLogs(agentCtx, q.ID, func(ctx context.Context, send func(wire.LogLine) error) error {
		send(wire.LogLine{Message: "x"})
		crash()
		<-ctx.Done()
		return ctx.Err()
	})
	if err := <-done; levelrail.KindOf(err) != levelrail.ErrUnavailable {
		t.Errorf("after the agent broke off: %v", err)
	}
	eventually(t, "the request is taken back", func() bool { return !n.watch.has(wire.WatchLogRequest + "/" + q.ID) })
	if err := r.agent.PostLogs(ctx, q.ID, func(ctx context.Context, _ func(wire.LogLine) error) error { <-ctx.Done(); return ctx.Err() }); levelrail.KindOf(err) != levelrail.ErrNotFound {
		t.Errorf("lines that nobody waits for: %v", err)
	}
}
