package limit

import (
	"slices"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
)

// charged counts how many requests of a key pass, of so many that try.
func charged(t *testing.T, k *Keys, l levelrail.KeyLimits, now time.Time, tries int) (n int) {
	t.Helper()
	for range tries {
		c, ok := k.Enter("key_a", l, now)
		if !ok {
			continue
		}
		if _, _, ok := c.Charge(l, now); ok {
			n++
		}
		c.Leave()
	}
	return n
}

// TestParts: a gateway that is not alone any more keeps what it has used and its part of the rest, and says so in the same
// step; a key that it meets later has nothing; what is granted bounds it, never above the limit; alone again, the limit does.
func TestParts(t *testing.T) {
	k, l := NewKeys(start), levelrail.KeyLimits{RPM: 10}
	if n := charged(t, k, l, start, 4); n != 4 {
		t.Fatalf("alone %d pass", n)
	}
	k.SetTerms(Terms{Gateways: 3})
	var words []Word
	k.TellAll(true, start, func(w Word) bool { words = append(words, w); return true })
	if len(words) != 1 || words[0].Used[byRPM] != 4 || words[0].Held[byRPM] != 6 || words[0].Frees[byRPM] != 61_000 {
		t.Fatalf("told %+v", words)
	}
	if n := charged(t, k, l, start, 10); n != 2 || !k.Short("key_a", start) {
		t.Errorf("of its part %d more pass", n)
	}
	if c, ok := k.Enter("key_b", l, start); !ok {
		t.Error("a limit on requests refuses a slot")
	} else if _, _, ok := c.Charge(l, start); ok || !k.Short("key_b", start) {
		t.Error("a key that it meets later has a part")
	}
	old := k.Tell("key_a", false, start)
	w := k.Tell("key_a", false, start)
	if k.Grant("key_a", old.Seq, Amounts{byRPM: 10}, 0, start) {
		t.Error("an answer to an older word is taken")
	}
	if !k.Grant("key_a", w.Seq, Amounts{byRPM: 99}, 0, start) {
		t.Error("the answer to the newest word is not taken")
	}
	if n := charged(t, k, l, start, 20); n != 4 || k.Short("key_a", start) {
		t.Errorf("of a part above the limit %d pass, short %v", n, k.Short("key_a", start))
	}
	if w := k.Tell("key_a", true, at(62*time.Second)); w.Held != (Amounts{}) || w.Used != (Amounts{}) {
		t.Errorf("it gives back all but %+v", w)
	}
	k.SetTerms(Terms{Alone: true, Gateways: 1})
	if n := charged(t, k, l, at(62*time.Second), 20); n != 10 {
		t.Errorf("alone again %d pass", n)
	}
}

// TestAway: without the control plane the last part rules, and a key without one has an even part, of one request at least.
func TestAway(t *testing.T) {
	k, l := NewKeys(start), levelrail.KeyLimits{RPM: 10, MaxParallel: 2}
	k.SetTerms(Terms{Gateways: 3})
	enter(t, k, levelrail.KeyLimits{RPM: 10}, start).Leave()
	w := k.Tell("key_a", false, start)
	k.Grant("key_a", w.Seq, Amounts{byRPM: 7, byParallel: 1}, 0, start)
	k.SetTerms(Terms{Gateways: 3, Away: true})
	if n := charged(t, k, l, start, 20); n != 7 {
		t.Errorf("of the last part %d pass", n)
	}
	k = NewKeys(start)
	k.SetTerms(Terms{Gateways: 3, Away: true})
	if n := charged(t, k, l, start, 20); n != 3 {
		t.Errorf("of an even part %d pass", n)
	}
	k.SetTerms(Terms{Gateways: 3})
	if w := k.Tell("key_a", false, start); w.Held[byRPM] != 3 || w.Held[byParallel] != 1 || w.Used[byRPM] != 3 {
		t.Errorf("back again it tells %+v", w)
	}
}

