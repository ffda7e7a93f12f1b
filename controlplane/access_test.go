package controlplane

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/controlplane/httpapi"
)

// documented is what the OpenAPI document says of one operation.
type documented struct {
	method, path, ability string
	body                  bool
}

func operations(t *testing.T) []documented {
	t.Helper()
	text, err := httpapi.OpenAPI()
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Paths map[string]map[string]struct {
			Description string `json:"description"`
			RequestBody any    `json:"requestBody"`
		} `json:"paths"`
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	var out []documented
	for path, methods := range doc.Paths {
		for method, op := range methods {
			ability, _ := strings.CutPrefix(op.Description, "Ability: ")
			out = append(out, documented{strings.ToUpper(method), path, strings.TrimSuffix(ability, "."), op.RequestBody != nil})
		}
	}
	if len(out) < 20 {
		t.Fatalf("%d operations", len(out))
	}
	return out
}

// TestAbilities: every operation refuses who has no token, a broken, revoked or expired one, or one without the ability,
// and lets through who has it, before it looks at anything else.
func TestAbilities(t *testing.T) {
	r := start(t, rigOptions{})
	ctx := t.Context()
	tokens := map[levelrail.Ability]string{}
	for _, a := range levelrail.Abilities {
		tokens[a] = r.token("t-"+strings.ReplaceAll(string(a), ":", "-"), a)
	}
	gone, err := r.people.CreateToken(ctx, wire.CreateToken{Name: "gone", Abilities: []levelrail.Ability{levelrail.AbilityRoot}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.people.RevokeToken(ctx, gone.ID); err != nil {
		t.Fatal(err)
	}
	soon, err := r.people.CreateToken(ctx, wire.CreateToken{Name: "soon", Abilities: []levelrail.Ability{levelrail.AbilityRoot}, ExpiresInSeconds: 1})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "a token has expired", func() bool { return time.Now().After(*soon.ExpiresAt) })
	want := map[string]int{}
	for i, op := range operations(t) {
		r.from = fmt.Sprintf("127.0.1.%d", i+1) // one address that failed so often would be answered late
		path := strings.NewReplacer("{name}", "no-such-model", "{id}", "no-such-id").Replace(op.path)
		if op.ability == "" {
			if a := r.ask("", op.method, path, ""); a.status != 200 {
				t.Errorf("%s %s for everybody: %d %s", op.method, path, a.status, a.body)
			}
			continue
		}
		want[op.ability]++
		for what, token := range map[string]string{"none": "", "broken": "lrt-" + strings.Repeat("0", 64), "revoked": gone.Secret, "expired": soon.Secret, "of an engine": "lr-x"} {
			a := r.ask(token, op.method, path, "")
			if e := a.refused(t); a.status != 401 || e.Kind != levelrail.ErrUnauthorized || a.header.Get("WWW-Authenticate") == "" {
				t.Errorf("%s %s with a token that is %s: %d %s", op.method, path, what, a.status, a.body)
			}
		}
		for have, token := range tokens {
			a := r.ask(token, op.method, path, "")
			allowed := levelrail.Allows([]levelrail.Ability{have}, levelrail.Ability(op.ability))
			if refused := a.status == 403; refused == allowed || a.status == 401 || a.status == 500 {
				t.Errorf("%s %s, which needs %s, with %s: %d %s", op.method, path, op.ability, have, a.status, a.body)
			}
			if a.status >= 300 {
				a.refused(t)
			}
		}
	}
	for _, a := range levelrail.Abilities {
		if want[string(a)] == 0 {
			t.Errorf("no operation needs %s", a)
		}
	}
}

// TestDoors: what belongs to agents and gateways is served on their sockets only, and nothing else is served there.
func TestDoors(t *testing.T) {
	r := start(t, rigOptions{})
	root := r.token("root", levelrail.AbilityRoot)
	hello := `{"node_id":"node_aaaaaaaa","name":"x","version":"1","os":"x"}`
	for _, tc := range []struct{ method, path, body, served string }{
		{"POST", "/api/v1/agent/hello", hello, "agent"},
		{"POST", "/api/v1/agent/report", `{"node_id":"node_aaaaaaaa"}`, "agent"},
		{"GET", "/api/v1/agent/models/chat/hf-token?node_id=node_aaaaaaaa", "", "agent"},
		{"POST", "/api/v1/agent/logs/log_1", "{}", "agent"},
		{"POST", "/api/v1/gateway/usage", `{"gateway_id":"gw_aaaaaaaa","sequence":1}`, "gateway"},
		{"POST", "/api/v1/gateway/seen", `{"gateway_id":"nobody","token":"x.1"}`, "gateway"},
		{"POST", "/api/v1/gateway/answers/q_1", `{"gateway_id":"gw_aaaaaaaa"}`, "gateway"},
		{"POST", "/api/v1/gateway/wake", `{"gateway_id":"gw_aaaaaaaa","model":"chat"}`, "gateway"},
		{"POST", "/api/v1/gateway/activity", `{"gateway_id":"gw_aaaaaaaa"}`, "gateway"},
		{"POST", "/api/v1/watch?kinds=question", `{"gateway_id":"gw_aaaaaaaa","version":"1"}`, "gateway"},
		{"GET", "/api/v1/models/chat/requests", "", "api"},
		{"GET", "/api/v1/models/chat/usage", "", "api"},
		{"GET", "/api/v1/models", "", "api"},
		{"GET", "/api/v1/tokens", "", "api"},
		{"POST", "/api/v1/models", "{}", "api"},
		{"GET", "/api/v1/watch?kinds=model", "", "api"},
		{"GET", "/api/v1/watch?kinds=route", "", ""},
		{"POST", "/api/v1/watch?kinds=route,route_key", `{"gateway_id":"gw_aaaaaaaa","version":"1"}`, "gateway"},
		{"POST", "/api/v1/watch?kinds=assignment", `{"node_id":"node_aaaaaaaa"}`, "agent"},
		{"GET", "/api/v1/status", "", "api"},
	} {
		for _, socket := range []string{"api", "gateway", "agent"} {
			a := r.over(socket, tc.method, tc.path, tc.body)
			refused := a.status == 400 && strings.Contains(a.body, "watch") || a.status == 404 && strings.Contains(a.body, "is not served here")
			if served := tc.served == socket; served == refused {
				t.Errorf("%s %s on the %s socket: %d %s", tc.method, tc.path, socket, a.status, a.body)
			}
			if a.status >= 300 {
				a.refused(t)
			}
		}
		// The network is like the administrators' socket, with a token.
		if a := r.ask(root, tc.method, tc.path, tc.body); (a.status == 404 && strings.Contains(a.body, "is not served here") || a.status == 400 && strings.Contains(a.body, "watch")) == (tc.served == "api") {
			t.Errorf("%s %s over TLS: %d %s", tc.method, tc.path, a.status, a.body)
		}
	}
}

// TestPrincipals: what was done says who did it.
func TestPrincipals(t *testing.T) {
	r := start(t, rigOptions{})
	made := r.deploy("chat")
	if want := fmt.Sprintf("socket:uid %d", os.Getuid()); !strings.Contains(made.Model.CreatedBy, want) {
		t.Errorf("deployed on the socket by %q, want %q", made.Model.CreatedBy, want)
	}
	token := r.token("ci", levelrail.AbilityWriteSensitive)
	a := r.ask(token, "POST", "/api/v1/models/chat/keys", `{"name":"k"}`)
	var k wire.NewKey
	if err := json.Unmarshal([]byte(a.body), &k); err != nil || !strings.Contains(k.CreatedBy, "ci (token:tok_") {
		t.Errorf("a key made with a token by %q, %v", k.CreatedBy, err)
	}
}
