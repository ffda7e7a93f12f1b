package controlplane

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client"
	"github.com/levelrail/levelrail/client/wire"
)

// TestRefusals: every refusal has the one shape with what to do next, and leaves nothing half-made.
func TestRefusals(t *testing.T) {
	r := start(t, rigOptions{})
	root := r.token("root", levelrail.AbilityRoot)
	n := r.join(1)
	r.deploy("chat")
	n.assigned("chat", anyAssignment)
	spec := `"engine":"llamacpp","model":"` + smol + `"`
	deploy := func(fields string) string { return `{"name":"new",` + spec + fields + `}` }
	before := r.fingerprint()
	for _, tc := range []struct {
		name, method, path, body string
		status                   int
		says                     []string
	}{
		{"no such path", "GET", "/api/v1/modles", "", 404, []string{"/api/v1/modles", "openapi.json"}},
		{"not even the API", "GET", "/", "", 404, nil},
		{"an unclean path", "GET", "/api/v1//models", "", 404, nil},
		{"an unknown method", "PATCH", "/api/v1/models", "", 405, []string{"PATCH", "GET"}},
		{"a method that is not there", "DELETE", "/api/v1/status", "", 405, nil},
		{"no body", "POST", "/api/v1/models", "", 400, nil},
		{"no JSON", "POST", "/api/v1/models", "{", 400, nil},
		{"two documents", "POST", "/api/v1/models", deploy("") + "{}", 400, nil},
		{"another type", "POST", "/api/v1/models", `"x"`, 400, nil},
		{"an unknown field", "POST", "/api/v1/models", deploy(`,"gpu":1`), 400, []string{"body.gpu", "no such field"}},
		{"an unknown field within", "POST", "/api/v1/models", deploy(`,"gpus":{"mode":"all","cuont":1}`), 400, []string{"body.gpus.cuont"}},
		{"a field of another case", "POST", "/api/v1/models", deploy(`,"Context":1`), 400, []string{"body.Context"}},
		{"a field of another type", "POST", "/api/v1/models", deploy(`,"context":"many"`), 400, []string{"body.context"}},
		{"an unknown query", "GET", "/api/v1/models?nam=x", "", 400, []string{"nam"}},
		{"a body that is too large", "POST", "/api/v1/models", deploy(`,"options":{"x":"` + strings.Repeat("y", 200<<10) + `"}`), 413, nil},

		{"no name", "POST", "/api/v1/models", `{` + spec + `}`, 400, []string{"name"}},
		{"a bad name", "POST", "/api/v1/models", `{"name":"My Chat",` + spec + `}`, 400, []string{"My Chat", "my-chat"}},
		{"a name with a dot", "POST", "/api/v1/models", `{"name":"a.1",` + spec + `}`, 400, nil},
		{"an unknown engine", "POST", "/api/v1/models", `{"name":"new","engine":"llama","model":"x"}`, 400, []string{"llama", "llamacpp", "ollama"}},
		{"an unknown option", "POST", "/api/v1/models", deploy(`,"options":{"no-such":"1"}`), 400, []string{"no-such"}},
		{"no model", "POST", "/api/v1/models", `{"name":"new","engine":"llamacpp","model":" "}`, 400, nil},
		{"a control character", "POST", "/api/v1/models", `{"name":"new","engine":"llamacpp","model":"org/x\u0000"}`, 400, nil},
		{"a bad checksum", "POST", "/api/v1/models", deploy(`,"sha256":"abc"`), 400, []string{"sha256sum"}},
		{"a bad commit", "POST", "/api/v1/models", deploy(`,"source_commit":"a b"`), 400, nil},
		{"a negative context", "POST", "/api/v1/models", deploy(`,"context":-1`), 400, nil},
		{"an unknown way to ask for GPUs", "POST", "/api/v1/models", deploy(`,"gpus":{"mode":"some"}`), 400, nil},
		{"a count without a mode", "POST", "/api/v1/models", deploy(`,"gpus":{"count":1}`), 400, nil},
		{"a count of none", "POST", "/api/v1/models", deploy(`,"gpus":{"mode":"count"}`), 400, nil},
		{"no devices", "POST", "/api/v1/models", deploy(`,"gpus":{"mode":"devices","devices":[" "]}`), 400, nil},
		{"a bad domain", "POST", "/api/v1/models", deploy(`,"domain":"https://x.example.com/v1"`), 400, []string{"llm.example.com"}},
		{"an address as domain", "POST", "/api/v1/models", deploy(`,"domain":"192.0.2.1"`), 400, nil},
		{"an unknown node", "POST", "/api/v1/models", deploy(`,"node":"gpu-09"`), 400, []string{"gpu-09", "levelrail nodes list"}},
		{"on demand", "POST", "/api/v1/models", deploy(`,"residency":"on_demand"`), 400, []string{"residency"}},
		{"a broken token", "POST", "/api/v1/models", deploy(`,"hf_token":"hf_s3cret\u0007"`), 400, []string{"Hugging Face token"}},

		{"no such model", "GET", "/api/v1/models/none", "", 404, []string{"none", "levelrail models list"}},
		{"update of none", "PUT", "/api/v1/models/none", "{}", 404, nil},
		{"delete of none", "DELETE", "/api/v1/models/none", "", 404, nil},
		{"restart of none", "POST", "/api/v1/models/none/restart", "", 404, nil},
		{"rotate of none", "POST", "/api/v1/models/none/rotate-key", "", 404, nil},
		{"token of none", "PUT", "/api/v1/models/none/hf-token", `{"hf_token":"hf_x"}`, 404, nil},
		{"logs of none", "GET", "/api/v1/models/none/logs", "", 404, nil},
		{"keys of none", "GET", "/api/v1/models/none/keys", "", 404, nil},
		{"key of none", "POST", "/api/v1/models/none/keys", `{"name":"x"}`, 404, nil},
		{"revoke of none", "DELETE", "/api/v1/models/none/keys/key_x", "", 404, nil},
		{"revoke of no key", "DELETE", "/api/v1/models/chat/keys/key_x", "", 404, []string{"key_x", "levelrail models keys list chat"}},
		{"an unnamed key", "POST", "/api/v1/models/chat/keys", `{"name":""}`, 400, nil},
		{"a key of a bad name", "POST", "/api/v1/models/chat/keys", `{"name":"a b"}`, 400, []string{"a b"}},
		{"a key of a taken name", "POST", "/api/v1/models/chat/keys", `{"name":"default"}`, 409, []string{"default"}},
		{"a key that has expired", "POST", "/api/v1/models/chat/keys", `{"name":"x","expires_in_seconds":-5}`, 400, nil},
		{"a key for ever and a day", "POST", "/api/v1/models/chat/keys", `{"name":"x","expires_in_seconds":9223372036854775807}`, 400, nil},
		{"no such node", "GET", "/api/v1/nodes/none", "", 404, []string{"levelrail nodes list"}},
		{"a token without abilities", "POST", "/api/v1/tokens", `{"name":"x","abilities":[]}`, 400, []string{"write:sensitive"}},
		{"a token of an unknown ability", "POST", "/api/v1/tokens", `{"name":"x","abilities":["admin"]}`, 400, nil},
		{"a token of a taken name", "POST", "/api/v1/tokens", `{"name":"root","abilities":["read"]}`, 409, []string{"root"}},
		{"revoke of no token", "DELETE", "/api/v1/tokens/tok_x", "", 404, nil},
		{"lines that are none", "GET", "/api/v1/models/chat/logs?lines=0", "", 400, nil},
		{"since what", "GET", "/api/v1/models/chat/logs?since=$(x)", "", 400, nil},
		{"watch of nothing", "GET", "/api/v1/watch", "", 400, []string{"kinds"}},
		{"watch of an unknown kind", "GET", "/api/v1/watch?kinds=model,secret", "", 400, []string{"secret", "model,node"}},
		{"a token that is none", "GET", "/api/v1/watch?kinds=model&after=x", "", 400, nil},
		{"a token of another history", "GET", "/api/v1/watch?kinds=model&after=abc.1", "", 410, []string{"/api/v1/watch?kinds=model"}},
		{"another spec", "POST", "/api/v1/models", `{"name":"chat",` + spec + `,"gpus":{"mode":"none"},"context":4096}`, 409, []string{"context: none → 4096", "levelrail models update chat --context 4096"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := r.ask(root, tc.method, tc.path, tc.body)
			e := a.refused(t)
			if a.status != tc.status {
				t.Errorf("%d, want %d: %s", a.status, tc.status, a.body)
			}
			for _, s := range tc.says {
				if !strings.Contains(e.Message+"\n"+e.Next, s) {
					t.Errorf("neither %q nor %q has %q", e.Message, e.Next, s)
				}
			}
			if strings.Contains(a.body, "s3cret") {
				t.Errorf("the refusal repeats a secret: %s", a.body)
			}
			if ct := a.header.Get("Content-Type"); !strings.HasPrefix(ct, "application/json") {
				t.Errorf("its type is %s", ct)
			}
		})
	}
	if a := r.ask(root, "POST", "/api/v1/models", "name=x", "Content-Type", "application/x-www-form-urlencoded"); a.status != 415 {
		t.Errorf("a form: %d %s", a.status, a.body)
	} else {
		a.refused(t)
	}
	if a := r.ask(root, "POST", "/api/v1/models/none/keys", `{"name":"x","expires_in_seconds":90.5}`); a.status != 400 {
		t.Errorf("half a second: %d %s", a.status, a.body)
	}
	if a := r.ask(root, "POST", "/api/v1/models/none/keys", `{"name":"x","expires_in_seconds":9.0e1}`); a.status != 404 {
		t.Errorf("a whole number with a fraction of 0: %d %s", a.status, a.body)
	}
	if a := r.ask(root, "PATCH", "/api/v1/models", ""); a.header.Get("Allow") == "" {
		t.Error("405 without Allow")
	}
	if after := r.fingerprint(); after != before {
		t.Errorf("refusals left something behind:\nbefore %s\nafter  %s", before, after)
	}
	if strings.Contains(r.log.String(), "s3cret") {
		t.Error("the log has a refused secret")
	}
}

