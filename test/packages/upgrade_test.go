package packages

import (
	"fmt"
	"strings"
	"testing"
	"time"

	hosttest "github.com/levelrail/levelrail/test/host"
)

// TestUpgradeKeepsWhatAnOperatorDid (C059): drop-ins, edited settings, a disabled, a stopped and a masked service survive
// reinstalling, upgrading and downgrading, and engines run through all of it in the same process.
func TestUpgradeKeepsWhatAnOperatorDid(t *testing.T) {
	t.Parallel()
	h := install(t, hosttest.Bookworm)
	unit := engine(h, "chat")
	engineBefore := pid(t, h, unit)
	h.Run(`
for unit in levelrail-server levelrail-agent levelrail-gateway levelrail-model-chat; do
  mkdir -p /etc/systemd/system/$unit.service.d
  printf '[Service]\nNice=3\n' >/etc/systemd/system/$unit.service.d/operator.conf
done
echo '# by the operator' | tee -a /etc/default/levelrail-server /etc/default/levelrail-agent /etc/default/levelrail-gateway /etc/levelrail/Caddyfile >/dev/null
echo '# a site by the operator' >/etc/levelrail/sites/own.caddy
systemctl daemon-reload
systemctl restart levelrail-server levelrail-agent levelrail-gateway
systemctl -q disable levelrail-gateway`)
	for _, s := range services {
		h.WaitActive(s)
	}
	check := func(after string) {
		t.Helper()
		h.Run(`
for f in /etc/default/levelrail-server /etc/default/levelrail-agent /etc/default/levelrail-gateway /etc/levelrail/Caddyfile; do
  grep -q '# by the operator' $f
done
grep -q operator /etc/levelrail/sites/own.caddy
for unit in levelrail-server levelrail-agent levelrail-gateway levelrail-model-chat; do
  test "$(systemctl show -p Nice --value $unit.service)" = 3
done`)
		if got := h.Run("systemctl is-enabled levelrail-gateway || true"); got != "disabled\n" {
			t.Errorf("after %s the gateway that an operator disabled is %s", after, got)
		}
		for _, s := range services {
			h.WaitActive(s)
		}
		if now := pid(t, h, unit); now != engineBefore {
			t.Errorf("after %s the engine is another process: %d, before %d", after, now, engineBefore)
		}
	}

	old := debs(t)
	h.Apt(append([]string{"install", "--reinstall", "--no-install-recommends"}, h.CopyDebs(old...)...)...)
	check("reinstalling")

	server, agent := pid(t, h, services[0]), pid(t, h, services[1])
	var later []string
	for _, deb := range old {
		later = append(later, newer(t, deb, ""))
	}
	h.InstallDebs(later...)
	check("upgrading")
	if pid(t, h, services[0]) == server || pid(t, h, services[1]) == agent {
		t.Error("an upgrade left the old server or the old agent running")
	}

	h.Apt(append([]string{"install", "--allow-downgrades", "--no-install-recommends"}, h.CopyDebs(old...)...)...)
	check("downgrading")

	// What an operator has stopped stays stopped, what they masked stays masked.
	h.Run("systemctl stop levelrail-agent; systemctl -q mask --now levelrail-gateway")
	h.InstallDebs(later...)
	for _, unit := range []string{"levelrail-agent.service", "levelrail-gateway.service"} {
		if u, err := h.Show(t.Context(), unit); err != nil || u.ActiveState != "inactive" {
			t.Errorf("an upgrade started %s that an operator stopped: %s, %v", unit, u.ActiveState, err)
		}
	}
	if got := h.Run("systemctl is-enabled levelrail-gateway || true"); got != "masked\n" {
		t.Errorf("after an upgrade the masked gateway is %s", got)
	}
}

