package caddymodule

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// TestServedRoutes: each engine's model serves its routes and no others, on its own domain as on the shared address; what is
// left out on purpose is told from nothing else that does not exist; a wrong method is told the right one.
func TestServedRoutes(t *testing.T) {
	h := newHost(t)
	text := []string{"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"}
	audio := []string{"/v1/audio/transcriptions", "/v1/audio/translations"}
	keys := map[string]string{}
	served := map[string][]string{"ollama": text, "llamacpp": text, "vllm": append(slices.Clone(text), audio...)}
	for engine := range served {
		r := h.route("m-" + engine)
		r.Engine, r.Domain = engine, engine+".example.com"
		h.cp.putRoute(r)
		keys[engine] = h.cp.newKey("key_"+engine, r.Model)
	}
	h.caughtUp()
	ask := func(engine, host, method, path string) (*http.Response, string) {
		t.Helper()
		contentType, body := "application/json", fmt.Sprintf(`{"model":"m-%s","input":"x","prompt":"x","messages":[]}`, engine)
		if slices.Contains(audio, path) {
			contentType, body = upload("m-" + engine)
		}
		if method == "GET" || method == "DELETE" {
			body = ""
		}
		return h.do(method, path, body, "Authorization", "Bearer "+keys[engine], "Content-Type", contentType, "Host", host)
	}
	for engine, own := range served {
		for _, host := range []string{"127.0.0.1:" + h.port, engine + ".example.com"} {
			for _, path := range slices.Concat(text, audio) {
				before := len(h.engine.requests())
				resp, body := ask(engine, host, "POST", path)
				seen := h.engine.requests()[before:]
				if want := slices.Contains(own, path); want && (resp.StatusCode != 200 || len(seen) != 1 || seen[0].target != path) || !want && (resp.StatusCode != 404 || errorCode(body) != "unknown_url" || len(seen) != 0) {
					t.Errorf("%s at %s: POST %s: %d %s, the engine saw %d", engine, host, path, resp.StatusCode, body, len(seen))
				}
				// A method is told only where the address serves the path at all.
				resp, body = ask(engine, host, "GET", path)
				if slices.Contains(own, path) || host == "127.0.0.1:"+h.port {
					h.refused(resp, body, 405, "method_not_allowed")
					if resp.Header.Get("Allow") != "POST" {
						t.Errorf("%s at %s: Allow of %s is %q", engine, host, path, resp.Header.Get("Allow"))
					}
				} else {
					h.refused(resp, body, 404, "unknown_url")
				}
			}
			before := len(h.engine.requests())
			for _, row := range []string{
				"POST /v1/messages", "POST /v1/messages/count_tokens", "POST /rerank", "POST /v1/score", "GET /v1/responses/resp_1", "DELETE /v1/responses/resp_1", "POST /v1/responses/resp_1/cancel",
				"GET /v1/responses/resp_1/input_items", "POST /v1/chat/completions/batch", "POST /v1/chat/completions/control", "POST /v1/chat/completions/render", "POST /v1/completions/render",
				"POST /v1/load_lora_adapter", "POST /v1/unload_lora_adapter", "POST /v1/audio/speech", "POST /v1/images/generations", "POST /api/pull", "DELETE /api/delete", "POST /api/chat", "POST /api/generate",
				"GET /api/tags", "GET /api/ps", "GET /props", "POST /props", "POST /lora-adapters", "GET /slots", "POST /slots/0", "POST /completion", "POST /infill", "POST /tokenize", "GET /metrics",
				"GET /version", "POST /sleep", "POST /collective_rpc", "POST /pause", "POST /invocations", "GET /docs", "GET /openapi.json", "GET /", "GET /v1", "GET /v1/", "GET /v1/models/", "GET /v1beta/models",
			} {
				method, path, _ := strings.Cut(row, " ")
				resp, body := ask(engine, host, method, path)
				h.refused(resp, body, 404, "unknown_url")
			}
			if n := len(h.engine.requests()) - before; n != 0 {
				t.Errorf("%s at %s: %d of them reached the engine", engine, host, n)
			}
			resp, body := ask(engine, host, "POST", "/v1/models")
			h.refused(resp, body, 405, "method_not_allowed")
			if resp.Header.Get("Allow") != "GET" {
				t.Errorf("Allow of /v1/models is %q", resp.Header.Get("Allow"))
			}
			if resp, body := ask(engine, host, "GET", "/v1/models"); resp.StatusCode != 200 || !strings.Contains(body, `"m-`+engine+`"`) || strings.Contains(body, `"chat"`) {
				t.Errorf("%s at %s lists %d %s", engine, host, resp.StatusCode, body)
			}
		}
	}
}