// fingerprint is everything stored.
func (r *rig) fingerprint() string {
	d := *r.state()
	d.Index = 0
	return fmt.Sprintf("%+v", d)
}

// TestDeployAgain: the same spec again is unchanged, without a key; another one is a conflict that names each difference
// and the update that makes it so, and that update does.
func TestDeployAgain(t *testing.T) {
	r := start(t, rigOptions{})
	n := r.join(1)
	full := func(d *wire.Deploy) {
		d.Context, d.Options, d.HubToken, d.Domain, d.ServedNames = 2048, levelrail.Options{"parallel": "2"}, "hf_x", "LLM.Example.com.", []string{"tiny/one"}
	}
	first := r.deploy("chat", full)
	again := r.deploy("chat", full)
	if !again.Unchanged || again.Key != nil || again.JobID != "" || again.Model.Revision != 1 || first.Unchanged {
		t.Errorf("the same again: %+v", again)
	}
	if without := r.deploy("chat", full, func(d *wire.Deploy) { d.HubToken = "" }); !without.Unchanged {
		t.Error("leaving the token out is a difference")
	}
	for _, tc := range []struct {
		change     func(*wire.Deploy)
		want, next string
	}{
		{func(d *wire.Deploy) { d.Context = 4096 }, "context: 2048 → 4096", "levelrail models update chat --context 4096"},
		{func(d *wire.Deploy) { d.Model = "org/other:Q4_0" }, "model: " + smol + " → org/other:Q4_0", "levelrail models update chat --model org/other:Q4_0"},
		{func(d *wire.Deploy) { d.GPUs = levelrail.GPURequest{Mode: levelrail.GPUCount, Count: 1} }, "gpus: none → 1", "--gpus 1"},
		{func(d *wire.Deploy) { d.Options = levelrail.Options{"parallel": "4"} }, "options: parallel=2 → parallel=4", "--option parallel=4"},
		{func(d *wire.Deploy) { d.Domain = "" }, "domain: llm.example.com → none", "--domain ''"},
		{func(d *wire.Deploy) { d.ServedNames = []string{"tiny/two"} }, "served_names: tiny/one → tiny/two", "--served-name tiny/two"},
		{func(d *wire.Deploy) { d.HubToken = "hf_y" }, "hf_token: set → another", "levelrail models set-hf-token chat"},
		{func(d *wire.Deploy) { d.Node = n.id }, "node: the control plane's own host → gpu-01", "levelrail models delete chat"},
	} {
		d := wire.Deploy{Name: "chat", Engine: "llamacpp", Model: smol, GPUs: levelrail.GPURequest{Mode: levelrail.GPUNone}}
		full(&d)
		tc.change(&d)
		_, err := r.people.Deploy(t.Context(), d)
		if levelrail.KindOf(err) != levelrail.ErrConflict || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), tc.next) || strings.Contains(err.Error(), "hf_y") {
			t.Errorf("got  %v\nwant %s, %s", err, tc.want, tc.next)
		}
	}
	same := 2048
	u, err := r.people.UpdateModel(t.Context(), "chat", wire.Update{Context: &same})
	if err != nil || !u.Unchanged || u.Model.Revision != 1 {
		t.Errorf("an update to the same: %+v, %v", u, err)
	}
	bad := "llama"
	if _, err := r.people.UpdateModel(t.Context(), "chat", wire.Update{Engine: &bad}); levelrail.KindOf(err) != levelrail.ErrInvalid {
		t.Errorf("an update to an unknown engine: %v", err)
	}
	none := ""
	if u, err := r.people.UpdateModel(t.Context(), "chat", wire.Update{Domain: &none}); err != nil || u.Model.Domain != "" || u.Model.Revision != 1 {
		t.Errorf("an update of the domain alone makes no revision: %+v, %v", u, err)
	}
}

