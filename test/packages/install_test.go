package packages

import (
	"fmt"
	"strings"
	"testing"

	hosttest "github.com/levelrail/levelrail/test/host"
)

// TestInstall: on a clean host of each Debian, `apt install ./levelrail*.deb` leaves all daemons active and enabled, no
// warning from systemd, and every directory and socket with the owner and mode that the contract names.
func TestInstall(t *testing.T) {
	for _, suite := range hosttest.Suites {
		t.Run(string(suite), func(t *testing.T) {
			t.Parallel()
			h := hosttest.New(t, suite)
			out := h.InstallDebs(debs(t)...)
			for _, bad := range []string{"failed", "warning:", "Duplicate", "conflict"} {
				if strings.Contains(out, bad) {
					t.Errorf("apt says %q:\n%s", bad, out)
				}
			}
			for _, unit := range services {
				if u := h.WaitActive(unit); u.NRestarts != 0 {
					t.Errorf("%s was restarted %d times", unit, u.NRestarts)
				}
			}
			for _, unit := range append(append([]string{"levelrail-engines.target"}, services...), sockets...) {
				if got := h.Run("systemctl is-enabled " + unit + " || true"); got != "enabled\n" {
					t.Errorf("%s is %s, want enabled", unit, strings.TrimSpace(got))
				}
			}
			checkLayout(t, h)
			checkNeedrestart(t, h)
			if got := h.Run("systemctl --failed --plain --no-legend"); got != "" {
				t.Errorf("failed units: %s", got)
			}
		})
	}
}

// checkNeedrestart reads our files for needrestart as it does, and asks what it would do with our services: 0 is to leave
// them alone. The control plane and the agent may be restarted at any time.
func checkNeedrestart(t *testing.T, h *hosttest.Host) {
	t.Helper()
	const ask = `perl -e 'our %nrconf = (override_rc => {});
for my $fn (glob "/etc/needrestart/conf.d/*.conf") { eval do { local(@ARGV, $/) = $fn; <> }; die "$fn: $@" if $@ }
for my $rc (@ARGV) { my $is = "restart"; for my $re (keys %{$nrconf{override_rc}}) { $is = $nrconf{override_rc}->{$re} if $rc =~ /$re/ } print "$rc $is\n" }' `
	want := `levelrail-model-chat.service 0
levelrail-model-chat.1.service 0
levelrail-model-small.door.service 0
levelrail-fetch-chat.service 0
levelrail-gateway.service 0
levelrail-agent.service restart
levelrail-server.service restart
ssh.service restart
`
	var units []string
	for line := range strings.Lines(want) {
		units = append(units, strings.Fields(line)[0])
	}
	if got := h.Run(ask + strings.Join(units, " ")); got != want {
		t.Errorf("needrestart would do\n%s\nwant\n%s", got, want)
	}
}

// checkLayout compares owners and modes with the contract, line by line.
func checkLayout(t *testing.T, h *hosttest.Host) {
	t.Helper()
	want := `
/etc/default/levelrail-agent root:root 600 regular file
/etc/default/levelrail-gateway root:root 600 regular file
/etc/default/levelrail-server root:root 600 regular file
/etc/levelrail root:root 755 directory
/etc/levelrail/Caddyfile root:root 644 regular file
/etc/levelrail/sites root:root 755 directory
/etc/needrestart/conf.d/levelrail-agent.conf root:root 644 regular file
/etc/needrestart/conf.d/levelrail-gateway.conf root:root 644 regular file
/run/levelrail root:root 755 directory
/run/levelrail-agent root:root 700 directory
/run/levelrail/agent.sock root:root 600 socket
/run/levelrail/api.sock levelrail:levelrail 660 socket
/run/levelrail/engines root:levelrail-gateway 710 directory
/run/levelrail/gateway.sock levelrail:levelrail-gateway 660 socket
/var/lib/levelrail root:root 755 directory
/var/lib/levelrail/agent root:root 700 directory
/var/lib/levelrail/gateway levelrail-gateway:levelrail-gateway 700 directory
/var/lib/levelrail/server levelrail:levelrail 700 directory
/var/lib/levelrail/server/master.key levelrail:levelrail 600 regular file
/var/lib/levelrail/weights root:root 700 directory
`
	var paths []string
	for line := range strings.Lines(strings.TrimSpace(want)) {
		paths = append(paths, strings.Fields(line)[0])
	}
	got := h.Run("stat -c '%n %U:%G %a %F' " + strings.Join(paths, " ") + " || true")
	if strings.TrimSpace(got) != strings.TrimSpace(want) {
		t.Errorf("owners and modes are\n%s\nwant\n%s", got, want)
	}
	for _, group := range []string{"levelrail", "levelrail-gateway"} {
		if got := h.Run("getent group " + group + " | cut -d: -f4"); got != "\n" {
			t.Errorf("group %s has members after an installation: %s", group, got)
		}
	}
}

