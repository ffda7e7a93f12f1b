package raftstore

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/raftstore/command"
)

var root = command.By{Principal: levelrail.Principal{Kind: "socket", ID: "uid 0", Name: "root"}, Ability: levelrail.AbilityRoot}

// testConfig keeps elections short and fails the test when the store wants the process to stop.
func testConfig(t testing.TB, dir string) Config {
	t.Helper()
	return Config{
		Dir: dir, Logger: slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelWarn})),
		HeartbeatTimeout: 60 * time.Millisecond, MinFreeBytes: 1,
		Fatal: func(err error) { t.Errorf("the store wants the process to stop: %v", err) },
	}
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func openTest(t testing.TB, cfg Config) *Store {
	t.Helper()
	s, err := Open(within(t, 20*time.Second), cfg)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { closeTest(t, s) })
	return s
}

func closeTest(t testing.TB, s *Store) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
}

func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func propose(t testing.TB, s *Store, c command.Command) command.Result {
	t.Helper()
	return proposeBy(t, s, root, c)
}

func proposeBy(t testing.TB, s *Store, by command.By, c command.Command) command.Result {
	t.Helper()
	r, err := s.Propose(within(t, 20*time.Second), by, c)
	if err != nil {
		t.Fatalf("%s: %v", c.Kind(), err)
	}
	return r
}

func refused(t testing.TB, s *Store, c command.Command, want levelrail.ErrorKind) *levelrail.Error {
	t.Helper()
	_, err := s.Propose(within(t, 20*time.Second), root, c)
	e, ok := err.(*levelrail.Error)
	if !ok || e.Kind != want {
		t.Fatalf("%s gave %v, and a refusal of kind %s was expected", c.Kind(), err, want)
	}
	return e
}

func read[T levelrail.Object](t testing.TB, s *Store, id string) T {
	t.Helper()
	v, ok := find[T](t, s, id)
	if !ok {
		t.Fatalf("there is no %s %s", v.ObjectKind(), id)
	}
	return v
}

func find[T levelrail.Object](t testing.TB, s *Store, id string) (v T, ok bool) {
	t.Helper()
	if err := s.View(func(tx *Tx) (err error) {
		v, ok, err = Get[T](tx, id)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return v, ok
}

func all[T levelrail.Object](t testing.TB, s *Store, prefix string) (out []T) {
	t.Helper()
	if err := s.View(func(tx *Tx) (err error) {
		out, err = List[T](tx, prefix)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

func node(id string) command.NodePut {
	return command.NodePut{Node: levelrail.Node{ID: id, Name: "gpu-" + id, Local: true, OS: "debian 13", Devices: []levelrail.Device{}}}
}

func deploy(name string) command.ModelDeploy {
	return command.ModelDeploy{
		Model:    levelrail.Model{Name: name, Residency: levelrail.ResidencyAlways},
		Revision: levelrail.Revision{Model: name, Number: 1, Spec: levelrail.ModelSpec{Engine: "llamacpp", Source: "org/" + name, Replicas: 1}},
		Key:      &levelrail.Key{ID: "key_" + name, Name: "default", Models: []string{name}, SHA256: levelrail.HashSecret("lr-" + name), Prefix: "lr-12345"},
		Job:      &levelrail.Job{ID: "job_" + name, Action: "deploy", Model: name, Revision: 1},
	}
}

// TestOpenAgain: what was acknowledged is there after a stop and a start, under the same ids.
func TestOpenAgain(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, testConfig(t, dir))
	propose(t, s, deploy("chat"))
	before := s.Status()
	closeTest(t, s)

	s = openTest(t, testConfig(t, dir))
	after := s.Status()
	if m := read[levelrail.Model](t, s, "chat"); m.Revision != 1 {
		t.Errorf("the model wants revision %d", m.Revision)
	}
	if before.ServerID != after.ServerID || before.ClusterID != after.ClusterID || before.Lineage != after.Lineage {
		t.Errorf("the ids changed: %+v, then %+v", before, after)
	}
	if after.Role != "leader" || after.LeaderID != after.ServerID || after.Term <= before.Term || after.Index < before.Index {
		t.Errorf("after the start the status is %+v", after)
	}
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory has the mode %v (%v)", info.Mode(), err)
	}
}