// TestNotes: a deploy says once what somebody has to do about the master key and the public site.
func TestNotes(t *testing.T) {
	r := start(t, rigOptions{})
	first := r.deploy("one", func(d *wire.Deploy) { d.Domain = "one.example.com" })
	if s := strings.Join(first.Notes, "\n"); !strings.Contains(s, "master.key") || !strings.Contains(s, "levelrail-gateway public on") {
		t.Errorf("the first deploy notes %q", s)
	}
	gw := follow(t, r.gateway, clientWatchGateway(true))
	eventually(t, "the gateway is connected", gw.synced)
	if second := r.deploy("two", func(d *wire.Deploy) { d.Domain = "two.example.com" }); len(second.Notes) != 0 || second.Model.URL != "https://two.example.com/v1" {
		t.Errorf("the second deploy notes %q, and its URL is %s", second.Notes, second.Model.URL)
	}
	if _, err := r.people.Deploy(t.Context(), wire.Deploy{Name: "three", Engine: "llamacpp", Model: smol, Domain: "one.example.com"}); levelrail.KindOf(err) != levelrail.ErrConflict {
		t.Errorf("a domain twice: %v", err)
	}
}

// TestPublicHost: with a public IP, a model without a domain has a host name of its own.
func TestPublicHost(t *testing.T) {
	r := start(t, rigOptions{env: map[string]string{"APP_PUBLIC_HOST": "203.0.113.9"}})
	gw := follow(t, r.gateway, clientWatchGateway(true))
	eventually(t, "the gateway is connected", gw.synced)
	if m := r.deploy("chat").Model; m.URL != "https://chat.203-0-113-9.sslip.io/v1" || m.Domain != "" {
		t.Errorf("the URL is %s, the domain %q", m.URL, m.Domain)
	}
	eventually(t, "the gateway knows the host name", func() bool { return get[wire.Route](t, gw, "route/chat").Domain == "chat.203-0-113-9.sslip.io" })
}

