package caddymodule

import (
	"strings"
	"testing"
)

// TestCrossOrigin is case C002 where cross-origin use is turned on: a preflight needs no key and reaches nothing, the page
// can read every answer, refusals included, and other origins get what they get without it.
func TestCrossOrigin(t *testing.T) {
	h := newHost(t, "\tlevelrail\n}", "\tlevelrail {\n\t\tcross_origin https://app.example.com http://localhost:5173\n\t}\n}")
	const app, other = "https://app.example.com", "https://evil.example.com"
	preflight := func(origin string) []string {
		return []string{"Authorization", "", "Origin", origin, "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization,X-Stainless-OS, bad header\t"}
	}
	for _, path := range []string{chatPath, "/v1/models", "/v1/models/chat"} {
		resp, body := h.do("OPTIONS", path, "", preflight(app)...)
		allowed := resp.Header.Get("Access-Control-Allow-Headers")
		if resp.StatusCode != 204 || body != "" || resp.Header.Get("Access-Control-Allow-Origin") != app || !strings.Contains(resp.Header.Get("Access-Control-Allow-Methods"), "POST") ||
			!strings.Contains(allowed, "authorization") || !strings.Contains(allowed, "x-stainless-os") || strings.Contains(allowed, "bad") || !strings.Contains(resp.Header.Get("Vary"), "Origin") {
			t.Errorf("preflight of %s: %d %q %v", path, resp.StatusCode, body, resp.Header)
		}
		if c := resp.Header.Get("Access-Control-Allow-Credentials"); c != "" {
			t.Errorf("credentials: %q", c)
		}
	}
	resp, body := h.do("OPTIONS", chatPath, "", preflight(other)...)
	h.refused(resp, body, 405, "method_not_allowed")
	if got := resp.Header.Get("Access-Control-Allow-Origin"); got != "" {
		t.Errorf("another origin is told %q", got)
	}
	resp, body = h.do("OPTIONS", chatPath, "", "Authorization", "", "Origin", app) // no preflight
	h.refused(resp, body, 405, "method_not_allowed")
	if n := len(h.engine.requests()); n != 0 {
		t.Errorf("%d requests reached the engine", n)
	}

	resp, body = h.do("POST", chatPath, `{}`, "Authorization", "Bearer lr-wrong", "Origin", app)
	h.refused(resp, body, 401, "invalid_api_key")
	if resp.Header.Get("Access-Control-Allow-Origin") != app || !strings.Contains(resp.Header.Get("Access-Control-Expose-Headers"), "X-Request-Id") {
		t.Errorf("the page cannot read its 401: %v", resp.Header)
	}
	resp, _ = h.do("POST", chatPath, `{"model":"chat","messages":[]}`, "Origin", "http://localhost:5173")
	if resp.StatusCode != 200 || resp.Header.Get("Access-Control-Allow-Origin") != "http://localhost:5173" {
		t.Errorf("a page's request: %d %v", resp.StatusCode, resp.Header)
	}
	resp, _ = h.do("POST", chatPath, `{"model":"chat","messages":[]}`, "Origin", other)
	if resp.StatusCode != 200 || resp.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("another origin's request: %d %v", resp.StatusCode, resp.Header)
	}
}

// TestCrossOriginMistakes: a mistake is refused with its line and what to write.
func TestCrossOriginMistakes(t *testing.T) {
	h := prepareHost(t)
	for setting, want := range map[string]string{
		"cross_origin":                           "needs one origin",
		"cross_origin app.example.com":           "like https://app.example.com",
		"cross_origin https://app.example.com/":  "like https://app.example.com",
		"cross_origin HTTPS://app.example.com":   "like https://app.example.com",
		"cross_origin *\n\t\tcross_origin *":     "stands twice",
		"cross_origin APP://obsidian.md":         "not an origin",
		"cross_origin https://*":                 "names no site",
		"cross_origin https://*.example.com":     "small letters and without a path",
		"cross_origin https://a.example.com:443": "never sent",
		"cross_origin app://":                    "not an origin",
		"cross_origin ://x":                      "not an origin",
		"cross_origin file:///home":              "not an origin",
		"cross_origin {env.X}":                   "no placeholders",
		"crossorigin *":                          "it has cross_origin",
		"state_dir /tmp":                         "global options",
	} {
		err := h.tryLoad(strings.Replace(h.caddyfile(), "\tlevelrail\n}", "\tlevelrail {\n\t\t"+setting+"\n\t}\n}", 1))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "Caddyfile:") {
			t.Errorf("%s: %v", setting, err)
		}
	}
}

// TestCrossOriginApps: desktop and mobile apps and extensions of browsers send origins of their own, some of them other ones at
// each start: they can be named, one by one or by their scheme, and nobody else gets in with them.
func TestCrossOriginApps(t *testing.T) {
	h := newHost(t, "\tlevelrail\n}", "\tlevelrail {\n\t\tcross_origin app://obsidian.md tauri://localhost capacitor://localhost chrome-extension://mfhbbgkbpkmjbplkpkoigdlmmajmmhoj "+
		"moz-extension://* vscode-webview://* file:// null http://localhost:5173\n\t}\n}")
	preflight := func(origin string) (status int, allowed string) {
		resp, _ := h.do("OPTIONS", chatPath, "", "Authorization", "", "Origin", origin, "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization")
		return resp.StatusCode, resp.Header.Get("Access-Control-Allow-Origin")
	}
	for _, origin := range []string{"app://obsidian.md", "tauri://localhost", "capacitor://localhost", "chrome-extension://mfhbbgkbpkmjbplkpkoigdlmmajmmhoj", "file://", "null",
		"moz-extension://2b3e1c4a-9d3f-4a52-8d0a-7d2f3f1c6e55", "vscode-webview://0q1v2n3m4b5c6x7z8l9k0j1h2g3f4d5s", "http://localhost:5173"} {
		if status, allowed := preflight(origin); status != 204 || allowed != origin {
			t.Errorf("%s: %d %q", origin, status, allowed)
		}
	}
	for _, origin := range []string{"app://other", "app://obsidian.md.evil", "tauri://localhost2", "chrome-extension://aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "moz-extension://", "moz-extension:",
		"xmoz-extension://a", "vscode-webview", "file://x", "NULL", "https://evil.example.com", "http://localhost:5174", ""} {
		if status, allowed := preflight(origin); status != 405 || allowed != "" {
			t.Errorf("%q, which is not named: %d %q", origin, status, allowed)
		}
	}
}
