package agent

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/levelrail/levelrail/agent/fetch"
	"github.com/levelrail/levelrail/agent/units"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/systemd"
)

var (
	running = units.State{Load: "loaded", Active: "active", Sub: "running", Invocation: "r1", MainPID: 7}
	dead    = units.State{Load: "loaded", Active: "inactive", Sub: "dead"}
	failed  = units.State{Load: "loaded", Active: "failed", Sub: "failed", Result: "exit-code"}
	waiting = units.State{Load: "loaded", Active: "activating", Sub: "auto-restart", Result: "exit-code"}
	noon    = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
)

func assigned(replica string, change ...func(*Want)) Want {
	w := Want{Assignment: wire.Assignment{Replica: replica, Model: replica, Revision: 1, Run: true}, Hash: "h1",
		Units: []Text{{systemd.EngineUnit(replica), "text"}}}
	for _, c := range change {
		c(&w)
	}
	return w
}

func there(replica string, state units.State, change ...func(*Have)) Have {
	m := systemd.Marks{Hash: "h1", Replica: replica, Model: replica, Revision: 1}
	h := Have{Replica: replica, Engine: state, Enabled: true, Files: map[string]File{systemd.EngineUnit(replica): {Marks: m, Text: "text", Intact: true}},
		Applied: &Applied{Hash: "h1"}}
	for _, c := range change {
		c(&h)
	}
	return h
}

func hash(s string) func(*Want) { return func(w *Want) { w.Hash = s } }
func sleeping(w *Want)          { w.Assignment.Run = false }
func lacking(w *Want)           { w.Lack = &Lack{} }
func missing(key string) func(*Want) {
	return func(w *Want) { w.Missing, w.FetchKey, w.Units = "no weights", key, nil }
}
func onCards(w *Want) { w.Assignment.Devices = []string{"GPU-1"} }
func behindDoor(w *Want) {
	w.Units = append(w.Units, Text{systemd.DoorSocket(w.Assignment.Replica), "s"})
}
func busy(h *Have)      { h.Busy = true }
func disabled(h *Have)  { h.Enabled = false }
func noFile(h *Have)    { h.Files = nil }
func byHand(h *Have)    { changeFile(h, func(f *File) { f.Text, f.Intact = "mine", false }) }
func olderText(h *Have) { changeFile(h, func(f *File) { f.Text = "as an earlier agent wrote it" }) }
func revision(n int) func(*Have) {
	return func(h *Have) { changeFile(h, func(f *File) { f.Marks.Revision = n }) }
}
func hold(d time.Duration) func(*Have) { return func(h *Have) { h.Hold = noon.Add(d) } }
func doorIs(s units.State) func(*Have) {
	return func(h *Have) {
		h.Socket = s
		h.Files[systemd.DoorSocket(h.Replica)] = File{Marks: h.Files[systemd.EngineUnit(h.Replica)].Marks, Text: "s", Intact: true}
	}
}

func changeFile(h *Have, f func(*File)) {
	file := h.Files[systemd.EngineUnit(h.Replica)]
	f(&file)
	h.Files[systemd.EngineUnit(h.Replica)] = file
}

