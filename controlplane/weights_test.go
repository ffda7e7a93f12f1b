package controlplane

import (
	"slices"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client"
	"github.com/levelrail/levelrail/client/wire"
)

// TestStoredWeights: what a node reports is listed with who uses it; what is used, or is not there, is not deleted; the rest is
// ordered from the node's agent, and the answer comes when the node reports it no more, also when it was the last.
func TestStoredWeights(t *testing.T) {
	r := start(t, rigOptions{})
	n := r.join(0)
	r.deploy("chat")
	n.assigned("chat", anyAssignment)
	set := func(model string) levelrail.Weights {
		return levelrail.Weights{ID: "org/x@1", Source: "org/x", Commit: "1", LastUsed: time.Now().UTC(), Files: []levelrail.WeightsFile{{Path: "a", Bytes: 5}, {Path: "b", Bytes: 7}},
			Nodes: []levelrail.WeightsNode{{NodeID: n.id, Model: model}}}
	}
	n.report.Weights = []levelrail.Weights{set("old"), set("chat")}
	n.send()
	all, err := r.people.Weights(t.Context())
	if err != nil || len(all) != 2 || all[0].Name != "chat" || !all[0].Used || all[1].Used || all[1].Bytes != 12 || all[1].Files != 2 || all[1].Node != "gpu-01" || !all[1].Online {
		t.Fatalf("%+v, %v", all, err)
	}
	for _, c := range []struct {
		name, node string
		kind       levelrail.ErrorKind
	}{{"chat", "", levelrail.ErrRefused}, {"none", "", levelrail.ErrNotFound}, {"old", "gpu-77", levelrail.ErrNotFound}} {
		if _, err := r.people.DeleteWeights(t.Context(), c.name, c.node); levelrail.KindOf(err) != c.kind {
			t.Errorf("%+v: %v", c, err)
		}
	}
	orders := follow(t, r.agent, client.WatchOptions{Kinds: []string{wire.WatchWeightsOrder}, Body: wire.WatchAgent{NodeID: n.id}})
	eventually(t, "the agent follows orders", orders.synced)
	done := make(chan error, 1)
	go func() {
		w, err := r.people.DeleteWeights(t.Context(), "old", "gpu-01")
		if err == nil && (w.Name != "old" || w.Bytes != 12) {
			err = levelrail.Errorf(levelrail.ErrInternal, "%+v", w)
		}
		done <- err
	}()
	var order string
	eventually(t, "the order reaches the agent", func() bool {
		orders.mu.Lock()
		defer orders.mu.Unlock()
		for id := range orders.state {
			order = id
		}
		return order != ""
	})
	if o := get[wire.WeightsOrder](t, orders, order); o.Name != "old" {
		t.Errorf("the order is %+v", o)
	}
	n.report.Weights = slices.DeleteFunc(n.report.Weights, func(w levelrail.Weights) bool { return w.Nodes[0].Model == "old" })
	n.send()
	if err := <-done; err != nil {
		t.Error(err)
	}
	eventually(t, "the order is taken back", func() bool { return !orders.has(order) })
	n.report.Weights = []levelrail.Weights{}
	n.send()
	if all, err := r.people.Weights(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("%+v, %v", all, err)
	}
}
