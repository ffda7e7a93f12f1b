package ledger

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

func changed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// TestSilence: a node is online for 30 seconds after its last word, and going silent is told as a change.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New()
		defer l.Close()
		c := l.Changed()
		if err := l.Report(wire.Report{NodeID: "node_1", Boot: "b", Sequence: 1}); err != nil {
			t.Fatal(err)
		}
		if !changed(c) || !l.Snapshot().Nodes["node_1"].Online {
			t.Fatal("a report was not told or the node is offline")
		}
		time.Sleep(20 * time.Second)
		l.Report(wire.Report{NodeID: "node_1", Boot: "b", Sequence: 2})
		time.Sleep(29 * time.Second)
		if !l.Snapshot().Nodes["node_1"].Online {
			t.Error("offline after 29 s")
		}
		c = l.Changed()
		time.Sleep(time.Second)
		synctest.Wait()
		if s := l.Snapshot(); s.Nodes["node_1"].Online || !changed(c) {
			t.Errorf("after 30 s: %+v, told: %v", s.Nodes["node_1"], changed(c))
		}
		c = l.Changed()
		l.Report(wire.Report{NodeID: "node_1", Boot: "b", Sequence: 3})
		if !changed(c) || !l.Snapshot().Nodes["node_1"].Online {
			t.Error("the node did not come back")
		}
	})
}

// TestLateReport: a report that was overtaken is refused; a new process of the agent begins to count anew.
func TestLateReport(t *testing.T) {
	l := New()
	defer l.Close()
	for _, step := range []struct {
		boot string
		seq  uint64
		kind levelrail.ErrorKind
	}{{"a", 1, ""}, {"a", 3, ""}, {"a", 2, levelrail.ErrConflict}, {"a", 3, levelrail.ErrConflict}, {"b", 1, ""}} {
		if err := l.Report(wire.Report{NodeID: "n", Boot: step.boot, Sequence: step.seq}); levelrail.KindOf(err) != step.kind {
			t.Errorf("%s/%d: %v", step.boot, step.seq, err)
		}
	}
	if r := l.Snapshot().Nodes["n"]; r.Boot != "b" || r.Sequence != 1 {
		t.Errorf("the last report is %+v", r)
	}
	l.Forget("n")
	if len(l.Snapshot().Nodes) != 0 {
		t.Error("a removed node is still there")
	}
}

// TestGateways: a gateway is there as long as one of its watches is.
func TestGateways(t *testing.T) {
	l := New()
	defer l.Close()
	first := l.Connect(Gateway{ID: "gw_1", URL: "http://old"}, 0)
	second := l.Connect(Gateway{ID: "gw_1", URL: "http://new"}, 0)
	first()
	first()
	if g := l.Snapshot().Gateways; len(g) != 1 || g[0].URL != "http://new" {
		t.Errorf("after one of two watches ended: %+v", g)
	}
	c := l.Changed()
	second()
	if len(l.Snapshot().Gateways) != 0 || !changed(c) {
		t.Error("the gateway is still there")
	}
}

// TestListened: a ledger says when it has listened long enough to call a silent node offline, and tells that moment.
func TestListened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New()
		defer l.Close()
		c := l.Changed()
		if l.Snapshot().Listened() {
			t.Error("listened at once")
		}
		time.Sleep(Silence)
		synctest.Wait()
		if !l.Snapshot().Listened() || !changed(c) {
			t.Error("not listened after 30 s, or not told")
		}
	})
}
