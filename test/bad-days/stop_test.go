package baddays

import (
	"strings"
	"testing"

	"github.com/levelrail/levelrail/test/e2e"
	hosttest "github.com/levelrail/levelrail/test/host"
)

// TestServerIsStoppedAsOne: "systemctl stop 'levelrail-server*'" stops sockets and service, however many agents, gateways and
// commands connect meanwhile: a connection to the socket that is asked last does not start the others again.
func TestServerIsStoppedAsOne(t *testing.T) {
	t.Parallel()
	h := e2e.Install(t, hosttest.Trixie)
	h.Run("mkdir -p /root/bin && cat >/root/bin/caller <<'EOF'\nwhile :; do for s in api gateway agent; do curl -s --max-time 1 --unix-socket /run/levelrail/$s.sock http://localhost/api/v1/ca.pem >/dev/null; done; done\nEOF")
	caller := h.Start("/bin/bash", "/root/bin/caller")
	defer caller.Kill()
	out := h.Run(`for i in $(seq 15); do
		systemctl stop 'levelrail-server*' 2>&1 || echo "stop $i failed"
		systemctl is-active levelrail-server.service levelrail-server-{api,gateway,agent}.socket | grep -vx inactive && echo "after stop $i something runs"
		systemctl start levelrail-server.service 2>&1 || echo "start $i failed"
	done; true`)
	if strings.TrimSpace(out) != "" {
		t.Errorf("%s", out)
	}
}