// TestListingByKey is the rest of case C006: what a key's allow_models leaves out is neither listed nor fetched, with the answer that a
// name gets which nobody serves; a key of several models sees the names of all of them, and on one model's domain that model's only.
func TestListingByKey(t *testing.T) {
	h := newHost(t)
	h.cp.putRoute(h.route("chat", "org/name-7b", "org/name-GGUF:Q4_K_M"))
	second := h.route("second", "hf.co/org/name:Q4_K_M")
	second.Domain = "second.example.com"
	h.cp.putRoute(second)
	both := h.cp.newKey("key_both", "chat", "second")
	narrow := levelrail.NewSecret("lr")
	h.cp.putKey(wire.RouteKey{ID: "key_narrow", SHA256: levelrail.HashSecret(narrow), Prefix: narrow[:8], Models: []string{"chat", "second"}, AllowModels: []string{"org/name-7b", "hf.co/org/name:Q4_K_M", "gone"}})
	h.caughtUp()
	all := []string{"chat", "org/name-7b", "org/name-GGUF:Q4_K_M", "second", "hf.co/org/name:Q4_K_M", "gone", "other"}
	var unknown string
	for _, c := range []struct {
		key, host string
		ids       []string
	}{
		{h.key, "", []string{"chat", "org/name-7b", "org/name-GGUF:Q4_K_M"}},
		{both, "", []string{"chat", "org/name-7b", "org/name-GGUF:Q4_K_M", "second", "hf.co/org/name:Q4_K_M"}},
		{both, "second.example.com", []string{"second", "hf.co/org/name:Q4_K_M"}},
		{narrow, "", []string{"org/name-7b", "hf.co/org/name:Q4_K_M"}},
		{narrow, "second.example.com", []string{"hf.co/org/name:Q4_K_M"}},
	} {
		headers := []string{"Authorization", "Bearer " + c.key}
		if c.host != "" {
			headers = append(headers, "Host", c.host)
		}
		_, body := h.do("GET", "/v1/models", "", headers...)
		var list struct{ Data []struct{ ID string } }
		if err := json.Unmarshal([]byte(body), &list); err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, m := range list.Data {
			ids = append(ids, m.ID)
		}
		if !slices.Equal(ids, c.ids) {
			t.Errorf("listed %q, want %q", ids, c.ids)
		}
		for _, id := range all {
			for _, form := range []string{id, strings.ReplaceAll(id, "/", "%2F"), strings.NewReplacer("/", "%2f", ":", "%3a").Replace(id)} {
				resp, body := h.do("GET", "/v1/models/"+form, "", headers...)
				if slices.Contains(c.ids, id) {
					if resp.StatusCode != 200 || !strings.Contains(body, `"id":"`+id+`"`) {
						t.Errorf("%s: %d %s", form, resp.StatusCode, body)
					}
					continue
				}
				h.refused(resp, body, 404, "model_not_found")
				if unknown == "" {
					unknown = body
				}
				if body != unknown {
					t.Errorf("%s is refused with %s, another one with %s", form, body, unknown)
				}
			}
		}
	}
	if n := len(h.engine.requests()); n != 0 {
		t.Errorf("the engine was asked %d times", n)
	}
}

// TestNoModelInTheBody: a key with allow_models refuses a body that names no model, on the model's own domain too, where the name is
// otherwise the engine's business.
func TestNoModelInTheBody(t *testing.T) {
	h := newHost(t)
	r := h.route("own")
	r.Domain = "own.example.com"
	h.cp.putRoute(r)
	free := h.cp.newKey("key_free", "own")
	narrow := levelrail.NewSecret("lr")
	h.cp.putKey(wire.RouteKey{ID: "key_narrow", SHA256: levelrail.HashSecret(narrow), Prefix: narrow[:8], Models: []string{"own"}, AllowModels: []string{"own"}})
	h.caughtUp()
	for _, c := range []struct {
		key, body string
		status    int
	}{
		{free, `{"messages":[]}`, 200}, {free, `{"model":null}`, 200}, {free, `{"model":"whatever"}`, 200}, {free, `{"model":7}`, 400},
		{narrow, `{"model":"own"}`, 200}, {narrow, `{"\u006dodel":"\u006fwn"}`, 200}, {narrow, `{"messages":[]}`, 403}, {narrow, `{"model":null}`, 403}, {narrow, `{"model":""}`, 403}, {narrow, `{"model":"other"}`, 403},
		{narrow, `{"model":"own","model":"other"}`, 400}, {narrow, `{"model":"other","Model":"own"}`, 400}, {narrow, `{"MODEL":"own"}`, 400}, {narrow, `{"model":["own"]}`, 400},
	} {
		before := len(h.engine.requests())
		resp, body := h.do("POST", chatPath, c.body, "Host", "own.example.com", "Authorization", "Bearer "+c.key)
		if reached := len(h.engine.requests()) - before; resp.StatusCode != c.status || reached != map[int]int{200: 1}[c.status] {
			t.Errorf("%s: %d %s, %d reached the engine, want %d", c.body, resp.StatusCode, body, reached, c.status)
		}
	}
}

