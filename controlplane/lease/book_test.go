package lease

import (
	"encoding/json"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// said is a gateway of which a test says every word.
type said struct {
	t    *testing.T
	b    *Book
	id   string
	boot string
	seq  int64
	off  func()
}

func joins(t *testing.T, b *Book, id, boot string, heard int) *said {
	t.Helper()
	return &said{t: t, b: b, id: id, boot: boot, off: b.Connect(id, boot, heard)}
}

func (s *said) share() (out wire.Share) {
	s.t.Helper()
	if err := json.Unmarshal(s.b.Lines(s.id)[wire.ShareID], &out); err != nil {
		s.t.Fatalf("%s is told nothing: %v", s.id, err)
	}
	return out
}

func (s *said) recalled() bool { return s.b.Lines(s.id)["key_a"] != nil }

func (s *said) report(more func(*wire.LeaseReport), keys ...wire.LeaseUse) []wire.Lease {
	s.t.Helper()
	share := s.share()
	r := wire.LeaseReport{GatewayID: s.id, Boot: s.boot, Book: share.Book, Epoch: share.Epoch, Complete: true, Keys: keys}
	if more != nil {
		more(&r)
	}
	out, err := s.b.Report(s.t.Context(), r)
	if err != nil {
		s.t.Fatal(err)
	}
	return out.Keys
}

// uses says the use of key_a and returns what may be used.
func (s *said) uses(used, held wire.Amounts, more ...func(*wire.LeaseUse)) wire.Amounts {
	s.t.Helper()
	s.seq++
	u := wire.LeaseUse{KeyID: "key_a", Seq: s.seq, Used: used, Held: held}
	for _, f := range more {
		f(&u)
	}
	out := s.report(nil, u)
	if len(out) != 1 {
		s.t.Fatalf("%s gets %d leases", s.id, len(out))
	}
	return out[0].May
}

func waits(u *wire.LeaseUse) { u.Want, u.Wait = true, true }

func days(pairs ...[2]int64) func(*wire.LeaseUse) {
	return func(u *wire.LeaseUse) { u.Days = pairs }
}

// TestAlone: one gateway is told to count by itself, at once; a second one makes both share, and gets nothing before the
// first has said what it uses; a minute after it has gone the other is alone again.
func TestAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBook(levelrail.KeyLimits{RPM: 100}, nil)
		one := joins(t, b, "gw_1", "a", 0)
		if s := one.share(); !s.Alone || s.Gateways != 1 {
			t.Fatalf("the first: %+v", s)
		}
		two := joins(t, b, "gw_2", "a", 0)
		if s := one.share(); s.Alone || s.Gateways != 2 || two.share().Alone {
			t.Fatalf("of two: %+v", s)
		}
		began := time.Now()
		if may := two.uses(wire.Amounts{}, wire.Amounts{}, waits); may.RPM != 0 || time.Since(began) != waitMost {
			t.Errorf("before the first has said anything: %+v after %s", may, time.Since(began))
		}
		one.uses(wire.Amounts{RPM: 60}, wire.Amounts{RPM: 80})
		began = time.Now()
		if may := two.uses(wire.Amounts{}, wire.Amounts{}, waits); may.RPM < 1 || may.RPM > 20 || time.Since(began) != 0 {
			t.Errorf("then: %+v after %s", may, time.Since(began))
		}
		two.report(func(r *wire.LeaseReport) { r.Leaving = true }, wire.LeaseUse{KeyID: "key_a", Seq: 99, Used: wire.Amounts{RPM: 20}})
		two.off()
		if may := one.uses(wire.Amounts{RPM: 60}, wire.Amounts{RPM: 60}); may.RPM != 80 {
			t.Errorf("with 20 used by who is gone: %+v", may)
		}
		for range 61 {
			time.Sleep(time.Second)
			b.Tick()
			one.uses(wire.Amounts{RPM: 60}, wire.Amounts{RPM: 80})
		}
		if one.share().Alone {
			t.Error("alone while the other's minute counts")
		}
		time.Sleep(2 * time.Second)
		if b.Tick(); !one.share().Alone {
			t.Error("it is not alone again")
		}
	})
}

