package caddymodule

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// failures are the lines about keys that opened nothing.
func (h *host) failures() (lines []string, fields []map[string]any) {
	h.t.Helper()
	b, err := os.ReadFile(h.logFile())
	if err != nil {
		h.t.Fatal(err)
	}
	for line := range bytes.Lines(b) {
		var m map[string]any
		if json.Unmarshal(line, &m) == nil && m["msg"] == "authentication failed" {
			lines, fields = append(lines, string(line)), append(fields, m)
		}
	}
	return lines, fields
}

// TestFailedKeys: a key that opens nothing leaves a line with the client's address as trusted proxies tell it, one a second
// with a count, and no line of its own for each request of a flood; the address is then answered late, and a good key from it
// at once. Other refusals name the address as well.
func TestFailedKeys(t *testing.T) {
	h := newHost(t, "servers {", "servers {\n\t\ttrusted_proxies static 127.0.0.1/32\n\t\tclient_ip_headers X-Forwarded-For")
	from := func(address, key string) (int, time.Duration) {
		t.Helper()
		began := time.Now()
		resp, _ := h.do("POST", chatPath, `{"model":"chat","messages":[]}`, "Authorization", key, "X-Forwarded-For", address)
		return resp.StatusCode, time.Since(began)
	}
	const wrong = "Bearer lr-wrong-0123456789"
	for range 10 {
		if status, _ := from("203.0.113.7", wrong); status != 401 {
			t.Fatalf("status %d", status)
		}
	}
	lines, fields := h.failures()
	if len(fields) == 0 || fields[0]["client"] != "203.0.113.7" || fields[0]["failures"] != float64(1) || fields[0]["why"] != "unknown" || fields[0]["level"] != "warn" {
		t.Fatalf("the lines %q", lines)
	}
	if !strings.Contains(lines[0], `,"logger":"levelrail","msg":"authentication failed","client":"203.0.113.7","failures":1,`) || strings.Contains(lines[0], "lr-") {
		t.Errorf("the line is %s", lines[0])
	}
	var slow time.Duration
	for range 6 {
		_, slow = from("203.0.113.7", wrong)
	}
	if slow < 500*time.Millisecond {
		t.Errorf("the sixteenth failure was answered after %s", slow)
	}
	if status, took := from("203.0.113.7", "Bearer "+h.key); status != 200 || took > slow/2 {
		t.Errorf("a good key from the same address: %d after %s", status, took)
	}
	if status, took := from("203.0.113.8", wrong); status != 401 || took > slow/2 {
		t.Errorf("another address: %d after %s", status, took)
	}

	// As many as there are seconds, and all in the counts.
	counted := 0.0
	h.eventually("all failures are counted", func() bool {
		from("203.0.113.7", wrong)
		counted = 0
		_, fields := h.failures()
		for _, f := range fields {
			if f["client"] == "203.0.113.7" {
				counted += f["failures"].(float64)
			}
		}
		return counted >= 17
	})
	quiet, told := 0, 0
	for _, r := range h.records() {
		if r["status"] == float64(401) {
			quiet++
		}
	}
	if _, fields := h.failures(); len(fields) < quiet {
		t.Errorf("%d request lines for %d lines about failures", quiet, len(fields))
	} else {
		told = len(fields)
	}
	if told > 14 {
		t.Errorf("%d lines for about 18 failures", told)
	}

	before := len(func() []string { l, _ := h.failures(); return l }())
	h.do("GET", "/v1/models", "", "Authorization", "", "X-Forwarded-For", "203.0.113.9")
	h.do("POST", chatPath, `{"model":"no-such","messages":[]}`, "X-Forwarded-For", "203.0.113.10", "X-Request-Id", "refused")
	if r := h.recordOf("refused"); r["client"] != "203.0.113.10" {
		t.Errorf("a refusal's line has the client %v", r["client"])
	}
	if l, _ := h.failures(); len(l) != before {
		t.Errorf("a request without a key, or with a good one, is a failure: %q", l[before:])
	}
}

// TestFailedKeysWhy: the line says what was wrong with a key, and of one that the gateway knows its prefix; the client is told
// nothing of it.
func TestFailedKeysWhy(t *testing.T) {
	h := newHost(t, "servers {", "servers {\n\t\ttrusted_proxies static 127.0.0.1/32")
	own := h.route("own")
	own.Domain = "own.example.com"
	h.cp.putRoute(own)
	h.eventually("the domain is known", func() bool {
		resp, _ := h.do("POST", chatPath, `{}`, "Host", "own.example.com", "X-Forwarded-For", "203.0.113.200")
		return resp.StatusCode == 401
	})
	secret := h.cp.newKey("key_old", "chat")
	past := time.Now().Add(-time.Hour)
	h.eventually("the key is known", func() bool {
		resp, _ := h.do("GET", "/v1/models", "", "Authorization", "Bearer "+secret, "X-Forwarded-For", "203.0.113.201")
		return resp.StatusCode == 200
	})
	h.cp.putKey(wire.RouteKey{ID: "key_old", SHA256: levelrail.HashSecret(secret), Prefix: levelrail.SecretPrefix(secret), Models: []string{"chat"}, ExpiresAt: &past})
	h.eventually("it has expired", func() bool {
		resp, _ := h.do("GET", "/v1/models", "", "Authorization", "Bearer "+secret, "X-Forwarded-For", "203.0.113.202")
		return resp.StatusCode == 401
	})
	bodies := map[string]bool{}
	for i, c := range []struct{ host, authorization, why, key string }{
		{"", "Bearer lr-nobody", "unknown", ""},
		{"", "Bearer " + secret, "expired", levelrail.SecretPrefix(secret)},
		{"own.example.com", "Bearer " + h.key, "other_model", levelrail.SecretPrefix(h.key)},
		{"", "Basic eDp5", "malformed", ""},
	} {
		address := fmt.Sprintf("203.0.113.%d", 50+i)
		headers := []string{"Authorization", c.authorization, "X-Forwarded-For", address}
		if c.host != "" {
			headers = append(headers, "Host", c.host)
		}
		resp, body := h.do("POST", chatPath, chatBody, headers...)
		h.refused(resp, body, 401, "invalid_api_key")
		if c.why != "malformed" {
			bodies[body] = true
		}
		found := false
		h.eventually("a line for "+c.why, func() bool {
			_, fields := h.failures()
			for _, f := range fields {
				if f["client"] == address {
					found = f["why"] == c.why && f["key"] == c.key && f["route"] == chatPath
					return true
				}
			}
			return false
		})
		if !found {
			l, _ := h.failures()
			t.Errorf("%s: %q", c.why, l)
		}
	}
	if len(bodies) != 1 {
		t.Errorf("the client is told %v", bodies)
	}
}