// TestSteps: what the agent does in each situation, and why.
func TestSteps(t *testing.T) {
	one := func(w Want, h Have) World {
		return World{Synced: true, Now: noon, Want: map[string]Want{"a": w}, Have: map[string]Have{"a": h}}
	}
	rows := map[string]struct {
		world World
		want  []string
	}{
		"before the control plane has said everything, nothing": {
			World{Now: noon, Have: map[string]Have{"a": there("a", running)}}, nil},
		"new":                                        {one(assigned("a"), Have{Replica: "a"}), []string{"start a: it is assigned to this node (revision 1)"}},
		"all is well":                                {one(assigned("a"), there("a", running)), nil},
		"between automatic restarts":                 {one(assigned("a"), there("a", waiting)), nil},
		"stopped by hand":                            {one(assigned("a"), there("a", dead)), []string{"start a: it is not running"}},
		"another spec":                               {one(assigned("a", hash("h2"), func(w *Want) { w.Assignment.Revision = 2 }), there("a", running)), []string{"stop a: revision 2 replaces revision 1"}},
		"another spec, still fetching":               {one(assigned("a", hash("h2"), missing("k")), there("a", running)), []string{"fetch a: no weights"}},
		"a restart":                                  {one(assigned("a", hash("h2"), func(w *Want) { w.Assignment.Restarts = 1 }), there("a", running)), []string{"stop a: a restart was asked for"}},
		"another key":                                {one(assigned("a", hash("h2")), there("a", running)), []string{"stop a: what it was given has changed"}},
		"stopped for another spec":                   {one(assigned("a", hash("h2")), there("a", dead)), []string{"start a: it is not running"}},
		"a revision without effect":                  {one(assigned("a"), there("a", running, revision(0))), []string{"write a: revision 1 changes nothing of the process"}},
		"changed by hand":                            {one(assigned("a"), there("a", running, byHand)), nil},
		"written by an earlier agent":                {one(assigned("a"), there("a", running, olderText)), nil},
		"file deleted by hand":                       {one(assigned("a"), there("a", running, noFile)), []string{"write a: the file of levelrail-model-a.service is gone"}},
		"file deleted, nothing known":                {one(assigned("a"), there("a", running, noFile, func(h *Have) { h.Applied = nil })), []string{"stop a: its unit file is gone and nothing tells what it runs"}},
		"taken out of the boot":                      {one(assigned("a"), there("a", running, disabled)), []string{"write a: it would not come back at boot"}},
		"given up on, just now":                      {one(assigned("a"), there("a", failed, hold(time.Second))), nil},
		"given up on, a while ago":                   {one(assigned("a"), there("a", failed, hold(0))), []string{"start a: systemd has given up on it; trying again"}},
		"given up on, then updated":                  {one(assigned("a", hash("h2")), there("a", failed, hold(time.Hour))), []string{"start a: systemd has given up on it; trying again"}},
		"a step is on its way":                       {one(assigned("a", hash("h2")), there("a", running, busy)), nil},
		"no longer assigned":                         {World{Synced: true, Have: map[string]Have{"a": there("a", running)}}, []string{"retire a: it is no longer assigned to this node"}},
		"no longer assigned, failed":                 {World{Synced: true, Have: map[string]Have{"a": there("a", failed)}}, []string{"remove a: it is no longer assigned to this node"}},
		"no longer assigned, stopped":                {World{Synced: true, Have: map[string]Have{"a": there("a", dead)}}, []string{"remove a: it is no longer assigned to this node"}},
		"no longer assigned, door up":                {World{Synced: true, Have: map[string]Have{"a": there("a", dead, doorIs(running))}}, []string{"retire a: it is no longer assigned to this node"}},
		"nothing left":                               {World{Synced: true, Have: map[string]Have{"a": {Replica: "a"}}}, nil},
		"asleep":                                     {one(assigned("a", sleeping), there("a", running)), []string{"retire a: it is to be asleep"}},
		"asleep, would come at boot":                 {one(assigned("a", sleeping), there("a", dead)), []string{"retire a: it is to be asleep"}},
		"asleep, all is well":                        {one(assigned("a", sleeping), there("a", dead, disabled)), nil},
		"woken":                                      {one(assigned("a"), there("a", dead, disabled)), []string{"start a: it is not running"}},
		"program gone, engine runs":                  {one(assigned("a", lacking), there("a", running)), nil},
		"program gone, engine stopped":               {one(assigned("a", lacking), there("a", dead)), nil},
		"door closed":                                {one(assigned("a", behindDoor), there("a", running, doorIs(dead))), []string{"open a: its door is closed"}},
		"door open":                                  {one(assigned("a", behindDoor), there("a", running, doorIs(running))), nil},
		"engine stopped by hand behind an open door": {one(assigned("a", behindDoor), there("a", dead, doorIs(running))), []string{"start a: it is not running"}},
		"asleep, but its door is open":               {one(assigned("a", sleeping), there("a", dead, disabled, doorIs(running))), []string{"retire a: it is to be asleep"}},
		"stops come first, and cards wait for them": {World{Synced: true, Now: noon,
			Want: map[string]Want{"a": assigned("a", onCards), "b": assigned("b"), "z": assigned("z", hash("h2"), onCards)},
			Have: map[string]Have{"z": there("z", running)}},
			[]string{"stop z: what it was given has changed", "start b: it is assigned to this node (revision 1)"}},
		"cards wait also for a stop on its way": {World{Synced: true, Now: noon,
			Want: map[string]Want{"a": assigned("a", onCards)}, Have: map[string]Have{"z": there("z", running, busy)}}, nil},
	}
	for name, row := range rows {
		var got []string
		for _, s := range steps(row.world) {
			got = append(got, fmt.Sprintf("%s %s: %s", s.Do, s.Who, s.Why))
		}
		if !slices.Equal(got, row.want) {
			t.Errorf("%s:\ngot  %q\nwant %q", name, got, row.want)
		}
	}
}

