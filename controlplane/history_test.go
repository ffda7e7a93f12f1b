package controlplane

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client"
	"github.com/levelrail/levelrail/client/wire"
)

// TestPutBackFromACopy: a server whose files were put back from a copy is found out by who has followed its history
// further. Those are refused and keep what they have, and the status says what to do; peers of another history are not.
func TestPutBackFromACopy(t *testing.T) {
	r := start(t, rigOptions{})
	st := r.store.Status()
	hello := wire.Hello{NodeID: levelrail.NewID("node"), Name: "gpu-01", ClusterID: st.ClusterID, Version: "1", OS: "debian 13", Lineage: st.Lineage, Term: st.Term}
	if w, err := r.agent.Hello(t.Context(), hello); err != nil || w.Lineage != st.Lineage || w.Term != st.Term {
		t.Fatalf("an agent that is as far as the server: %+v, %v", w, err)
	}
	if status, err := r.people.Status(t.Context()); err != nil || len(status.Warnings) != 0 {
		t.Fatalf("warnings before: %q, %v", status.Warnings, err)
	}
	watch := func(after string) error {
		ended := levelrail.Errorf(levelrail.ErrConflict, "the watch began")
		return r.gateway.Watch(t.Context(), client.WatchOptions{After: after, Kinds: []string{wire.WatchRoute, wire.WatchRouteKey}, Body: wire.WatchGateway{GatewayID: levelrail.NewID("gw"), Version: "1"}},
			func(wire.WatchLine) error { return ended })
	}
	if err := watch("deadbeefdeadbeef.999999"); !client.IsGone(err) {
		t.Errorf("a gateway of another history: %v", err)
	}

	hello.Term += 3
	if _, err := r.agent.Hello(t.Context(), hello); levelrail.KindOf(err) != levelrail.ErrRefused || !strings.Contains(err.Error(), "put back from a copy") {
		t.Errorf("an agent that is further: %v", err)
	}
	hello.Lineage = "deadbeefdeadbeef"
	if _, err := r.agent.Hello(t.Context(), hello); err != nil {
		t.Errorf("an agent that was further in another history: %v", err)
	}
	if err := watch(st.Lineage + "." + strconv.FormatUint(r.store.Status().LastIndex+50, 10)); levelrail.KindOf(err) != levelrail.ErrRefused {
		t.Errorf("a gateway that is further: %v", err)
	}
	status, err := r.people.Status(t.Context())
	if err != nil || len(status.Warnings) == 0 || !strings.Contains(strings.Join(status.Warnings, "\n"), "levelrail-server restore") {
		t.Errorf("warnings: %q, %v", status.Warnings, err)
	}
}

// TestStoreGone: a server does not begin a cluster beside what is left of another one, and one that has begun in the place of
// a whole directory that is gone takes no changes while agents or gateways of the old cluster are there. Beginning anew is a
// command.
func TestStoreGone(t *testing.T) {
	dir := shortDir(t)
	r := start(t, rigOptions{dir: dir})
	cluster := r.store.Status().ClusterID
	r.deploy("chat")
	r.stop()
	if err := os.RemoveAll(filepath.Join(dir, "store")); err != nil {
		t.Fatal(err)
	}
	_, err := tryStart(t, rigOptions{dir: dir})
	if levelrail.KindOf(err) != levelrail.ErrRefused || !strings.Contains(err.Error(), "levelrail-server restore") || !strings.Contains(err.Error(), "begin-anew") {
		t.Errorf("without its store the server starts: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "store")); err == nil {
		t.Error("the refused start made a store")
	}
	anew := func() (string, int) {
		var out bytes.Buffer
		code := run([]string{"begin-anew"}, func(n string) string { return map[string]string{"STATE_DIRECTORY": dir}[n] }, strings.NewReader(""), &out, &out)
		return out.String(), code
	}
	if out, code := anew(); code != 0 || !strings.Contains(out, "tls.before-") || !strings.Contains(out, "master.key.before-") {
		t.Errorf("begin-anew: %d %s", code, out)
	}

	r = start(t, rigOptions{dir: dir})
	if out, code := anew(); code != 4 {
		t.Errorf("begin-anew beside a store: %d %s", code, out)
	}
	_, err = r.agent.Hello(t.Context(), wire.Hello{NodeID: levelrail.NewID("node"), Name: "gpu-01", ClusterID: cluster, Version: "1", OS: "debian 13"})
	if levelrail.KindOf(err) != levelrail.ErrRefused {
		t.Errorf("an agent of the old cluster: %v", err)
	}
	err = r.gateway.Watch(t.Context(), client.WatchOptions{Kinds: []string{wire.WatchRoute}, Body: wire.WatchGateway{GatewayID: levelrail.NewID("gw"), ClusterID: cluster}},
		func(wire.WatchLine) error { return nil })
	if levelrail.KindOf(err) != levelrail.ErrRefused {
		t.Errorf("a gateway of the old cluster: %v", err)
	}
	status, err := r.people.Status(t.Context())
	if err != nil || len(status.Warnings) != 2 || !strings.Contains(status.Warnings[0], cluster) || !strings.Contains(status.Warnings[0], "levelrail-server restore") {
		t.Errorf("warnings %q, %v", status.Warnings, err)
	}
	if _, err := r.people.Deploy(t.Context(), wire.Deploy{Name: "new", Engine: "ollama", Model: "llama3.1:8b"}); levelrail.KindOf(err) != levelrail.ErrRefused || !strings.Contains(err.Error(), cluster) {
		t.Errorf("a deploy: %v", err)
	}
}