// TestRecall: what a gateway does not use is asked back before another is refused, also of a limit that is smaller than
// the number of gateways; what nobody can give is refused at once, with the time to wait.
func TestRecall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBook(levelrail.KeyLimits{RPM: 1}, nil)
		one, two := joins(t, b, "gw_1", "a", 0), joins(t, b, "gw_2", "a", 0)
		one.uses(wire.Amounts{}, wire.Amounts{RPM: 1})
		two.report(nil)
		got := make(chan wire.Amounts)
		go func() { got <- two.uses(wire.Amounts{}, wire.Amounts{}, waits) }()
		synctest.Wait()
		if !one.recalled() {
			t.Fatal("the first is not asked")
		}
		if may := one.uses(wire.Amounts{}, wire.Amounts{}); may.RPM != 0 {
			t.Errorf("who gives back gets %+v while another waits", may)
		}
		if may := <-got; may.RPM != 1 || one.recalled() {
			t.Errorf("the second gets %+v", may)
		}
		two.uses(wire.Amounts{RPM: 1}, wire.Amounts{RPM: 1}, func(u *wire.LeaseUse) { u.Frees.RPM = 30_000 })
		time.Sleep(9 * time.Second)
		two.report(nil)
		began := time.Now()
		out := one.report(nil, wire.LeaseUse{KeyID: "key_a", Seq: 50, Want: true, Wait: true})
		if len(out) != 1 || out[0].May.RPM != 0 || out[0].RetryMS != 21_000 || time.Since(began) != 0 {
			t.Errorf("%+v after %s", out, time.Since(began))
		}
	})
}

// TestOldWords: a word that comes after a newer one is passed over, and one of another process, epoch or book says nothing.
func TestOldWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBook(levelrail.KeyLimits{RPM: 10}, nil)
		one, two := joins(t, b, "gw_1", "a", 0), joins(t, b, "gw_2", "a", 0)
		two.report(nil)
		if out := one.report(func(r *wire.LeaseReport) { r.Epoch-- }, wire.LeaseUse{KeyID: "key_a", Seq: 1}); len(out) != 1 || b.grants() {
			t.Errorf("a word of an earlier epoch is everything: %+v", out)
		}
		one.seq = 10
		one.uses(wire.Amounts{RPM: 2}, wire.Amounts{RPM: 4})
		for name, change := range map[string]func(*wire.LeaseReport){
			"an older word":   func(r *wire.LeaseReport) {},
			"another process": func(r *wire.LeaseReport) { r.Boot, r.Keys[0].Seq = "b", 99 },
			"another book":    func(r *wire.LeaseReport) { r.Book, r.Keys[0].Seq = "book_x", 99 },
			"nobody's":        func(r *wire.LeaseReport) { r.GatewayID, r.Keys[0].Seq = "gw_9", 99 },
		} {
			if out := one.report(change, wire.LeaseUse{KeyID: "key_a", Seq: 5}); len(out) != 0 {
				t.Errorf("%s: %+v", name, out)
			}
		}
		if may := two.uses(wire.Amounts{}, wire.Amounts{}); may.RPM > 6 {
			t.Errorf("the other gets %+v beside 4", may)
		}
	})
}

// TestServerAnew: a server that starts anew raises nobody before all gateways are there that there were, or have had ten
// seconds; they keep what they hold, and it counts.
func TestServerAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBook(levelrail.KeyLimits{RPM: 100}, nil)
		one := joins(t, b, "gw_1", "a", 3)
		if may := one.uses(wire.Amounts{RPM: 10}, wire.Amounts{RPM: 40}); may.RPM != 40 || one.share().Alone {
			t.Errorf("the first of three: %+v", may)
		}
		two := joins(t, b, "gw_2", "a", 3)
		if may := two.uses(wire.Amounts{RPM: 30}, wire.Amounts{RPM: 30}); may.RPM != 30 {
			t.Errorf("the second of three: %+v", may)
		}
		for range 10 {
			time.Sleep(time.Second)
			b.Tick()
			one.report(nil)
		}
		if may := two.uses(wire.Amounts{RPM: 30}, wire.Amounts{RPM: 30}); may.RPM <= 30 || may.RPM > 60 {
			t.Errorf("after ten seconds: %+v", may)
		}
		again := newBook(levelrail.KeyLimits{RPM: 100}, nil)
		if only := joins(t, again, "gw_1", "a", 1); !only.share().Alone {
			t.Error("the only one of before has to wait")
		}
	})
}

