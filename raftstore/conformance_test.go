package raftstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/raftstore/command"
	"github.com/levelrail/levelrail/raftstore/command/commandtest"
)

// clock is set by hand.
type clock struct{ at time.Time }

func (c *clock) now() time.Time          { return c.at }
func (c *clock) advance(d time.Duration) { c.at = c.at.Add(d) }

// TestConformance: a store on raft and one in memory do the same.
func TestConformance(t *testing.T) {
	for name, open := range map[string]func(t *testing.T, c *clock) *Store{
		"raft": func(t *testing.T, c *clock) *Store {
			cfg := testConfig(t, t.TempDir())
			cfg.Clock = c.now
			return openTest(t, cfg)
		},
		"memory": func(t *testing.T, c *clock) *Store {
			cfg := testConfig(t, "")
			cfg.Clock = c.now
			s := OpenMemory(cfg)
			t.Cleanup(func() { closeTest(t, s) })
			return s
		},
	} {
		for promise, check := range map[string]func(*testing.T, *Store, *clock){
			"samples are taken and taken away":   conformSamples,
			"shapes come back as written":        conformShapes,
			"a refusal changes nothing":          conformRefusal,
			"idempotency":                        conformIdempotency,
			"compare and set":                    conformCompareAndSet,
			"audit":                              conformAudit,
			"log time never goes back":           conformLogTime,
			"reads":                              conformReads,
			"usage is counted once":              conformUsage,
			"usage is read, and too old goes":    conformUsageReads,
			"keys are found":                     conformKeys,
			"keys are seen to be used":           conformKeysUsed,
			"settings keep their history":        conformSettings,
			"devices are promised once":          conformDevices,
			"a deleted model's keys are closed":  conformDelete,
			"watch":                              conformWatch,
			"status":                             conformStatus,
			"what is over is over after a close": conformClose,
		} {
			t.Run(name+"/"+promise, func(t *testing.T) {
				t.Parallel()
				c := &clock{at: commandtest.At}
				check(t, open(t, c), c)
			})
		}
	}
}

func conformSamples(t *testing.T, s *Store, _ *clock) {
	for _, c := range append(commandtest.Samples(s.Status().ClusterID), commandtest.Removals()...) {
		propose(t, s, c)
	}
	if left := all[levelrail.Model](t, s, ""); len(left) != 0 {
		t.Errorf("models are left: %v", left)
	}
	for _, k := range all[levelrail.Secret](t, s, "") {
		t.Errorf("the secret %s is left", k.Path)
	}
	if left := all[levelrail.Reservation](t, s, ""); len(left) != 0 {
		t.Errorf("reservations are left: %v", left)
	}
	if left := all[levelrail.Weights](t, s, ""); len(left) != 0 {
		t.Errorf("weights are left: %v", left)
	}
}

func conformRefusal(t *testing.T, s *Store, _ *clock) {
	propose(t, s, deploy("chat"))
	e := refused(t, s, deploy("chat"), levelrail.ErrConflict)
	if e.Next == "" || !strings.Contains(e.Message, "chat") {
		t.Errorf("the refusal is no help: %v", e)
	}
	// The key's name is taken, which shows after the model itself was written: nothing of it stays.
	second := deploy("other")
	second.Key.ID = "key_chat"
	refused(t, s, second, levelrail.ErrConflict)
	if _, there := find[levelrail.Model](t, s, "other"); there {
		t.Error("half of a refused command stayed")
	}
	refused(t, s, command.ModelRestart{Name: "nothing"}, levelrail.ErrNotFound)
	refused(t, s, command.ModelRemove{Name: "chat"}, levelrail.ErrRefused)
	refused(t, s, deploy("Not A Name"), levelrail.ErrInvalid)
	refused(t, s, command.KeyRevoke{ID: "nothing"}, levelrail.ErrNotFound)
}

