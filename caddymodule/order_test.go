package caddymodule

import (
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

const chatPath = "/v1/chat/completions"

const chatBody = `{"model":"chat","messages":[{"role":"user","content":"hi"}]}`

// TestForward: a request that passes every check reaches the engine as the table has it, with the engine's key and nothing
// of the client's credentials, and its answer comes back whole, usage included.
func TestForward(t *testing.T) {
	h := newHost(t)
	body := `{ "model" : "chat", "messages":[{"role":"user","content":"h\u00ed \u4f60"}] }`
	resp, got := h.do("POST", chatPath+"?api_key=x", body, "Cookie", "a=b", "X-Api-Key", "k", "X-Forwarded-For", "1.2.3.4", "Origin", "http://evil", "X-Request-Id", "mine-1",
		"Idempotency-Key", "again", "Connection", "Traceparent, Accept", "Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	if resp.StatusCode != 200 || !strings.Contains(got, `"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}`) {
		t.Fatalf("%d %s", resp.StatusCode, got)
	}
	if id := resp.Header.Get("X-Request-Id"); id != "mine-1" {
		t.Errorf("X-Request-Id %q, want the client's", id)
	}
	if resp.Header.Get("Server") != "" || resp.Header.Get("Via") != "" {
		t.Errorf("headers tell of the machinery: %v", resp.Header)
	}
	seen := h.engine.requests()
	if len(seen) != 1 {
		t.Fatalf("the engine saw %d requests", len(seen))
	}
	r := seen[0]
	if r.method != "POST" || r.target != chatPath || r.host != "localhost" || string(r.body) != body || r.length != int64(len(body)) {
		t.Errorf("the engine was sent %s %s host %s length %d body %s", r.method, r.target, r.host, r.length, r.body)
	}
	for name, want := range map[string]string{"Authorization": "Bearer engine-secret", "Content-Type": "application/json", "Accept-Encoding": "identity", "Cookie": "",
		"X-Api-Key": "", "X-Forwarded-For": "", "Origin": "", "Idempotency-Key": "", "X-Request-Id": ""} {
		if got := r.header.Get(name); got != want {
			t.Errorf("the engine was sent %s: %q, want %q", name, got, want)
		}
	}
	rec := h.recordOf("mine-1")
	for name, want := range map[string]any{"method": "POST", "route": chatPath, "model": "chat", "key": h.key[:8], "status": 200.0, "end": "complete", "input_tokens": 3.0,
		"output_tokens": 4.0, "bytes": float64(len(got))} {
		if rec[name] != want {
			t.Errorf("the log's %s is %v, want %v", name, rec[name], want)
		}
	}
}

// TestOrder: each request is wrong in two ways, and the earlier check answers.
func TestOrder(t *testing.T) {
	h := newHost(t)
	quick := h.route("narrow")
	quick.Limits.MaxBodyBytes, quick.Limits.MaxInflight = 100, 1
	h.cp.putRoute(quick)
	loading := h.route("loading")
	loading.Serving, loading.Reason = false, string(levelrail.Loading)
	h.cp.putRoute(loading)
	own := h.route("own")
	own.Domain = "own.example.com"
	h.cp.putRoute(own)
	ownKey := h.cp.newKey("key_own", "own")
	narrowKey, loadingKey := h.cp.newKey("key_n", "narrow"), h.cp.newKey("key_l", "loading")
	gone := h.cp.newKey("key_g", "nothing")
	limited := levelrail.NewSecret("lr")
	h.cp.putKey(wire.RouteKey{ID: "key_p", SHA256: levelrail.HashSecret(limited), Prefix: limited[:8], Models: []string{"chat"},
		AllowPaths: []string{"/v1/chat/completions", "/v1/models"}, AllowModels: []string{"other"}})
	h.caughtUp()

	h.engine.on(nil)
	long := `{"model":"narrow","messages":"` + strings.Repeat("x", 200) + `"}`
	for _, c := range []struct {
		name, method, path, body string
		headers                  []string
		status                   int
		code                     string
	}{
		{"unknown path before key", "POST", "/v1/nothing", "{", []string{"Authorization", "Bearer bad"}, 404, "unknown_url"},
		{"method before key", "GET", chatPath, "", []string{"Authorization", ""}, 405, "method_not_allowed"},
		{"key before the model's table", "POST", "/v1/audio/translations", "{", []string{"Authorization", "Bearer bad"}, 401, "invalid_api_key"},
		{"the model's own table before slot and body", "POST", "/v1/audio/translations", "{", nil, 404, "unknown_url"},
		{"the domain's table before the key", "POST", "/v1/audio/translations", "{", []string{"Host", "own.example.com", "Authorization", "Bearer bad"}, 404, "unknown_url"},
		{"another model's key on a domain", "POST", chatPath, chatBody, []string{"Host", "own.example.com"}, 401, "invalid_api_key"},
		{"a domain with port, case and dot", "POST", chatPath, `{"model":"whatever"}`, []string{"Host", "OWN.example.com.:80", "Authorization", "Bearer " + ownKey}, 200, ""},
		{"allow_paths before the body", "POST", "/v1/completions", "{", []string{"Authorization", "Bearer " + limited}, 403, "path_not_allowed"},
		{"allow_models after the body's form", "POST", chatPath, "{", []string{"Authorization", "Bearer " + limited}, 400, "invalid_body"},
		{"allow_models", "POST", chatPath, chatBody, []string{"Authorization", "Bearer " + limited}, 403, "model_not_allowed"},
		{"size before JSON", "POST", chatPath, long + "}", []string{"Authorization", "Bearer " + narrowKey}, 413, "request_too_large"},
		{"encoding before size", "POST", chatPath, long, []string{"Authorization", "Bearer " + narrowKey, "Content-Encoding", "gzip"}, 415, "unsupported_media_type"},
		{"type", "POST", chatPath, chatBody, []string{"Content-Type", "multipart/form-data; boundary=x"}, 415, "unsupported_media_type"},
		{"charset", "POST", chatPath, chatBody, []string{"Content-Type", "application/json; charset=utf-16"}, 415, "unsupported_media_type"},
		{"JSON before the model", "POST", chatPath, `{"model":"other"`, nil, 400, "invalid_body"},
		{"model before waking", "POST", chatPath, chatBody, []string{"Authorization", "Bearer " + loadingKey}, 404, "model_not_found"},
		{"no model", "POST", chatPath, `{"messages":[]}`, nil, 400, "missing_required_parameter"},
		{"loading", "POST", chatPath, `{"model":"loading"}`, []string{"Authorization", "Bearer " + loadingKey}, 503, "model_loading"},
		{"the model is gone", "POST", chatPath, chatBody, []string{"Authorization", "Bearer " + gone}, 404, "model_not_found"},
		{"a native field", "POST", chatPath, `{"model":"chat","n_predict":-1}`, nil, 400, "invalid_body"},
		{"all well", "POST", chatPath, chatBody, nil, 200, ""},
	} {
		before := len(h.engine.requests())
		resp, body := h.do(c.method, c.path, c.body, c.headers...)
		if c.status == 200 {
			if resp.StatusCode != 200 {
				t.Errorf("%s: %d %s", c.name, resp.StatusCode, body)
			}
			continue
		}
		if got := errorCode(body); resp.StatusCode != c.status || got != c.code {
			t.Errorf("%s: %d %q %s, want %d %s", c.name, resp.StatusCode, got, body, c.status, c.code)
		}
		if len(h.engine.requests()) != before {
			t.Errorf("%s: reached the engine", c.name)
		}
		switch c.status {
		case 405:
			if resp.Header.Get("Allow") != "POST" {
				t.Errorf("%s: Allow %q", c.name, resp.Header.Get("Allow"))
			}
		case 401:
			if resp.Header.Get("Www-Authenticate") == "" {
				t.Errorf("%s: no WWW-Authenticate", c.name)
			}
		case 503:
			if resp.Header.Get("Retry-After") != "5" {
				t.Errorf("%s: Retry-After %q", c.name, resp.Header.Get("Retry-After"))
			}
		}
	}
}

// TestSlots: over max_inflight a request is refused where nothing waits, and a slot comes back with the answer's end.
func TestSlots(t *testing.T) {
	h := newHost(t)
	r := h.route("chat")
	r.Limits.MaxInflight = 1
	h.cp.putRoute(r)
	h.caughtUp()
	entered, leave := make(chan struct{}, 8), make(chan struct{})
	h.engine.on(blockUntil(entered, leave))
	first := make(chan int)
	go func() {
		resp, err := httpClient.Do(h.request("POST", chatPath, chatBody))
		if err != nil {
			first <- 0
			return
		}
		resp.Body.Close()
		first <- resp.StatusCode
	}()
	<-entered
	resp, body := h.do("POST", chatPath, chatBody)
	h.refused(resp, body, 429, "rate_limit_exceeded")
	if resp.Header.Get("Retry-After") != "5" {
		t.Errorf("Retry-After %q", resp.Header.Get("Retry-After"))
	}
	if resp, _ := h.do("GET", "/v1/models", ""); resp.StatusCode != 200 {
		t.Errorf("a listing takes a slot: %d", resp.StatusCode)
	}
	close(leave)
	if got := <-first; got != 200 {
		t.Errorf("the first request ended with %d", got)
	}
	h.eventually("the slot is free", func() bool {
		resp, _ := h.do("POST", chatPath, chatBody)
		return resp.StatusCode == 200
	})
}

// TestSeveralModels: a key of several models leaves the choice to the body, and each model keeps its own limits and table.
func TestSeveralModels(t *testing.T) {
	h := newHost(t)
	second := h.route("second", "org/second-GGUF:Q4_K_M")
	second.Limits.MaxBodyBytes = 100
	h.cp.putRoute(second)
	both := h.cp.newKey("key_both", "chat", "second")
	auth := []string{"Authorization", "Bearer " + both}
	h.caughtUp()
	for _, c := range []struct {
		path, body string
		status     int
		code       string
	}{
		{chatPath, chatBody, 200, ""},
		{chatPath, `{"model":"org/second-GGUF:Q4_K_M"}`, 200, ""},
		{chatPath, `{"model":"third"}`, 404, "model_not_found"},
		{chatPath, `{"model":"second","x":"` + strings.Repeat("y", 100) + `"}`, 413, "request_too_large"},
		{chatPath, `{"model":"second","n_predict":1}`, 400, "invalid_body"},
		{"/v1/audio/translations", chatBody, 415, "unsupported_media_type"},
	} {
		resp, body := h.do("POST", c.path, c.body, auth...)
		if resp.StatusCode != c.status || errorCode(body) != c.code {
			t.Errorf("%s %s: %d %s, want %d %s", c.path, c.body, resp.StatusCode, body, c.status, c.code)
		}
	}
	if n := pooledSlots("key key_both") + pooledSlots("chat") + pooledSlots("second"); n != 0 {
		t.Errorf("%d slots are still taken", n)
	}
}

// TestExpiry: a key stops at its time by the gateway's clock, and a revoked one by the watch; all look like a wrong one.
func TestExpiry(t *testing.T) {
	h := newHost(t)
	past := time.Now().Add(-time.Second)
	expired := levelrail.NewSecret("lr")
	h.cp.putKey(wire.RouteKey{ID: "key_e", SHA256: levelrail.HashSecret(expired), Models: []string{"chat"}, ExpiresAt: &past})
	soon := time.Now().Add(1500 * time.Millisecond)
	expiring := levelrail.NewSecret("lr")
	h.cp.putKey(wire.RouteKey{ID: "key_s", SHA256: levelrail.HashSecret(expiring), Models: []string{"chat"}, ExpiresAt: &soon})
	revoked := h.cp.newKey("key_r", "chat")
	status := func(key string) int {
		resp, _ := h.do("GET", "/v1/models", "", "Authorization", "Bearer "+key)
		return resp.StatusCode
	}
	h.eventually("the new keys are there", func() bool { return status(revoked) == 200 && (status(expiring) == 200 || time.Now().After(soon)) })
	h.cp.revoke("key_r")
	h.eventually("the revoked key is refused", func() bool { return status(revoked) == 401 })
	h.eventually("the expiring key is refused", func() bool { return status(expiring) == 401 })
	if time.Now().Before(soon) {
		t.Error("the key expired too early")
	}
	var bodies []string
	for _, key := range []string{expired, revoked, levelrail.NewSecret("lr")} {
		resp, body := h.do("POST", chatPath, chatBody, "Authorization", "Bearer "+key)
		h.refused(resp, body, 401, "invalid_api_key")
		bodies = append(bodies, body)
	}
	if bodies[0] != bodies[1] || bodies[1] != bodies[2] {
		t.Errorf("the refusals differ: %q", bodies)
	}
	h.cp.dropRoute("chat")
	h.eventually("the deleted model is refused", func() bool {
		resp, body := h.do("POST", chatPath, chatBody)
		return resp.StatusCode == 404 && errorCode(body) == "model_not_found"
	})
}
