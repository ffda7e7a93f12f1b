package raftstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/raftstore/command"
)

// next returns the next events as "put node a", and the last token.
func next(t testing.TB, sub *Subscription, n int) (lines []string, token string) {
	t.Helper()
	for range n {
		e, err := sub.Next(within(t, 10*time.Second))
		if err != nil {
			t.Fatalf("after %v: %v", lines, err)
		}
		line := string(e.Type)
		if e.Kind != "" {
			line += " " + string(e.Kind) + " " + e.ID
		}
		if e.Type == EventPut {
			var o struct{ ID, Name string }
			if err := json.Unmarshal(e.Object, &o); err != nil || o.ID == "" && o.Name == "" {
				t.Errorf("%s has the object %s", line, e.Object)
			}
		}
		lines, token = append(lines, line), e.Token
	}
	return lines, token
}

func quiet(t testing.TB, sub *Subscription) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if e, err := sub.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("there was one more: %+v, %v", e, err)
	}
}

func expect(t testing.TB, got []string, want ...string) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the events are %v, and %v was expected", got, want)
	}
}

func watch(t testing.TB, s *Store, after string, kinds ...levelrail.Kind) *Subscription {
	t.Helper()
	sub, err := s.Watch(context.Background(), after, kinds...)
	if err != nil {
		t.Fatal(err)
	}
	return sub
}

func conformWatch(t *testing.T, s *Store, _ *clock) {
	propose(t, s, node("b"))
	propose(t, s, node("a"))
	sub := watch(t, s, "", levelrail.KindNode, levelrail.KindModel)
	if sub.Token() != "" {
		t.Errorf("before its start the watch has the token %q", sub.Token())
	}
	lines, token := next(t, sub, 4)
	expect(t, lines, "reset", "put node a", "put node b", "synced")
	quiet(t, sub)

	propose(t, s, deploy("chat"))
	propose(t, s, command.NodeRemove{ID: "b"})
	lines, last := next(t, sub, 2)
	expect(t, lines, "put model chat", "delete node b")

	again := watch(t, s, token, levelrail.KindNode, levelrail.KindModel)
	lines, same := next(t, again, 2)
	expect(t, lines, "put model chat", "delete node b")
	if same != last {
		t.Errorf("two watches of the same changes have the tokens %s and %s", same, last)
	}
	quiet(t, again)

	// A quiet watch's token moves on with the changes of other kinds.
	quietOne := watch(t, s, token, levelrail.KindPolicy)
	quiet(t, quietOne)
	if quietOne.Token() == token {
		t.Error("the token of a quiet watch stands still")
	}

	// A command that changes several objects is told as a whole: a token from its middle tells all of it again.
	every := watch(t, s, last, levelrail.KindModel, levelrail.KindRevision, levelrail.KindKey)
	propose(t, s, deploy("second"))
	lines, middle := next(t, every, 1)
	expect(t, lines, "put model second")
	if middle != last {
		t.Errorf("within a command the token is %s, not the one before it, %s", middle, last)
	}
	resumed := watch(t, s, middle, levelrail.KindModel)
	lines, _ = next(t, resumed, 1)
	expect(t, lines, "put model second")

	for _, token := range []string{"elsewhere.1", s.ids.Lineage + "x.1"} {
		if _, err := s.Watch(context.Background(), token); !errors.Is(err, ErrTooOld) {
			t.Errorf("the token %s of another history gave %v", token, err)
		}
	}
	if _, err := s.Watch(context.Background(), "gibberish"); levelrail.KindOf(err) != levelrail.ErrInvalid {
		t.Errorf("a token that is none gave %v", err)
	}
	if _, err := s.Watch(context.Background(), "", levelrail.KindAudit); levelrail.KindOf(err) != levelrail.ErrInvalid {
		t.Errorf("watching the audit gave %v", err)
	}
}

// TestWatchTooSlow: a reader that the ring has overtaken begins anew, and one that comes back with such a token is told so.
func TestWatchTooSlow(t *testing.T) {
	s := OpenMemory(testConfig(t, ""))
	t.Cleanup(func() { closeTest(t, s) })
	s.ring = newRing(8)
	s.machine.ring = s.ring
	propose(t, s, node("a"))
	sub := watch(t, s, "", levelrail.KindNode)
	lines, token := next(t, sub, 3)
	expect(t, lines, "reset", "put node a", "synced")
	for i := range 9 {
		propose(t, s, node(fmt.Sprintf("n%d", i)))
	}
	lines, _ = next(t, sub, 12)
	expect(t, lines[:2], "reset", "put node a")
	expect(t, lines[11:], "synced")
	if _, err := s.Watch(context.Background(), token, levelrail.KindNode); !errors.Is(err, ErrTooOld) {
		t.Errorf("a token that was overtaken gave %v", err)
	}
	propose(t, s, node("last"))
	lines, _ = next(t, sub, 1)
	expect(t, lines, "put node last")
}

// TestWatchAfterRestart: a watch goes on over a restart while the log still has the changes, and begins anew when only a
// snapshot does.
func TestWatchAfterRestart(t *testing.T) {
	cfg := testConfig(t, t.TempDir())
	cfg.TrailingLogs = 1
	s := openTest(t, cfg)
	sub := watch(t, s, "", levelrail.KindNode)
	_, token := next(t, sub, 2)
	propose(t, s, node("a"))
	closeTest(t, s)

	s = openTest(t, cfg)
	sub = watch(t, s, token, levelrail.KindNode)
	lines, _ := next(t, sub, 1)
	expect(t, lines, "put node a")
	propose(t, s, node("b"))
	if err := s.Snapshot(within(t, 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	closeTest(t, s)

	s = openTest(t, cfg)
	if _, err := s.Watch(context.Background(), token, levelrail.KindNode); !errors.Is(err, ErrTooOld) {
		t.Errorf("a token from before the snapshot gave %v", err)
	}
	lines, _ = next(t, watch(t, s, "", levelrail.KindNode), 4)
	expect(t, lines, "reset", "put node a", "put node b", "synced")
}