// TestEachPackageAlone: every daemon's package installs without the others and starts, with the users and directories
// that it needs: a node has only the agent, a gateway may stand alone.
func TestEachPackageAlone(t *testing.T) {
	for _, unit := range services {
		name := strings.TrimSuffix(unit, ".service")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := install(t, hosttest.Trixie, name)
			if name == "levelrail-agent" {
				if got := h.Run("stat -c '%U:%G %a' /run/levelrail/engines"); got != "root:levelrail-gateway 710\n" {
					t.Errorf("/run/levelrail/engines is %s", got)
				}
			}
		})
	}
}

// TestUnitsInACleanTree: `systemd-analyze verify` says nothing about the units as installed, and their exposure stays
// below the ceilings. Debian 12 has the oldest systemd, which knows the fewest directives.
func TestUnitsInACleanTree(t *testing.T) {
	h := install(t, hosttest.Bookworm)
	var all []string
	for line := range strings.Lines(h.Run("dpkg -L levelrail-server levelrail-agent levelrail-gateway | grep '/usr/lib/systemd/system/.*\\.[a-z]*$'")) {
		all = append(all, strings.TrimSpace(line))
	}
	if len(all) != 8 {
		t.Fatalf("the packages hold %d units, want 8: %v", len(all), all)
	}
	// verify ends with 0 even for directives that it does not know: what it says counts. It reads the manual pages too,
	// where man is installed; a minimal host has none.
	if out := h.Run("systemd-analyze --man=no verify " + strings.Join(all, " ") + " 2>&1"); out != "" {
		t.Errorf("systemd-analyze verify says:\n%s", out)
	}
	for unit, ceiling := range map[string]float64{
		"levelrail-server.service": 1.2, "levelrail-gateway.service": 1.4, "levelrail-agent.service": 2.8,
	} {
		line := h.Run("systemd-analyze security --no-pager " + unit + " | tail -1")
		var exposure float64
		_, after, _ := strings.Cut(line, ": ")
		if _, err := fmt.Sscan(after, &exposure); err != nil {
			t.Errorf("no exposure of %s in %q", unit, line)
			continue
		}
		t.Attr("security", fmt.Sprintf("%s %.1f (at most %.1f)", unit, exposure, ceiling))
		if exposure > ceiling {
			t.Errorf("%s has an exposure of %.1f, want at most %.1f:\n%s", unit, exposure, ceiling,
				h.Run("systemd-analyze security --no-pager "+unit+" | grep ✗"))
		}
	}
}

// TestManualPagesAndCompletions: each program has its manual page, the CLI has completions, and each unit's Documentation=
// names a page that is there.
func TestManualPagesAndCompletions(t *testing.T) {
	h := hosttest.New(t, hosttest.Trixie)
	h.InstallDebs(debs(t)...)
	h.Run(`
for page in man1/levelrail.1 man8/levelrail-server.8 man8/levelrail-agent.8 man8/levelrail-gateway.8; do
  zcat /usr/share/man/$page.gz | grep -q '^\.TH'
done
for file in bash-completion/completions/levelrail zsh/vendor-completions/_levelrail fish/vendor_completions.d/levelrail.fish; do
  test -s /usr/share/$file
done
for page in $(sed -nE 's/^Documentation=man:(.*)\(([0-9])\)$/man\2\/\1.\2.gz/p' /usr/lib/systemd/system/levelrail*); do
  test -s /usr/share/man/$page || { echo "no $page" >&2; exit 1; }
done`)
}
