package view

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/controlplane/ledger"
	"github.com/levelrail/levelrail/controlplane/reconcile"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// world is a loaded model on one node. Sealed values are their own text.
func world() World {
	stamp := levelrail.Stamp{CreatedAt: t0, UpdatedAt: t0}
	d := &reconcile.Desired{
		Index:  7,
		Nodes:  map[string]levelrail.Node{"n": {ID: "n", Name: "gpu-01", Local: true, Stamp: stamp}},
		Models: []levelrail.Model{{Name: "chat", Revision: 1, HubToken: levelrail.SecretRef{Path: "models/chat/hub-token"}, Stamp: stamp}},
		Revisions: map[string]levelrail.Revision{
			levelrail.RevisionID("chat", 1): {Model: "chat", Number: 1, Spec: levelrail.ModelSpec{Engine: "llamacpp", Source: "org/x", GPUs: levelrail.GPURequest{Mode: levelrail.GPUNone}}},
		},
		Replicas: []levelrail.Replica{{ID: "chat", Model: "chat", Revision: 1, Run: true, Shards: []levelrail.Shard{{NodeID: "n"}}, EngineKey: levelrail.SecretRef{Path: "replicas/chat/engine-key"}, Stamp: stamp}},
		Secrets: map[string]levelrail.Secret{
			"replicas/chat/engine-key": {Path: "replicas/chat/engine-key", Sealed: []byte("engine-secret")},
			"models/chat/hub-token":    {Path: "models/chat/hub-token", Sealed: []byte("hub-secret")},
		},
	}
	o := ledger.Snapshot{Since: t0, Now: t0.Add(time.Hour), Nodes: map[string]ledger.NodeReport{"n": {Online: true, ReceivedAt: t0.Add(time.Hour), Report: wire.Report{
		Replicas: []wire.ReplicaStatus{{Replica: "chat", Model: "chat", Revision: 1, Compute: "cpu", Condition: levelrail.Condition{Ready: true, Reason: levelrail.ModelLoaded, Since: t0}}},
	}}}}
	return World{Desired: d, Observed: o, Term: 3, HubBaseURL: "https://huggingface.co", Open: func(s levelrail.Secret) (string, error) { return string(s.Sealed), nil }}
}

// TestSecretsStay: an engine's key goes to its agent and to gateways, and is in no view for people; a hub token is in none.
func TestSecretsStay(t *testing.T) {
	w := world()
	m := w.Desired.Models[0]
	text := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for what, s := range map[string]string{"model": text(w.Model(m)), "node": text(w.Node(w.Desired.Nodes["n"]))} {
		if strings.Contains(s, "secret") {
			t.Errorf("the view of a %s: %s", what, s)
		}
	}
	if a := w.Assignment(w.Desired.Replicas[0], m); a.EngineKey != "engine-secret" || !a.HubTokenSet || strings.Contains(text(a), "hub-secret") {
		t.Errorf("assignment: %+v", a)
	}
	if r := w.Route(m); len(r.Targets) != 1 || r.Targets[0].Key != "engine-secret" || !r.Serving || strings.Contains(text(r), "hub-secret") {
		t.Errorf("route: %+v", r)
	}
}

// TestUnopened: a secret that the master key does not open is a reason with what to do; a loaded model does not need its
// hub token.
func TestUnopened(t *testing.T) {
	w := world()
	m := w.Desired.Models[0]
	fails := ""
	w.Open = func(s levelrail.Secret) (string, error) {
		if s.Path == fails {
			return "", errors.New("the wrong key")
		}
		return string(s.Sealed), nil
	}
	fails = "models/chat/hub-token"
	if c := w.Condition(m); !c.Ready {
		t.Errorf("loaded, with a hub token that does not open: %+v", c)
	}
	w.Observed.Nodes["n"].Replicas[0].Condition = levelrail.Condition{Reason: levelrail.Downloading, Since: t0}
	if c := w.Condition(m); c.Reason != levelrail.HFTokenUnavailable || !strings.Contains(c.Next, "set-hf-token chat") {
		t.Errorf("downloading with it: %+v", c)
	}
	fails = "replicas/chat/engine-key"
	if c := w.Condition(m); c.Reason != levelrail.EndpointUnreachable || c.Next == "" {
		t.Errorf("an engine's key that does not open: %+v", c)
	}
	if r := w.Route(m); r.Serving || len(r.Targets) != 0 {
		t.Errorf("its route: %+v", r)
	}
}

