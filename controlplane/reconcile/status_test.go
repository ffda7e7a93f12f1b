package reconcile

import (
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/controlplane/ledger"
)

// TestStatus: the agent's word is passed on as long as it is about what is wanted now; otherwise the status says what is
// missing.
func TestStatus(t *testing.T) {
	placed := func() *world { return newWorld().node("n", 0).model("chat", 1, none).replica("chat", "n", none) }
	change := func(w *world, f func(m *levelrail.Model, r *levelrail.Replica)) *world {
		f(&w.d.Models[0], &w.d.Replicas[0])
		return w
	}
	late := t0.Add(30 * time.Minute)
	for _, tc := range []struct {
		name   string
		world  *world
		ready  bool
		reason levelrail.Reason
		says   string
	}{
		{"not taken up", placed(), false, levelrail.Pending, "has not taken it up yet"},
		{"loaded", placed().says("n", "chat", 1, loaded), true, levelrail.ModelLoaded, ""},
		{"as told", placed().says("n", "chat", 1, levelrail.Condition{Reason: levelrail.EngineFailed, Message: "out of memory", Next: "more"}), false, levelrail.EngineFailed, "out of memory"},
		{"silent", placed().says("n", "chat", 1, loaded).report("n", func(r *ledger.NodeReport) { r.Online = false }), false, levelrail.NodeOffline, "goes on serving"},
		{"no word since the start", placed().fresh().mute("n"), false, levelrail.Pending, "first report"},
		{"node has left", func() *world { w := placed(); delete(w.d.Nodes, "n"); return w }(), false, levelrail.NodeUnknown, "levelrail models delete chat"},
		{"deleting", change(placed().says("n", "chat", 1, loaded), func(m *levelrail.Model, _ *levelrail.Replica) { m.Deleting = true }), false, levelrail.Stopping, ""},
		{"update not handed over", change(placed().says("n", "chat", 1, loaded).revision("chat", 2, none), func(m *levelrail.Model, _ *levelrail.Replica) { m.Revision = 2 }), false, levelrail.Starting, "revision 2 is being handed"},
		{"update that does not fit", change(placed().says("n", "chat", 1, loaded).revision("chat", 2, count(1)), func(m *levelrail.Model, _ *levelrail.Replica) { m.Revision = 2 }), false, levelrail.NoGPUOnNode, "revision 1 stays as it is"},
		{"update not taken up", change(placed().says("n", "chat", 1, loaded), func(m *levelrail.Model, r *levelrail.Replica) { m.Revision, r.Revision, r.Stamp.UpdatedAt = 2, 2, late }), false, levelrail.Starting, "revision 1 serves meanwhile"},
		{"update on its way", change(placed().says("n", "chat", 1, levelrail.Condition{Ready: true, Reason: levelrail.Downloading, Since: late.Add(time.Second)}), func(m *levelrail.Model, r *levelrail.Replica) { m.Revision, r.Revision, r.Stamp.UpdatedAt = 2, 2, late }),
			false, levelrail.Downloading, "revision 1 serves meanwhile"},
		{"failure of the revision before", change(placed().says("n", "chat", 1, levelrail.Condition{Reason: levelrail.EngineFailed}), func(m *levelrail.Model, r *levelrail.Replica) { m.Revision, r.Revision, r.Stamp.UpdatedAt = 2, 2, late }), false, levelrail.Starting, "yet to start revision 2"},
		{"restart not handed over", change(placed().says("n", "chat", 1, loaded), func(m *levelrail.Model, _ *levelrail.Replica) { m.Restarts = 1 }), false, levelrail.Starting, ""},
		{"restart not taken up", change(placed().says("n", "chat", 1, levelrail.Condition{Reason: levelrail.EngineFailed}), func(m *levelrail.Model, r *levelrail.Replica) { m.Restarts, r.Restarts, r.Stamp.UpdatedAt = 1, 1, late }), false, levelrail.Starting, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := tc.world.status("chat")
			if c.Ready != tc.ready || c.Reason != tc.reason || !strings.Contains(c.Message+c.Next, tc.says) {
				t.Errorf("got %+v, want ready %v, %s with %q", c, tc.ready, tc.reason, tc.says)
			}
		})
	}
}

// TestServing: requests go to what serves by its node's last word; before the first word since the server's start, to
// what was started. A model that is updated goes on serving.
func TestServing(t *testing.T) {
	placed := func() *world { return newWorld().node("n", 0).model("chat", 1, none).replica("chat", "n", none) }
	for _, tc := range []struct {
		name  string
		world *world
		want  bool
	}{
		{"loaded", placed().says("n", "chat", 1, loaded), true},
		{"loading", placed().says("n", "chat", 1, levelrail.Condition{Reason: levelrail.Loading}), false},
		{"updating", placed().says("n", "chat", 1, levelrail.Condition{Ready: true, Reason: levelrail.Downloading}), true},
		{"not taken up", placed(), false},
		{"silent", placed().says("n", "chat", 1, loaded).report("n", func(r *ledger.NodeReport) { r.Online = false }), true},
		{"no word since the start", placed().mute("n"), true},
	} {
		if got := Serving(tc.world.o, tc.world.d.Replicas[0]); got != tc.want {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
}
