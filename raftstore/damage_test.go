package raftstore

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/raftstore/command"
)

// filled makes a store with some writes, a snapshot in their middle when asked for, and closes it.
func filled(t *testing.T, snapshot bool) Config {
	t.Helper()
	cfg := testConfig(t, t.TempDir())
	cfg.TrailingLogs = 2
	s := openTest(t, cfg)
	for _, id := range []string{"a", "b", "c", "d", "e"} {
		propose(t, s, node(id))
	}
	if snapshot {
		if err := s.Snapshot(within(t, 10*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	propose(t, s, node("last"))
	closeTest(t, s)
	return cfg
}

func mustFail(t *testing.T, cfg Config, words ...string) {
	t.Helper()
	s, err := Open(within(t, 20*time.Second), cfg)
	if err == nil {
		closeTest(t, s)
		t.Fatal("the store opened")
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error does not speak of %q: %v", w, err)
		}
	}
}

func whole(t *testing.T, cfg Config) {
	t.Helper()
	s := openTest(t, cfg)
	if n := len(all[levelrail.Node](t, s, "")); n != 6 {
		t.Errorf("%d nodes are there, and 6 were written", n)
	}
	propose(t, s, node("new"))
}

// change applies fn to a file's content.
func change1(t *testing.T, path string, fn func([]byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, fn(b), 0o600); err != nil {
		t.Fatal(err)
	}
}

// flip changes one bit at the last place of a text in a file.
func flip(t *testing.T, path, text string) {
	t.Helper()
	change1(t, path, func(b []byte) []byte {
		at := bytes.LastIndex(b, []byte(text))
		if at < 0 {
			t.Fatalf("%s does not hold %q", path, text)
		}
		b[at] ^= 1
		return b
	})
}

// TestStateIsACache: whatever happens to the state file while the server is down, the state is rebuilt.
func TestStateIsACache(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, path string){
		"removed":   func(t *testing.T, path string) { must(t, os.Remove(path)) },
		"flipped":   func(t *testing.T, path string) { flip(t, path, "gpu-last") },
		"truncated": func(t *testing.T, path string) { must(t, os.Truncate(path, 100)) },
		"zeroed": func(t *testing.T, path string) {
			change1(t, path, func(b []byte) []byte { return make([]byte, len(b)) })
		},
		"half written anew": func(t *testing.T, path string) {
			must(t, os.WriteFile(path+".tmp", []byte("half"), 0o600))
		},
	} {
		for _, snapshot := range []bool{false, true} {
			kind := "log"
			if snapshot {
				kind = "snapshot and log"
			}
			t.Run(name+" from "+kind, func(t *testing.T) {
				t.Parallel()
				cfg := filled(t, snapshot)
				damage(t, filepath.Join(cfg.Dir, fileState))
				whole(t, cfg)
			})
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestDamagedTruth: damage of what counts is a named error at the start, never a panic, wrong data or a fresh start.
func TestDamagedTruth(t *testing.T) {
	for name, c := range map[string]struct {
		snapshot bool
		damage   func(t *testing.T, dir string)
		words    []string
	}{
		"log removed, state kept": {false, func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, fileLog))) }, []string{"raft.db is gone", "restore a backup"}},
		"log emptied, state kept": {false, func(t *testing.T, dir string) { must(t, os.Truncate(filepath.Join(dir, fileLog), 0)) }, []string{"log", "empty", "restore a backup"}},
		"entry flipped":           {false, func(t *testing.T, dir string) { flip(t, filepath.Join(dir, fileLog), "gpu-last") }, []string{"damaged", "checksum", "restore a backup"}},
		"log zeroed": {false, func(t *testing.T, dir string) {
			change1(t, filepath.Join(dir, fileLog), func(b []byte) []byte { return make([]byte, len(b)) })
		}, []string{"open the log", "invalid"}},
		"log truncated": {false, func(t *testing.T, dir string) { must(t, os.Truncate(filepath.Join(dir, fileLog), 3*4096)) }, []string{"log"}},
		"pages zeroed": {false, func(t *testing.T, dir string) {
			change1(t, filepath.Join(dir, fileLog), func(b []byte) []byte { clear(b[2*4096:]); return b })
		}, []string{"log"}},
		"snapshots removed":  {true, func(t *testing.T, dir string) { must(t, os.RemoveAll(filepath.Join(dir, snapshotsDir))) }, []string{"no snapshot holds what was before", "restore a backup"}},
		"snapshot flipped":   {true, func(t *testing.T, dir string) { flip(t, onlyFile(t, dir, "state.bin"), "gpu-e") }, []string{"snapshot"}},
		"identity removed":   {true, func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, fileID))) }, []string{"no id.json", "restore a backup"}},
		"identity shortened": {true, func(t *testing.T, dir string) { must(t, os.Truncate(filepath.Join(dir, fileID), 20)) }, []string{"identity", "id.json"}},
		"another's log": {false, func(t *testing.T, dir string) {
			other := filled(t, false)
			change1(t, filepath.Join(dir, fileID), func([]byte) []byte {
				b, err := os.ReadFile(filepath.Join(other.Dir, fileID))
				must(t, err)
				return b
			})
		}, []string{"another's log"}},
		"another's snapshot": {true, func(t *testing.T, dir string) {
			change1(t, filepath.Join(dir, fileID), func(b []byte) []byte {
				var id identity
				must(t, json.Unmarshal(b, &id))
				id.ClusterID = "clu_other"
				b, err := json.Marshal(id)
				must(t, err)
				return b
			})
		}, []string{"is of the cluster", "clu_other"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := filled(t, c.snapshot)
			cfg.Fatal = func(error) {}
			cfg.Logger = discard
			c.damage(t, cfg.Dir)
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
			defer cancel()
			s, err := Open(ctx, cfg)
			if err == nil {
				closeTest(t, s)
				t.Fatal("the store opened")
			}
			for _, w := range c.words {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("the error does not speak of %q: %v", w, err)
				}
			}
		})
	}
}

