package reconcile

import (
	"slices"
	"strings"
	"testing"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/controlplane/ledger"
	"github.com/levelrail/levelrail/raftstore/command"
)

// TestPlacement: a request for GPUs becomes concrete devices, the lowest free indexes first, or a reason with the next
// step; and both come out the same in the steps and in the status.
func TestPlacement(t *testing.T) {
	for _, tc := range []struct {
		name    string
		world   *world
		devices []string // of chat, when placed
		reason  levelrail.Reason
		says    []string // in message and next step
	}{
		{"none needs no GPU", newWorld().node("n", 0).model("chat", 1, none), nil, levelrail.Pending, nil},
		{"not said without GPUs", newWorld().node("n", 0).report("n", func(r *ledger.NodeReport) { r.GPUNote = "no NVIDIA driver" }).model("chat", 1, unset), nil, levelrail.NoGPUOnNode,
			[]string{"name-of-n", "no NVIDIA driver", "--gpus none"}},
		{"a count without GPUs", newWorld().node("n", 0).model("chat", 1, count(1)), nil, levelrail.NoGPUOnNode, []string{"--gpus none"}},
		{"devices without GPUs", newWorld().node("n", 0).model("chat", 1, devices("0")), nil, levelrail.NoGPUOnNode, nil},
		{"not said takes all", newWorld().node("n", 2).model("chat", 1, unset), []string{"GPU-0", "GPU-1"}, levelrail.Pending, nil},
		{"all", newWorld().node("n", 3).model("chat", 1, all), []string{"GPU-0", "GPU-1", "GPU-2"}, levelrail.Pending, nil},
		{"all when one is held", newWorld().node("n", 2).model("a", 0, count(1)).replica("a", "n", count(1), "GPU-1").model("chat", 1, all), nil, levelrail.InsufficientGPUs,
			[]string{"chat needs all of the 2 GPUs of the node name-of-n", "1 are free", "1 held by the model a", "--gpus 1"}},
		{"a count takes the lowest free", newWorld().node("n", 4).model("a", 0, count(1)).replica("a", "n", count(1), "GPU-0").model("chat", 1, count(2)),
			[]string{"GPU-1", "GPU-2"}, levelrail.Pending, nil},
		{"too many", newWorld().node("n", 2).model("chat", 1, count(3)), nil, levelrail.InsufficientGPUs, []string{"needs 3 of the 2 GPUs", "2 are free", "--gpus 2"}},
		{"none free", newWorld().node("n", 1).model("a", 0, count(1)).replica("a", "n", count(1), "GPU-0").model("chat", 1, count(1)), nil, levelrail.InsufficientGPUs,
			[]string{"0 are free", "1 held by the model a", "starts by itself"}},
		{"held by an app", newWorld().node("n", 1).model("chat", 1, count(1)).app("n", "GPU-0"), nil, levelrail.InsufficientGPUs, []string{"1 held by the app web"}},
		{"by index", newWorld().node("n", 3).model("chat", 1, devices("2", "#0", "GPU-2")), []string{"GPU-2", "GPU-0"}, levelrail.Pending, nil},
		{"by UUID", newWorld().node("n", 3).model("chat", 1, devices("GPU-1")), []string{"GPU-1"}, levelrail.Pending, nil},
		{"no such device", newWorld().node("n", 1).model("chat", 1, devices("7")), nil, levelrail.InsufficientGPUs, []string{"has no GPU 7", "0 (GPU-0)", "levelrail nodes get name-of-n"}},
		{"a held device", newWorld().node("n", 2).model("a", 0, devices("1")).replica("a", "n", devices("1"), "GPU-1").model("chat", 1, devices("1")), nil, levelrail.InsufficientGPUs,
			[]string{"held by the model a", "levelrail models delete a"}},
		{"a split card by index", newWorld().node("n", 1).mig("n").model("chat", 1, devices("0")), nil, levelrail.InsufficientGPUs, []string{"split into MIG"}},
		{"an instance", newWorld().node("n", 1).mig("n").model("chat", 1, devices("MIG-b")), []string{"MIG-b"}, levelrail.Pending, nil},
		{"a split card counts by its instances", newWorld().node("n", 1).mig("n").model("chat", 1, all), []string{"MIG-a", "MIG-b"}, levelrail.Pending, nil},
		{"no agent yet", newWorld().fresh().model("chat", 1, none), nil, levelrail.Pending, []string{"waiting for the agent"}},
		{"no agent for long", newWorld().model("chat", 1, none), nil, levelrail.NodeUnknown, []string{"systemctl start levelrail-agent"}},
		{"no report yet", newWorld().fresh().node("n", 0).mute("n").model("chat", 1, none), nil, levelrail.Pending, []string{"first report of the node name-of-n"}},
		{"never reported", newWorld().node("n", 0).mute("n").model("chat", 1, none), nil, levelrail.NodeOffline, []string{"since this server started"}},
		{"silent", newWorld().node("n", 0).report("n", func(r *ledger.NodeReport) { r.Online, r.ReceivedAt = false, t0 }).model("chat", 1, none), nil, levelrail.NodeOffline,
			[]string{"1h0m0s", "systemctl status levelrail-agent on name-of-n"}},
		{"a node that has left", newWorld().node("n", 0).model("chat", 1, none, func(m *levelrail.Model) { m.NodeID = "gone" }), nil, levelrail.NodeUnknown, []string{"levelrail nodes list"}},
		{"the named node", newWorld().node("n", 0).node("z", 1).model("chat", 1, all, func(m *levelrail.Model) { m.NodeID = "z" }), []string{"GPU-0"}, levelrail.Pending, nil},
		{"of two local nodes the one that reports", newWorld().node("a", 0).report("a", func(r *ledger.NodeReport) { r.Online = false }).node("z", 1).model("chat", 1, all), []string{"GPU-0"}, levelrail.Pending, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := tc.world.status("chat")
			if c.Reason != tc.reason || c.Ready {
				t.Errorf("the reason is %s (%s), want %s", c.Reason, c.Message, tc.reason)
			}
			for _, s := range tc.says {
				if !strings.Contains(c.Message+"\n"+c.Next, s) {
					t.Errorf("neither %q nor %q has %q", c.Message, c.Next, s)
				}
			}
			if c.Since.IsZero() {
				t.Error("since when is not said")
			}
			var placed *command.ReplicaPlace
			for _, s := range Steps(&tc.world.d, tc.world.o, tc.world.newID) {
				if p, ok := s.Command.(command.ReplicaPlace); ok && p.Replica.Model == "chat" {
					placed = &p
				}
			}
			wantPlaced := tc.reason == levelrail.Pending && c.Message == "being placed on a node"
			if (placed != nil) != wantPlaced {
				t.Fatalf("placed: %v, while the status is %s: %s", placed != nil, c.Reason, c.Message)
			}
			if placed == nil {
				return
			}
			if err := placed.Validate(); err != nil {
				t.Errorf("the command is not valid: %v", err)
			}
			if got := placed.Replica.Shards[0].Devices; !slices.Equal(got, tc.devices) || !slices.Equal(placed.Reservations[0].Devices, tc.devices) {
				t.Errorf("devices %v reserved %v, want %v", got, placed.Reservations[0].Devices, tc.devices)
			}
			if placed.Replica.EngineKey.Path != "replicas/chat/engine-key" || !placed.Replica.Run {
				t.Errorf("the replica is %+v", placed.Replica)
			}
		})
	}
}