// TestIdempotency: a write that is sent again with its key is done once and answered as the first time, key text included;
// another request under the same key is refused.
func TestIdempotency(t *testing.T) {
	r := start(t, rigOptions{})
	root := r.token("root", levelrail.AbilityRoot)
	twice := func(method, path, body, key string) (answer, answer) {
		t.Helper()
		return r.ask(root, method, path, body, "Idempotency-Key", key), r.ask(root, method, path, body, "Idempotency-Key", key)
	}
	secretOf := func(a answer, path ...string) string {
		var v any
		if err := json.Unmarshal([]byte(a.body), &v); err != nil {
			t.Fatalf("%s: %v", a.body, err)
		}
		for _, p := range path {
			v = v.(map[string]any)[p]
		}
		return v.(string)
	}
	deploy := `{"name":"chat","engine":"llamacpp","model":"` + smol + `","gpus":{"mode":"none"}}`
	a, b := twice("POST", "/api/v1/models", deploy, "d1")
	if a.status != 201 || b.status != 201 || secretOf(a, "key", "secret") != secretOf(b, "key", "secret") || secretOf(a, "job_id") != secretOf(b, "job_id") {
		t.Errorf("deploy: %d %s\nagain:  %d %s", a.status, a.body, b.status, b.body)
	}
	if c := r.ask(root, "POST", "/api/v1/models", strings.Replace(deploy, `"chat"`, `"else"`, 1), "Idempotency-Key", "d1"); c.status != 409 {
		t.Errorf("another deploy with the same key: %d %s", c.status, c.body)
	}
	if c := r.ask(root, "POST", "/api/v1/models", strings.Replace(deploy, `"chat"`, `"body-key"`, 1)[:len(deploy)+3]+`,"idempotency_key":"b1"}`); c.status != 201 {
		t.Errorf("the key in the body: %d %s", c.status, c.body)
	}
	a, b = twice("POST", "/api/v1/models/chat/keys", `{"name":"ci"}`, "k1")
	if a.status != 201 || b.status != 201 || secretOf(a, "secret") != secretOf(b, "secret") || secretOf(a, "id") != secretOf(b, "id") {
		t.Errorf("a key: %d %s\nagain: %d %s", a.status, a.body, b.status, b.body)
	}
	a, b = twice("POST", "/api/v1/models/chat/rotate-key", "", "r1")
	if a.status != 201 || b.status != 201 || secretOf(a, "secret") != secretOf(b, "secret") {
		t.Errorf("rotate: %d %s\nagain:  %d %s", a.status, a.body, b.status, b.body)
	}
	a, b = twice("POST", "/api/v1/tokens", `{"name":"t","abilities":["read"]}`, "t1")
	if a.status != 201 || b.status != 201 || secretOf(a, "secret") != secretOf(b, "secret") {
		t.Errorf("a token: %d %s\nagain:   %d %s", a.status, a.body, b.status, b.body)
	}
	a, b = twice("POST", "/api/v1/models/chat/restart", "", "s1")
	if m, _ := r.state().Model("chat"); a.status != 202 || b.status != 202 || m.Restarts != 1 {
		t.Errorf("restart: %d, again %d, restarted %d times", a.status, b.status, m.Restarts)
	}
	a, b = twice("PUT", "/api/v1/models/chat", `{"context":512}`, "u1")
	if m, _ := r.state().Model("chat"); a.status != 200 || b.status != 200 || m.Revision != 2 || strings.Contains(b.body, `"unchanged":true`) {
		t.Errorf("update: %d %s\nagain: %d %s\nrevision %d", a.status, a.body, b.status, b.body, m.Revision)
	}
	a, b = twice("PUT", "/api/v1/models/chat/hf-token", `{"hf_token":"hf_x"}`, "h1")
	if m, _ := r.state().Model("chat"); a.status != 202 || b.status != 202 || m.Restarts != 2 {
		t.Errorf("token: %d %s, again %d %s, restarted %d times", a.status, a.body, b.status, b.body, m.Restarts)
	}
	keys, err := r.people.Keys(t.Context(), "chat")
	if err != nil || len(keys) != 3 {
		t.Errorf("%d keys, %v; want the first default, its successor and ci", len(keys), err)
	}
	// Two callers may use the same key.
	other := r.token("other", levelrail.AbilityRoot)
	if c := r.ask(other, "POST", "/api/v1/models/chat/keys", `{"name":"theirs"}`, "Idempotency-Key", "k1"); c.status != 201 {
		t.Errorf("another caller with the same key: %d %s", c.status, c.body)
	}
}

