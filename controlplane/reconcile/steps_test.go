package reconcile

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/controlplane/ledger"
	"github.com/levelrail/levelrail/raftstore/command"
)

// TestSteps: what turns what is there into what is wanted, in order and with reasons; nothing when all is as wanted.
func TestSteps(t *testing.T) {
	placed := func() *world { return newWorld().node("n", 2).model("chat", 1, none).replica("chat", "n", none) }
	change := func(w *world, f func(m *levelrail.Model, r *levelrail.Replica)) *world {
		f(&w.d.Models[0], &w.d.Replicas[0])
		return w
	}
	deleting := func(m *levelrail.Model, _ *levelrail.Replica) {
		m.Deleting, m.Stamp.UpdatedAt = true, t0.Add(30*time.Minute)
	}
	for _, tc := range []struct {
		name  string
		world *world
		want  []string
	}{
		{"as wanted", placed().says("n", "chat", 1, loaded), nil},
		{"a revision", change(placed().revision("chat", 2, none), func(m *levelrail.Model, _ *levelrail.Replica) { m.Revision = 2 }), []string{"replica.put: the model chat wants revision 2"}},
		{"a revision on a GPU", change(placed().revision("chat", 2, count(1)), func(m *levelrail.Model, _ *levelrail.Replica) { m.Revision = 2 }), []string{"replica.put: the model chat wants revision 2 on 1 GPU"}},
		{"a revision that does not fit", change(placed().revision("chat", 2, count(3)), func(m *levelrail.Model, _ *levelrail.Replica) { m.Revision = 2 }), nil},
		{"a restart", change(placed(), func(m *levelrail.Model, _ *levelrail.Replica) { m.Restarts = 2 }), []string{"replica.put: the model chat is restarted"}},
		{"a restart while the revision does not fit", change(placed().revision("chat", 2, count(3)), func(m *levelrail.Model, _ *levelrail.Replica) { m.Revision, m.Restarts = 2, 1 }),
			[]string{"replica.put: the model chat is restarted"}},
		{"deleting, engine there", change(placed().says("n", "chat", 1, loaded), deleting), nil},
		{"deleting, engine gone", change(placed(), deleting), []string{
			"replica.remove: the model chat is being deleted, and the node name-of-n has taken it down", "model.remove: the model chat is being deleted, and none of its replicas is left"}},
		{"deleting, report of before", change(placed().report("n", func(r *ledger.NodeReport) { r.ReceivedAt = t0.Add(29 * time.Minute) }), deleting), nil},
		{"deleting, never placed", newWorld().node("n", 0).model("chat", 1, none, func(m *levelrail.Model) { m.Deleting = true }), []string{
			"model.remove: the model chat is being deleted, and none of its replicas is left"}},
		{"deleting, node silent for a while", change(placed().report("n", func(r *ledger.NodeReport) { r.Online, r.ReceivedAt = false, t0.Add(time.Hour-Abandoned) }), deleting), nil},
		{"deleting, node silent for long", change(placed().report("n", func(r *ledger.NodeReport) { r.Online, r.ReceivedAt = false, t0.Add(time.Hour-Abandoned-time.Second) }), deleting), []string{
			"replica.remove: the model chat is being deleted, and the node name-of-n has been silent for long", "model.remove: the model chat is being deleted, and none of its replicas is left"}},
		{"deleting, node not heard since the start", change(placed().mute("n"), deleting), []string{
			"replica.remove: the model chat is being deleted, and the node name-of-n has been silent for long", "model.remove: the model chat is being deleted, and none of its replicas is left"}},
		{"deleting, node has left", func() *world { w := change(placed(), deleting); delete(w.d.Nodes, "n"); return w }(), []string{
			"replica.remove: the model chat is being deleted, and its node has left the cluster", "model.remove: the model chat is being deleted, and none of its replicas is left"}},
		{"other devices", placed().report("n", func(r *ledger.NodeReport) { r.Devices = r.Devices[:1] }), []string{"node.put: the node name-of-n reports other devices: 1, before 2"}},
		{"other devices of a silent node", placed().report("n", func(r *ledger.NodeReport) { r.Devices, r.Online = nil, false }), nil},
		{"a deleted model's GPUs are not free yet", func() *world {
			w := newWorld().node("n", 1).model("a", 0, count(1), func(m *levelrail.Model) { m.Deleting, m.Stamp.UpdatedAt = true, t0.Add(time.Minute) }).replica("a", "n", count(1), "GPU-0").model("b", 1, count(1))
			return w.says("n", "a", 1, loaded)
		}(), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.world.steps(); !slices.Equal(got, tc.want) {
				t.Errorf("got  %q\nwant %q", got, tc.want)
			}
			for _, s := range Steps(&tc.world.d, tc.world.o, tc.world.newID) {
				if err := s.Command.Validate(); err != nil {
					t.Errorf("%s: %v", s.Why, err)
				}
			}
		})
	}
}

// TestUpdateKeepsDevices: a new revision with the same request keeps its devices; one with another request may take its
// own ones again, and gives the old reservation back.
func TestUpdateKeepsDevices(t *testing.T) {
	update := func(gpus levelrail.GPURequest) command.ReplicaPut {
		w := newWorld().node("n", 2).model("chat", 1, count(1)).replica("chat", "n", count(1), "GPU-1").revision("chat", 2, gpus)
		w.d.Models[0].Revision = 2
		steps := Steps(&w.d, w.o, w.newID)
		if len(steps) != 1 {
			t.Fatalf("%d steps", len(steps))
		}
		return steps[0].Command.(command.ReplicaPut)
	}
	if p := update(count(1)); len(p.Reservations) != 0 || p.Replica.Shards[0].ReservationID != "res_1" || p.Replica.Revision != 2 {
		t.Errorf("the same request: %+v", p)
	}
	if p := update(all); len(p.Reservations) != 1 || !slices.Equal(p.Replica.Shards[0].Devices, []string{"GPU-0", "GPU-1"}) || p.Replica.Shards[0].ReservationID != p.Reservations[0].ID {
		t.Errorf("another request: %+v", p)
	}
	if p := update(none); len(p.Reservations) != 1 || len(p.Replica.Shards[0].Devices) != 0 {
		t.Errorf("the CPU: %+v", p)
	}
}

