package controlplane

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/controlplane/restore"
	"github.com/levelrail/levelrail/controlplane/seal"
	"github.com/levelrail/levelrail/controlplane/stored"
	"github.com/levelrail/levelrail/raftstore"
	"github.com/levelrail/levelrail/raftstore/command"
)

// rotated is a server with secrets of each kind, on disk.
type rotated struct {
	dir, hub, engine string
	node             string // its id
	authority        []byte
	old              seal.MasterKey
}

func withSecrets(t *testing.T) rotated {
	t.Helper()
	x := rotated{dir: shortDir(t), hub: "hf_Qm9udGFyZ2V0c2VjcmV0"}
	r := start(t, rigOptions{dir: x.dir})
	n := r.join(0)
	r.deploy("chat", func(d *wire.Deploy) { d.HubToken = x.hub })
	x.engine, x.node = n.assigned("chat", anyAssignment).EngineKey, n.id
	var err error
	if x.authority, err = r.people.CA(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.stop()
	x.old = x.key(t)
	return x
}

func (x rotated) key(t *testing.T) seal.MasterKey {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(x.dir, "master.key"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := seal.ParseMasterKey(string(text))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// works holds a server against what it had before: the same secrets and authority, all sealed under its present key alone.
func (x rotated) works(t *testing.T, o rigOptions) *rig {
	t.Helper()
	o.dir = x.dir
	r := start(t, o)
	if token, err := r.agent.HubToken(t.Context(), x.node, "chat"); err != nil || token != x.hub {
		t.Errorf("the Hub token: %d characters, %v", len(token), err)
	}
	if ca, err := r.people.CA(t.Context()); err != nil || !bytes.Equal(ca, x.authority) {
		t.Errorf("it is another authority, %v", err)
	}
	f := follow(t, r.agent, client.WatchOptions{Kinds: []string{wire.WatchAssignment}, Body: wire.WatchAgent{NodeID: x.node}})
	eventually(t, "the assignment is told", func() bool { return f.has("assignment/chat") })
	if a := get[wire.Assignment](t, f, "assignment/chat"); a.EngineKey != x.engine {
		t.Error("the engine's key is another one, so the engine would be restarted")
	}
	former, err := seal.New(r.store.Status().ClusterID, x.old)
	if err != nil {
		t.Fatal(err)
	}
	d := r.state()
	if len(d.Secrets) < 4 {
		t.Errorf("%d secrets", len(d.Secrets))
	}
	for path, secret := range d.Secrets {
		if _, err := former.Open(secret); err == nil || secret.KeyID == x.old.ID() {
			t.Errorf("the old master key opens %s", path)
		}
	}
	return r
}

// breaking is a store that is cut off after some writes.
type breaking struct {
	*raftstore.Store
	left int
}

func (b *breaking) Propose(ctx context.Context, by command.By, c command.Command) (command.Result, error) {
	if b.left--; b.left < 0 {
		return command.Result{}, errors.New("cut off")
	}
	return b.Store.Propose(ctx, by, c)
}

// TestRotateMasterKey: a rotation that is ended after any number of writes is finished by the next start. Then everything
// works as before, and the old key opens nothing and starts no server.
func TestRotateMasterKey(t *testing.T) {
	for cut := range 6 {
		x := withSecrets(t)
		if err := ask("rotate-master-key", x.dir); err != nil {
			t.Fatal(err)
		}
		if err := ask("rotate-master-key", x.dir); err != nil { // given twice: it is the same rotation
			t.Fatal(err)
		}
		store, err := raftstore.Open(t.Context(), raftstore.Config{Dir: filepath.Join(x.dir, "store")})
		if err != nil {
			t.Fatal(err)
		}
		s, err := New(Config{Getenv: func(k string) string { return map[string]string{"STATE_DIRECTORY": x.dir}[k] }, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		reader := stored.New(store)
		if _, _, err = s.openSecrets(t.Context(), &breaking{store, cut}, reader, *s.settings.Load()); (err != nil) != (cut < 4) {
			t.Errorf("after %d writes: %v", cut, err)
		}
		if err := store.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		r := x.works(t, rigOptions{})
		if _, err := os.Stat(filepath.Join(x.dir, "master.key.next")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the file with the next key: %v", err)
		}
		if x.key(t) == x.old {
			t.Error("the key file holds the old key")
		}
		r.stop()
		if _, err := tryStart(t, rigOptions{dir: x.dir, env: map[string]string{"APP_MASTER_KEY": strings.TrimSpace(x.old.Text())}}); levelrail.KindOf(err) != levelrail.ErrRefused {
			t.Errorf("with the old key: %v", err)
		}
		x.works(t, rigOptions{}).stop()
	}
}

// TestRotateLeavesNothing: after a rotation, a restore of the directory from itself leaves nothing of what was sealed under the
// old key in any file but in what it set aside.
func TestRotateLeavesNothing(t *testing.T) {
	x := withSecrets(t)
	if err := ask("rotate-master-key", x.dir); err != nil {
		t.Fatal(err)
	}
	x.works(t, rigOptions{}).stop()
	holds := func() (files []string) {
		err := filepath.WalkDir(x.dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			b, err := os.ReadFile(path)
			if bytes.Contains(b, []byte(x.old.ID())) || bytes.Contains(b, []byte(strings.TrimSpace(x.old.Text()))) {
				files = append(files, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	if len(holds()) == 0 {
		t.Fatal("the log holds nothing of the old key, so this test would show nothing")
	}
	report, err := putBack(t, restore.Options{Source: x.dir, StateDir: x.dir})
	if err != nil || len(report.SetAside) == 0 {
		t.Fatal(err, report.SetAside)
	}
	for _, path := range report.SetAside {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
	if files := holds(); len(files) > 0 {
		t.Errorf("something of the old key is in %q", files)
	}
	x.works(t, rigOptions{}).stop()
}

// TestRotateMasterKeyBySettings: where the key is in no file, the next one comes by a setting, and then takes its place.
func TestRotateMasterKeyBySettings(t *testing.T) {
	x := withSecrets(t)
	old, next := strings.TrimSpace(x.old.Text()), strings.Repeat("cd", 32)
	if err := os.Remove(filepath.Join(x.dir, "master.key")); err != nil {
		t.Fatal(err)
	}
	if err := ask("rotate-master-key", x.dir); levelrail.KindOf(err) != levelrail.ErrRefused || !strings.Contains(err.Error(), "APP_MASTER_KEY_NEXT") {
		t.Errorf("the command without the file: %v", err)
	}
	for range 2 { // a second start with both changes nothing
		x.works(t, rigOptions{env: map[string]string{"APP_MASTER_KEY": old, "APP_MASTER_KEY_NEXT": next}}).stop()
	}
	x.works(t, rigOptions{env: map[string]string{"APP_MASTER_KEY": next}}).stop()
	if _, err := tryStart(t, rigOptions{dir: x.dir, env: map[string]string{"APP_MASTER_KEY": old}}); levelrail.KindOf(err) != levelrail.ErrRefused {
		t.Errorf("with the old key alone: %v", err)
	}
}

// TestRotateAuthority: a rotated authority signs what its clients trust, those of the old one refuse the server, and a start
// that finds the wish a second time does not make a third.
func TestRotateAuthority(t *testing.T) {
	x := withSecrets(t)
	if err := ask("rotate-authority", x.dir); err != nil {
		t.Fatal(err)
	}
	wish, err := os.ReadFile(filepath.Join(x.dir, rotateAuthority))
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, rigOptions{dir: x.dir})
	fresh, err := r.people.CA(t.Context())
	if err != nil || bytes.Equal(fresh, x.authority) {
		t.Fatalf("it is the same authority, %v", err)
	}
	dial := func(trust []byte) error {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(trust)
		conn, err := tls.Dial("tcp", r.tls, &tls.Config{RootCAs: pool})
		if err == nil {
			conn.Close()
		}
		return err
	}
	if err := dial(fresh); err != nil {
		t.Errorf("a client of the new authority: %v", err)
	}
	if err := dial(x.authority); err == nil {
		t.Error("a client of the old authority still takes the server")
	}
	r.stop()
	writeFile(t, filepath.Join(x.dir, rotateAuthority), wish) // ended before the wish was removed
	r = start(t, rigOptions{dir: x.dir})
	if again, err := r.people.CA(t.Context()); err != nil || !bytes.Equal(again, fresh) {
		t.Errorf("a third authority was made, %v", err)
	}
	if _, err := os.Stat(filepath.Join(x.dir, rotateAuthority)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the wish is still there: %v", err)
	}
}

// TestRotateEngineKey: agent and gateway get the new key in one step with the restart, the old one is in no assignment and no
// route any more, and nothing shows it to people.
func TestRotateEngineKey(t *testing.T) {
	r := start(t, rigOptions{})
	gw := follow(t, r.gateway, client.WatchOptions{Kinds: []string{wire.WatchRoute}, Body: wire.WatchGateway{GatewayID: levelrail.NewID("gw"), URL: "http://192.0.2.1:7421/v1/"}})
	n := r.join(0)
	r.deploy("chat")
	a := n.assigned("chat", anyAssignment)
	n.say(a, loaded)
	if _, err := r.people.RotateEngineKey(t.Context(), "chat"); err != nil {
		t.Fatal(err)
	}
	b := n.assigned("chat", func(b wire.Assignment) bool { return b.EngineKey != a.EngineKey || b.Restarts != a.Restarts })
	if b.EngineKey == a.EngineKey || b.Restarts != a.Restarts+1 || b.Revision != a.Revision {
		t.Errorf("assigned: another key %v, restarts %d after %d", b.EngineKey != a.EngineKey, b.Restarts, a.Restarts)
	}
	eventually(t, "the gateway has the new key", func() bool {
		route := get[wire.Route](t, gw, "route/chat")
		return slices.ContainsFunc(route.Targets, func(x wire.RouteTarget) bool { return x.Key == b.EngineKey })
	})
	if _, err := r.people.RotateEngineKey(t.Context(), "nothing"); levelrail.KindOf(err) != levelrail.ErrNotFound {
		t.Errorf("of no model: %v", err)
	}
}

// TestEngineKeyWithRestart: a new key of an engine and the restart that it takes are one change, so that no agent restarts the
// engine twice.
func TestEngineKeyWithRestart(t *testing.T) {
	x := withSecrets(t)
	store, err := raftstore.Open(t.Context(), raftstore.Config{Dir: filepath.Join(x.dir, "store")})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close(t.Context())
	d, err := stored.New(store).Read()
	if err != nil {
		t.Fatal(err)
	}
	next := d.Secrets[d.ReplicasOf("chat")[0].EngineKey.Path]
	next.Version++
	c := command.ModelRestart{Name: "chat", EngineKeys: []levelrail.Secret{next}}
	if _, err := store.Propose(t.Context(), byServer(store, "test"), c); err != nil { // nobody but this command changes anything
		t.Fatal(err)
	}
	if d, err = stored.New(store).Read(); err != nil {
		t.Fatal(err)
	}
	if m, _ := d.Model("chat"); m.Restarts != 1 || d.ReplicasOf("chat")[0].Restarts != 1 {
		t.Errorf("the model was restarted %d times, its replica %d", m.Restarts, d.ReplicasOf("chat")[0].Restarts)
	}
}