func conformIdempotency(t *testing.T, s *Store, c *clock) {
	propose(t, s, deploy("chat"))
	by := root
	by.IdempotencyKey, by.RequestHash = "k1", levelrail.HashSecret("restart chat")
	first := proposeBy(t, s, by, command.ModelRestart{Name: "chat"})
	c.advance(time.Hour)
	again := proposeBy(t, s, by, command.ModelRestart{Name: "chat", Job: &levelrail.Job{ID: "job_x", Action: "restart", Model: "chat"}})
	if again.Index != first.Index || !again.Replayed || first.Replayed || !bytes.Equal(again.Body, first.Body) {
		t.Errorf("the repeat was answered with %+v, the first with %+v", again, first)
	}
	var body command.ModelRestarted
	if err := again.Decode(&body); err != nil || body.Restarts != 1 {
		t.Errorf("the body is %+v, %v", body, err)
	}
	if m := read[levelrail.Model](t, s, "chat"); m.Restarts != 1 {
		t.Errorf("the model was restarted %d times", m.Restarts)
	}

	other := by
	other.RequestHash = levelrail.HashSecret("restart something else")
	if _, err := s.Propose(within(t, 10*time.Second), other, command.ModelRestart{Name: "chat"}); levelrail.KindOf(err) != levelrail.ErrConflict {
		t.Errorf("the same key for another request gave %v", err)
	}
	somebody := by
	somebody.Principal.ID = "uid 1000"
	if r := proposeBy(t, s, somebody, command.ModelRestart{Name: "chat"}); r.Replayed {
		t.Error("another principal's key was taken for this one's")
	}

	// A refusal is repeated too.
	lost := root
	lost.IdempotencyKey = "k2"
	_, err1 := s.Propose(within(t, 10*time.Second), lost, command.ModelRestart{Name: "later"})
	propose(t, s, deploy("later"))
	_, err2 := s.Propose(within(t, 10*time.Second), lost, command.ModelRestart{Name: "later"})
	if levelrail.KindOf(err1) != levelrail.ErrNotFound || !reflect.DeepEqual(err1, err2) {
		t.Errorf("the refusals are %v and %v", err1, err2)
	}

	c.advance(24 * time.Hour)
	if r := proposeBy(t, s, by, command.ModelRestart{Name: "chat"}); r.Replayed {
		t.Error("the key was still known after a day")
	}
}

func conformCompareAndSet(t *testing.T, s *Store, _ *clock) {
	propose(t, s, node("a"))
	var at uint64
	if err := s.View(func(tx *Tx) (err error) {
		_, at, err = GetIndexed[levelrail.Node](tx, "a")
		return err
	}); err != nil || at == 0 {
		t.Fatalf("the node is of index %d, %v", at, err)
	}
	drained := node("a")
	drained.IfIndex, drained.Node.Drained = at, true
	propose(t, s, drained)
	refused(t, s, drained, levelrail.ErrConflict)

	propose(t, s, deploy("chat"))
	up := command.ModelUpdate{Model: levelrail.Model{Name: "chat"}, IfRevision: 1, Revision: &levelrail.Revision{Model: "chat", Number: 2, Spec: levelrail.ModelSpec{Engine: "ollama", Source: "llama3.1:8b"}}}
	if r := propose(t, s, up); string(r.Body) != `{"revision":2}` {
		t.Errorf("the update was answered with %s", r.Body)
	}
	refused(t, s, up, levelrail.ErrConflict)
	up.IfRevision = 2
	refused(t, s, up, levelrail.ErrConflict) // revision 2 is there
	back := command.ModelUpdate{Model: levelrail.Model{Name: "chat", Revision: 1}, IfRevision: 2}
	propose(t, s, back)
	if m := read[levelrail.Model](t, s, "chat"); m.Revision != 1 {
		t.Errorf("after going back the model wants revision %d", m.Revision)
	}
	back.Model.Revision, back.IfRevision = 7, 0
	refused(t, s, back, levelrail.ErrNotFound)
}

