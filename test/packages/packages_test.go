// Package packages tests the Debian packages as an operator meets them: apt on a clean host, the units and users that are
// there afterwards, what an upgrade, a removal and a purge leave. It owns what its tests share.
//
// The packages come from dist/ (make deb), or from $LEVELRAIL_DIST. What the daemons do once they run is tested in
// test/e2e.
package packages

import (
	"os"
	"os/exec"
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

// newer makes a copy of a package with a later version and, where program is given, with another text appended to that
// program, which still runs but is another file. That is what an upgrade looks like to dpkg and to maintainer scripts.
func newer(t testing.TB, deb, program string) string {
	t.Helper()
	dir := t.TempDir()
	tree := filepath.Join(dir, "tree")
	command(t, "dpkg-deb", "-R", deb, tree)
	control := filepath.Join(tree, "DEBIAN", "control")
	text, err := os.ReadFile(control)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		switch key, value, _ := strings.Cut(line, ": "); key {
		case "Version":
			line = "Version: " + strings.TrimSpace(value) + "+later\n"
		case "Depends", "Recommends":
			// Exact versions among our packages: the others stay as they are.
			line = ""
		}
		lines = append(lines, line)
	}
	if err := os.WriteFile(control, []byte(strings.Join(lines, "")), 0o644); err != nil {
		t.Fatal(err)
	}
	// nfpm leaves an empty list where there is none, which dpkg-deb reads and does not write.
	conffiles := filepath.Join(tree, "DEBIAN", "conffiles")
	if list, err := os.ReadFile(conffiles); err == nil && strings.TrimSpace(string(list)) == "" {
		if err := os.Remove(conffiles); err != nil {
			t.Fatal(err)
		}
	}
	if program != "" {
		f, err := os.OpenFile(filepath.Join(tree, program), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString("another build"); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(dir, strings.TrimSuffix(filepath.Base(deb), ".deb")+"+later.deb")
	command(t, "dpkg-deb", "-Znone", "-b", tree, out)
	return out
}

func command(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

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
