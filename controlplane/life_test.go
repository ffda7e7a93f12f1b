package controlplane

import (
	"slices"
	"strings"
	"testing"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client"
	"github.com/levelrail/levelrail/client/wire"
)

// TestLife: a model goes from its deploy over assignment, report, route, update and restart to its end, and at each turn
// people, agent and gateway are told what they need.
func TestLife(t *testing.T) {
	r := start(t, rigOptions{})
	ctx := t.Context()
	n := r.join(2)
	gw := follow(t, r.gateway, client.WatchOptions{Kinds: []string{wire.WatchRoute, wire.WatchRouteKey}, Body: wire.WatchGateway{GatewayID: levelrail.NewID("gw"), URL: "http://192.0.2.1:7421/v1/"}})
	mine := follow(t, r.people, client.WatchOptions{Kinds: []string{wire.WatchModel}, ID: "chat"})
	eventually(t, "the watches are synced", func() bool { return gw.synced() && mine.synced() })

	made := r.deploy("chat", func(d *wire.Deploy) { d.GPUs = levelrail.GPURequest{Mode: levelrail.GPUCount, Count: 1} })
	if made.Key == nil || !strings.HasPrefix(made.Key.Secret, "lr-") || len(made.Key.Secret) != 3+64 || made.Key.Prefix != made.Key.Secret[:8] || made.JobID == "" {
		t.Fatalf("deployed: %+v", made)
	}
	if made.Model.URL != "http://192.0.2.1:7421/v1" {
		t.Errorf("the URL is %s, not the gateway's", made.Model.URL)
	}
	a := n.assigned("chat", anyAssignment)
	if !slices.Equal(a.Devices, []string{"GPU-a"}) || !a.Run || a.Revision != 1 || a.Spec.Source != smol || a.EngineKey == "" || a.HubBaseURL != "https://huggingface.co" ||
		!slices.Equal(a.ServedNames, []string{"chat", smol}) || a.Term == 0 || a.Index == 0 {
		t.Errorf("assigned: %+v", a)
	}
	// The gateway's watch may be behind the agent's.
	eventually(t, "the gateway is told of the replica and the key", func() bool {
		return len(get[wire.Route](t, gw, "route/chat").Targets) > 0 && gw.has("route_key/"+made.Key.ID)
	})
	route := get[wire.Route](t, gw, "route/chat")
	if route.Serving || len(route.Targets) != 1 || route.Targets[0].Key != a.EngineKey || route.Targets[0].Address != "/run/levelrail/engines/chat/engine.sock" || route.Limits.MaxInflight != 32 || route.Limits.HeaderTimeout != 300 {
		t.Errorf("the route before it is loaded: %+v", route)
	}
	key := get[wire.RouteKey](t, gw, "route_key/"+made.Key.ID)
	if key.SHA256 != levelrail.HashSecret(made.Key.Secret) || !slices.Equal(key.Models, []string{"chat"}) {
		t.Errorf("the gateway knows of the key: %+v", key)
	}

	total := int64(1000)
	n.say(a, levelrail.Condition{Reason: levelrail.Downloading, Progress: &levelrail.Progress{Phase: "downloading", DoneBytes: 10, TotalBytes: &total}})
	eventually(t, "the progress reaches a watching person", func() bool {
		p := get[wire.Model](t, mine, "model/chat").Condition.Progress
		return p != nil && p.DoneBytes == 10
	})
	n.say(a, loaded)
	eventually(t, "the model is ready", func() bool { return get[wire.Model](t, mine, "model/chat").Condition.Ready })
	eventually(t, "the gateway may serve it", func() bool { return get[wire.Route](t, gw, "route/chat").Serving })
	eventually(t, "the job is done", func() bool { return r.job(made.JobID).State == levelrail.JobDone })
	m, err := r.people.Model(ctx, "chat")
	if err != nil || !m.Condition.Ready || m.NodeID != n.id || m.NodeName != "gpu-01" || !slices.Equal(m.Devices, []string{"GPU-a"}) || len(m.Replicas) != 1 {
		t.Errorf("models get: %+v, %v", m, err)
	}
	if nodes, err := r.people.Nodes(ctx); err != nil || len(nodes) != 1 || !nodes[0].Online || len(nodes[0].Devices) != 2 || !slices.Equal(nodes[0].Models, []string{"chat"}) {
		t.Errorf("nodes: %+v, %v", nodes, err)
	}
	if one, err := r.people.Node(ctx, "gpu-01"); err != nil || one.ID != n.id {
		t.Errorf("a node by its name: %+v, %v", one, err)
	}
	if st, err := r.people.Status(ctx); err != nil || st.Models != (wire.Counts{Total: 1, Ready: 1}) || st.Nodes != (wire.Counts{Total: 1, Ready: 1}) || st.Gateways.Total != 1 || st.Role != "leader" || st.TLS != r.tls {
		t.Errorf("status: %+v, %v", st, err)
	}

	more := 4096
	updated, err := r.people.UpdateModel(ctx, "chat", wire.Update{Context: &more})
	if err != nil || updated.Model.Revision != 2 || updated.Key != nil {
		t.Fatalf("updated: %+v, %v", updated, err)
	}
	a = n.assigned("chat", func(a wire.Assignment) bool { return a.Revision == 2 })
	if a.Spec.Context != 4096 || !slices.Equal(a.Devices, []string{"GPU-a"}) {
		t.Errorf("after the update: %+v", a)
	}
	if m, _ := r.people.Model(ctx, "chat"); m.Condition.Ready || !strings.Contains(m.Condition.Message, "revision 1 serves meanwhile") {
		t.Errorf("while revision 1 serves: %+v", m.Condition)
	}
	if !get[wire.Route](t, gw, "route/chat").Serving {
		t.Error("the update took the route away")
	}
	n.say(a, loaded)
	eventually(t, "revision 2 is ready", func() bool { return get[wire.Model](t, mine, "model/chat").Condition.Ready })

	if _, err := r.people.RestartModel(ctx, "chat"); err != nil {
		t.Fatal(err)
	}
	a = n.assigned("chat", func(a wire.Assignment) bool { return a.Restarts == 1 })
	n.say(a, loaded)

	deleted, err := r.people.DeleteModel(ctx, "chat")
	if err != nil || deleted.Model.Condition.Reason != levelrail.Stopping {
		t.Fatalf("deleted: %+v, %v", deleted, err)
	}
	eventually(t, "agent and gateway forget it", func() bool {
		return !n.watch.has("assignment/chat") && !gw.has("route/chat") && !gw.has("route_key/"+made.Key.ID)
	})
	if _, err := r.people.Model(ctx, "chat"); err != nil {
		t.Errorf("it is gone before its engine is: %v", err)
	}
	n.forget("chat")
	n.send()
	eventually(t, "it is gone", func() bool {
		_, err := r.people.Model(ctx, "chat")
		return levelrail.KindOf(err) == levelrail.ErrNotFound
	})
	eventually(t, "its deletion is done", func() bool { return r.job(deleted.JobID).State == levelrail.JobDone })
	eventually(t, "a watching person is told", func() bool { return !mine.has("model/chat") })
	d := r.state()
	if keys := r.keys(); len(d.Models)+len(d.Replicas)+len(d.Reservations)+len(keys)+len(d.Revisions) != 0 || len(d.Secrets) != 2 { // the check of the master key, and the authority
		t.Errorf("left over: %d models, %d replicas, %d reservations, %d keys, %d revisions, %d secrets", len(d.Models), len(d.Replicas), len(d.Reservations), len(keys), len(d.Revisions), len(d.Secrets))
	}
}

