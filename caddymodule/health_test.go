package caddymodule

import "testing"

// TestHealth: whoever asks whether the gateway serves needs no key, under any host name, and learns nothing else: no model
// is named, woken or counted, and the journal does not fill.
func TestHealth(t *testing.T) {
	h := newHost(t)
	own := h.route("own")
	own.Domain = "own.example.com"
	h.cp.putRoute(own)
	h.eventually("the domain is known", func() bool {
		resp, _ := h.do("POST", chatPath, `{}`, "Host", "own.example.com")
		return resp.StatusCode == 401
	})
	seen := len(h.records())
	for _, path := range []string{"/health", "/healthz", "/ping", "/health?verbose=1"} {
		for _, host := range []string{"", "own.example.com", "elsewhere.example.com"} {
			for _, method := range []string{"GET", "HEAD"} {
				headers := []string{"Authorization", ""}
				if host != "" {
					headers = append(headers, "Host", host)
				}
				resp, body := h.do(method, path, "", headers...)
				want := `{"status":"ok"}`
				if method == "HEAD" {
					want = ""
				}
				if resp.StatusCode != 200 || body != want || resp.Header.Get("Content-Type") != "application/json" || resp.Header.Get("Server") != "" || resp.ContentLength != 15 {
					t.Errorf("%s %s of %q: %d %q %v", method, path, host, resp.StatusCode, body, resp.Header)
				}
			}
		}
	}
	resp, body := h.do("GET", "/health", "", "Authorization", "Bearer lr-wrong")
	if resp.StatusCode != 200 || body != `{"status":"ok"}` {
		t.Errorf("with a wrong key: %d %s", resp.StatusCode, body)
	}
	resp, body = h.do("POST", "/health", `{"x":1}`)
	h.refused(resp, body, 405, "method_not_allowed")
	if resp.Header.Get("Allow") != "GET, HEAD" {
		t.Errorf("Allow: %q", resp.Header.Get("Allow"))
	}
	for _, path := range []string{"/Health", "/health/", "//health", "/%68ealth", "/v1/health", "/healthx"} {
		resp, body := h.do("GET", path, "", "Authorization", "")
		h.refused(resp, body, 404, "unknown_url")
	}
	if n := len(h.engine.requests()); n != 0 {
		t.Errorf("%d requests reached an engine", n)
	}
	// The six paths that nothing serves have a line each; those that were asked for the health have none.
	h.eventually("the lines of what is no such path", func() bool { return len(h.records()) >= seen+6 })
	for _, r := range h.records()[seen:] {
		if r["method"] == "POST" { // of what came before this test asked for anything, written late
			continue
		}
		if r["status"] != float64(404) {
			t.Errorf("a line for a question about health: %v", r)
		}
	}
}

// TestHealthUnknown: a gateway that has never heard of any key does not serve.
func TestHealthUnknown(t *testing.T) {
	h := prepareHost(t)
	h.cp.stop()
	h.load()
	resp, body := h.do("GET", "/health", "")
	if resp.StatusCode != 503 || body != `{"status":"starting"}` || resp.Header.Get("Retry-After") == "" {
		t.Errorf("%d %s %v", resp.StatusCode, body, resp.Header)
	}
}