// TestPreflightOfSleeper is the rest of case C002: with cross-origin use turned on, neither a preflight nor a page's refused request wakes a
// sleeping model or spends anything, and a page can read the 404, 405, 429 and 503 too.
func TestPreflightOfSleeper(t *testing.T) {
	h := newHost(t, "\tlevelrail\n}", "\tlevelrail {\n\t\tcross_origin https://app.example.com\n\t}\n}")
	const app = "https://app.example.com"
	h.limited(levelrail.KeyLimits{RPM: 1, MaxParallel: 1}, asleep(0))
	for range 3 {
		resp, body := h.do("OPTIONS", chatPath, "", "Authorization", "", "Origin", app, "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization")
		if resp.StatusCode != 204 || body != "" {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
	}
	if n := h.usedOf("rpm"); n != 0 || h.cp.wakesOf("chat") != 0 {
		t.Errorf("%d charged, %d wakes", n, h.cp.wakesOf("chat"))
	}
	readable := func(method, path, body string, status int) {
		t.Helper()
		resp, got := h.do(method, path, body, "Origin", app)
		if resp.StatusCode != status || resp.Header.Get("Access-Control-Allow-Origin") != app || !strings.Contains(resp.Header.Get("Access-Control-Expose-Headers"), "Retry-After") {
			t.Errorf("%s %s: %d %s %v", method, path, resp.StatusCode, got, resp.Header)
		}
	}
	readable("POST", "/v1/nothing", chatBody, 404)
	readable("GET", chatPath, "", 405)
	readable("POST", chatPath, "{", 400)
	readable("POST", chatPath, chatBody, 503)
	h.limited(levelrail.KeyLimits{RPM: 1}, nil)
	readable("POST", chatPath, chatBody, 200)
	readable("POST", chatPath, chatBody, 429)
	h.eventually("the one that was admitted has asked for the model", func() bool { return h.cp.wakesOf("chat") == 1 })
}

// TestCredentialsH2 is case C001 over HTTP/2: the same answers, and two Authorization fields are two.
func TestCredentialsH2(t *testing.T) {
	h := newHost(t)
	c := dialH2(t, h.port)
	k := h.key
	for _, row := range []struct {
		name  string
		auth  []string
		known bool
	}{
		{"plain", []string{"Bearer " + k}, true}, {"lower case", []string{"bearer " + k}, true}, {"upper case", []string{"BEARER " + k}, true}, {"two spaces", []string{"Bearer  " + k}, true}, {"a tab", []string{"Bearer\t" + k}, true},
		{"none", nil, false}, {"alone", []string{"Bearer"}, false}, {"Basic", []string{"Basic " + k}, false}, {"a letter more", []string{"Bearer " + k + "é"}, false}, {"good and bad", []string{"Bearer " + k, "Bearer x"}, false},
		{"bad and good", []string{"Bearer x", "Bearer " + k}, false}, {"twice", []string{"Bearer " + k, "Bearer " + k}, false}, {"broken UTF-8", []string{"Bearer \xff" + k}, false}, {"a list", []string{"Bearer " + k + ",Bearer " + k}, false},
	} {
		var headers []string
		for _, a := range row.auth {
			headers = append(headers, "authorization", a)
		}
		_, body, reset := c.answer(c.ask("GET", "/v1/models", headers...), 5*time.Second)
		if row.known && !strings.Contains(body, `"chat"`) || !row.known && errorCode(body) != "invalid_api_key" || reset > 0 {
			t.Errorf("%s: %s, reset %d", row.name, body, reset)
		}
	}
}