// TestGatewayIsReplacedForAReason: reinstalling the same gateway reloads it in place; a new program or another environment
// puts a new process in its place, also while an earlier one still leaves. Stopping ends all of them, and the next start,
// also after a reboot in the middle, is one process again that goes on with what the newest had. Debian 12 has the oldest
// systemd and Debian 14 the newest.
func TestGatewayIsReplacedForAReason(t *testing.T) {
	for _, suite := range []hosttest.Suite{hosttest.Bookworm, hosttest.Forky} {
		t.Run(string(suite), func(t *testing.T) {
			t.Parallel()
			h := install(t, suite, "levelrail-gateway")
			deb := debs(t, "levelrail-gateway")[0]
			const unit = "levelrail-gateway.service"
			first := pid(t, h, unit)
			replaced := func(by string, before int) int {
				t.Helper()
				h.WaitActive(unit)
				now := pid(t, h, unit)
				if now == before {
					t.Errorf("%s left the process, %d, in its place", by, now)
				}
				return now
			}
			count := func() int {
				return len(strings.Fields(h.Run("cat /sys/fs/cgroup/system.slice/" + unit + "/cgroup.procs 2>/dev/null || true")))
			}

			h.Apt(append([]string{"install", "--reinstall"}, h.CopyDebs(deb)...)...)
			if now := pid(t, h, unit); now != first || count() != 1 {
				t.Errorf("reinstalling the same gateway replaced it: process %d, before %d", now, first)
			}
			h.Run("echo HTTPS_PROXY=http://proxy.example.com:3128 >>/etc/default/levelrail-gateway; systemctl reload levelrail-gateway")
			second := replaced("another environment", first)
			h.Run("tr '\\0' '\\n' </proc/" + fmt.Sprint(second) + "/environ | grep -q ^HTTPS_PROXY=")
			h.InstallDebs(newer(t, deb, "usr/bin/levelrail-gateway"))
			third := replaced("a new program", second)
			if n := count(); n < 2 {
				t.Errorf("there are %d processes, want the new one and one that leaves", n)
			}
			if log := h.Journal("-u", unit); strings.Contains(log, "Got notification message") || strings.Contains(log, "not our child") {
				t.Errorf("systemd wonders:\n%s", log)
			}
			began := time.Now()
			h.Run("systemctl stop levelrail-gateway")
			if took := time.Since(began); count() != 0 || took > 20*time.Second {
				t.Errorf("stopping took %s and left %d processes", took, count())
			}
			state := strings.TrimSpace(h.Run("cat /var/lib/levelrail/gateway/.main"))
			h.Run("systemctl start levelrail-gateway")
			fourth := replaced("a restart", third)

			h.Run("levelrail-gateway replace")
			replaced("a replacement by hand", fourth)
			now := strings.TrimSpace(h.Run("cat /var/lib/levelrail/gateway/.main"))
			if now == state {
				t.Errorf("a new process has the place of the one that it replaces: %q", now)
			}
			h.Reboot()
			h.WaitActive(unit)
			if n := count(); n != 1 {
				t.Errorf("after a reboot there are %d processes", n)
			}
			if main := strings.TrimSpace(h.Run("cat /var/lib/levelrail/gateway/.main")); main != now {
				t.Errorf("after a reboot the gateway goes on with %q, and the newest had %q", main, now)
			}
			if log := h.Journal("-u", unit); strings.Contains(log, "left-over process") {
				t.Errorf("a start found another process:\n%s", log)
			}
			h.Run("test $(systemctl show -p NRestarts --value " + unit + ") = 0")
			h.Apt("purge", "levelrail-gateway")
			h.Run("test ! -e /var/lib/levelrail/gateway")
		})
	}
}

// TestServerRestartRefusesNobody: a client that calls while the server is down waits for the next one on the same socket.
func TestServerRestartRefusesNobody(t *testing.T) {
	t.Parallel()
	h := install(t, hosttest.Bookworm, "levelrail-server")
	h.Run(`
systemctl kill -s KILL levelrail-server.service
for i in $(seq 20); do
  curl -sS --max-time 20 -o /dev/null --unix-socket /run/levelrail/api.sock http://levelrail/api/v1/status
done`)
	h.WaitActive("levelrail-server.service")
}

// TestACrashLoopKeepsTheSockets: a server that cannot start is tried again and again, slowly; its sockets do not fail, and
// once it is mended it comes back by itself.
func TestACrashLoopKeepsTheSockets(t *testing.T) {
	t.Parallel()
	h := install(t, hosttest.Bookworm, "levelrail-server")
	h.Run(`
mkdir -p /run/systemd/system/levelrail-server.service.d
printf '[Service]\nExecStart=\nExecStart=/bin/false\nRestartSec=100ms\n' >/run/systemd/system/levelrail-server.service.d/broken.conf
systemctl daemon-reload
systemctl kill -s KILL levelrail-server.service`)
	h.Eventually("ten failed starts with clients calling", time.Minute, func() error {
		h.Run("curl -s --max-time 0.2 --unix-socket /run/levelrail/api.sock http://levelrail/ || true")
		u, err := h.Show(t.Context(), "levelrail-server.service")
		if err == nil && u.NRestarts < 10 {
			err = fmt.Errorf("there were %d", u.NRestarts)
		}
		return err
	})
	for _, s := range sockets {
		if u, err := h.Show(t.Context(), s); err != nil || u.ActiveState != "active" {
			t.Errorf("%s is %s (%s, %v) in a crash loop", s, u.ActiveState, u.Result, err)
		}
	}
	h.Run("rm -r /run/systemd/system/levelrail-server.service.d; systemctl daemon-reload")
	h.WaitActive("levelrail-server.service")
}

