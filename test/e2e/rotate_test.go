package e2e

import (
	"net/http"
	"strings"
	"testing"

	hosttest "github.com/levelrail/levelrail/test/host"
)

// TestRotations: the master key and the authority are rotated on a running host: the engine keeps its process, the gateway
// serves, the key files change; an engine's key is rotated by a restart of that engine, and its old key opens it no more.
func TestRotations(t *testing.T) {
	t.Parallel()
	h := Install(t, hosttest.Trixie, hosttest.WithEngine(hosttest.LlamaCpp), hosttest.WithWeights())
	key := h.Deploy("--name chat --engine llamacpp --gpus none --context 512 --model " + hosttest.WeightsPath)
	serves := func(after string) {
		t.Helper()
		if res, body := h.Ask("POST", "/v1/chat/completions", key, Chat("chat", 2, false)); res.StatusCode != http.StatusOK {
			t.Errorf("after %s: %s %s", after, res.Status, body)
		}
	}
	read := func(path string) string { return strings.TrimSpace(h.Run("cat " + path)) }
	const master, ca = "/var/lib/levelrail/server/master.key", "/var/lib/levelrail/server/tls/ca.pem"
	engine, oldMaster, oldCA := h.Get("chat").Replicas[0].MainPID, read(master), read(ca)

	h.Run("levelrail-server rotate-master-key")
	if now := read(master); now == oldMaster || len(now) != 64 {
		t.Error("the master key's file holds the old key, or no key")
	}
	if got := strings.TrimSpace(h.Run("stat -c '%U %a' " + master + "; ls /var/lib/levelrail/server")); !strings.HasPrefix(got, "levelrail 600") || strings.Contains(got, "next") {
		t.Errorf("the key's file: %s", got)
	}
	serves("the rotation of the master key")
	h.Run("levelrail-server rotate-authority")
	if read(ca) == oldCA {
		t.Error("the authority is the old one")
	}
	h.Run("curl -sS --cacert " + ca + " https://127.0.0.1:7420/api/v1/ca.pem >/dev/null")
	serves("the rotation of the authority")
	if m := h.Get("chat"); m.Replicas[0].MainPID != engine {
		t.Errorf("the engine was restarted: %d, then %d", engine, m.Replicas[0].MainPID)
	}

	const engineKey = "/var/lib/levelrail/agent/credentials/chat/engine-key"
	old := read(engineKey)
	h.CLI("models rotate-engine-key chat --wait --timeout 4m")
	if m := h.Get("chat"); m.Replicas[0].MainPID == engine {
		t.Error("the engine has its old process, and with it its old key")
	}
	serves("the rotation of the engine's key")
	status := func(key string) string {
		return strings.TrimSpace(h.Run("curl -sS -o /dev/null -w '%{http_code}' --unix-socket /run/levelrail/engines/chat/engine.sock -H 'Authorization: Bearer " + key + "' http://localhost/v1/models -X POST -d '{}' http://localhost/v1/completions | tail -c 3"))
	}
	if got := status(old); got != "401" {
		t.Errorf("the engine's old key gets %s", got)
	}
	if got := status(read(engineKey)); got == "401" {
		t.Error("the engine's new key gets 401")
	}
}