// TestTwoAtOnce: two models that are placed in one pass never get the same GPU, and whoever waits longer comes first.
func TestTwoAtOnce(t *testing.T) {
	w := newWorld().node("n", 3).model("a", 9, count(2)).model("b", 1, count(2)).model("c", 10, count(1))
	got := w.steps()
	want := []string{"replica.place: the model b has no replica, and the node name-of-n has room on 2 GPUs", "replica.place: the model c has no replica, and the node name-of-n has room on 1 GPU"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

func (w *world) app(node, uuid string) *world {
	w.d.Reservations["res_app"] = levelrail.Reservation{ID: "res_app", For: "app:web", NodeID: node, Devices: []string{uuid}}
	return w
}

// mig splits GPU 0 of a node into two instances.
func (w *world) mig(node string) *world {
	return w.report(node, func(r *ledger.NodeReport) {
		r.Devices = append(slices.Clone(r.Devices), levelrail.Device{UUID: "MIG-a", Kind: "mig", Parent: "GPU-0"}, levelrail.Device{UUID: "MIG-b", Kind: "mig", Index: 1, Parent: "GPU-0"})
	})
}

// fresh is a server that has just started.
func (w *world) fresh() *world { w.o.Now = w.o.Since.Add(ledger.Silence / 2); return w }

// mute takes a node's report away.
func (w *world) mute(node string) *world { delete(w.o.Nodes, node); return w }