// TestRemoveAndPurge: removing stops everything and keeps data and settings, installing again brings the engines back, and
// purging deletes what the documentation says: state, generated units, caches, weights.
func TestRemoveAndPurge(t *testing.T) {
	t.Parallel()
	h := install(t, hosttest.Bookworm)
	unit := engine(h, "chat")
	h.Run(`
install -D /dev/null /var/lib/levelrail/weights/chat/model.gguf
mkdir -p /var/cache/private/levelrail/engines/chat /etc/systemd/system/levelrail-model-own.service.d
echo 'APP_X=1' >>/etc/default/levelrail-agent
printf '[Service]\nExecStart=/bin/sleep infinity\n' >/etc/systemd/system/levelrail-model-own.service
systemctl daemon-reload; systemctl start levelrail-model-own.service`)

	h.Apt("remove", "levelrail*")
	left := h.Run("systemctl list-units --plain --no-legend --state=active --type=service,socket,target 'levelrail*' | cut -d' ' -f1")
	if got := strings.Fields(left); len(got) != 1 || got[0] != "levelrail-model-own.service" {
		t.Errorf("after a removal these run: %q; want only the operator's own unit", got)
	}
	h.Run(`
test -e /var/lib/levelrail/weights/chat/model.gguf
test -s /var/lib/levelrail/server/master.key
test -e /etc/systemd/system/` + unit + `
grep -q APP_X=1 /etc/default/levelrail-agent`)

	h.InstallDebs(debs(t)...)
	for _, s := range services {
		h.WaitActive(s)
	}
	h.Run("grep -q APP_X=1 /etc/default/levelrail-agent")

	h.Apt("purge", "levelrail*")
	h.Run(`
for path in /var/lib/levelrail /run/levelrail /run/levelrail-agent /etc/levelrail /etc/default/levelrail-server \
    /etc/default/levelrail-agent /etc/default/levelrail-gateway /etc/systemd/system/` + unit + ` \
    /etc/systemd/system/levelrail-engines.target.wants /var/cache/levelrail /var/cache/private/levelrail; do
  test ! -e $path || { echo "a purge left $path: $(find $path)" >&2; exit 1; }
done
test -e /etc/systemd/system/levelrail-model-own.service # a name like ours without our mark
find /etc/systemd/system /var/lib/systemd/deb-systemd-helper-enabled -name 'levelrail-[sag]*' | (! grep .)`)
}

// TestKeepWeights: /etc/levelrail/keep-weights keeps the weights, and only those, through a purge.
func TestKeepWeights(t *testing.T) {
	t.Parallel()
	h := install(t, hosttest.Trixie, "levelrail-agent")
	h.Run("mkdir -p /etc/levelrail; touch /etc/levelrail/keep-weights; install -D /dev/null /var/lib/levelrail/weights/chat/model.gguf")
	h.Apt("purge", "levelrail-agent")
	h.Run("test -e /var/lib/levelrail/weights/chat/model.gguf; test ! -e /var/lib/levelrail/agent")
}

// TestPurgingOnePackageLeavesTheOthersClosed: purging the server of a machine with engines keeps the directory of their
// sockets, without which the next engine's would be open to everybody.
func TestPurgingOnePackageLeavesTheOthersClosed(t *testing.T) {
	t.Parallel()
	h := install(t, hosttest.Forky)
	h.Apt("purge", "levelrail-server", "levelrail")
	if got := h.Run("stat -c '%U:%G %a' /run/levelrail/engines"); got != "root:levelrail-gateway 710\n" {
		t.Errorf("/run/levelrail/engines is %s", got)
	}
	for _, s := range []string{"levelrail-agent.service", "levelrail-gateway.service"} {
		h.WaitActive(s)
	}
}

// TestBackupIsTheDirectoryAndTheKey: what docs/operate.md says: a copy of the server's directory, put into a fresh
// installation, has everything, and the master key with it opens the secrets.
func TestBackupIsTheDirectoryAndTheKey(t *testing.T) {
	t.Parallel()
	h := install(t, hosttest.Trixie, "levelrail-cli", "levelrail-server")
	h.Run(`
levelrail tokens create --name kept --ability read
systemctl stop 'levelrail-server*'
cp -a /var/lib/levelrail/server /root/backup`)
	h.Apt("purge", "levelrail-server")
	h.InstallDebs(debs(t, "levelrail-server")...)
	h.WaitActive("levelrail-server.service")
	if out := h.Run("levelrail tokens list --json"); strings.Contains(out, "kept") {
		t.Fatalf("a purge kept the state: %s", out)
	}
	before := h.Run("levelrail status --json | jq -r .cluster_id")
	h.Run(`
systemctl stop 'levelrail-server*'
rm -r /var/lib/levelrail/server
cp -a /root/backup /var/lib/levelrail/server
chown -R levelrail: /var/lib/levelrail/server
systemctl start levelrail-server`)
	h.WaitActive("levelrail-server.service")
	h.Run("levelrail tokens list --json | grep -q kept")
	if after := h.Run("levelrail status --json | jq -r .cluster_id"); after == before || after == "null\n" {
		t.Errorf("the restored server is of cluster %s, the fresh one was of %s", after, before)
	}
}