// TestFetchSteps: weights are brought once, again after a pause, and not for what is no longer wanted.
func TestFetchSteps(t *testing.T) {
	world := func(w *Want, f Fetch) World {
		x := World{Synced: true, Now: noon, Want: map[string]Want{}, Fetches: map[string]Fetch{"a": f}}
		if w != nil {
			x.Want["a"] = *w
		}
		return x
	}
	need := assigned("a", missing("k"))
	lackingNeed := assigned("a", missing("k"), lacking)
	asleep := assigned("a", missing("k"), sleeping)
	complete := assigned("a", func(w *Want) { w.Assignment.Run = true })
	for name, row := range map[string]struct {
		world World
		want  []string
	}{
		"new":                            {world(&need, Fetch{}), []string{"fetch a: no weights"}},
		"on its way":                     {world(&need, Fetch{There: true, State: running, Key: "k"}), nil},
		"another order is on its way":    {world(&need, Fetch{There: true, State: running, Key: "old"}), []string{"stop fetch a: something else is to be fetched"}},
		"failed just now":                {world(&need, Fetch{There: true, State: failed, Key: "k", Hold: noon.Add(1)}), nil},
		"failed a while ago":             {world(&need, Fetch{There: true, State: failed, Key: "k", Hold: noon}), []string{"fetch a: no weights"}},
		"failed, then another order":     {world(&need, Fetch{There: true, State: failed, Key: "old", Hold: noon.Add(1)}), []string{"fetch a: no weights"}},
		"a step is on its way":           {world(&need, Fetch{Busy: true}), nil},
		"brought":                        {world(&need, Fetch{There: true, State: dead, Key: "k", Known: true, Said: fetch.State{Key: "k", Step: fetch.Done}}), []string{"take in a: the fetch is done"}},
		"brought, for an earlier order":  {world(&need, Fetch{There: true, State: dead, Key: "old", Known: true, Said: fetch.State{Key: "old", Step: fetch.Done}}), []string{"fetch a: no weights"}},
		"said so while it still runs":    {world(&need, Fetch{There: true, State: running, Key: "k", Known: true, Said: fetch.State{Key: "k", Step: fetch.Done}}), nil},
		"being copied":                   {world(&need, Fetch{Busy: true, Long: true, Key: "k"}), nil},
		"another is being copied":        {world(&need, Fetch{Busy: true, Long: true, Key: "old"}), []string{"give up a: something else is to be fetched"}},
		"deleted while it is copied":     {world(nil, Fetch{Busy: true, Long: true, Key: "k"}), []string{"give up a: the model is not to run on this node any more"}},
		"the node lacks the program":     {world(&lackingNeed, Fetch{}), nil},
		"asleep":                         {world(&asleep, Fetch{}), nil},
		"put to sleep in mid-download":   {world(&asleep, Fetch{There: true, State: running, Key: "k"}), []string{"stop fetch a: the model is to be asleep"}},
		"deleted in mid-download":        {world(nil, Fetch{There: true, State: running, Key: "k"}), []string{"stop fetch a: the model is no longer assigned to this node"}},
		"deleted after a failed one":     {world(nil, Fetch{There: true, State: failed, Key: "k"}), []string{"stop fetch a: the model is no longer assigned to this node"}},
		"done":                           {world(&complete, Fetch{There: true, State: dead, Key: "k"}), []string{"start a: it is assigned to this node (revision 1)", "drop fetch a: the weights are there"}},
		"done, and the process winds up": {world(&complete, Fetch{There: true, State: running, Key: "k"}), []string{"start a: it is assigned to this node (revision 1)"}},
	} {
		var got []string
		for _, s := range steps(row.world) {
			got = append(got, fmt.Sprintf("%s %s: %s", s.Do, s.Who, s.Why))
		}
		if !slices.Equal(got, row.want) {
			t.Errorf("%s:\ngot  %q\nwant %q", name, got, row.want)
		}
	}
}

// TestSameFilesOnce: of several models with the same source one fetches, and the others wait until its files are in place.
func TestSameFilesOnce(t *testing.T) {
	source := func(s string) func(*Want) { return func(w *Want) { w.Assignment.Spec.Source = s } }
	wants := map[string]Want{"a": assigned("a", missing("ka"), source("org/one")), "b": assigned("b", missing("kb"), source("org/one")), "c": assigned("c", missing("kc"), source("org/two"))}
	did := func(fetches map[string]Fetch) (got []string) {
		for _, s := range steps(World{Synced: true, Now: noon, Want: wants, Fetches: fetches}) {
			got = append(got, string(s.Do)+" "+s.Who)
		}
		return got
	}
	done := fetch.State{Key: "kb", Step: fetch.Done}
	for name, row := range map[string]struct {
		fetches map[string]Fetch
		want    []string
	}{
		"at once":             {nil, []string{"fetch a", "fetch c"}},
		"the second one runs": {map[string]Fetch{"b": {There: true, Key: "kb", State: units.State{Active: "active"}}}, []string{"fetch c"}},
		"it is being taken":   {map[string]Fetch{"b": {Key: "kb", Busy: true, Long: true}}, []string{"fetch c"}},
		"it is to be taken":   {map[string]Fetch{"b": {There: true, Key: "kb", Known: true, Said: done}}, []string{"take in b", "fetch c"}},
		"it failed":           {map[string]Fetch{"b": {There: true, Key: "kb", Hold: noon.Add(1)}}, []string{"fetch a", "fetch c"}},
	} {
		if got := did(row.fetches); !slices.Equal(got, row.want) {
			t.Errorf("%s: got %q, want %q", name, got, row.want)
		}
	}
}
