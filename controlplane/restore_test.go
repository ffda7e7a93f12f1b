package controlplane

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/controlplane/restore"
)

// putBack runs a restore, answering yes.
func putBack(t *testing.T, o restore.Options) (restore.Report, error) {
	t.Helper()
	o.Clock = time.Now
	if o.Confirm == nil {
		o.Confirm = func(restore.Report) error { return nil }
	}
	return restore.Run(t.Context(), o)
}

// TestRestore: a backup that was taken while everything ran is put back: the history is a new one, secrets open, every key
// and model that comes back or is gone is named against what the host knew, and what comes back can be revoked with it.
func TestRestore(t *testing.T) {
	dir := shortDir(t)
	r := start(t, rigOptions{dir: dir})
	first := r.deploy("chat").Key
	r.deploy("lost")
	later := func(name string) wire.NewKey {
		k, err := r.people.CreateKey(t.Context(), "chat", wire.CreateKey{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	revoked := later("revoked-later")
	var file bytes.Buffer
	said, err := r.people.CreateBackup(t.Context(), &file)
	if err != nil || said.Records < 10 || said.ClusterID != r.store.Status().ClusterID || said.MasterKeyID == "" {
		t.Fatalf("the backup: %+v, %v", said, err)
	}
	before := r.store.Status()
	if _, err := r.people.RevokeKey(t.Context(), "chat", revoked.ID, false); err != nil {
		t.Fatal(err)
	}
	made := later("made-later")
	r.deploy("new")
	backup := filepath.Join(shortDir(t), "one.backup")
	writeFile(t, backup, file.Bytes())

	if _, err := putBack(t, restore.Options{Source: backup, StateDir: dir}); levelrail.KindOf(err) != levelrail.ErrConflict {
		t.Errorf("while the server runs: %v", err)
	}
	r.stop()

	known := restore.Known{Keys: map[string]restore.KeyRef{first.ID: {ID: first.ID}, made.ID: {ID: made.ID, Name: "made-later", Models: []string{"chat"}}}, Models: []string{"chat", "new"}}
	damaged := bytes.Replace(file.Bytes(), []byte("revoked-later"), []byte("revoked-eater"), 1)
	bad := filepath.Join(shortDir(t), "bad.backup")
	writeFile(t, bad, damaged)
	cut := filepath.Join(shortDir(t), "cut.backup")
	writeFile(t, cut, file.Bytes()[:file.Len()/2])
	for what, o := range map[string]restore.Options{
		"a damaged backup":   {Source: bad},
		"a backup cut off":   {Source: cut},
		"no backup":          {Source: filepath.Join(dir, "nothing")},
		"another master key": {Source: backup, MasterKey: strings.Repeat("ab", 32)},
		"a no":               {Source: backup, Confirm: func(restore.Report) error { return levelrail.Errorf(levelrail.ErrRefused, "no") }},
	} {
		o.StateDir, o.Known = dir, known
		if _, err := putBack(t, o); err == nil {
			t.Errorf("%s was restored", what)
		} else if strings.Contains(err.Error(), "abab") {
			t.Errorf("%s: the error holds the key: %v", what, err)
		}
		if names, _ := filepath.Glob(filepath.Join(dir, "*restor*")); len(names) > 0 {
			t.Errorf("%s left %v", what, names)
		}
	}
	r = start(t, rigOptions{dir: dir}) // nothing of that has changed anything
	if st := r.store.Status(); st.Lineage != before.Lineage || st.Index <= before.Index {
		t.Fatalf("after refused restores the store is at %+v, and was at %+v", st, before)
	}
	r.stop()

	report, err := putBack(t, restore.Options{Source: backup, StateDir: dir, Known: known, RevokeReturned: true})
	if err != nil {
		t.Fatal(err)
	}
	if report.Models != 2 || report.Keys != 3 || len(report.SetAside) != 1 || report.Lineage == before.Lineage || !report.Revoked ||
		len(report.GoneKeys) != 1 || report.GoneKeys[0].ID != made.ID || len(report.GoneModels) != 1 || report.GoneModels[0] != "new" ||
		len(report.ReturnedModels) != 1 || report.ReturnedModels[0] != "lost" {
		text, _ := json.MarshalIndent(report, "", " ")
		t.Errorf("the report says %s", text)
	}
	returned := map[string]bool{}
	for _, k := range report.ReturnedKeys {
		returned[k.Name+" "+k.Models[0]] = true
	}
	if len(returned) != 2 || !returned["revoked-later chat"] || !returned["default lost"] {
		t.Errorf("returned keys %+v", report.ReturnedKeys)
	}

	r = start(t, rigOptions{dir: dir})
	if st := r.store.Status(); st.ClusterID != before.ClusterID || st.Lineage != report.Lineage {
		t.Errorf("the restored store is %+v", st)
	}
	n := r.join(0)
	if a := n.assigned("chat", anyAssignment); a.EngineKey == "" {
		t.Error("the engine's key does not open")
	}
	keys, err := r.people.Keys(t.Context(), "chat")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys {
		if live := k.RevokedAt == nil; live != (k.ID == first.ID) {
			t.Errorf("the key %s is revoked at %v", k.Name, k.RevokedAt)
		}
	}
	r.stop()

	// A copy of the files is as good as a backup, also where it lies already: its history becomes a new one.
	report, err = putBack(t, restore.Options{Source: dir, StateDir: dir})
	if err != nil || report.Lineage == before.Lineage || report.Models != 2 {
		t.Errorf("of the files in place: %+v, %v", report, err)
	}
	// On another server, whose own cluster it takes the place of.
	other := shortDir(t)
	r = start(t, rigOptions{dir: other})
	replaced := r.store.Status().ClusterID
	r.stop()
	if _, err := putBack(t, restore.Options{Source: backup, StateDir: other}); levelrail.KindOf(err) != levelrail.ErrRefused || !strings.Contains(err.Error(), said.MasterKeyID) {
		t.Errorf("with the other server's master key: %v", err)
	}
	key, err := os.ReadFile(filepath.Join(dir, "master.key"))
	if err != nil {
		t.Fatal(err)
	}
	if report, err = putBack(t, restore.Options{Source: backup, StateDir: other, MasterKey: string(key)}); err != nil || report.Replaces != replaced || len(report.SetAside) != 2 {
		t.Fatalf("on another server: %+v, %v", report, err)
	}
	r = start(t, rigOptions{dir: other})
	hello := wire.Hello{NodeID: levelrail.NewID("node"), Name: "n0", Version: "1", OS: "debian 13", ClusterID: replaced}
	if w, err := r.agent.Hello(t.Context(), hello); err != nil || w.ClusterID != before.ClusterID || len(w.Replaced) != 1 {
		t.Errorf("an agent of the replaced cluster: %+v, %v", w, err)
	}
	hello.ClusterID = "clu_stranger"
	if _, err := r.agent.Hello(t.Context(), hello); levelrail.KindOf(err) != levelrail.ErrRefused {
		t.Errorf("an agent of a third cluster: %v", err)
	}
}

// TestRestoreStages: root copies no file for the owner of the state directory that a link of his leads to, and while it gives the
// copies to him, he cannot get at those that are not given yet.
func TestRestoreStages(t *testing.T) {
	outside, state, stage := t.TempDir(), t.TempDir(), t.TempDir()
	writeFile(t, filepath.Join(outside, "secret"), []byte("secret"))
	if err := errors.Join(os.Symlink(filepath.Join(outside, "secret"), filepath.Join(state, "file")), os.Symlink(outside, filepath.Join(state, "store.before")),
		unix.Mkfifo(filepath.Join(state, "pipe"), 0o600), os.MkdirAll(filepath.Join(state, "copy/store"), 0o700)); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(state, "copy/store/log"), []byte("log"))
	writeFile(t, filepath.Join(state, "backup"), []byte("backup"))
	for i, name := range []string{"file", "store.before", "store.before/secret", "pipe"} {
		if err := stageSource(filepath.Join(state, name), state, filepath.Join(stage, strconv.Itoa(i))); err == nil {
			t.Errorf("%s was copied", name)
		}
	}
	for from, to := range map[string]string{filepath.Join(state, "copy"): "copy/store/log", filepath.Join(state, "backup"): "file", filepath.Join(outside, "secret"): "elsewhere"} {
		top, _, _ := strings.Cut(to, "/")
		if err := stageSource(from, state, filepath.Join(stage, top)); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(filepath.Join(stage, to)); err != nil {
			t.Error(err)
		}
	}
	given := map[string]bool{}
	err := handOver(stage, func(path string) error {
		entries, _ := os.ReadDir(path) // of a file there are none
		for _, e := range entries {
			if !given[filepath.Join(path, e.Name())] {
				t.Errorf("%s was given before %s in it", path, e.Name())
			}
		}
		given[path] = true
		return nil
	})
	if err != nil || !given[stage] || !given[filepath.Join(stage, "copy/store/log")] {
		t.Errorf("%v, given: %v", err, given)
	}
}
