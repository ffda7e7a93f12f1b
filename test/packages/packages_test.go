// Package packages tests the Debian packages as an operator meets them: apt on a clean host, the units and users that are
// there afterwards, what an upgrade, a removal and a purge leave. It owns what its tests share.
//
// The packages come from dist/ (make deb), or from $LEVELRAIL_DIST. What the daemons do once they run is tested in
// test/e2e.
package packages

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	hosttest "github.com/levelrail/levelrail/test/host"
)

var (
	sockets  = []string{"levelrail-server-api.socket", "levelrail-server-gateway.socket", "levelrail-server-agent.socket"}
	services = []string{"levelrail-server.service", "levelrail-agent.service", "levelrail-gateway.service"}
)

// dist is the directory of the packages under test.
func dist() string {
	if dir := os.Getenv("LEVELRAIL_DIST"); dir != "" {
		return dir
	}
	return filepath.Join("..", "..", "dist")
}

// debs returns the packages of these names, all of them for none.
func debs(t testing.TB, names ...string) []string {
	t.Helper()
	if len(names) == 0 {
		names = []string{"levelrail-cli", "levelrail-server", "levelrail-agent", "levelrail-gateway", "levelrail"}
	}
	var paths []string
	for _, name := range names {
		found, _ := filepath.Glob(filepath.Join(dist(), name+"_*_amd64.deb"))
		if len(found) != 1 {
			t.Fatalf("%s has %d packages named %s_*_amd64.deb, want one; run make deb", dist(), len(found), name)
		}
		paths = append(paths, found[0])
	}
	return paths
}

// newer is a later version of a package, see hosttest.NewerDeb.
func newer(t testing.TB, deb, program string) string { return hosttest.NewerDeb(t, deb, program) }

// install boots a clean host with these packages, all of them for none, and waits for their daemons.
func install(t testing.TB, suite hosttest.Suite, names ...string) *hosttest.Host {
	t.Helper()
	h := hosttest.New(t, suite)
	h.InstallDebs(debs(t, names...)...)
	for _, unit := range services {
		name := strings.TrimSuffix(unit, ".service")
		if len(names) == 0 || slices.Contains(names, name) {
			h.WaitActive(unit)
		}
	}
	return h
}

// pid is the main process of a unit, which must run.
func pid(t testing.TB, h *hosttest.Host, unit string) int {
	t.Helper()
	u, err := h.Show(t.Context(), unit)
	if err != nil || u.MainPID == 0 {
		t.Fatalf("%s has no process: %s (%s), %v", unit, u.ActiveState, u.SubState, err)
	}
	return u.MainPID
}

// engine puts a unit like those of the agent into a host and starts it: a sleeping program, with the agent's mark.
func engine(h *hosttest.Host, name string) string {
	unit := "levelrail-model-" + name + ".service"
	h.Run(`cat >/etc/systemd/system/` + unit + ` <<'END'
[Unit]
Description=An engine as the agent writes it
X-Levelrail-Hash=0123456789abcdef
[Service]
Slice=levelrail-engines.slice
ExecStart=/bin/sleep infinity
[Install]
WantedBy=levelrail-engines.target
END
systemctl daemon-reload
systemctl -q enable --now ` + unit)
	return unit
}
