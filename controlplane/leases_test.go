package controlplane

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client"
	"github.com/levelrail/levelrail/client/wire"
)

// sharer is a gateway that shares keys' limits with others.
type sharer struct {
	*gw
	seq int64
}

func (r *rig) shares(heard int) *sharer {
	r.t.Helper()
	s := &sharer{gw: &gw{t: r.t, r: r, id: levelrail.NewID("gw")}}
	s.watch = follow(r.t, r.gateway, client.WatchOptions{Kinds: []string{wire.WatchRoute, wire.WatchRouteKey, wire.WatchQuestion, wire.WatchShare},
		Body: wire.WatchGateway{GatewayID: s.id, Boot: "boot", Gateways: heard}})
	eventually(r.t, "the gateway's watch is synced", s.watch.synced)
	return s
}

func (s *sharer) share() wire.Share {
	s.t.Helper()
	return get[wire.Share](s.t, s.watch, wire.WatchShare+"/"+wire.ShareID)
}

// says says the use of a key, as a gateway whose whole word this is.
func (s *sharer) says(u wire.LeaseUse) []wire.Lease {
	s.t.Helper()
	s.seq++
	u.Seq = s.seq
	share := s.share()
	out, err := s.r.gateway.Leases(s.t.Context(), wire.LeaseReport{GatewayID: s.id, Boot: "boot", Book: share.Book, Epoch: share.Epoch, Complete: true, Keys: []wire.LeaseUse{u}})
	if err != nil {
		s.t.Fatal(err)
	}
	return out.Keys
}

// TestLeases: over its own socket a gateway that is alone is told so before its watch is synced; a second one gets a part
// within milliseconds of the first one's word, what is not used is called back through the watch, and usage that is stored
// counts for the day.
func TestLeases(t *testing.T) {
	r := start(t, rigOptions{})
	ctx := t.Context()
	r.deploy("chat")
	key, err := r.people.CreateKey(ctx, "chat", wire.CreateKey{Name: "shared", Limits: levelrail.KeyLimits{RPM: 10, TPD: 1000, MaxParallel: 2}})
	if err != nil {
		t.Fatal(err)
	}
	one := r.shares(0)
	if s := one.share(); !s.Alone || s.Book == "" {
		t.Fatalf("the first gateway is told %+v", s)
	}
	hour := time.Now().UTC().Truncate(time.Hour)
	one.must("usage", wire.UsageBatch{GatewayID: one.id, Sequence: 1, Rows: []levelrail.Usage{{Hour: hour, KeyID: key.ID, Model: "chat", Counts: levelrail.Counts{Requests: 1, InputTokens: 300, OutputTokens: 100}}}})
	if out := one.says(wire.LeaseUse{KeyID: key.ID}); len(out) != 1 || len(out[0].Days) != 1 || out[0].Days[0] != [2]int64{hour.Unix() / 3600, 400} {
		t.Errorf("alone it learns %+v", out)
	}
	two := r.shares(0)
	eventually(t, "both share", func() bool { return !one.share().Alone && one.share().Gateways == 2 && !two.share().Alone })

	done := inBackground(func() ([]wire.Lease, error) {
		return two.says(wire.LeaseUse{KeyID: key.ID, Want: true, Wait: true}), nil
	})
	began := time.Now()
	one.says(wire.LeaseUse{KeyID: key.ID, Used: wire.Amounts{RPM: 4}, Held: wire.Amounts{RPM: 7, MaxParallel: 2}})
	eventually(t, "the first is asked for what it does not use", func() bool { return one.watch.has(wire.WatchShare + "/" + key.ID) })
	one.says(wire.LeaseUse{KeyID: key.ID, Used: wire.Amounts{RPM: 4}, Held: wire.Amounts{RPM: 4}})
	got, _ := done()
	t.Logf("the second gateway had its lease %s after the first one's word", time.Since(began))
	if len(got) != 1 || got[0].May.RPM < 1 || got[0].May.RPM > 6 || got[0].May.MaxParallel < 1 || got[0].May.TPD < 1 || got[0].May.TPD > 600 {
		t.Errorf("the second may use %+v", got)
	}
	eventually(t, "the question is taken back", func() bool { return !one.watch.has(wire.WatchShare + "/" + key.ID) })

	none, err := r.gateway.Leases(ctx, wire.LeaseReport{GatewayID: one.id, Boot: "boot", Book: one.share().Book, Keys: []wire.LeaseUse{{KeyID: "key_none", Seq: 99}}})
	if err != nil || len(none.Keys) != 0 {
		t.Errorf("of no key: %+v, %v", none, err)
	}
	if a := one.post("leases", wire.LeaseReport{GatewayID: "x"}); a.status != 400 {
		t.Errorf("no gateway: %d %s", a.status, a.body)
	}
	two.watch.stop()
	explained := inBackground(func() (wire.Explanation, error) { return r.people.Explain(ctx, "chat", key.ID) })
	q, part := one.question(), int64(4)
	one.must("answers/"+q.ID, wire.Answer{GatewayID: one.id, Limits: []wire.LimitState{{Limit: "rpm", Most: 10, Used: 4, Lease: &part, FreesSeconds: 7}}})
	e, err := explained()
	if err != nil || len(e.Total) != 1 || e.Total[0] != (wire.LimitTotal{Limit: "rpm", Most: 10, Used: 4}) {
		text, _ := json.Marshal(e)
		t.Errorf("explained: %s, %v", text, err)
	}
}
