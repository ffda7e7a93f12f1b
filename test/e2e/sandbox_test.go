package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail/test/fixtures"
	hosttest "github.com/levelrail/levelrail/test/host"
)

// smolSHA256 is the checksum of the test weights.
const smolSHA256 = fixtures.WeightsSHA256

func llamaCpp(t testing.TB) string {
	t.Helper()
	path, err := fixtures.Get(t.Context(), fixtures.LlamaCpp)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// inside runs a script in the namespaces of a unit's main process, as that process's user would: its own root of files,
// its own network. It returns the output and whether the script ended well.
func inside(h *Host, unit, script string) (string, bool) {
	h.t.Helper()
	u := h.WaitActive(unit)
	out, errText, err := h.Exec(context.Background(), fmt.Sprintf(
		`uid=$(stat -c %%u /proc/%[1]d); nsenter -t %[1]d -m -n -- setpriv --reuid "$uid" --regid "$uid" --clear-groups bash -c '%[2]s' 2>&1`, u.MainPID, script))
	return out + errText, err == nil
}

// TestEngineSandbox: from inside an engine's namespaces there is no network, no other engine's socket and no other
// engine's weights; on the host only the gateway's user reaches an engine's socket.
func TestEngineSandbox(t *testing.T) {
	for _, suite := range []hosttest.Suite{hosttest.Bookworm, hosttest.Forky} {
		t.Run(string(suite), func(t *testing.T) {
			opts := []hosttest.Option{hosttest.WithWeights()}
			if suite != hosttest.Forky { // Debian 14 has the engine as a package
				opts = append(opts, hosttest.WithEngine(hosttest.LlamaCpp))
			}
			h := Install(t, suite, opts...)
			h.Deploy(deployChat)
			h.Deploy("--name other --engine llamacpp --gpus none --context 512 --model " + hosttest.WeightsPath)
			unit := "levelrail-model-chat.service"

			if out, ok := inside(h, unit, `test -r /var/lib/levelrail/weights/chat/*.gguf && ls /run/levelrail/engines/chat/engine.sock`); !ok {
				t.Errorf("the engine does not see what is its own: %s", out)
			}
			for what, script := range map[string]string{
				"another engine's socket":  `ls -d /run/levelrail/engines/other`,
				"the list of engines":      `ls /run/levelrail/engines | grep -v "^chat$"`,
				"another engine's weights": `ls -d /var/lib/levelrail/weights/other`,
				"the store of weights":     `ls -d /var/lib/levelrail/weights/.blobs`,
				"the server's data":        `ls -d /var/lib/levelrail/server /var/lib/levelrail/agent | grep .`,
				"the API's socket":         `ls /run/levelrail/api.sock`,
				"writing its weights":      `touch /var/lib/levelrail/weights/chat/x`,
				"the network":              `timeout 2 bash -c "echo > /dev/tcp/127.0.0.1/7421"`,
				"a network interface":      `grep -v -e "lo:" -e "|" /proc/net/dev | grep .`,
				"a GPU's device node":      `ls /dev/nvidia0`,
			} {
				if out, ok := inside(h, unit, script); ok {
					t.Errorf("an engine reaches %s: %s", what, out)
				}
			}

			connect := func(user string) (string, error) {
				out, errText, err := h.Exec(context.Background(),
					"setpriv --reuid "+user+" --regid "+user+" --init-groups curl -sS --max-time 5 --unix-socket /run/levelrail/engines/chat/engine.sock http://localhost/health 2>&1")
				return out + errText, err
			}
			if out, err := connect("levelrail-gateway"); err != nil || !strings.Contains(out, "ok") {
				t.Errorf("the gateway's user cannot reach the engine: %s %v", out, err)
			}
			for _, user := range []string{"nobody", "levelrail", "daemon"} {
				if out, err := connect(user); err == nil {
					t.Errorf("the user %s reaches the engine: %s", user, out)
				}
			}
		})
	}
}

// TestOllamaIsSealed: Ollama serves behind its door on every Debian, and from inside its unit it can neither pull nor
// delete.
func TestOllamaIsSealed(t *testing.T) {
	for _, suite := range []hosttest.Suite{hosttest.Bookworm, hosttest.Trixie} {
		t.Run(string(suite), func(t *testing.T) {
			h := Install(t, suite, hosttest.WithEngine(hosttest.Ollama), hosttest.WithWeights())
			key := h.Deploy("--name smol --engine ollama --gpus none --context 2048 --model " + hosttest.WeightsPath)
			if res, body := h.Ask("POST", "/v1/chat/completions", key, Chat("smol", 5, false)); res.StatusCode != 200 || !strings.Contains(body, `"completion_tokens"`) {
				t.Fatalf("chat: %s %s", res.Status, body)
			}
			unit := "levelrail-model-smol.service"
			ask := func(method, path, body string) string {
				// curl is on the host, which the unit's namespaces show read-only.
				out, _ := inside(h, unit, fmt.Sprintf(`curl -sS --max-time 20 -X %s http://127.0.0.1:11434%s -d "%s"`, method, path, strings.ReplaceAll(body, `"`, `\"`)))
				return out
			}
			if out := ask("GET", "/api/tags", ""); !strings.Contains(out, "smol") {
				t.Fatalf("Ollama does not answer inside its unit: %s", out)
			}
			if out := ask("POST", "/api/pull", `{"model":"smollm2:135m","stream":false}`); !strings.Contains(out, "error") {
				t.Errorf("a pull from inside the unit: %s", out)
			}
			if out := ask("DELETE", "/api/delete", `{"model":"smol"}`); !strings.Contains(out, "error") {
				t.Errorf("a delete from inside the unit: %s", out)
			}
			if res, body := h.Ask("POST", "/v1/chat/completions", key, Chat("smol", 5, false)); res.StatusCode != 200 {
				t.Errorf("chat after that: %s %s", res.Status, body)
			}
			for _, path := range []string{"/api/tags", "/api/pull", "/api/delete", "/v1/chat/completions/../../api/tags"} {
				if res, body := h.Ask("POST", path, key, "{}"); res.StatusCode != 404 {
					t.Errorf("%s through the gateway: %s %s", path, res.Status, body)
				}
			}
			// The engine dies and comes back behind the same door.
			h.Kill9(h.WaitActive(unit).MainPID)
			h.Eventually("Ollama to serve again", 90*time.Second, func() error {
				res, err := h.Send(context.Background(), "POST", "/v1/chat/completions", key, Chat("smol", 2, false))
				if err != nil {
					return err
				}
				defer res.Body.Close()
				if res.StatusCode != 200 {
					return fmt.Errorf("answered with %s", res.Status)
				}
				return nil
			})
		})
	}
}
