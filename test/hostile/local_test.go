package hostile

import (
	"fmt"
	"strings"
	"testing"
)

// TestLocalUser: an account without any group reaches no socket, state, secret or process of Levelrail on its host.
func TestLocalUser(t *testing.T) {
	t.Parallel()
	w := New(t)
	sockets := strings.Fields(w.Run("find /run/levelrail -type s"))
	if len(sockets) < 4 {
		t.Fatalf("there are only these sockets to try: %v", sockets)
	}
	for _, socket := range sockets {
		w.Refused(LocalUser, "mallory", "connect to "+socket, fmt.Sprintf("curl -sS --max-time 5 --unix-socket %s http://localhost/", socket))
	}
	for _, path := range []string{"/var/lib/levelrail/server", "/var/lib/levelrail/agent", "/var/lib/levelrail/gateway", "/var/lib/levelrail/weights",
		"/run/levelrail/engines", "/run/levelrail-agent"} {
		w.Refused(LocalUser, "mallory", "list "+path, "ls "+path)
	}
	for _, path := range strings.Fields(w.Run("ls -d /etc/default/levelrail-*")) {
		w.Refused(LocalUser, "mallory", "read "+path, "cat "+path)
	}
	w.Refused(LocalUser, "mallory", "use the command line", "levelrail models list")
	w.Refused(LocalUser, "mallory", "read the environment of a daemon", `for p in $(pgrep levelrail); do head -c 1 /proc/$p/environ && exit 0; done; exit 1`)
	w.Refused(LocalUser, "mallory", "stop the engine", "systemctl --no-ask-password stop levelrail-model-chat.service")
	engineKey := strings.TrimSpace(w.Run("cat /var/lib/levelrail/agent/credentials/chat/engine-key"))
	if len(engineKey) < 16 {
		t.Fatalf("the engine's key has %d characters", len(engineKey))
	}
	for where, script := range map[string]string{
		"all command lines":                       "cat /proc/[0-9]*/cmdline | tr '\\0' ' '",
		"what systemd shows of all units":         "systemctl show '*' --no-pager",
		"unit files and configuration":            "cat /etc/systemd/system/levelrail-* /etc/levelrail/Caddyfile; systemctl cat 'levelrail-*' --no-pager",
		"all files below /run, /tmp and /var/log": "find /run /tmp /var/log /var/tmp -type f -readable -exec cat {} + ",
		"the journal":                             "journalctl --no-pager -o verbose",
	} {
		output, _ := w.As("mallory", script+" 2>/dev/null")
		for secret, value := range map[string]string{"the engine's key": engineKey, "the client's key": w.Key} {
			reached := ""
			if strings.Contains(output, value) {
				reached = secret
			}
			w.Attempt(LocalUser, "find "+secret+" in "+where, reached)
		}
	}
}