// TestRings: half of what was left used, and a day to learn of, ring; a refusal is told as a wish, and with its time.
func TestRings(t *testing.T) {
	k, l := NewKeys(start), levelrail.KeyLimits{RPM: 100}
	k.SetTerms(Terms{Gateways: 2})
	enter(t, k, l, start).Leave()
	w := k.Tell("key_a", false, start)
	k.Grant("key_a", w.Seq, Amounts{byRPM: 8}, 5*time.Second, start)
	later := at(time.Second)
	charged(t, k, l, later, 3)
	if ids := k.Rung(); len(ids) != 0 {
		t.Errorf("rings with 5 of 8 left: %v", ids)
	}
	charged(t, k, l, later, 1)
	if ids := k.Rung(); !slices.Equal(ids, []string{"key_a"}) {
		t.Errorf("with half of it left: %v", ids)
	}
	charged(t, k, l, later, 9)
	c := enter(t, k, l, later)
	if _, wait, ok := c.Charge(l, later); ok || wait < 4*time.Second || !k.State("key_a", l, later)[0].Refused.IsZero() {
		t.Errorf("passes %v, or waits %s, or is noted before it could ask", ok, wait)
	}
	k.Refused("key_a", later)
	s := k.State("key_a", l, later)[0]
	if w := k.Tell("key_a", false, later); !w.Want || !s.Refused.Equal(later) || !s.Part || s.Share != 8 || s.Used != 8 || s.Frees != 61*time.Second {
		t.Errorf("%+v, %+v", w, s)
	}
	k.SetTerms(Terms{Alone: true, Gateways: 1})
	day := levelrail.KeyLimits{TPD: 100}
	k.Rung()
	enter(t, k, day, later).Leave()
	enter(t, k, day, later).Leave()
	if ids := k.Rung(); !slices.Equal(ids, []string{"key_a"}) {
		t.Errorf("to learn of its day: %v", ids)
	}
}

// TestLearn: what others have counted of a day counts while the gateway is alone, is kept over a restart, is not told as its
// own, and is none of its own counted twice.
func TestLearn(t *testing.T) {
	k, l := NewKeys(start), levelrail.KeyLimits{TPD: 1000}
	hour := start.Unix() / 3600
	enter(t, k, l, start).Spend(l, 100, start)
	k.Learn("key_a", [][2]int64{{hour - 30, 5000}, {hour - 3, 300}, {hour, 150}}, start)
	used := func(k *Keys, now time.Time) int64 { return k.State("key_a", l, now)[0].Used }
	if n := used(k, start); n != 450 {
		t.Errorf("%d are used, want 450", n)
	}
	k.Learn("key_a", [][2]int64{{hour - 3, 300}, {hour, 150}}, start)
	if n := used(k, start); n != 450 {
		t.Errorf("learned twice, %d are used", n)
	}
	key := enter(t, k, l, start)
	key.Spend(l, 560, start)
	if _, wait, ok := key.Charge(l, start); ok || wait < 20*time.Hour || wait > 23*time.Hour {
		t.Errorf("passes %v, or after %s", ok, wait)
	}
	next := NewKeys(start)
	k.Keep(start, func(kept Kept) bool { next.Restore(kept, start, start); return true })
	if n := used(next, start); n != 1010 {
		t.Errorf("after a restart %d are used", n)
	}
	if n := used(k, at(22*time.Hour)); n != 710 {
		t.Errorf("when the first hour has left the day %d are used", n)
	}
	next.SetTerms(Terms{Gateways: 2})
	w := next.Tell("key_a", false, start)
	if w.Used[byTPD] != 660 || !slices.Equal(w.Days, [][2]int64{{hour, 660}}) {
		t.Errorf("told %+v", w)
	}
	next.Learn("key_b", [][2]int64{{hour, 7}}, start) // one that is not known yet
}
