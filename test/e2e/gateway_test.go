package e2e

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	hosttest "github.com/levelrail/levelrail/test/host"
)

// newKey makes a key of chat with some limits.
func newKey(h *Host, name, flags string) (id, secret string) {
	h.t.Helper()
	var k struct {
		ID, Secret, Name string
	}
	h.JSON(&k, "models keys create chat --name "+name+" "+flags)
	if k.ID == "" || k.Secret == "" || k.Name != name {
		h.t.Fatalf("the key is %+v", k)
	}
	// What the control plane knows reaches every gateway within a second.
	h.Eventually("the gateway to know the key "+name, time.Second, func() error {
		if res, body := h.Ask("GET", "/v1/models", k.Secret, ""); res.StatusCode != http.StatusOK {
			return fmt.Errorf("answered with %s %s", res.Status, body)
		}
		return nil
	})
	return k.ID, k.Secret
}

// TestGatewayKeys: what a key may do, what it did and that it ends, on an installed host: a limit refuses and never says
// which it was, the operator is told, usage is there within the flush interval, a request in flight is seen and ended, and
// a revoked key opens nothing once the command has ended, within a second.
func TestGatewayKeys(t *testing.T) {
	h := Install(t, hosttest.Trixie, hosttest.WithEngine(hosttest.LlamaCpp), hosttest.WithWeights())
	h.Run("echo APP_MODEL_USAGE_FLUSH_INTERVAL=1s >>/etc/default/levelrail-server && systemctl restart levelrail-server")
	h.Deploy(deployChat)
	ask := func(key string) (*http.Response, string) {
		t.Helper()
		return h.Ask("POST", "/v1/chat/completions", key, Chat("chat", 4, false))
	}

	t.Run("limits", func(t *testing.T) {
		id, key := newKey(h, "few", "--rpm 2")
		for i := range 2 {
			if res, body := ask(key); res.StatusCode != http.StatusOK {
				t.Fatalf("request %d was answered with %s %s", i+1, res.Status, body)
			}
		}
		res, body := ask(key)
		if wait, err := strconv.Atoi(res.Header.Get("Retry-After")); res.StatusCode != http.StatusTooManyRequests || err != nil || wait < 1 {
			t.Errorf("the third was answered with %s, Retry-After %q: %s", res.Status, res.Header.Get("Retry-After"), body)
		}
		for _, word := range []string{"rpm", "minute", "few", key} {
			if strings.Contains(strings.ToLower(body), word) {
				t.Errorf("the refusal says %q: %s", word, body)
			}
		}
		if words, _ := h.CLI("models explain chat --key " + id); !strings.Contains(words, "last refused by its limit rpm: 2 requests a minute") || !strings.Contains(words, "passes again in") {
			t.Errorf("explain says\n%s", words)
		}
		var why struct {
			RefusedBy struct {
				Limit        string
				ResetSeconds int64 `json:"reset_seconds"`
			} `json:"refused_by"`
		}
		if h.JSON(&why, "models explain chat --key "+id); why.RefusedBy.Limit != "rpm" || why.RefusedBy.ResetSeconds < 1 || why.RefusedBy.ResetSeconds > 62 { // a minute, in windows of a second
			t.Errorf("explain: %+v", why)
		}

		h.Eventually("the usage to be there", 3*time.Second, func() error {
			var raw struct {
				Keys []struct {
					KeyID string         `json:"key_id"`
					Usage map[string]any `json:"usage"`
				} `json:"keys"`
			}
			h.JSON(&raw, "models usage chat --since 1h")
			for _, k := range raw.Keys {
				if k.KeyID != id {
					continue
				}
				n := func(name string) int64 { f, _ := k.Usage[name].(float64); return int64(f) }
				if n("requests") == 3 && n("requests_2xx") == 2 && n("requests_limited") == 1 && n("usage_requests") == 2 && n("output_tokens") > 0 {
					return nil
				}
				return fmt.Errorf("it is %v", k.Usage)
			}
			return fmt.Errorf("the key is not in %+v", raw)
		})
		var keys struct {
			Items []struct {
				ID         string
				LastUsedAt *time.Time `json:"last_used_at"`
			}
		}
		h.JSON(&keys, "models keys list chat")
		for _, k := range keys.Items {
			if k.ID == id && (k.LastUsedAt == nil || time.Since(*k.LastUsedAt) > 5*time.Minute) {
				t.Errorf("the key was last used at %v", k.LastUsedAt)
			}
		}
	})

	t.Run("paths and models", func(t *testing.T) {
		_, key := newKey(h, "narrow", "--allow-paths /v1/chat/completions,/v1/models --allow-models chat")
		if res, body := ask(key); res.StatusCode != http.StatusOK {
			t.Errorf("what it may: %s %s", res.Status, body)
		}
		if res, body := h.Ask("POST", "/v1/completions", key, `{"model":"chat","prompt":"x","max_tokens":1}`); res.StatusCode != http.StatusForbidden || !strings.Contains(body, "path_not_allowed") {
			t.Errorf("another path: %s %s", res.Status, body)
		}
		_, other := newKey(h, "other", "--allow-models other")
		if res, body := ask(other); res.StatusCode != http.StatusForbidden || !strings.Contains(body, "model_not_allowed") {
			t.Errorf("another model: %s %s", res.Status, body)
		}
		if _, stderr, code := h.Try("models keys create chat --name x --allow-paths /props"); code != 4 || !strings.Contains(stderr, "/v1/chat/completions") {
			t.Errorf("a path that no gateway serves: %d %s", code, stderr)
		}
	})

	t.Run("in flight", func(t *testing.T) {
		_, key := newKey(h, "long", "")
		s := openStream(t, h, key, longChat(4000))
		for range 3 {
			s.next(t, "at its begin")
		}
		var flying struct {
			Items []struct {
				ID, State string
				KeyPrefix string `json:"key_prefix"`
				Tokens    int64  `json:"tokens_so_far"`
			}
		}
		h.JSON(&flying, "models requests chat")
		if len(flying.Items) != 1 || flying.Items[0].State != "answering" || flying.Items[0].KeyPrefix != key[:8] || flying.Items[0].Tokens < 1 {
			t.Fatalf("in flight: %+v", flying)
		}
		h.CLI("models requests cancel chat " + flying.Items[0].ID)
		for last := ""; ; {
			e, ok := s.next(t, "after it was cancelled")
			if !ok {
				if last == "[DONE]" || s.err == nil {
					t.Errorf("a cancelled stream ended as if it was whole: %q, %v", last, s.err)
				}
				break
			}
			last = e
		}
		if _, _, code := h.Try("models requests cancel chat " + flying.Items[0].ID); code != 3 {
			t.Errorf("cancelled again: exit code %d", code)
		}
	})

	t.Run("rotate and revoke", func(t *testing.T) {
		id, old := newKey(h, "ci", "")
		var next struct{ ID, Secret string }
		h.JSON(&next, "models keys rotate chat "+id+" --grace 10m")
		h.Eventually("the new key to open the model", time.Second, func() error {
			if res, body := ask(next.Secret); res.StatusCode != http.StatusOK {
				return fmt.Errorf("%s %s", res.Status, body)
			}
			return nil
		})
		if res, body := ask(old); res.StatusCode != http.StatusOK {
			t.Errorf("the old key in its grace: %s %s", res.Status, body)
		}
		var gone struct {
			Gateways, Silent []string
		}
		began := time.Now()
		h.JSON(&gone, "models keys revoke chat "+next.ID)
		took := time.Since(began)
		if res, body := ask(next.Secret); res.StatusCode != http.StatusUnauthorized {
			t.Errorf("the revoked key: %s %s", res.Status, body)
		}
		if len(gone.Gateways) != 1 || took > time.Second {
			t.Errorf("the revocation took %s and reached %v", took, gone.Gateways)
		}
		t.Logf("revoked, and refused by the gateway, after %s with the command's own start", took.Round(time.Millisecond))
	})

	t.Run("rotate at once", func(t *testing.T) {
		id, old := newKey(h, "leaked", "--rpm 7 --max-parallel 3 --allow-paths /v1/chat/completions,/v1/models")
		var next struct {
			ID, Secret, Name string
			Limits           map[string]int64
			AllowPaths       []string `json:"allow_paths"`
		}
		h.JSON(&next, "models keys rotate chat "+id+" --grace 0")
		h.Eventually("the old key to be refused", time.Second, func() error {
			if res, body := ask(old); res.StatusCode != http.StatusUnauthorized {
				return fmt.Errorf("%s %s", res.Status, body)
			}
			return nil
		})
		h.Eventually("the new key to open the model", time.Second, func() error {
			if res, body := ask(next.Secret); res.StatusCode != http.StatusOK {
				return fmt.Errorf("%s %s", res.Status, body)
			}
			return nil
		})
		if next.ID == id || next.Name != "leaked" || next.Limits["rpm"] != 7 || next.Limits["max_parallel"] != 3 || len(next.AllowPaths) != 2 {
			t.Errorf("the new key is %+v", next)
		}
	})

	t.Run("a gateway that does not answer", func(t *testing.T) {
		id, key := newKey(h, "stolen", "")
		pid := h.WaitActive("levelrail-gateway.service").MainPID
		h.Run(fmt.Sprintf("kill -STOP %d", pid))
		began := time.Now()
		stdout, stderr, code := h.Try("models keys revoke chat " + id + " --yes")
		took := time.Since(began)
		flying, notes, _ := h.Try("models requests chat")
		h.Run(fmt.Sprintf("kill -CONT %d", pid))
		if code != 6 || !strings.Contains(stderr, "gw_") || !strings.Contains(stderr, "may still take it") || took < time.Second || took > 4*time.Second {
			t.Errorf("the revocation ended with %d after %s:\n%s\n%s", code, took, stdout, stderr)
		}
		if !strings.Contains(notes, "gw_") {
			t.Errorf("who flies is told as if every gateway had said so:\n%s\n%s", flying, notes)
		}
		h.Eventually("the gateway to refuse it once it goes on", 2*time.Second, func() error {
			if res, body := ask(key); res.StatusCode != http.StatusUnauthorized {
				return fmt.Errorf("%s %s", res.Status, body)
			}
			return nil
		})
		if again := h.WaitActive("levelrail-gateway.service").MainPID; again != pid {
			t.Errorf("the gateway is another process: %d, was %d", again, pid)
		}
	})
}
