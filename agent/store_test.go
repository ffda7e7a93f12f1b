package agent

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/engine"
)

// TestMissingDisk: with the disk of the weights away the model says so, nothing is fetched and nothing is written below its
// mount point; when it is there again, the model serves without a fetch.
func TestMissingDisk(t *testing.T) {
	inBubble(t, func(n *node) {
		n.stop()
		mounts := filepath.Join(n.paths.State, "mountinfo")
		n.config.Mounts = mounts
		const root = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
		disk := fmt.Sprintf("2 1 8:2 / %s rw - ext4 /dev/sdb rw\n", n.paths.Weights)
		n.write(mounts, root+disk)
		n.start()
		n.serve()
		fetches := n.fetches

		n.stop()
		n.units.Reboot()
		answer("chat", engine.Down)
		if err := os.Rename(n.paths.Weights, n.paths.Weights+".away"); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(n.paths.Weights, 0o755); err != nil {
			t.Fatal(err)
		}
		n.write(mounts, root)
		n.start()
		n.until("it says what is missing", time.Minute, n.reason("chat", levelrail.WeightsNotMounted))
		n.hold("nothing is written", 5*time.Minute, func() bool {
			entries, err := os.ReadDir(n.paths.Weights)
			return err == nil && len(entries) == 0 && n.fetches == fetches && n.reason("chat", levelrail.WeightsNotMounted)()
		})
		c := n.status("chat").Condition
		if c.Ready || !strings.Contains(c.Message, n.paths.Weights) || !strings.Contains(c.Next, "findmnt") || !c.Reason.NeedsPerson() {
			t.Errorf("condition %+v", c)
		}

		n.stop()
		if err := os.Remove(n.paths.Weights); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(n.paths.Weights+".away", n.paths.Weights); err != nil {
			t.Fatal(err)
		}
		n.write(mounts, root+disk)
		n.start()
		answer("chat", engine.Serving)
		n.until("it serves", 10*time.Minute, n.reason("chat", levelrail.ModelLoaded))
		if n.fetches != fetches {
			t.Error("weights that were there were fetched again")
		}
	})
}

// TestStores: which directory is taken for this node's store.
func TestStores(t *testing.T) {
	for _, c := range []struct {
		name          string
		note          *storeNote // remembered
		marker        string     // found
		mounted       bool       // now
		says          string     // in the refusal; empty: it is taken
		keeps, remake bool       // the id that is remembered afterwards is that of before, or a new one
	}{
		{name: "first use", remake: true},
		{name: "first use on a disk", mounted: true, remake: true},
		{name: "the same", note: &storeNote{"store_a", true}, marker: "store_a", mounted: true, keeps: true},
		{name: "the disk is away", note: &storeNote{"store_a", true}, says: "is not mounted"},
		{name: "an empty disk", note: &storeNote{"store_a", true}, mounted: true, says: "is not mounted"},
		{name: "what was below before", note: &storeNote{"store_a", true}, marker: "store_b", says: `"store_b" instead of store_a`},
		{name: "moved to a disk", note: &storeNote{"store_a", false}, marker: "store_a", mounted: true, keeps: true},
		{name: "moved back", note: &storeNote{"store_a", true}, marker: "store_a", keeps: true},
		{name: "a new disk above", note: &storeNote{"store_a", false}, mounted: true, remake: true},
		{name: "emptied by hand", note: &storeNote{"store_a", false}, remake: true},
		{name: "a note that was lost", marker: "store_b", mounted: true},
	} {
		dir := t.TempDir()
		a := &Agent{Config: Config{Paths: Paths{State: filepath.Join(dir, "state"), Weights: filepath.Join(dir, "weights")}, Mounts: filepath.Join(dir, "mounts"), Log: slog.New(slog.DiscardHandler)}}
		mounts := "1 0 8:1 / / rw\n"
		if c.mounted {
			mounts += "2 1 8:2 / " + a.Paths.Weights + " rw\n"
		}
		files := map[string]string{a.Mounts: mounts}
		if c.note != nil {
			b, _ := json.Marshal(c.note)
			files[a.Paths.storeNote()] = string(b)
		}
		if c.marker != "" {
			files[filepath.Join(a.Paths.Weights, storeMarker)] = c.marker + "\n"
		}
		for _, d := range []string{a.Paths.State, a.Paths.Weights} {
			if err := os.Mkdir(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for path, text := range files {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 { // a second look changes nothing
			lack := a.lookAtStore()
			if c.says != "" {
				if lack == nil || !strings.Contains(lack.Message, c.says) {
					t.Errorf("%s: %+v", c.name, lack)
				}
				continue
			}
			var note storeNote
			b, err := os.ReadFile(a.Paths.storeNote())
			if err == nil {
				err = json.Unmarshal(b, &note)
			}
			text, _ := os.ReadFile(filepath.Join(a.Paths.Weights, storeMarker))
			if lack != nil || err != nil || note.Mounted != c.mounted || note.ID+"\n" != string(text) || c.keeps && note.ID != c.note.ID || c.remake && c.note != nil && note.ID == c.note.ID {
				t.Errorf("%s: %+v, note %+v, marker %q, %v", c.name, lack, note, text, err)
			}
		}
	}
}

// TestRemounted: a change of what the store lies on is seen, and nothing else that is mounted.
func TestRemounted(t *testing.T) {
	dir := t.TempDir()
	a := &Agent{Config: Config{Paths: Paths{Weights: filepath.Join(dir, "with blank")}, Mounts: filepath.Join(dir, "mounts")}}
	s := &state{began: time.Now().Add(-time.Minute)}
	escaped := strings.ReplaceAll(a.Paths.Weights, " ", `\040`)
	for _, step := range []struct {
		mounts string
		want   bool
	}{
		{"1 0 8:1 / / rw\n", false}, {"1 0 8:1 / / rw\n3 1 8:9 / /elsewhere rw\n", false}, {"1 0 8:1 / / rw\n3 1 8:9 / " + escaped + "-other rw\n", false},
		{"1 0 8:1 / / rw\n3 1 8:9 / " + escaped + " rw\n", true}, {"1 0 8:1 / / rw\n3 1 8:9 / " + dir + " rw\n", true}, {"", false},
	} {
		if err := os.WriteFile(a.Mounts, []byte(step.mounts), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := a.remounted(s); got != step.want {
			t.Errorf("%q: %v", step.mounts, got)
		}
	}
}
