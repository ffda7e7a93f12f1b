package controlplane

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// TestRequestsOfGateways: what is in flight is asked of every gateway and told as one, oldest first; who does not answer
// is named; a question is gone from the watch when it is answered.
func TestRequestsOfGateways(t *testing.T) {
	r := start(t, rigOptions{})
	ctx := t.Context()
	r.deploy("chat")
	if got, err := r.people.Requests(ctx, "chat"); err != nil || got.Items == nil || got.Gateways == nil || len(got.Items)+len(got.Gateways)+len(got.Silent) != 0 {
		t.Errorf("without a gateway: %+v, %v", got, err)
	}
	if _, err := r.people.Requests(ctx, "none"); levelrail.KindOf(err) != levelrail.ErrNotFound {
		t.Errorf("of no model: %v", err)
	}
	one, two := r.follows(wire.WatchQuestion), r.follows(wire.WatchQuestion)
	done := inBackground(func() (wire.Requests, error) { return r.people.Requests(ctx, "chat") })
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for i, g := range []*gw{one, two} {
		q := g.question()
		if q.Ask != wire.AskRequests || q.Model != "chat" {
			t.Errorf("asked %+v", q)
		}
		wrong := wire.Answer{GatewayID: levelrail.NewID("gw")}
		if a := g.post("answers/"+q.ID, wrong); a.status != 404 {
			t.Errorf("the answer of another gateway: %d %s", a.status, a.body)
		}
		g.must("answers/"+q.ID, wire.Answer{GatewayID: g.id, Requests: []wire.InFlight{{ID: fmt.Sprint("req-", i), GatewayID: "gw_forged", KeyPrefix: "lr-12345", StartedAt: at.Add(-time.Duration(i) * time.Minute)}}})
		if a := g.post("answers/"+q.ID, wire.Answer{GatewayID: g.id}); a.status != 404 {
			t.Errorf("a second answer: %d %s", a.status, a.body)
		}
		eventually(t, "the question is gone", func() bool { return !g.watch.has(wire.WatchQuestion + "/" + q.ID) })
	}
	got, err := done()
	if err != nil || len(got.Items) != 2 || got.Items[0].ID != "req-1" || got.Items[0].GatewayID != two.id || got.Items[1].GatewayID != one.id || len(got.Gateways) != 2 || len(got.Silent) != 0 {
		t.Errorf("%+v, %v", got, err)
	}

	began := time.Now()
	done = inBackground(func() (wire.Requests, error) { return r.people.Requests(ctx, "chat") })
	q := one.question()
	one.must("answers/"+q.ID, wire.Answer{GatewayID: one.id})
	got, err = done()
	if err != nil || !slices.Equal(got.Gateways, []string{one.id}) || !slices.Equal(got.Silent, []string{two.id}) || time.Since(began) > 5*time.Second {
		t.Errorf("one of two answered: %+v, %v after %s", got, err, time.Since(began))
	}
	q = wire.Question{}
	eventually(t, "nobody waits for the other's answer", func() bool {
		two.watch.mu.Lock()
		defer two.watch.mu.Unlock()
		return len(two.watch.state) == 0
	})
}

// TestCancel: one request is ended wherever it is; one that is nowhere is not found, and one that may be where nobody
// answers is not called so.
func TestCancel(t *testing.T) {
	r := start(t, rigOptions{})
	ctx := t.Context()
	r.deploy("chat")
	g := r.follows(wire.WatchQuestion)
	cancel := func(id string, yes bool) (wire.CancelledRequest, error) {
		done := inBackground(func() (wire.CancelledRequest, error) { return r.people.CancelRequest(ctx, "chat", id) })
		q := g.question()
		if q.Ask != wire.AskCancel || q.Request != id {
			t.Errorf("asked %+v", q)
		}
		g.must("answers/"+q.ID, wire.Answer{GatewayID: g.id, Cancelled: yes})
		return done()
	}
	if got, err := cancel("a/b c?", true); err != nil || got.ID != "a/b c?" || !slices.Equal(got.Gateways, []string{g.id}) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := cancel("gone", false); levelrail.KindOf(err) != levelrail.ErrNotFound || !strings.Contains(err.Error(), "levelrail models requests chat") {
		t.Errorf("a request that nobody has: %v", err)
	}
	if _, err := r.people.CancelRequest(ctx, "chat", "x"); levelrail.KindOf(err) != levelrail.ErrUnavailable || !strings.Contains(err.Error(), g.id) {
		t.Errorf("nobody answers: %v", err)
	}
	g.watch.stop()
	eventually(t, "the gateway is gone", func() bool {
		_, err := r.people.CancelRequest(ctx, "chat", "x")
		return levelrail.KindOf(err) == levelrail.ErrNotFound
	})
}

