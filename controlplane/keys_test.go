package controlplane

import (
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// TestKeyScope: a key has the limits and lists that it was made with, gateways are told them, and what no gateway could
// keep is refused with what to write instead.
func TestKeyScope(t *testing.T) {
	r := start(t, rigOptions{env: map[string]string{"APP_MODEL_KEY_MAX_LIMIT": "1000"}})
	ctx := t.Context()
	r.deploy("chat")
	g := r.follows(wire.WatchRoute, wire.WatchRouteKey)
	want := wire.CreateKey{Name: "ci", ExpiresInSeconds: 3600, Limits: levelrail.KeyLimits{RPM: 60, TPM: 1000, TPD: 900, MaxParallel: 4},
		AllowPaths: []string{"/v1/chat/completions", "/v1/models/"}, AllowModels: []string{"chat", "org/name:Q4"}}
	made, err := r.people.CreateKey(ctx, "chat", want)
	if err != nil {
		t.Fatal(err)
	}
	if made.Limits != want.Limits || !slices.Equal(made.AllowPaths, want.AllowPaths) || !slices.Equal(made.AllowModels, want.AllowModels) || made.ExpiresAt == nil {
		t.Errorf("made %+v", made)
	}
	eventually(t, "the gateway is told", func() bool { return g.watch.has("route_key/" + made.ID) })
	if k := get[wire.RouteKey](t, g.watch, "route_key/"+made.ID); k.Limits != want.Limits || !slices.Equal(k.AllowPaths, want.AllowPaths) || !slices.Equal(k.AllowModels, want.AllowModels) {
		t.Errorf("the gateway was told %+v", k)
	}
	for what, tc := range map[string]struct {
		k     wire.CreateKey
		words string
	}{
		"limit above the largest":                 {wire.CreateKey{Limits: levelrail.KeyLimits{TPD: 1001}}, "tpd is between 0 (no limit) and 1000 (APP_MODEL_KEY_MAX_LIMIT)"},
		"limit below nothing":                     {wire.CreateKey{Limits: levelrail.KeyLimits{MaxParallel: -1}}, "max_parallel"},
		"path of another engine":                  {wire.CreateKey{AllowPaths: []string{"/v1/audio/transcriptions"}}, "no path that the engine llamacpp serves"},
		"path of the engine's own administration": {wire.CreateKey{AllowPaths: []string{"/props"}}, "/v1/chat/completions"},
		"folder that holds nothing":               {wire.CreateKey{AllowPaths: []string{"/v1/audio/"}}, "no path"},
		"folder without its slash":                {wire.CreateKey{AllowPaths: []string{"/v1"}}, "no path"},
		"path that climbs":                        {wire.CreateKey{AllowPaths: []string{"/v1/models/../../props"}}, "no path"},
		"empty path":                              {wire.CreateKey{AllowPaths: []string{""}}, "no path"},
		"empty model":                             {wire.CreateKey{AllowModels: []string{""}}, "no name"},
		"model with a line break":                 {wire.CreateKey{AllowModels: []string{"a\nb"}}, "no name"},
		"too many paths":                          {wire.CreateKey{AllowPaths: slices.Repeat([]string{"/v1/models"}, 17)}, "up to 16 paths"},
	} {
		tc.k.Name = "x"
		if _, err := r.people.CreateKey(ctx, "chat", tc.k); levelrail.KindOf(err) != levelrail.ErrInvalid || !strings.Contains(err.Error(), tc.words) {
			t.Errorf("%s: %v, which should speak of %q", what, err, tc.words)
		}
	}
	for _, path := range []string{"/", "/v1/", "/v1/models", "/v1/models/chat", "/v1/embeddings", "/v1/chat/"} {
		if _, err := r.people.CreateKey(ctx, "chat", wire.CreateKey{Name: strings.ReplaceAll("p"+path, "/", "-"), AllowPaths: []string{path}}); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if keys := r.keys(); len(keys) != 8 {
		t.Errorf("there are %d keys", len(keys))
	}
}

// TestKeyRotation: the new key has the name, limits, lists and expiry of the old one, which works on for the grace time and
// no longer; a key is replaced once; the number of live keys is kept.
func TestKeyRotation(t *testing.T) {
	r := start(t, rigOptions{heartbeat: 50 * time.Millisecond, env: map[string]string{"APP_MODEL_KEY_MAX_GRACE": "2h", "APP_MODEL_KEY_ROTATION_GRACE": "30m", "APP_MODEL_MAX_KEYS": "4"}})
	ctx := t.Context()
	r.deploy("chat")
	g := r.follows(wire.WatchRoute, wire.WatchRouteKey)
	old, err := r.people.CreateKey(ctx, "chat", wire.CreateKey{Name: "ci", ExpiresInSeconds: 86400, Limits: levelrail.KeyLimits{RPM: 7}, AllowModels: []string{"chat"}, AllowPaths: []string{"/v1/"}})
	if err != nil {
		t.Fatal(err)
	}
	grace := func(d time.Duration) wire.RotateKey {
		n := int64(d / time.Second)
		return wire.RotateKey{GraceSeconds: &n}
	}
	left := func(id string) time.Duration {
		t.Helper()
		k := get[wire.RouteKey](t, g.watch, "route_key/"+id)
		if k.ExpiresAt == nil {
			return -1
		}
		return time.Until(*k.ExpiresAt).Round(time.Minute)
	}
	for _, wrong := range []time.Duration{-time.Second, 2*time.Hour + time.Second} {
		if _, err := r.people.ReplaceKey(ctx, "chat", old.ID, grace(wrong)); levelrail.KindOf(err) != levelrail.ErrInvalid || !strings.Contains(err.Error(), "7200 seconds (APP_MODEL_KEY_MAX_GRACE)") {
			t.Errorf("a grace of %s: %v", wrong, err)
		}
	}
	next, err := r.people.ReplaceKey(ctx, "chat", old.ID, wire.RotateKey{})
	if err != nil {
		t.Fatal(err)
	}
	if next.Secret == old.Secret || next.ID == old.ID || next.Name != "ci" || next.Limits != old.Limits || !next.ExpiresAt.Equal(*old.ExpiresAt) ||
		!slices.Equal(next.AllowModels, old.AllowModels) || !slices.Equal(next.AllowPaths, old.AllowPaths) || next.Replaces != old.ID {
		t.Errorf("%+v takes the place of %+v", next, old)
	}
	eventually(t, "the gateway has both, the old one for half an hour", func() bool { return left(next.ID) == 24*time.Hour && left(old.ID) == 30*time.Minute })
	if _, err := r.people.ReplaceKey(ctx, "chat", old.ID, wire.RotateKey{}); levelrail.KindOf(err) != levelrail.ErrRefused || !strings.Contains(err.Error(), "by "+next.ID) {
		t.Errorf("replaced again: %v", err)
	}

	last, err := r.people.ReplaceKey(ctx, "chat", next.ID, grace(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the key is taken back when its grace is over", func() bool { return !g.watch.has("route_key/"+next.ID) && g.watch.has("route_key/"+last.ID) })
	if _, err := r.people.CreateKey(ctx, "chat", wire.CreateKey{Name: "more"}); err != nil {
		t.Fatal(err) // default, old in its grace, last and this one
	}
	if _, err := r.people.ReplaceKey(ctx, "chat", last.ID, wire.RotateKey{}); levelrail.KindOf(err) != levelrail.ErrRefused || !strings.Contains(err.Error(), "--grace 0s") {
		t.Errorf("a fifth live key by a rotation: %v", err)
	}
	now, err := r.people.ReplaceKey(ctx, "chat", last.ID, grace(0))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "without a grace it is taken back at once", func() bool { return !g.watch.has("route_key/"+last.ID) && g.watch.has("route_key/"+now.ID) })
	if _, err := r.people.ReplaceKey(ctx, "chat", last.ID, wire.RotateKey{}); levelrail.KindOf(err) != levelrail.ErrRefused {
		t.Errorf("a revoked key was replaced: %v", err)
	}
	if _, err := r.people.ReplaceKey(ctx, "chat", "key_none", wire.RotateKey{}); levelrail.KindOf(err) != levelrail.ErrNotFound {
		t.Errorf("a key that is none: %v", err)
	}
}

// TestRotationOnce: a rotation that is sent again with its idempotency key is answered with the same key, also when there
// is no room for one more.
func TestRotationOnce(t *testing.T) {
	r := start(t, rigOptions{env: map[string]string{"APP_MODEL_MAX_KEYS": "2"}})
	first := r.deploy("chat").Key
	token := r.token("ops", levelrail.AbilityWriteSensitive)
	path := "/api/v1/models/chat/keys/" + url.PathEscape(first.ID) + "/rotate"
	one := r.ask(token, "POST", path, `{}`, "Idempotency-Key", "k1")
	two := r.ask(token, "POST", path, `{}`, "Idempotency-Key", "k1")
	if one.status != 201 || two.status != 201 || one.body != two.body {
		t.Errorf("once %d %s\nagain %d %s", one.status, one.body, two.status, two.body)
	}
	if a := r.ask(token, "POST", path, `{"grace_seconds":0}`, "Idempotency-Key", "k1"); a.status != 409 {
		t.Errorf("another request under the same key: %d %s", a.status, a.body)
	}
}

// TestRevokeWaits: a revocation ends when every connected gateway has said that it refuses the key, and names those that
// have not within a second.
func TestRevokeWaits(t *testing.T) {
	r := start(t, rigOptions{})
	ctx := t.Context()
	r.deploy("chat")
	key := func(name string) string {
		k, err := r.people.CreateKey(ctx, "chat", wire.CreateKey{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		return k.ID
	}
	a, b := key("a"), key("b")
	none, err := r.people.RevokeKey(ctx, "chat", key("c"), false)
	if err != nil || len(none.Gateways)+len(none.Silent) != 0 || none.Gateways == nil {
		t.Errorf("without a gateway: %+v, %v", none, err)
	}
	one, two := r.follows(wire.WatchRoute, wire.WatchRouteKey), r.follows(wire.WatchRoute, wire.WatchRouteKey)
	both := []string{one.id, two.id}
	slices.Sort(both)

	began := time.Now()
	done := inBackground(func() (wire.Revoked, error) { return r.people.RevokeKey(ctx, "chat", a, false) })
	for _, g := range []*gw{one, two} {
		eventually(t, "the key is taken back", func() bool { return !g.watch.has("route_key/" + a) })
		g.saysSeen()
	}
	got, err := done()
	if err != nil || !slices.Equal(got.Gateways, both) || len(got.Silent) != 0 || got.Key.RevokedAt == nil || got.Key.ID != a {
		t.Errorf("both said so: %+v, %v", got, err)
	}
	if took := time.Since(began); took >= time.Second {
		t.Errorf("it took %s although both had said so", took)
	}

	began = time.Now()
	done = inBackground(func() (wire.Revoked, error) { return r.people.RevokeKey(ctx, "chat", b, false) })
	eventually(t, "the key is taken back", func() bool { return !one.watch.has("route_key/" + b) })
	one.saysSeen()
	got, err = done()
	if took := time.Since(began); err != nil || !slices.Equal(got.Gateways, []string{one.id}) || !slices.Equal(got.Silent, []string{two.id}) || took < time.Second || took > 5*time.Second {
		t.Errorf("one said so, after %s: %+v, %v", took, got, err)
	}

	// A second revocation waits for the first one's change, not for one that never comes.
	two.saysSeen()
	began = time.Now()
	if got, err = r.people.RevokeKey(ctx, "chat", b, false); err != nil || !slices.Equal(got.Gateways, both) || time.Since(began) >= time.Second {
		t.Errorf("again: %+v, %v, after %s", got, err, time.Since(began))
	}
	if x := one.post("seen", wire.Seen{GatewayID: one.id, Token: "0123456789abcdef.99999"}); x.status != 400 {
		t.Errorf("a token of another history: %d %s", x.status, x.body)
	}
}

// TestCreateWaits: a key that is made, or made in place of another, is known to every connected gateway when its text is
// told; a gateway that does not say so holds it up for a second at most.
func TestCreateWaits(t *testing.T) {
	r := start(t, rigOptions{})
	ctx := t.Context()
	r.deploy("chat")
	g := r.follows(wire.WatchRoute, wire.WatchRouteKey)
	keys := func() (n int) {
		g.watch.mu.Lock()
		defer g.watch.mu.Unlock()
		for id := range g.watch.state {
			if strings.HasPrefix(id, wire.WatchRouteKey+"/") {
				n++
			}
		}
		return n
	}
	began := time.Now()
	done := inBackground(func() (wire.NewKey, error) { return r.people.CreateKey(ctx, "chat", wire.CreateKey{Name: "a"}) })
	eventually(t, "the key reaches the gateway", func() bool { return keys() == 2 })
	g.saysSeen()
	made, err := done()
	if took := time.Since(began); err != nil || took >= time.Second {
		t.Errorf("the gateway has said so, after %s: %v", took, err)
	}
	began = time.Now()
	done = inBackground(func() (wire.NewKey, error) {
		return r.people.ReplaceKey(ctx, "chat", made.ID, wire.RotateKey{})
	})
	if _, err := done(); err != nil || keys() != 3 || time.Since(began) < time.Second {
		t.Errorf("a gateway that says nothing, after %s: %v, %d keys", time.Since(began), err, keys())
	}
}

// TestRevokeNow: what a key has under way is ended by every gateway, asked once each refuses the key; the answer says how many
// there were, and names the gateway that did not answer among those that may still take it.
func TestRevokeNow(t *testing.T) {
	r := start(t, rigOptions{})
	ctx := t.Context()
	r.deploy("chat")
	k, err := r.people.CreateKey(ctx, "chat", wire.CreateKey{Name: "leaked"})
	if err != nil {
		t.Fatal(err)
	}
	one, two := r.follows(wire.WatchRoute, wire.WatchRouteKey, wire.WatchQuestion), r.follows(wire.WatchRoute, wire.WatchRouteKey, wire.WatchQuestion)
	done := inBackground(func() (wire.Revoked, error) { return r.people.RevokeKey(ctx, "chat", k.ID, true) })
	for _, g := range []*gw{one, two} {
		eventually(t, "the key is taken back", func() bool { return !g.watch.has("route_key/" + k.ID) })
		g.saysSeen()
	}
	q := one.question()
	if q.Ask != wire.AskRevoke || q.KeyID != k.ID {
		t.Errorf("asked %+v", q)
	}
	one.must("answers/"+q.ID, wire.Answer{GatewayID: one.id, Ended: 3})
	got, err := done()
	if err != nil || got.Ended == nil || *got.Ended != 3 || !slices.Equal(got.Gateways, []string{one.id}) || !slices.Equal(got.Silent, []string{two.id}) {
		t.Errorf("%+v, %v", got, err)
	}
}