// TestRouteWhileUpdating: until the next revision is handed over, clients call the model by the names that its engine knows.
func TestRouteWhileUpdating(t *testing.T) {
	w := world()
	w.Desired.Models[0].Revision = 2
	w.Desired.Revisions[levelrail.RevisionID("chat", 2)] = levelrail.Revision{Model: "chat", Number: 2, Spec: levelrail.ModelSpec{Engine: "ollama", Source: "y:1b", GPUs: levelrail.GPURequest{Mode: levelrail.GPUNone}}}
	r := w.Route(w.Desired.Models[0])
	if r.Engine != "llamacpp" || strings.Join(r.Names, " ") != "chat org/x" || !r.Serving {
		t.Errorf("before: %+v", r)
	}
	w.Desired.Replicas[0].Revision = 2
	if r := w.Route(w.Desired.Models[0]); r.Engine != "ollama" || strings.Join(r.Names, " ") != "chat y:1b" {
		t.Errorf("after: %+v", r)
	}
}

// TestBoard: publishing the same again tells nobody; a change keeps the bytes of everything else, and an assignment's
// index moves only with the assignment.
func TestBoard(t *testing.T) {
	b := NewBoard()
	first := b.Views()
	publish := func(w World) bool {
		t.Helper()
		changed, err := b.Publish(w)
		if err != nil {
			t.Fatal(err)
		}
		return changed
	}
	if !publish(world()) {
		t.Fatal("nothing was published")
	}
	select {
	case <-first.Next():
	default:
		t.Error("the first views are not told of")
	}
	before := b.Views()
	again := world()
	again.Desired.Index = 9
	if publish(again) || b.Views() != before {
		t.Error("the same at another index was told as a change")
	}
	next := world()
	next.Desired.Index = 12
	next.Observed.Nodes["n"].Replicas[0].Condition.Message = "more"
	if !publish(next) {
		t.Fatal("a change was not told")
	}
	now := b.Views()
	if &now.Assignments["n"]["chat"][0] != &before.Assignments["n"]["chat"][0] {
		t.Error("an assignment that did not change has other bytes")
	}
	if &now.Models["chat"][0] == &before.Models["chat"][0] {
		t.Error("a model that changed has the same bytes")
	}
	next = world()
	next.Desired.Index = 15
	next.Desired.Replicas[0].Restarts = 1
	publish(next)
	var a wire.Assignment
	if err := json.Unmarshal(b.Views().Assignments["n"]["chat"], &a); err != nil || a.Index != 15 || a.Restarts != 1 {
		t.Errorf("the changed assignment: %+v, %v", a, err)
	}
	next.Desired.Models[0].Deleting = true
	publish(next)
	if v := b.Views(); len(v.Assignments["n"]) != 0 || len(v.Routes) != 0 || len(v.Models) != 1 {
		t.Errorf("while it is deleted: %d assignments, %d routes, %d models", len(v.Assignments["n"]), len(v.Routes), len(v.Models))
	}
}

// TestHost: only a public IP gives models host names without configuration.
func TestHost(t *testing.T) {
	for host, want := range map[string]string{
		"203.0.113.9": "chat.203-0-113-9.sslip.io", "2001:db8::7": "chat.2001-0db8-0000-0000-0000-0000-0000-0007.sslip.io", "::ffff:203.0.113.9": "chat.203-0-113-9.sslip.io",
		"192.168.1.4": "", "127.0.0.1": "", "fd00::1": "", "cp.example.com": "", "": "",
	} {
		w := World{PublicHost: host}
		if got := w.Host(levelrail.Model{Name: "chat"}); got != want {
			t.Errorf("%q gives %q, want %q", host, got, want)
		}
		if got := w.Host(levelrail.Model{Name: "chat", Domain: "own.example.com"}); got != "own.example.com" {
			t.Errorf("%q gives %q for a model with a domain", host, got)
		}
	}
}