// TestJobs: a job ends when its revision is loaded, needs somebody, or can never be.
func TestJobs(t *testing.T) {
	for _, tc := range []struct {
		name  string
		job   levelrail.Job
		world *world
		want  *command.JobFinish
	}{
		{"under way", levelrail.Job{Action: "deploy", Revision: 1}, newWorld().node("n", 0).model("chat", 1, none).replica("chat", "n", none), nil},
		{"loaded", levelrail.Job{Action: "deploy", Revision: 1}, newWorld().node("n", 0).model("chat", 1, none).replica("chat", "n", none).says("n", "chat", 1, loaded), &command.JobFinish{State: levelrail.JobDone}},
		{"needs somebody", levelrail.Job{Action: "restart"}, newWorld().node("n", 0).model("chat", 1, none).replica("chat", "n", none).says("n", "chat", 1, levelrail.Condition{Reason: levelrail.EngineFailed, Message: "why"}),
			&command.JobFinish{State: levelrail.JobFailed, Reason: levelrail.EngineFailed, Message: "why"}},
		{"overtaken", levelrail.Job{Action: "update", Revision: 1}, newWorld().node("n", 0).model("chat", 1, none, func(m *levelrail.Model) { m.Revision = 2 }).revision("chat", 2, none),
			&command.JobFinish{State: levelrail.JobFailed, Message: "revision 2 took its place before it was loaded"}},
		{"deleted meanwhile", levelrail.Job{Action: "deploy"}, newWorld(), &command.JobFinish{State: levelrail.JobFailed, Message: "the model was deleted meanwhile"}},
		{"delete under way", levelrail.Job{Action: "delete"}, newWorld().node("n", 0).model("chat", 1, none, func(m *levelrail.Model) { m.Deleting = true }), nil},
		{"delete done", levelrail.Job{Action: "delete"}, newWorld(), &command.JobFinish{State: levelrail.JobDone}},
		{"ended before", levelrail.Job{Action: "deploy", State: levelrail.JobDone}, newWorld(), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.job.ID, tc.job.Model = "job_1", "chat"
			if tc.job.State == "" {
				tc.job.State = levelrail.JobRunning
			}
			tc.world.d.Jobs = []levelrail.Job{tc.job}
			var got *command.JobFinish
			for _, s := range Steps(&tc.world.d, tc.world.o, tc.world.newID) {
				if f, ok := s.Command.(command.JobFinish); ok {
					got = &f
				}
			}
			if tc.want != nil {
				tc.want.ID = "job_1"
			}
			if !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

// TestWeights: sets are recorded where nodes report them, dropped where they no longer do, and left alone by reports that
// say nothing of sets.
func TestWeights(t *testing.T) {
	set := func(places ...levelrail.WeightsNode) levelrail.Weights {
		return levelrail.Weights{ID: "org/x@1", Source: "org/x", Commit: "1", Files: []levelrail.WeightsFile{{Path: "x.gguf", SHA256: "ab", Bytes: 7, Role: levelrail.RoleModel}}, Nodes: places}
	}
	here := func(model string) levelrail.WeightsNode { return levelrail.WeightsNode{NodeID: "n", Model: model} }
	there := levelrail.WeightsNode{NodeID: "z", Model: "chat"}
	base := func(stored []levelrail.Weights, reported ...levelrail.Weights) *world {
		w := newWorld().node("n", 0)
		for _, s := range stored {
			w.d.Weights[s.ID] = s
		}
		return w.report("n", func(r *ledger.NodeReport) { r.Weights = reported })
	}
	other := levelrail.Weights{ID: "sha256:cd", Source: "/x.gguf", Nodes: []levelrail.WeightsNode{here("own")}}
	withOther := func(w levelrail.Weights) []levelrail.Weights { return []levelrail.Weights{w, other} }
	for _, tc := range []struct {
		name  string
		world *world
		want  []command.Command
	}{
		{"new", base(nil, set(here("chat"))), []command.Command{command.WeightsPut{Weights: owned(set(here("chat")))}}},
		{"known", base([]levelrail.Weights{set(here("chat"))}, set(here("chat"))), nil},
		{"a second model", base([]levelrail.Weights{set(here("chat"))}, set(here("chat")), set(here("again"))), []command.Command{command.WeightsPut{Weights: set(here("again"), here("chat"))}}},
		{"a second node", base([]levelrail.Weights{set(there)}, set(here("chat"))), []command.Command{command.WeightsPut{Weights: set(here("chat"), there)}}},
		{"gone from one of two", base(withOther(set(here("chat"), there)), other), []command.Command{command.WeightsPut{Weights: set(there)}}},
		{"gone from the last", base(withOther(set(here("chat"))), other), []command.Command{command.WeightsRemove{ID: "org/x@1"}}},
		{"says nothing", base([]levelrail.Weights{set(here("chat"))}), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []command.Command
			for _, s := range Steps(&tc.world.d, tc.world.o, tc.world.newID) {
				got = append(got, s.Command)
			}
			if !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got  %+v\nwant %+v", got, tc.want)
			}
		})
	}
}

func owned(w levelrail.Weights) levelrail.Weights { w.Owner = levelrail.DefaultOwner; return w }