// TestKeys: keys are listed without their text, counted, rotated at once and revoked.
func TestKeys(t *testing.T) {
	r := start(t, rigOptions{env: map[string]string{"APP_MODEL_MAX_KEYS": "3"}})
	ctx := t.Context()
	first := r.deploy("chat").Key
	second, err := r.people.CreateKey(ctx, "chat", wire.CreateKey{Name: "ci", ExpiresInSeconds: 3600})
	if err != nil || second.ExpiresAt == nil {
		t.Fatalf("%+v, %v", second, err)
	}
	if _, err := r.people.CreateKey(ctx, "chat", wire.CreateKey{Name: "third"}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.people.CreateKey(ctx, "chat", wire.CreateKey{Name: "fourth"}); levelrail.KindOf(err) != levelrail.ErrRefused || !strings.Contains(err.Error(), "APP_MODEL_MAX_KEYS") {
		t.Errorf("one too many: %v", err)
	}
	rotated, err := r.people.RotateKey(ctx, "chat")
	if err != nil || rotated.Name != "default" || rotated.ID == first.ID || rotated.Secret == first.Secret {
		t.Fatalf("%+v, %v", rotated, err)
	}
	if k, err := r.people.RevokeKey(ctx, "chat", second.ID, false); err != nil || k.Key.RevokedAt == nil || len(k.Silent) != 0 {
		t.Errorf("%+v, %v", k, err)
	}
	keys, err := r.people.Keys(ctx, "chat")
	if err != nil {
		t.Fatal(err)
	}
	live := map[string]bool{}
	for _, k := range keys {
		live[k.ID] = k.RevokedAt == nil
	}
	if want := map[string]bool{first.ID: false, second.ID: false, rotated.ID: true}; len(live) != 4 || live[first.ID] || live[second.ID] || !live[rotated.ID] {
		t.Errorf("live: %v, want %v and the third", live, want)
	}
	if _, err := r.people.RevokeKey(ctx, "chat", rotated.ID, false); err != nil {
		t.Fatal(err)
	}
	if k, err := r.people.RotateKey(ctx, "chat"); err != nil || k.Name != "default" {
		t.Errorf("a model whose default is revoked gets a new one: %+v, %v", k, err)
	}
	r.deploy("other")
	if _, err := r.people.RevokeKey(ctx, "other", rotated.ID, false); levelrail.KindOf(err) != levelrail.ErrNotFound {
		t.Errorf("a key of another model: %v", err)
	}
	if got := reflect.TypeOf(keys[0]).NumField(); got != 13 {
		t.Errorf("a listed key has %d fields: look whether a new one tells too much, then change this number", got)
	}
}

func clientWatchGateway(public bool) client.WatchOptions {
	return client.WatchOptions{Kinds: []string{wire.WatchRoute, wire.WatchRouteKey}, Body: wire.WatchGateway{GatewayID: levelrail.NewID("gw"), URL: "http://127.0.0.1:7421/v1", Public: public}}
}
