package keep

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/caddymodule/limit"
)

var limits = levelrail.KeyLimits{RPM: 10, TPD: 1000}

func use(t *testing.T, k *limit.Keys, id string, tokens int64) {
	t.Helper()
	c, ok := k.Enter(id, limits, time.Now())
	if !ok {
		t.Fatal("no slot")
	}
	c.Charge(limits, time.Now())
	c.Spend(limits, tokens, time.Now())
	c.Leave()
}

func open(dir string) (*Keeper, *limit.Keys, *bytes.Buffer) {
	log, keys := new(bytes.Buffer), limit.NewKeys(time.Now())
	k := New(Options{Keys: keys, Directory: dir, Log: slog.New(slog.NewTextHandler(log, nil)), Now: time.Now})
	k.Load()
	return k, keys, log
}

func used(k *limit.Keys, id string) [2]int64 {
	s := k.State(id, limits, time.Now())
	return [2]int64{s[0].Used, s[1].Used}
}

// TestRestart: a gateway that is stopped and started again goes on from where it was, and one that is killed from where it
// was at most Every before.
func TestRestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		k, keys, _ := open(dir)
		done := make(chan struct{})
		go func() { k.Run(ctx); close(done) }()
		use(t, keys, "key_a", 100)
		use(t, keys, "key_b", 7)
		time.Sleep(Every + time.Millisecond)
		use(t, keys, "key_a", 100) // in the pause after the write

		_, killed, _ := open(dir)
		if a, b := used(killed, "key_a"), used(killed, "key_b"); a != [2]int64{1, 100} || b != [2]int64{1, 7} {
			t.Errorf("after a kill: %v and %v", a, b)
		}
		stop()
		<-done
		_, stopped, log := open(dir)
		if a := used(stopped, "key_a"); a != [2]int64{2, 200} || log.Len() > 0 {
			t.Errorf("after a stop: %v %s", a, log)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, "limits.jsonl.*")); len(left) > 0 {
			t.Errorf("unfinished files: %q", left)
		}
		if info, err := os.Stat(filepath.Join(dir, file)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v %v", info, err)
		}
	})
}

// TestBrokenFile: what can be read of a broken file counts, and that it is broken is told; no file is no fault; what cannot
// be written is told once and written later.
func TestBrokenFile(t *testing.T) {
	dir := t.TempDir()
	k, keys, log := open(dir)
	if log.Len() > 0 {
		t.Errorf("without a file: %s", log)
	}
	use(t, keys, "key_a", 5)
	if !k.Save() {
		t.Fatalf("not saved: %s", log)
	}
	whole, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"cut":     string(whole[:len(whole)-5]),
		"endless": strings.Split(string(whole), `{"end"`)[0],
		"short":   strings.Replace(string(whole), `"keys":1`, `"keys":2`, 1),
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, keys, log := open(dir); used(keys, "key_a") != [2]int64{1, 5} || !strings.Contains(log.String(), "cannot be read whole") {
			t.Errorf("%s: %v %s", name, used(keys, "key_a"), log)
		}
	}
	blocked := filepath.Join(dir, "file")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	k, keys, log = open(filepath.Join(blocked, "state"))
	log.Reset()
	use(t, keys, "key_a", 5)
	if k.Save() || k.Save() || strings.Count(log.String(), "cannot be kept") != 1 {
		t.Errorf("it is told: %s", log)
	}
	if err := os.Remove(blocked); err != nil {
		t.Fatal(err)
	}
	if !k.Save() {
		t.Errorf("written later: %s", log)
	}
}

// TestLineOfKey: the line is what encoding/json makes of it.
func TestLineOfKey(t *testing.T) {
	for _, k := range []limit.Kept{
		{ID: "key_a", RPM: [][2]int64{{1, 2}}},
		{ID: `k"<é` + "\xff\n", RPM: [][2]int64{{1777777777, 1}, {1777777778, -3}}, TPM: [][2]int64{{0, 1 << 62}}, TPD: [][2]int64{{1, 1}, {2, 2}, {3, 3}}, TPDOthers: [][2]int64{{9, 9}}},
		{ID: "", TPDOthers: [][2]int64{{9, 9}}},
	} {
		want, err := json.Marshal(line{Key: &k})
		if got := string(appendKey([]byte("x"), &k)); err != nil || got != "x"+string(want)+"\n" {
			t.Errorf("%v\n got %s\nwant %s", err, got, want)
		}
	}
}