func conformAudit(t *testing.T, s *Store, c *clock) {
	by := command.By{Principal: levelrail.Principal{Kind: "token", ID: "tok_7"}, Ability: levelrail.AbilityWriteSensitive}
	d := deploy("chat")
	d.Secrets = []levelrail.Secret{{Path: "models/chat/hub-token", Namespace: "models", Wrapped: []byte("WRAPPED"), Sealed: []byte("SEALED"), Version: 1}}
	r := proposeBy(t, s, by, d)
	refused(t, s, deploy("chat"), levelrail.ErrConflict)
	a := all[levelrail.Audit](t, s, "")
	want := []levelrail.Audit{
		{Index: r.Index, At: c.at, Principal: by.Principal, Ability: by.Ability, Command: "model.deploy", Kind: levelrail.KindModel, ID: "chat"},
		{Index: r.Index + 1, At: c.at, Principal: root.Principal, Ability: root.Ability, Command: "model.deploy", Kind: levelrail.KindModel, ID: "chat", Refused: "conflict"},
	}
	if !reflect.DeepEqual(a, want) {
		t.Errorf("the audit is\n%+v\nand should be\n%+v", a, want)
	}
	if err := s.View(func(tx *Tx) error {
		tx.state.Each(levelrail.KindAudit, "", func(id string, value []byte) bool {
			for _, text := range []string{"SEALED", "U0VBTEVE", d.Key.SHA256} {
				if bytes.Contains(value, []byte(text)) {
					t.Errorf("the audit record %s holds %s", id, text)
				}
			}
			return true
		})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func conformLogTime(t *testing.T, s *Store, c *clock) {
	propose(t, s, deploy("chat"))
	c.advance(-time.Hour)
	propose(t, s, command.KeyRevoke{ID: "key_chat"})
	if k := read[levelrail.Key](t, s, "key_chat"); !k.RevokedAt.Equal(commandtest.At) {
		t.Errorf("with a clock that went back the key was revoked at %s", k.RevokedAt)
	}
	c.advance(2 * time.Hour)
	propose(t, s, command.ModelRestart{Name: "chat"})
	if m := read[levelrail.Model](t, s, "chat"); !m.Stamp.UpdatedAt.Equal(commandtest.At.Add(time.Hour)) || !m.Stamp.CreatedAt.Equal(commandtest.At) || m.Stamp.CreatedBy != root.Principal {
		t.Errorf("the model's stamp is %+v", m.Stamp)
	}
}

func conformReads(t *testing.T, s *Store, _ *clock) {
	for i := range 3 {
		propose(t, s, node(fmt.Sprintf("n%d", 2-i)))
	}
	r := propose(t, s, node("other"))
	check := func(tx *Tx) error {
		if tx.Index() < r.Index {
			t.Errorf("the read is of index %d, and the write was %d", tx.Index(), r.Index)
		}
		nodes, err := List[levelrail.Node](tx, "n")
		if err != nil || len(nodes) != 3 || nodes[0].ID != "n0" || nodes[2].ID != "n2" {
			t.Errorf("the list is %v, %v", nodes, err)
		}
		none, err := List[levelrail.Token](tx, "")
		if err != nil || none == nil || len(none) != 0 {
			t.Errorf("an empty list is %v, %v", none, err)
		}
		if _, there, err := Get[levelrail.Node](tx, "n"); there || err != nil {
			t.Errorf("a part of an id was found: %v", err)
		}
		stop := errors.New("stop")
		seen := 0
		if err := Each(tx, "", func(levelrail.Node) error { seen++; return stop }); err != stop || seen != 1 {
			t.Errorf("Each ended with %v after %d", err, seen)
		}
		return nil
	}
	ctx := within(t, 10*time.Second)
	for name, err := range map[string]error{"View": s.View(check), "ViewAt": s.ViewAt(ctx, r.Index, check), "ViewCurrent": s.ViewCurrent(ctx, check)} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	short, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := s.ViewAt(short, r.Index+1000, check); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waiting for an index to come gave %v", err)
	}
	// A view keeps what it began with.
	if err := s.View(func(tx *Tx) error {
		propose(t, s, node("late"))
		if _, there, err := Get[levelrail.Node](tx, "late"); there || err != nil {
			t.Errorf("a write shows in a view that began before it: %v", err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

func conformUsage(t *testing.T, s *Store, _ *clock) {
	hour := commandtest.At
	batch := func(seq uint64, n int64) command.UsageRecord {
		return command.UsageRecord{GatewayID: "gw_1", Sequence: seq, Rows: []levelrail.Usage{{Hour: hour, KeyID: "key_1", Model: "chat", Counts: levelrail.Counts{Requests: n, OutputTokens: 10 * n}}}}
	}
	propose(t, s, batch(1, 3))
	r := propose(t, s, batch(2, 4))
	if string(r.Body) != `{"counted":true,"sequence":2}` {
		t.Errorf("the batch was answered with %s", r.Body)
	}
	if r := propose(t, s, batch(2, 4)); string(r.Body) != `{"counted":false,"sequence":2}` {
		t.Errorf("the repeat was answered with %s", r.Body)
	}
	other := batch(1, 5)
	other.GatewayID = "gw_2"
	propose(t, s, other)
	for _, a := range all[levelrail.Audit](t, s, "") {
		if a.Command == "usage.record" {
			t.Errorf("usage is in the audit: %+v", a)
		}
	}
	rows := all[levelrail.Usage](t, s, "2026113012/")
	if len(rows) != 1 || rows[0].Requests != 12 || rows[0].OutputTokens != 120 {
		t.Errorf("the rows are %+v", rows)
	}
	if err := s.View(func(tx *Tx) error {
		n, err := UsageSequence(tx, "gw_1")
		none, err2 := UsageSequence(tx, "gw_9")
		if n != 2 || none != 0 {
			t.Errorf("the sequences are %d and %d", n, none)
		}
		return errors.Join(err, err2)
	}); err != nil {
		t.Error(err)
	}
}

func conformSettings(t *testing.T, s *Store, _ *clock) {
	put := func(version int) command.SettingsPut {
		return command.SettingsPut{Document: levelrail.SettingsDocument{Name: "cluster", Version: version, Values: map[string]string{"V": fmt.Sprint(version)}}}
	}
	for v := 1; v <= 53; v++ {
		propose(t, s, put(v))
	}
	refused(t, s, put(53), levelrail.ErrConflict)
	refused(t, s, put(55), levelrail.ErrConflict)
	if d := read[levelrail.SettingsDocument](t, s, "cluster"); d.Version != 53 || d.Values["V"] != "53" {
		t.Errorf("the settings are %+v", d)
	}
	if err := s.View(func(tx *Tx) error {
		h, err := SettingsHistory(tx, "cluster")
		if len(h) != 50 || h[0].Version != 4 || h[49].Version != 53 {
			t.Errorf("the history has %d versions", len(h))
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

func conformDevices(t *testing.T, s *Store, _ *clock) {
	propose(t, s, node("a"))
	for _, m := range []string{"one", "two"} {
		propose(t, s, deploy(m))
	}
	place := func(model, res string, devices ...string) command.ReplicaPlace {
		return command.ReplicaPlace{
			Replica:      levelrail.Replica{ID: model, Model: model, Revision: 1, Run: true, Shards: []levelrail.Shard{{NodeID: "a", ReservationID: res, Devices: devices}}},
			Reservations: []levelrail.Reservation{{ID: res, For: "model:" + model, NodeID: "a", Devices: devices}},
		}
	}
	propose(t, s, place("one", "r1", "GPU-1"))
	if e := refused(t, s, place("two", "r2", "GPU-1", "GPU-2"), levelrail.ErrRefused); !strings.Contains(e.Message, "model:one") {
		t.Errorf("the refusal does not say who has the device: %v", e)
	}
	propose(t, s, place("two", "r2", "GPU-2"))
	refused(t, s, command.NodeRemove{ID: "a"}, levelrail.ErrRefused)

	// Moving a replica to other devices gives the old ones back.
	moved := place("one", "r3", "GPU-3")
	propose(t, s, command.ReplicaPut{Replica: moved.Replica, Reservations: moved.Reservations})
	if _, there := find[levelrail.Reservation](t, s, "r1"); there {
		t.Error("the reservation that the replica left is still there")
	}
	propose(t, s, command.ReplicaRemove{ID: "one"})
	propose(t, s, command.ReplicaRemove{ID: "two"})
	if left := all[levelrail.Reservation](t, s, ""); len(left) != 0 {
		t.Errorf("reservations are left: %v", left)
	}
	propose(t, s, command.NodeRemove{ID: "a"})
}

func conformDelete(t *testing.T, s *Store, c *clock) {
	propose(t, s, deploy("one"))
	propose(t, s, deploy("two"))
	propose(t, s, command.KeyCreate{Key: levelrail.Key{ID: "key_both", Name: "both", Models: []string{"one", "two"}, SHA256: levelrail.HashSecret("b")}})
	propose(t, s, command.ModelDelete{Name: "one"})
	if k := read[levelrail.Key](t, s, "key_one"); k.Live(c.at) {
		t.Error("the deleted model's key is live")
	}
	if k := read[levelrail.Key](t, s, "key_both"); !k.Live(c.at) || !reflect.DeepEqual(k.Models, []string{"two"}) {
		t.Errorf("the key of both is %+v", k)
	}
	refused(t, s, deploy("one"), levelrail.ErrConflict)
	refused(t, s, command.ModelRestart{Name: "one"}, levelrail.ErrConflict)
	propose(t, s, command.ModelRemove{Name: "one"})
	if _, there := find[levelrail.Key](t, s, "key_one"); there {
		t.Error("the removed model's key is there")
	}
	again := deploy("one")
	again.Job = nil
	propose(t, s, again)
}

func conformStatus(t *testing.T, s *Store, _ *clock) {
	r := propose(t, s, deploy("chat"))
	st := s.Status()
	if st.Role != "leader" || st.LeaderID != st.ServerID || st.ServerID == "" || st.ClusterID == "" || st.Lineage == "" || st.Term == 0 || st.Index != r.Index {
		t.Errorf("the status is %+v after index %d", st, r.Index)
	}
	if err := s.Snapshot(within(t, 10*time.Second)); err != nil {
		t.Error(err)
	}
	select {
	case <-s.LeaderChanged():
		t.Error("the leader changed")
	default:
	}
}

func conformClose(t *testing.T, s *Store, _ *clock) {
	sub, err := s.Watch(context.Background(), "", levelrail.KindModel)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := sub.Next(within(t, 10*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	ended := make(chan error, 1)
	go func() {
		_, err := sub.Next(context.Background())
		ended <- err
	}()
	closeTest(t, s)
	select {
	case err := <-ended:
		if !errors.Is(err, ErrClosed) {
			t.Errorf("the watch ended with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the watch did not end")
	}
	if _, err := s.Propose(within(t, 10*time.Second), root, node("a")); err == nil {
		t.Error("a closed store took a write")
	}
	if err := s.ViewAt(within(t, 10*time.Second), 1<<40, func(*Tx) error { return nil }); !errors.Is(err, ErrClosed) {
		t.Errorf("waiting on a closed store gave %v", err)
	}
}
