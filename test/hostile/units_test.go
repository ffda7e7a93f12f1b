package hostile

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail/test/e2e"
	hosttest "github.com/levelrail/levelrail/test/host"
)

// planted are sockets that any user of the host may use, in the places where software puts them.
var planted = []string{"/run/planted.sock", "/run/other/planted.sock", "/run/lock/planted.sock", "/run/systemd/planted.sock", "/run/user/0/planted.sock", "/tmp/planted.sock",
	"/var/tmp/planted.sock", "/var/lib/other/planted.sock", "/var/spool/other/planted.sock", "/var/lib/levelrail/planted.sock", "/srv/planted.sock", "/mnt/planted.sock",
	"/media/planted.sock", "/home/mallory/planted.sock", "/dev/shm/planted.sock", "@planted"}

// prober is a host in whose units other programs can be run.
type prober struct {
	*e2e.Host
	t *testing.T
}

// newProber installs a host with an engine, and with a fetch that cannot reach its Hub, so that its unit stays. The agent
// is stopped: it would mend what the test does to the units.
func newProber(t *testing.T, suite hosttest.Suite) *prober {
	t.Helper()
	program := filepath.Join(t.TempDir(), "probe")
	build := exec.Command("go", "build", "-o", program, "./probe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the probe: %v\n%s", err, out)
	}
	opts := []hosttest.Option{hosttest.WithWeights(), hosttest.WithFile("/etc/default/levelrail-agent", "APP_HF_BASE_URL=http://127.0.0.1:9\n", 0o600)}
	if suite != hosttest.Forky {
		opts = append(opts, hosttest.WithEngine(hosttest.LlamaCpp))
	}
	p := &prober{Host: e2e.Install(t, suite, opts...), t: t}
	if err := p.CopyIn(program, "/usr/local/bin/probe", 0o755); err != nil {
		t.Fatal(err)
	}
	p.Run("useradd --create-home mallory && chmod 755 /home/mallory && mkdir -p /srv /mnt /media /run/user/0")
	p.Deploy(Chat)
	p.Run("levelrail models deploy --name fetched --engine llamacpp --gpus none --model org/name-GGUF >/dev/null")
	p.Eventually("a fetch to be tried", time.Minute, func() error {
		_, _, err := p.Exec(context.Background(), "test -e /etc/systemd/system/levelrail-fetch-fetched.service && test -e /run/levelrail-agent/fetch-fetched/spec.json")
		return err
	})
	p.Run("setsid probe plant " + strings.Join(planted, " ") + " >/run/planted.log 2>&1 </dev/null & sleep 0.1")
	p.Eventually("the sockets to be there", 10*time.Second, func() error {
		out, _, err := p.Exec(context.Background(), "cat /run/planted.log; grep -q planted /run/planted.log")
		if err != nil {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	return p
}

// as runs a program in place of a unit's own: as its user, in its namespaces, with its filters. It returns the output,
// which has to come by the unit's own way to the journal.
func (p *prober) as(unit, command string) string {
	p.t.Helper()
	dropIn := "/run/systemd/system/" + unit + ".d/99-probe.conf"
	p.Run(fmt.Sprintf(`systemctl stop levelrail-agent.service
systemctl stop %[1]s 2>/dev/null || true
mkdir -p %[2]s
cat >%[3]s <<'END'
[Unit]
StartLimitIntervalSec=0
[Service]
Type=oneshot
ExecStart=
ExecStart=-%[4]s
ExecReload=
RemainAfterExit=yes
Restart=no
WatchdogSec=0
END
systemctl daemon-reload`, unit, filepath.Dir(dropIn), dropIn, command))
	p.Run("systemctl reset-failed " + unit + " 2>/dev/null || true; journalctl --rotate >/dev/null 2>&1; systemctl start " + unit)
	id := strings.TrimSpace(p.Run("systemctl show -P InvocationID " + unit))
	var out string
	p.Eventually("the output of "+unit, 10*time.Second, func() error {
		out = p.Run("journalctl --no-pager -o cat _SYSTEMD_INVOCATION_ID=" + id)
		if out == "" {
			return fmt.Errorf("nothing is in the journal of run %q", id)
		}
		return nil
	})
	p.Run("systemctl stop " + unit + "; rm " + dropIn + "; systemctl daemon-reload")
	return out
}

// TestSocketsFromUnits: from inside each unit that Levelrail ships or writes, no socket of the host answers but its own,
// whoever planted it and wherever; and its output reaches the journal all the same.
func TestSocketsFromUnits(t *testing.T) {
	for _, suite := range hosttest.Suites {
		t.Run(string(suite), func(t *testing.T) {
			p := newProber(t, suite)
			exposures(p)
			// The way of asking has to work: without any sandbox all of them answer.
			outside := p.Run("probe sockets")
			for _, name := range planted {
				if !strings.Contains(outside, "answers stream "+name+"\n") {
					t.Fatalf("outside of any unit %s does not answer, only these:\n%s", name, outside)
				}
			}
			for unit, own := range map[string]string{
				"levelrail-model-chat.service":    `^/run/levelrail/engines/chat/engine\.sock$`,
				"levelrail-fetch-fetched.service": `^$`,
				"levelrail-server.service":        `^/run/systemd/notify$`,
				// A site of the operator's may lead to what lies below /srv and the like.
				"levelrail-gateway.service": `^(/run/systemd/notify|/run/levelrail/gateway\.sock|/run/levelrail/engines/chat/engine\.sock|/(srv|mnt|media)/planted\.sock)$`,
				// systemd and the bus are what the agent works with, and it takes files from where people keep them; it is root.
				"levelrail-agent.service": `^(/run/systemd/|/run/dbus/|/run/levelrail/|/(srv|home|mnt|media|var/lib)/)`,
			} {
				out := p.as(unit, "/usr/local/bin/probe sockets")
				if !strings.Contains(out, "tried ") {
					t.Errorf("%s: the probe did not come to its end:\n%s", unit, out)
				}
				allowed := regexp.MustCompile(own)
				var answers []string
				for line := range strings.Lines(out) {
					if f := strings.Fields(line); len(f) == 3 && f[0] == "answers" {
						answers = append(answers, f[2])
						shared := f[2][0] == '@' && slices.Contains(sharesNetwork, unit)
						if !allowed.MatchString(f[2]) && !shared {
							t.Errorf("%s reaches the socket %s (%s)", unit, f[2], f[1])
						}
					}
				}
				slices.Sort(answers)
				t.Logf("%s: %s answers: %v", unit, strings.TrimSpace(out[strings.LastIndex(strings.TrimSpace(out), "\n")+1:]), slices.Compact(answers))
			}
			p.escapes()
			p.reexec()
		})
	}
}

// sharesNetwork are the units that are in the host's network, which abstract names belong to: no mount hides them there.
var sharesNetwork = []string{"levelrail-server.service", "levelrail-gateway.service"}

// escapes runs in a fetch's place what made it root once.
func (p *prober) escapes() {
	p.t.Helper()
	const unit = "levelrail-fetch-fetched.service"
	for _, command := range []string{
		"/usr/bin/systemd-run --wait --pipe touch /etc/escaped",
		"/usr/bin/systemd-run --system touch /etc/escaped",
		"/usr/bin/busctl call org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager ListUnits",
		"/usr/bin/systemctl --no-ask-password stop levelrail-server.service",
		`/bin/sh -c "echo x >/etc/escaped || touch /var/lib/levelrail/weights/.blobs/escaped || cat /var/lib/levelrail/agent/agent.json || echo refused"`,
		`/bin/sh -c "cat /etc/shadow /etc/default/levelrail-server /var/lib/levelrail/server/master.key && echo reached; ls /var/lib/levelrail/weights/chat && echo reached; echo refused"`,
		`/bin/sh -c "chmod 4755 /var/lib/levelrail/weights/.fetch/fetched; cp /bin/sh /var/lib/levelrail/weights/.fetch/fetched/sh && chmod 6755 /var/lib/levelrail/weights/.fetch/fetched/sh && echo reached; echo refused"`,
	} {
		out := p.as(unit, command)
		if strings.Contains(out, "reached") {
			p.t.Errorf("a fetch runs %s: %s", command, out)
		}
	}
	if out, _, err := p.Exec(context.Background(), "ls /etc/escaped /var/lib/levelrail/weights/.blobs/escaped"); err == nil {
		p.t.Errorf("a fetch got out: %s", out)
	}
	if u, err := p.Show(context.Background(), "levelrail-server.service"); err != nil || u.ActiveState != "active" {
		p.t.Logf("the server is %s, %v: its unit was tried before", u.ActiveState, err)
	}
}

// reexec: an upgrade of systemd leaves the daemons' way to say that all is well in place. A watchdog that hears nothing ends
// a gateway with all its streams.
func (p *prober) reexec() {
	p.t.Helper()
	p.Run("systemctl start levelrail-server.service levelrail-gateway.service levelrail-agent.service")
	p.Run("systemctl daemon-reexec && systemctl daemon-reload")
	host := strings.TrimSpace(p.Run("stat -c %i /run/systemd/notify"))
	for _, unit := range []string{"levelrail-server.service", "levelrail-gateway.service", "levelrail-agent.service"} {
		u := p.WaitActive(unit)
		if inside := strings.TrimSpace(p.Run(fmt.Sprintf("stat -c %%i /proc/%d/root/run/systemd/notify", u.MainPID))); inside != host {
			p.t.Errorf("%s talks to the socket %s after systemd was executed anew, which listens on %s", unit, inside, host)
		}
	}
	p.Run("levelrail status >/dev/null")
}

var overall = regexp.MustCompile(`Overall exposure level for (\S+): ([0-9.]+)`)

// ceilings are what systemd-analyze security may say of each unit, on every Debian.
var ceilings = map[string]float64{
	"levelrail-agent.service": 2.8, "levelrail-server.service": 1.2, "levelrail-gateway.service": 1.4,
	"levelrail-model-chat.service": 0.5, "levelrail-fetch-fetched.service": 1.5,
}

// exposures checks them on the installed units.
func exposures(p *prober) {
	p.t.Helper()
	for unit, ceiling := range ceilings {
		out := p.Run("systemd-analyze security --no-pager " + unit)
		m := overall.FindStringSubmatch(out)
		if m == nil {
			p.t.Errorf("%s: %s", unit, out)
			continue
		}
		level, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			p.t.Fatal(err)
		}
		p.t.Logf("%s: exposure %.1f, at most %.1f", unit, level, ceiling)
		if level > ceiling {
			p.t.Errorf("%s: exposure %.1f is over %.1f\n%s", unit, level, ceiling, out)
		}
	}
}
