package raftstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/raftstore/command"
	"github.com/levelrail/levelrail/raftstore/command/commandtest"
)

func keyNamed(id, name string, models ...string) levelrail.Key {
	return levelrail.Key{ID: id, Name: name, Models: models, SHA256: levelrail.HashSecret(id), Prefix: "lr-12345"}
}

// indexed is what finds keys, as it lies in the state, without when they were used.
func indexed(t testing.TB, s *Store) map[string]string {
	t.Helper()
	out := map[string]string{}
	if err := s.state.view(func(r stateReader) error {
		for _, b := range []levelrail.Kind{command.BucketKeyByModel, command.BucketKeyByHash, command.BucketKeyByExpiry} {
			r.Each(b, "", func(id string, value []byte) bool {
				object, _, err := decodeRaw(b, id, value)
				if err != nil {
					t.Error(err)
				}
				out[string(b)+" "+id] = string(object)
				return true
			})
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

// checkIndex holds what finds keys against the keys.
func checkIndex(t testing.TB, s *Store) {
	t.Helper()
	want := map[string]string{}
	for _, k := range all[levelrail.Key](t, s, "") {
		for _, e := range command.KeyIndex(k) {
			text, err := json.Marshal(e.Object)
			if err != nil {
				t.Fatal(err)
			}
			want[string(e.Bucket)+" "+e.ID] = string(text)
		}
	}
	if have := indexed(t, s); !reflect.DeepEqual(have, want) {
		t.Errorf("keys are found by\n%v\nand should be by\n%v", have, want)
	}
}

// conformKeys: keys are found by model, hash and expiry, whatever is done to them; a key has one successor, of its own
// name.
func conformKeys(t *testing.T, s *Store, c *clock) {
	propose(t, s, deploy("one"))
	propose(t, s, deploy("two"))
	soon := keyNamed("key_soon", "soon", "one")
	at := c.at.Add(time.Hour)
	soon.ExpiresAt = &at
	propose(t, s, command.KeyCreate{Key: soon})
	propose(t, s, command.KeyCreate{Key: keyNamed("key_both", "both", "one", "two")})
	checkIndex(t, s)

	later := c.at.Add(2 * time.Hour)
	next := keyNamed("key_next", "both", "one", "two")
	next.Replaces = "key_both"
	propose(t, s, command.KeyRotate{Key: next, RetireAt: &later})
	checkIndex(t, s)
	again := keyNamed("key_again", "both", "one")
	again.Replaces = "key_both"
	if e := refused(t, s, command.KeyRotate{Key: again}, levelrail.ErrRefused); !strings.Contains(e.Error()+e.Next, "key_next") {
		t.Errorf("a second rotation of one key says %v, next %s", e, e.Next)
	}
	again.Replaces, again.Name = "key_next", "other"
	refused(t, s, command.KeyRotate{Key: again}, levelrail.ErrInvalid)
	refused(t, s, command.KeyCreate{Key: keyNamed("key_more", "both", "two")}, levelrail.ErrConflict)

	live := func(model string, most, want int) {
		t.Helper()
		if err := s.View(func(tx *Tx) error {
			n, err := LiveKeys(tx, model, c.at, most)
			if n != want {
				t.Errorf("%s has %d live keys, counted up to %d; want %d", model, n, most, want)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	}
	live("one", 10, 4) // default, soon, both and its successor
	live("one", 2, 2)
	live("tw", 10, 0)
	c.advance(90 * time.Minute)
	live("one", 10, 3)
	if err := s.View(func(tx *Tx) error {
		var gone, have []string
		err := ExpiredKeys(tx, c.at, func(id string) error { gone = append(gone, id); return nil })
		if err == nil {
			err = KeysOf(tx, "two", func(k levelrail.Key) error { have = append(have, k.ID); return nil })
		}
		if fmt.Sprint(gone) != "[key_soon]" || fmt.Sprint(have) != "[key_both key_next key_two]" {
			t.Errorf("expired are %v, and two has %v", gone, have)
		}
		return err
	}); err != nil {
		t.Error(err)
	}

	propose(t, s, command.KeyRevoke{ID: "key_soon"})
	propose(t, s, command.ModelDelete{Name: "one"})
	checkIndex(t, s)
	propose(t, s, command.ModelRemove{Name: "one"})
	checkIndex(t, s)
	if _, there := find[levelrail.Key](t, s, "key_both"); !there {
		t.Error("the key of both is gone with one of them")
	}
	propose(t, s, command.ModelDelete{Name: "two"})
	propose(t, s, command.ModelRemove{Name: "two"})
	if left := indexed(t, s); len(left) != 0 {
		t.Errorf("there is no key, and %v is left", left)
	}
}

// conformKeysUsed: when a key was used is known by the newest word, and never lies ahead; what is no key leaves nothing.
func conformKeysUsed(t *testing.T, s *Store, c *clock) {
	propose(t, s, deploy("chat"))
	seq := uint64(0)
	say := func(at time.Time) {
		seq++
		propose(t, s, command.UsageRecord{GatewayID: "gw_1", Sequence: seq, LastUsed: map[string]time.Time{"key_chat": at, "key_none": at}})
	}
	used := func(id string) (at *time.Time) {
		if err := s.View(func(tx *Tx) (err error) { at, err = KeyLastUsed(tx, id); return err }); err != nil {
			t.Fatal(err)
		}
		return at
	}
	if at := used("key_chat"); at != nil {
		t.Errorf("a key that was never used was used at %s", at)
	}
	say(c.at.Add(-time.Minute))
	say(c.at.Add(-time.Hour))
	if at := used("key_chat"); at == nil || !at.Equal(c.at.Add(-time.Minute)) {
		t.Errorf("the key was used at %v", at)
	}
	say(c.at.Add(time.Hour))
	if at := used("key_chat"); !at.Equal(c.at) {
		t.Errorf("the key was used at %v, and it is %s", at, c.at)
	}
	if used("key_none") != nil {
		t.Error("what is no key was used")
	}
	propose(t, s, command.ModelDelete{Name: "chat"})
	propose(t, s, command.ModelRemove{Name: "chat"})
	if used("key_chat") != nil {
		t.Error("a key that is gone was used")
	}
}

// conformUsageReads: usage is read by model and hour, what gateways dropped is known, and what is too old goes, oldest
// first and not more at once than a command may take.
func conformUsageReads(t *testing.T, s *Store, c *clock) {
	hour := commandtest.At
	for i := range 5 {
		rows := []levelrail.Usage{}
		for _, m := range []string{"chat", "cha", "xchat"} {
			rows = append(rows, levelrail.Usage{Hour: hour.Add(time.Duration(i)*time.Hour + time.Minute), KeyID: "key_1", Model: m, Counts: levelrail.Counts{Requests: 1}})
		}
		c.at = hour.Add(time.Duration(i) * time.Hour)
		propose(t, s, command.UsageRecord{GatewayID: "gw_1", Sequence: uint64(i + 1), Rows: rows, Dropped: int64(i)})
	}
	view := func(fn func(tx *Tx) error) {
		t.Helper()
		if err := s.View(fn); err != nil {
			t.Fatal(err)
		}
	}
	view(func(tx *Tx) error {
		var got []string
		err := UsageOf(tx, "chat", hour.Add(time.Hour), hour.Add(3*time.Hour), func(u levelrail.Usage) error {
			got = append(got, u.ObjectID())
			return nil
		})
		if want := "[2026113013/key_1/chat 2026113014/key_1/chat 2026113015/key_1/chat]"; fmt.Sprint(got) != want {
			t.Errorf("read %v, want %s", got, want)
		}
		return err
	})
	view(func(tx *Tx) error {
		var got []string
		err := UsageOfKey(tx, "key_1", hour.Add(3*time.Hour), hour.Add(9*time.Hour), func(u levelrail.Usage) error {
			got = append(got, u.ObjectID())
			return nil
		})
		if want := "[2026113015/key_1/cha 2026113015/key_1/chat 2026113015/key_1/xchat 2026113016/key_1/cha 2026113016/key_1/chat 2026113016/key_1/xchat]"; fmt.Sprint(got) != want {
			t.Errorf("of the key %v, want %s", got, want)
		}
		if UsageByOthers(tx, "gw_1") || !UsageByOthers(tx, "gw_2") {
			t.Error("gw_1 has reported usage, and nobody else")
		}
		return errors.Join(err, UsageOfKey(tx, "key_", hour, hour.Add(9*time.Hour), func(u levelrail.Usage) error { return fmt.Errorf("%s is another key's", u.ObjectID()) }))
	})
	dropped := func(from time.Time) (n int64) {
		view(func(tx *Tx) (err error) { n, err = UsageDropped(tx, from); return err })
		return n
	}
	if all, late := dropped(hour), dropped(hour.Add(3*time.Hour)); all != 10 || late != 7 {
		t.Errorf("dropped %d, of them %d late", all, late)
	}
	r := propose(t, s, command.UsagePrune{Before: hour.Add(3 * time.Hour)})
	if string(r.Body) != `{"removed":11,"more":false}` { // nine rows, and two words of what was dropped
		t.Errorf("the answer is %s", r.Body)
	}
	view(func(tx *Tx) error {
		at, err := OldestUsage(tx)
		if !at.Equal(hour.Add(3 * time.Hour)) {
			t.Errorf("the oldest is of %s", at)
		}
		return err
	})
	if n := dropped(hour); n != 7 {
		t.Errorf("dropped %d", n)
	}

	var rows []levelrail.Usage
	for i := range 10_001 {
		rows = append(rows, levelrail.Usage{Hour: hour, KeyID: fmt.Sprintf("key_%05d", i), Model: "chat"})
	}
	seq := uint64(5)
	for some := range slices.Chunk(rows, 500) {
		seq++
		propose(t, s, command.UsageRecord{GatewayID: "gw_1", Sequence: seq, Rows: some})
	}
	for _, want := range []string{`{"removed":10000,"more":true}`, `{"removed":1,"more":false}`, `{"removed":0,"more":false}`} {
		if r := propose(t, s, command.UsagePrune{Before: hour.Add(time.Hour)}); string(r.Body) != want {
			t.Errorf("the answer is %s, want %s", r.Body, want)
		}
	}
}

// TestKeysOfAnEarlierState: a state in which nothing finds the keys gets what does, the same as if it had been there.
func TestKeysOfAnEarlierState(t *testing.T) {
	s := OpenMemory(testConfig(t, ""))
	t.Cleanup(func() { closeTest(t, s) })
	fill(t, s)
	want := indexed(t, s)
	w, err := s.state.begin()
	if err != nil {
		t.Fatal(err)
	}
	defer w.rollback()
	for name := range want {
		bucket, id, _ := strings.Cut(name, " ")
		must(t, w.remove(levelrail.Kind(bucket), id))
	}
	must(t, indexKeys(w))
	must(t, w.commit())
	if have := indexed(t, s); len(want) == 0 || !reflect.DeepEqual(have, want) {
		t.Errorf("keys are found by\n%v\nand were by\n%v", have, want)
	}
}