// TestMissingDiskInStatus: a node whose disk of weights is missing is a warning of the whole installation, said once for all its
// models, with the next step.
func TestMissingDiskInStatus(t *testing.T) {
	r := start(t, rigOptions{})
	n := r.join(0)
	for _, name := range []string{"chat", "own"} {
		r.deploy(name)
		n.say(n.assigned(name, anyAssignment), levelrail.Condition{Reason: levelrail.WeightsNotMounted, Message: "the disk is away", Next: "mount it"})
	}
	eventually(t, "the status says it", func() bool {
		st, err := r.people.Status(t.Context())
		return err == nil && slices.Equal(st.Warnings, []string{"WeightsNotMounted: the disk is away. Next: mount it"})
	})
}

// TestMended: a model whose node lacks GPUs stands with its reason, and is placed by itself once that is mended.
func TestMended(t *testing.T) {
	r := start(t, rigOptions{})
	n := r.join(0)
	made := r.deploy("chat", func(d *wire.Deploy) { d.GPUs = levelrail.GPURequest{} })
	reason := func() levelrail.Condition {
		m, err := r.people.Model(t.Context(), "chat")
		if err != nil {
			t.Fatal(err)
		}
		return m.Condition
	}
	if c := reason(); c.Reason != levelrail.NoGPUOnNode || !strings.Contains(c.Next, "--gpus none") {
		t.Errorf("on a node without GPUs: %+v", c)
	}
	eventually(t, "the job has failed", func() bool {
		return r.job(made.JobID).State == levelrail.JobFailed && r.job(made.JobID).Reason == levelrail.NoGPUOnNode
	})
	n.report.Devices = []levelrail.Device{{UUID: "GPU-a", Kind: "card"}}
	n.send()
	if a := n.assigned("chat", anyAssignment); !slices.Equal(a.Devices, []string{"GPU-a"}) {
		t.Errorf("assigned: %+v", a)
	}
	second := r.deploy("more", func(d *wire.Deploy) { d.GPUs = levelrail.GPURequest{Mode: levelrail.GPUCount, Count: 1} })
	if c := second.Model.Condition; c.Reason != levelrail.InsufficientGPUs || !strings.Contains(c.Message, "held by the model chat") {
		t.Errorf("a second one: %+v", c)
	}
	if _, err := r.people.DeleteModel(t.Context(), "chat"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first assignment is taken back", func() bool { return !n.watch.has("assignment/chat") })
	n.send()
	n.assigned("more", anyAssignment)
}

// TestHubToken: the token of a model reaches the node that downloads it and nobody else, and a new one restarts the model.
func TestHubToken(t *testing.T) {
	r := start(t, rigOptions{})
	n, ctx := r.join(0), t.Context()
	r.deploy("chat", func(d *wire.Deploy) { d.HubToken = "  hf_first\n" })
	a := n.assigned("chat", anyAssignment)
	if !a.HubTokenSet {
		t.Error("the agent is not told of the token")
	}
	if got, err := r.agent.HubToken(ctx, n.id, "chat"); err != nil || got != "hf_first" {
		t.Errorf("the agent gets %q, %v", got, err)
	}
	if _, err := r.agent.HubToken(ctx, "node_another1", "chat"); levelrail.KindOf(err) != levelrail.ErrForbidden {
		t.Errorf("another node: %v", err)
	}
	if got, err := r.people.SetHubToken(ctx, "chat", "hf_second"); err != nil || !got.Model.HubTokenSet {
		t.Errorf("set: %+v, %v", got, err)
	}
	n.assigned("chat", func(a wire.Assignment) bool { return a.Restarts == 1 })
	if got, err := r.agent.HubToken(ctx, n.id, "chat"); err != nil || got != "hf_second" {
		t.Errorf("after setting another: %q, %v", got, err)
	}
	for _, bad := range []string{"hf_a\x00b", "hf_a\nb", "hf a", "hf_ä", strings.Repeat("x", 5000)} {
		if _, err := r.people.SetHubToken(ctx, "chat", bad); levelrail.KindOf(err) != levelrail.ErrInvalid || strings.Contains(err.Error(), bad) {
			t.Errorf("a token that cannot be one: %v", err)
		}
	}
	if got, err := r.people.SetHubToken(ctx, "chat", ""); err != nil || got.Model.HubTokenSet {
		t.Errorf("taken away: %+v, %v", got, err)
	}
	if _, err := r.agent.HubToken(ctx, n.id, "chat"); levelrail.KindOf(err) != levelrail.ErrNotFound {
		t.Errorf("after that: %v", err)
	}
	if _, sealed := r.state().Secrets["models/chat/hub-token"]; sealed {
		t.Error("the sealed token is still stored")
	}
}

// TestHello: an agent of another cluster is refused, one that is known is recognised, and a report without a hello is
// told to say hello.
func TestHello(t *testing.T) {
	r := start(t, rigOptions{})
	ctx := t.Context()
	n := r.join(1)
	before := r.state().Nodes[n.id]
	w, err := r.agent.Hello(ctx, wire.Hello{NodeID: n.id, Name: "gpu-01", Version: "0.1.0", OS: "debian 13", ClusterID: r.state().Cluster.ID})
	if err != nil || w.ClusterID != r.state().Cluster.ID || w.Term == 0 || w.Settings["APP_HF_BASE_URL"] == "" {
		t.Errorf("welcome: %+v, %v", w, err)
	}
	if after := r.state().Nodes[n.id]; !after.Stamp.UpdatedAt.Equal(before.Stamp.UpdatedAt) {
		t.Error("a hello that says nothing new was written")
	}
	if _, err := r.agent.Hello(ctx, wire.Hello{NodeID: n.id, Name: "gpu-01", ClusterID: "clu_other"}); levelrail.KindOf(err) != levelrail.ErrRefused || !strings.Contains(err.Error(), "levelrail-agent leave") {
		t.Errorf("of another cluster: %v", err)
	}
	if _, err := r.agent.Hello(ctx, wire.Hello{NodeID: "../x", Name: "gpu-01"}); levelrail.KindOf(err) != levelrail.ErrInvalid {
		t.Errorf("a strange id: %v", err)
	}
	if err := r.agent.Report(ctx, wire.Report{NodeID: "node_stranger1"}); levelrail.KindOf(err) != levelrail.ErrNotFound || !strings.Contains(err.Error(), "hello") {
		t.Errorf("a report of a stranger: %v", err)
	}
	if a := r.over("agent", "POST", "/api/v1/agent/hello", `{"node_id":"`+n.id+`","name":"gpu-01","version":"9","os":"x","of_a_newer_release":1}`); a.status != 200 {
		t.Errorf("a newer agent is refused: %s", a.body)
	}
}