// TestExplain: the limit that refused last, at whichever gateway, is named; a key that opens nothing is told as such.
func TestExplain(t *testing.T) {
	r := start(t, rigOptions{})
	ctx := t.Context()
	key := r.deploy("chat").Key
	r.deploy("other")
	one, two := r.follows(wire.WatchQuestion), r.follows(wire.WatchQuestion)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	later := at.Add(time.Minute)
	done := inBackground(func() (wire.Explanation, error) { return r.people.Explain(ctx, "chat", key.ID) })
	for g, limits := range map[*gw][]wire.LimitState{
		one: {{Limit: "rpm", Most: 2, Used: 2, RefusedLast: &at, ResetSeconds: 30}, {Limit: "tpd", Most: 100, Used: 5}},
		two: {{Limit: "max_parallel", Most: 1, Used: 1, RefusedLast: &later}},
	} {
		q := g.question()
		if q.Ask != wire.AskExplain || q.KeyID != key.ID || q.Model != "chat" {
			t.Errorf("asked %+v", q)
		}
		g.must("answers/"+q.ID, wire.Answer{GatewayID: g.id, Limits: limits})
	}
	got, err := done()
	if err != nil || !got.Opens || got.Key.ID != key.ID || len(got.Limits) != 3 || len(got.Gateways) != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	if got.RefusedBy == nil || got.RefusedBy.Limit != "max_parallel" || got.RefusedBy.GatewayID != two.id {
		t.Errorf("refused by %+v", got.RefusedBy)
	}
	if _, err := r.people.Explain(ctx, "other", key.ID); levelrail.KindOf(err) != levelrail.ErrNotFound {
		t.Errorf("a key of another model: %v", err)
	}
	one.watch.stop()
	two.watch.stop()
	if _, err := r.people.RevokeKey(ctx, "chat", key.ID, false); err != nil {
		t.Fatal(err)
	}
	if got, err := r.people.Explain(ctx, "chat", key.ID); err != nil || got.Opens || got.Key.RevokedAt == nil || got.RefusedBy != nil {
		t.Errorf("a revoked key: %+v, %v", got, err)
	}
}

// TestUsageReport: batches are counted once however often they come, sums are by hour, key and model, and last use is
// known; what was dropped is told; since takes durations and times.
func TestUsageReport(t *testing.T) {
	r := start(t, rigOptions{env: map[string]string{"APP_MODEL_USAGE_FLUSH_INTERVAL": "7s"}})
	ctx := t.Context()
	key := r.deploy("chat").Key
	other := r.deploy("other").Key
	g := r.follows(wire.WatchRoute)
	hour := time.Now().UTC().Truncate(time.Hour)
	row := func(model, key string, at time.Time, n int64) levelrail.Usage {
		return levelrail.Usage{Hour: at, KeyID: key, Model: model,
			Counts: levelrail.Counts{Requests: n, OK: n - 1, Limited: 1, WithUsage: n - 1, InputTokens: 10 * n, OutputTokens: n, DurationMS: 100 * n, FirstByteMS: n}}
	}
	used := time.Now().UTC().Truncate(time.Second)
	batch := wire.UsageBatch{GatewayID: g.id, Sequence: 1, Dropped: 4, LastUsed: map[string]time.Time{key.ID: used},
		Rows: []levelrail.Usage{row("chat", key.ID, hour, 3), row("chat", key.ID, hour.Add(-30*time.Hour), 5), row("other", other.ID, hour, 100), row("chat", "key_gone", hour, 2)}}
	for range 2 {
		if a := g.must("usage", batch); !strings.Contains(a.body, `"sequence":1`) {
			t.Errorf("the answer is %s", a.body)
		}
	}
	batch.Sequence, batch.Dropped, batch.LastUsed, batch.Rows = 2, 0, nil, []levelrail.Usage{row("chat", key.ID, hour, 4)}
	g.must("usage", batch)
	// A gateway that lost its numbers is told where to go on, and nothing of it is counted.
	batch.Sequence, batch.Rows = 1, []levelrail.Usage{row("chat", key.ID, hour, 1000)}
	if a := g.must("usage", batch); !strings.Contains(a.body, `"sequence":2`) {
		t.Errorf("the answer is %s", a.body)
	}

	got, err := r.people.ModelUsage(ctx, "chat", "24h")
	if err != nil {
		t.Fatal(err)
	}
	if got.Total.Requests != 9 || len(got.Items) != 2 || len(got.Keys) != 2 || got.DroppedRows != 4 || got.UpToSeconds != 7 || got.Model != "chat" {
		t.Errorf("%+v", got)
	}
	i := slices.IndexFunc(got.Keys, func(k wire.UsageOfKey) bool { return k.KeyID == key.ID })
	if k := got.Keys[i]; k.KeyName != "default" || k.KeyPrefix != key.Prefix || k.Usage.Requests != 7 || k.Usage.InputTokens != 70 || k.Usage.WithUsage != 5 || k.Usage.Limited != 2 || k.Usage.DurationMS != 700 {
		t.Errorf("%+v", k)
	}
	for since, want := range map[string]int64{"168h": 14, hour.Add(-30 * time.Hour).Format(time.RFC3339): 14, hour.Format(time.RFC3339): 9, "1s": 9} {
		if got, err := r.people.ModelUsage(ctx, "chat", since); err != nil || got.Total.Requests != want {
			t.Errorf("since %s: %d requests, %v; want %d", since, got.Total.Requests, err, want)
		}
	}
	for _, since := range []string{"", "yesterday", "-1h", "7d", "999999h"} {
		token := r.token("t"+levelrail.NewID("x")[2:10], levelrail.AbilityRead)
		a := r.ask(token, "GET", "/api/v1/models/chat/usage?since="+url.QueryEscape(since), "")
		if since == "" && a.status == 200 {
			continue // as if it was not said
		}
		if a.status != 400 || !strings.Contains(a.refused(t).Next, "24h") {
			t.Errorf("since %q: %d %s", since, a.status, a.body)
		}
	}
	keys, err := r.people.Keys(ctx, "chat")
	if err != nil || keys[0].LastUsedAt == nil || !keys[0].LastUsedAt.Equal(used) {
		t.Errorf("the keys are %+v, %v", keys, err)
	}
	if a := g.post("usage", wire.UsageBatch{GatewayID: "gw_?", Sequence: 1}); a.status != 400 {
		t.Errorf("a gateway without an id: %d", a.status)
	}
}

