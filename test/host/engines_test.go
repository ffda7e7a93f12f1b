package hosttest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// sandbox is what engine units live under; a bundle that runs in it runs in Levelrail's units.
const sandbox = `DynamicUser=yes
PrivateNetwork=yes
IPAddressDeny=any
IPAddressAllow=localhost
DevicePolicy=closed
PrivateDevices=yes
PrivateTmp=yes
PrivateUsers=yes
ProtectSystem=strict
ProtectHome=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
ProtectProc=invisible
NoNewPrivileges=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
CapabilityBoundingSet=
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
SystemCallArchitectures=native
RemoveIPC=yes
KeyringMode=private
`

// TestLlamaServerRunsEverywhere: the bundle on Debian 12 and 13 and Debian's package on 14 serve the test weights on a
// Unix socket from inside an engine's sandbox.
func TestLlamaServerRunsEverywhere(t *testing.T) {
	for _, suite := range Suites {
		t.Run(string(suite), func(t *testing.T) {
			opts := []Option{WithWeights()}
			program := "/usr/bin/llama-server"
			if suite != Forky {
				opts = append(opts, WithEngine(LlamaCpp))
				program = LlamaCppProgram
			}
			unit := "[Service]\nType=exec\nRuntimeDirectory=engine\nRestrictAddressFamilies=AF_UNIX\nSystemCallFilter=~@resources\n" + sandbox +
				"ExecStart=" + program + " -m " + WeightsPath + " --host /run/engine/engine.sock -c 512\n"
			h := New(t, suite, append(opts, WithFile("/etc/systemd/system/levelrail-model-probe.service", unit, 0o644))...)
			h.Run("systemctl start levelrail-model-probe.service")
			began := time.Now()
			client := h.UnixClient("/run/engine/engine.sock")
			h.Eventually("llama-server to be ready", time.Minute, func() error {
				resp, err := client.Get("http://host/health")
				if err != nil {
					return err
				}
				defer resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					return fmt.Errorf("%s", resp.Status)
				}
				return nil
			})
			t.Logf("ready after %.1f s", time.Since(began).Seconds())
			text, tokens := ask(t, client)
			if text == "" || tokens != 8 {
				t.Errorf("%d tokens: %q", tokens, text)
			}
		})
	}
}

// TestOllamaRunsEverywhere: one ollama, built on the oldest Debian, starts on all three from inside an engine's sandbox.
func TestOllamaRunsEverywhere(t *testing.T) {
	for _, suite := range Suites {
		t.Run(string(suite), func(t *testing.T) {
			unit := "[Service]\nType=exec\nStateDirectory=ollama\nRestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK\n" + sandbox +
				"Environment=HOME=/var/lib/ollama OLLAMA_MODELS=/var/lib/ollama/models OLLAMA_HOST=127.0.0.1:11434\n" +
				"ExecStart=" + OllamaProgram + " serve\n"
			h := New(t, suite, WithEngine(Ollama), WithFile("/etc/systemd/system/levelrail-model-probe.service", unit, 0o644))
			h.Run("systemctl start levelrail-model-probe.service")
			pid := h.WaitActive("levelrail-model-probe.service").MainPID
			h.Eventually("ollama to answer", 20*time.Second, func() error {
				// Its network is the unit's own, so ask from in there.
				out, _, err := h.Exec(t.Context(), fmt.Sprintf("nsenter -t %d -n curl -sS http://127.0.0.1:11434/api/version", pid))
				if err == nil && out != `{"version":"0.17.4"}` {
					err = fmt.Errorf("%q", out)
				}
				return err
			})
			if _, err := h.Dial("tcp", "127.0.0.1:11434"); err == nil {
				t.Error("the engine's port can be reached from outside its unit")
			}
		})
	}
}

// ask asks for eight tokens and returns the text and the usage counted.
func ask(t *testing.T, client *http.Client) (text string, tokens int) {
	t.Helper()
	resp, err := client.Post("http://host/v1/chat/completions", "application/json", strings.NewReader(
		`{"model":"any","messages":[{"role":"user","content":"Count from one to ten."}],"max_tokens":8,"temperature":0}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	var answer struct {
		Choices []struct{ Message struct{ Content string } }
		Usage   struct {
			CompletionTokens int `json:"completion_tokens"`
		}
	}
	if json.Unmarshal(body, &answer) != nil || len(answer.Choices) != 1 {
		t.Fatalf("%s %v: %s", resp.Status, err, body)
	}
	return answer.Choices[0].Message.Content, answer.Usage.CompletionTokens
}
