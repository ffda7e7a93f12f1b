package hostile

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestPlantedLinks: whoever has taken over the gateway, the control plane or an engine puts links in the place of what lies in
// its own directory. Nothing that root runs is led through them: not the programs' own commands, not the agent, not the
// maintainer scripts.
func TestPlantedLinks(t *testing.T) {
	t.Parallel()
	w := New(t)
	// Each name leads to a file that is there or to one that could be made.
	plant := func(user, dir string, names ...string) {
		t.Helper()
		for _, name := range names {
			victim := fmt.Sprintf("/root/victims/%s%s", user, strings.ReplaceAll(name, "/", "_"))
			w.Run(fmt.Sprintf("install -d -m 0700 /root/victims && echo precious >%s", victim))
			if out, err := w.As(user, fmt.Sprintf("cd %s && rm -rf %[2]s && ln -s %[3]s %[2]s && ln -sf %[3]s-made %[2]s.new", dir, name, victim)); err != nil {
				t.Fatalf("plant %s: %v: %s", name, err, out)
			}
		}
		w.Run("mkdir -p /root/victims/" + user + "-directory && echo precious >/root/victims/" + user + "-directory/file")
		if out, err := w.As(user, fmt.Sprintf("cd %s && ln -s /root/victims/%s-directory directory", dir, user)); err != nil {
			t.Fatalf("plant a directory: %v: %s", err, out)
		}
	}
	state := func() string {
		return w.Run(`cd /root/victims && find . -printf "%p %u %m %s %T@\n" | sort; cat $(find . -type f)`)
	}
	foreign := func() string {
		return w.Run(`find /var/lib/levelrail/gateway /var/lib/levelrail/server -user root ! -name .replace`)
	}
	plant("levelrail-gateway", "/var/lib/levelrail/gateway", ".replace", ".main", ".lockb", "gateway-id", "id", "table.jsonl", "usage.json", "limits.jsonl", "caddy/pki", "autosave.json")
	plant("levelrail", "/var/lib/levelrail/server", "store/snapshots", "tls", "master.key", "state.db")
	before, owned := state(), foreign()

	for _, command := range []string{"levelrail-gateway replace", "levelrail-gateway validate", "levelrail-gateway adapt --validate", "levelrail-gateway public on",
		"levelrail-gateway public off", "levelrail-gateway storage export --config /etc/levelrail/Caddyfile --output -", "timeout 20 levelrail-gateway run",
		"timeout 20 levelrail-gateway start", "timeout 20 levelrail-server", "timeout 20 levelrail-server run"} {
		_, errText, err := w.Exec(context.Background(), command+" >/dev/null")
		reached := ""
		if after := state(); after != before {
			reached = "files of root's: " + after
			before = after
		}
		w.Attempt(Gateway, "lead "+command+", run by root, through links", reached)
		reached = ""
		if now := foreign(); now != owned {
			reached = "files of root's in its own directory: " + now
			owned = now
		}
		w.Attempt(Gateway, "have "+command+" leave files there", reached)
		if serves := strings.HasSuffix(command, " run") || strings.HasSuffix(command, " start") || command == "timeout 20 levelrail-server"; serves &&
			(err == nil || !strings.Contains(errText, "systemctl start levelrail-")) {
			t.Errorf("%s by root says %v: %s", command, err, errText)
		}
	}
	if kind := strings.TrimSpace(w.Run("stat -c %F /var/lib/levelrail/gateway/.replace 2>/dev/null || echo gone")); kind != "symbolic link" && kind != "gone" {
		t.Errorf("the planted link became a %s", kind)
	}

	// An engine's own socket leads to one that root alone reaches: it would hear of whoever connects.
	w.Run("systemd-run --unit=trap --socket-property=ListenStream=/run/trap.sock --socket-property=SocketMode=0600 /bin/true")
	unit := w.WaitActive("levelrail-model-chat.service")
	w.Run(fmt.Sprintf(`uid=$(stat -c %%u /proc/%d); setpriv --reuid "$uid" --regid "$uid" --clear-groups -- sh -c 'cd /run/levelrail/engines/chat && rm engine.sock && ln -s /run/trap.sock engine.sock' 2>&1 ||
		nsenter -t %[1]d -m -- setpriv --reuid "$uid" --regid "$uid" --clear-groups -- sh -c 'cd /run/levelrail/engines/chat && rm engine.sock && ln -s /run/trap.sock engine.sock'`, unit.MainPID))
	w.Eventually("the agent to find the engine unreachable", time.Minute, func() error {
		if m := w.Get("chat"); m.Condition.Ready {
			return fmt.Errorf("it is ready")
		}
		return nil
	})
	reached := ""
	if ran := strings.TrimSpace(w.Run("systemctl show trap.service --property=InactiveEnterTimestampMonotonic --value")); ran != "0" && ran != "" {
		reached = "a socket of root's"
	}
	w.Attempt(Engine, "lead the agent to another socket", reached)

	w.Run("DEBIAN_FRONTEND=noninteractive apt-get -y purge 'levelrail*'")
	reached = ""
	if after := state(); after != before {
		reached = "files of root's: " + after
	}
	w.Attempt(Gateway, "lead the purge of the packages through links", reached)
	if left := w.Run("ls -A /var/lib/levelrail 2>/dev/null || true"); left != "" {
		t.Errorf("the purge leaves %s", left)
	}
}
