package ledger

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/levelrail/levelrail/client/wire"
)

// TestSeen: a gateway has seen what it says, only ever more, and what it came back with; one that is not connected has
// seen nothing.
func TestSeen(t *testing.T) {
	l := New()
	defer l.Close()
	l.Seen("gw_1", 9)
	if l.HasSeen("gw_1", 0) {
		t.Error("a gateway that is not connected has seen something")
	}
	end := l.Connect(Gateway{ID: "gw_1"}, 4)
	if !l.HasSeen("gw_1", 4) || l.HasSeen("gw_1", 5) {
		t.Error("what it came back with is not what it has seen")
	}
	more := l.SawMore()
	l.Seen("gw_1", 3)
	if changed(more) || !l.HasSeen("gw_1", 4) {
		t.Error("an older word counts")
	}
	l.Seen("gw_1", 7)
	if !changed(more) || !l.HasSeen("gw_1", 7) || l.HasSeen("gw_2", 0) {
		t.Error("a newer word does not count")
	}
	end()
	if l.HasSeen("gw_1", 1) {
		t.Error("a gateway that has left has seen something")
	}
}

// TestActivity: the last use of a model is the latest that any gateway knows of, by this server's clock.
func TestActivity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New()
		defer l.Close()
		say := func(gateway string, idle, inFlight int64) {
			l.Activity(wire.Activity{GatewayID: gateway, Models: []wire.ModelActivity{{Model: "chat", IdleSeconds: idle, InFlight: inFlight}}})
		}
		ago := func() time.Duration {
			at, ok := l.LastActive("chat")
			if !ok {
				return -1
			}
			return time.Since(at)
		}
		if ago() != -1 {
			t.Error("it was used before anybody said so")
		}
		say("gw_1", 60, 0)
		say("gw_2", 300, 0)
		if got := ago(); got != time.Minute {
			t.Errorf("used %s ago", got)
		}
		time.Sleep(time.Minute)
		c := l.Changed()
		say("gw_2", 300, 2) // a long stream
		if got := ago(); got != 0 {
			t.Errorf("in use, and used %s ago", got)
		}
		say("gw_2", 1<<62, 0)
		if got := ago(); got != 0 {
			t.Errorf("used %s ago", got)
		}
		if changed(c) {
			t.Error("those who wait for changes were woken")
		}
		l.ForgetModel("chat")
		if ago() != -1 {
			t.Error("a model that is gone was used")
		}
	})
}