// TestNoFreshDay: neither a new gateway, nor the loss of one, nor a new server makes a day begin anew.
func TestNoFreshDay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hour := time.Now().Unix() / 3600
		stored := map[int64]int64{hour - 30: 500, hour - 20: 300, hour: 100}
		b := newBook(levelrail.KeyLimits{TPD: 1000}, stored)
		one, two := joins(t, b, "gw_1", "a", 0), joins(t, b, "gw_2", "a", 0)
		one.uses(wire.Amounts{TPD: 350}, wire.Amounts{TPD: 350}, days([2]int64{hour - 20, 300}, [2]int64{hour, 50}))
		two.report(nil)
		if may := two.uses(wire.Amounts{}, wire.Amounts{}, waits); may.TPD == 0 || may.TPD > 600 {
			t.Errorf("beside 350 that one has and 50 that only the store has: %+v", may)
		}
		one.off()
		for range 12 { // it is lost
			time.Sleep(time.Second)
			b.Tick()
			two.report(nil)
		}
		out := two.report(nil, wire.LeaseUse{KeyID: "key_a", Seq: 10, Days: [][2]int64{{hour, 120}}})
		if want := [][2]int64{{hour - 20, 300}, {hour, 170}}; !two.share().Alone || len(out) != 1 || !slices.Equal(out[0].Days, want) {
			t.Errorf("the one that is left learns %+v, want %v", out, want)
		}
		for _, c := range []struct {
			later time.Duration
			most  int64
		}{{0, 600}, {time.Hour, 600}, {4*time.Hour + 6*time.Minute, 900}} { // 300 leave the day
			time.Sleep(c.later)
			b = newBook(levelrail.KeyLimits{TPD: 1000}, stored)
			four, five := joins(t, b, "gw_4", "a", 0), joins(t, b, "gw_5", "a", 0)
			five.report(nil)
			if may := four.uses(wire.Amounts{}, wire.Amounts{}, waits); may.TPD != c.most/2 {
				t.Errorf("beside what is stored only: %+v, want half of %d", may, c.most)
			}
		}
		b = newBook(levelrail.KeyLimits{TPD: 1000}, map[int64]int64{hour: 900})
		three := joins(t, b, "gw_3", "a", 0)
		out = three.report(nil, wire.LeaseUse{KeyID: "key_a", Seq: 1})
		if !three.share().Alone || len(out) != 1 || len(out[0].Days) != 1 || out[0].Days[0] != [2]int64{hour, 900} {
			t.Errorf("a fresh one that is alone learns %+v", out)
		}
	})
}

// TestCutOff: one that is cut off can use its last lease, which others have again after ten seconds; that is all that the
// limit is passed by. Started anew within its process's time it is told to say everything.
func TestCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBook(levelrail.KeyLimits{RPM: 100}, nil)
		one, two := joins(t, b, "gw_1", "a", 0), joins(t, b, "gw_2", "a", 0)
		one.uses(wire.Amounts{RPM: 10}, wire.Amounts{RPM: 50})
		two.uses(wire.Amounts{}, wire.Amounts{})
		one.off()
		if may := two.uses(wire.Amounts{RPM: 40}, wire.Amounts{RPM: 40}, waits); may.RPM > 50 {
			t.Errorf("at once: %+v", may)
		}
		for range 11 {
			time.Sleep(time.Second)
			b.Tick()
			two.report(nil)
		}
		may := two.uses(wire.Amounts{RPM: 40}, wire.Amounts{RPM: 40}, waits)
		if may.RPM != 90 {
			t.Errorf("after ten seconds: %+v", may)
		}
		t.Logf("the sum is at most %d of 100: %d, and the last lease of 50 of who is cut off", may.RPM+50, may.RPM)
		epoch := one.share
		one.off = b.Connect("gw_1", "a", 2)
		if epoch().Epoch == 0 || b.grants() {
			t.Error("its whole word is not asked for")
		}
	})
}

// TestSilent: a gateway that is connected and says nothing is given up after ten seconds.
func TestSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBook(levelrail.KeyLimits{RPM: 100, MaxParallel: 4}, nil)
		one, two := joins(t, b, "gw_1", "a", 0), joins(t, b, "gw_2", "a", 0)
		two.report(nil)
		one.uses(wire.Amounts{RPM: 10, MaxParallel: 3}, wire.Amounts{RPM: 90, MaxParallel: 4})
		for range 10 {
			time.Sleep(time.Second)
			two.report(nil)
			b.Tick()
		}
		if may := two.uses(wire.Amounts{}, wire.Amounts{}); may.RPM != 90 || may.MaxParallel != 4 {
			t.Errorf("%+v", may)
		}
		one.uses(wire.Amounts{RPM: 10, MaxParallel: 3}, wire.Amounts{RPM: 90, MaxParallel: 4})
		if may := two.uses(wire.Amounts{}, wire.Amounts{RPM: 90}); may.RPM > 10 {
			t.Errorf("when it is back: %+v", may)
		}
	})
}