func onlyFile(t *testing.T, dir, name string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, snapshotsDir, "*", name))
	if err != nil || len(found) != 1 {
		t.Fatalf("found %v, %v", found, err)
	}
	return found[0]
}

// TestOneProcess: a directory in use is refused, and free again after a close.
func TestOneProcess(t *testing.T) {
	cfg := testConfig(t, t.TempDir())
	s := openTest(t, cfg)
	mustFail(t, cfg, "in use")
	closeTest(t, s)
	openTest(t, cfg)
}

// TestFirstStartCutOff: a first start that was cut off at any of its steps is done anew.
func TestFirstStartCutOff(t *testing.T) {
	for name, leave := range map[string]func(t *testing.T, dir string, logs *logStore){
		"before the log":          nil,
		"with an empty log":       func(*testing.T, string, *logStore) {},
		"between term and config": func(t *testing.T, _ string, logs *logStore) { must(t, logs.SetUint64([]byte(keyCurrentTerm), 1)) },
		"before the mark": func(t *testing.T, _ string, logs *logStore) {
			must(t, logs.SetUint64([]byte(keyCurrentTerm), 1))
			must(t, logs.StoreLog(&raft.Log{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(raft.Configuration{})}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			id := newIdentity()
			must(t, id.save(dir))
			must(t, os.WriteFile(filepath.Join(dir, "id.json.tmp"), []byte("{"), 0o600))
			if leave != nil {
				logs := openTestLog(t, filepath.Join(dir, fileLog))
				leave(t, dir, logs)
				must(t, logs.close())
			}
			s := openTest(t, testConfig(t, dir))
			if s.Status().ClusterID != id.ClusterID {
				t.Errorf("the cluster is %s and was begun as %s", s.Status().ClusterID, id.ClusterID)
			}
			propose(t, s, node("a"))
		})
	}
	t.Run("a log that was used", func(t *testing.T) {
		cfg := filled(t, false)
		change1(t, filepath.Join(cfg.Dir, fileID), func(b []byte) []byte { return bytes.Replace(b, []byte("true"), []byte("false"), 1) })
		mustFail(t, cfg, "never begun")
	})
	t.Run("a log that cannot be read", func(t *testing.T) {
		dir := t.TempDir()
		must(t, newIdentity().save(dir))
		must(t, os.WriteFile(filepath.Join(dir, fileLog), bytes.Repeat([]byte{0}, 8192), 0o600))
		openTest(t, testConfig(t, dir))
	})
}

// fatalStore is an open store whose wish to stop is told to the channel.
func fatalStore(t *testing.T) (*Store, *raftLog, chan error) {
	t.Helper()
	fatal := make(chan error, 1)
	cfg := testConfig(t, t.TempDir())
	cfg.Logger = discard
	cfg.Fatal = func(err error) { fatal <- err }
	s := openTest(t, cfg)
	return s, s.log.(*raftLog), fatal
}

func waitFatal(t *testing.T, fatal chan error, words ...string) {
	t.Helper()
	select {
	case err := <-fatal:
		for _, w := range words {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("the store stops without speaking of %q: %v", w, err)
			}
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the store did not stop")
	}
}

// TestWhatCannotBeAppliedStops: an entry that this release does not understand, or that belongs elsewhere, stops the
// process; nothing after it is applied, and a later release goes on from it.
func TestWhatCannotBeAppliedStops(t *testing.T) {
	encode := func(cluster string) []byte {
		data, err := command.Encode(command.Envelope{ClusterID: cluster, Proposer: "srv_new", At: time.Unix(1, 0), By: root, Command: node("x")})
		must(t, err)
		return data
	}
	for name, c := range map[string]struct {
		data  func(cluster string) []byte
		words []string
	}{
		"unknown type":    {func(cluster string) []byte { return command.Retyped(encode(cluster), 999) }, []string{"type 999", "srv_new", "newer release"}},
		"another cluster": {func(string) []byte { return encode("clu_else") }, []string{"clu_else", "two clusters"}},
		"not a command":   {func(string) []byte { return []byte("hello") }, []string{"no command"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, l, fatal := fatalStore(t)
			propose(t, s, node("before"))
			index := s.Status().Index
			if _, err := l.propose(within(t, 10*time.Second), c.data(s.ids.ClusterID)); levelrail.KindOf(err) != levelrail.ErrTimeout {
				t.Errorf("its proposer was told %v", err)
			}
			waitFatal(t, fatal, append(c.words, "entry")...)
			if _, err := s.Propose(within(t, 10*time.Second), root, node("after")); levelrail.KindOf(err) != levelrail.ErrUnavailable {
				t.Errorf("a write after it gave %v", err)
			}
			if s.Status().Index != index {
				t.Errorf("the state went on to %d", s.Status().Index)
			}
			if err := s.Snapshot(within(t, 10*time.Second)); err == nil {
				t.Error("a snapshot was taken of a state that has stopped")
			}
			dir := l.cfg.Dir
			closeTest(t, s)

			// An operator may take the entry out, and the rest is as it was.
			cfg := testConfig(t, dir)
			cfg.SkipEntries = []uint64{l.raft.LastIndex()}
			s = openTest(t, cfg)
			read[levelrail.Node](t, s, "before")
			propose(t, s, node("after"))
		})
	}
}

// TestStateThatCannotBeWrittenStops: a failure of the disk is no refusal. The entry is applied at the next start.
func TestStateThatCannotBeWrittenStops(t *testing.T) {
	s, l, fatal := fatalStore(t)
	propose(t, s, node("before"))
	s.machine.state = brokenState{s.machine.state}
	if _, err := s.Propose(within(t, 10*time.Second), root, node("lost?")); levelrail.KindOf(err) != levelrail.ErrTimeout {
		t.Errorf("its proposer was told %v", err)
	}
	waitFatal(t, fatal, "no space left")
	closeTest(t, s)
	s = openTest(t, testConfig(t, l.cfg.Dir))
	read[levelrail.Node](t, s, "lost?")
}

type brokenState struct{ state }

func (b brokenState) begin() (stateWriter, error) {
	w, err := b.state.begin()
	return brokenWriter{w}, err
}

type brokenWriter struct{ stateWriter }

func (w brokenWriter) commit() error {
	w.rollback()
	return &os.PathError{Op: "write", Path: "state.db", Err: os.NewSyscallError("pwrite", errNoSpace)}
}

// TestStateThatCannotBeReadStops: an object in the state that is not readable stops the process, also within a handler.
func TestStateThatCannotBeReadStops(t *testing.T) {
	s, l, fatal := fatalStore(t)
	propose(t, s, deploy("chat"))
	must(t, l.state.cur.db.Update(func(tx *bbolt.Tx) error {
		return tx.Bucket([]byte(levelrail.KindModel)).Put([]byte("chat"), []byte("{"))
	}))
	if err := s.View(func(tx *Tx) error { _, err := List[levelrail.Model](tx, ""); return err }); err == nil {
		t.Error("a damaged object was read")
	}
	// The rehearsal sees it before anything is written; from the log it stops the process.
	if _, err := s.Propose(within(t, 10*time.Second), root, command.ModelRestart{Name: "chat"}); err == nil {
		t.Error("a write over a damaged object was taken")
	}
	data, err := command.Encode(command.Envelope{ClusterID: s.ids.ClusterID, At: time.Unix(1, 0), By: root, Command: command.ModelRestart{Name: "chat"}})
	must(t, err)
	if _, err := l.propose(within(t, 10*time.Second), data); levelrail.KindOf(err) != levelrail.ErrTimeout {
		t.Errorf("its proposer was told %v", err)
	}
	waitFatal(t, fatal, "model", "cannot be read")
}

// TestFullDiskTakesDeletions only.
func TestFullDiskTakesDeletions(t *testing.T) {
	cfg := testConfig(t, t.TempDir())
	s := openTest(t, cfg)
	propose(t, s, node("a"))
	closeTest(t, s)
	cfg.MinFreeBytes = 1 << 62
	s = openTest(t, cfg)
	refused(t, s, node("b"), levelrail.ErrUnavailable)
	propose(t, s, command.NodeRemove{ID: "a"})
}