// TestUsageRetention: the leader deletes what is older than the retention, and keeps the rest; 0 keeps everything.
func TestUsageRetention(t *testing.T) {
	for retention, want := range map[string]int64{"72h": 1, "0": 2} {
		t.Run(retention, func(t *testing.T) {
			o := rigOptions{dir: shortDir(t), env: map[string]string{"APP_MODEL_USAGE_RETENTION": retention}}
			r := start(t, o)
			key := r.deploy("chat").Key
			g := r.follows(wire.WatchRoute)
			hour := time.Now().UTC().Truncate(time.Hour)
			rows := func(at ...time.Time) (out []levelrail.Usage) {
				for _, at := range at {
					out = append(out, levelrail.Usage{Hour: at, KeyID: key.ID, Model: "chat", Counts: levelrail.Counts{Requests: 1}})
				}
				return out
			}
			g.must("usage", wire.UsageBatch{GatewayID: g.id, Sequence: 1, Rows: rows(hour.Add(-71*time.Hour), hour.Add(-74*time.Hour))})
			g.watch.stop()
			r.stop()
			r = start(t, o)
			g = r.follows(wire.WatchRoute) // the first round has begun
			r.deploy("more")
			eventually(t, "the first round has ended", func() bool { return g.watch.has("route/more") })
			if got, err := r.people.ModelUsage(t.Context(), "chat", "2000h"); err != nil || got.Total.Requests != want {
				t.Errorf("%d requests are left, %v; want %d", got.Total.Requests, err, want)
			}
		})
	}
}

// TestWakeAndActivity: a wake of what is not asleep is nothing, of what is it is one change however often it is asked; use
// is known at once and changes nothing that is stored.
func TestWakeAndActivity(t *testing.T) {
	r := start(t, rigOptions{})
	ctx := t.Context()
	r.deploy("chat")
	g := r.follows(wire.WatchRoute)
	wake := wire.Wake{GatewayID: g.id, Model: "chat"}
	before := r.store.Status().Index
	if a := g.must("wake", wake); a.status != 204 {
		t.Errorf("%d %s", a.status, a.body)
	}
	if m, err := r.people.Model(ctx, "chat"); err != nil || m.LastActiveAt != nil || m.Limits == nil || m.Limits.MaxInflight != 32 {
		t.Errorf("used at %v, limits %+v, %v", m.LastActiveAt, m.Limits, err)
	}
	began := time.Now()
	g.must("activity", wire.Activity{GatewayID: g.id, Models: []wire.ModelActivity{{Model: "chat", InFlight: 1}, {Model: "none", InFlight: 1}}})
	if m, err := r.people.Model(ctx, "chat"); err != nil || m.LastActiveAt == nil || began.Sub(*m.LastActiveAt) > 2*time.Second {
		t.Errorf("used at %v, %v", m.LastActiveAt, err)
	}
	if after := r.store.Status().Index; after != before {
		t.Errorf("the store moved from %d to %d", before, after)
	}
	r.sleep("chat")
	before = r.store.Status().Index
	for range 3 {
		g.must("wake", wake)
	}
	if after, state := r.store.Status().Index, r.residency("chat"); state != "waking" || after != before+1 {
		t.Errorf("the model is %s, after %d changes", state, after-before)
	}
	wake.Model = "none"
	if a := g.post("wake", wake); a.status != 404 {
		t.Errorf("no such model: %d %s", a.status, a.body)
	}
	wake.GatewayID = "nobody"
	if a := g.post("wake", wake); a.status != 400 {
		t.Errorf("no gateway: %d %s", a.status, a.body)
	}
}
