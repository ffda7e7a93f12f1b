package agent_test

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
	hosttest "github.com/levelrail/levelrail/test/host"
)

// inside runs a script as an engine's own process would: with its user, its network and its view of the files. Programs
// come from the host, which the unit sees too.
func (r *rig) inside(unit, script string) (string, error) {
	r.t.Helper()
	u := r.unit(unit)
	if u.MainPID == 0 {
		r.t.Fatalf("%s has no process", unit)
	}
	ids := strings.Fields(r.Run(fmt.Sprintf("stat -c '%%u %%g' /proc/%d", u.MainPID)))
	if len(ids) != 2 || ids[0] == "0" {
		r.t.Fatalf("the engine runs as %v", ids)
	}
	return r.try(fmt.Sprintf("nsenter -t %d -m -n -S %s -G %s -- /bin/bash -c %s", u.MainPID, ids[0], ids[1], quote(script)))
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// ask and a socket's path are a request that prints the status of the answer, 000 when there is none.
const ask = "curl -s -o /dev/null -w '%{http_code}' --max-time 5 --unix-socket "

// TestSandbox: an engine sees its own socket and weights and nothing else of Levelrail's, has no network, and is reached
// by the gateway's user alone.
func TestSandbox(t *testing.T) {
	for _, suite := range hosttest.Suites {
		t.Run(string(suite), func(t *testing.T) {
			r := newRig(t, suite)
			r.server.Assign(r.assignment("chat"))
			r.server.Assign(r.assignment("other", fromFile(hosttest.WeightsPath)))
			r.serving("chat", 1)
			r.serving("other", 1)
			const own, others = "/run/levelrail/engines/chat/engine.sock", "/run/levelrail/engines/other/engine.sock"

			may := func(what, want, script string) {
				t.Helper()
				if out, err := r.inside(chatUnit, script); err != nil || !strings.Contains(out, want) {
					t.Errorf("%s: got %q, %v, want %q", what, out, err, want)
				}
			}
			mayNot := func(what, script string) {
				t.Helper()
				if out, err := r.inside(chatUnit, script); err == nil {
					t.Errorf("it may %s: %q", what, out)
				}
			}
			// What it may: the checks that follow prove something only if the way of asking works.
			may("see its own weights", ".gguf", "ls /var/lib/levelrail/weights/chat")
			may("read its own weights", "GGUF", "head -c 4 /var/lib/levelrail/weights/chat/*.gguf")
			may("reach its own socket", "200", ask+own+" http://localhost/health")
			may("write its cache", "done", "touch /var/cache/levelrail/engines/chat/x && echo done")

			mayNot("see another's socket", "test -e "+others)
			mayNot("reach another's socket", "test $("+ask+others+" http://localhost/health) != 000")
			mayNot("see another's weights, which are the same file", "ls /var/lib/levelrail/weights/other/*")
			mayNot("see the store", "ls -A /var/lib/levelrail/weights/.blobs | grep .")
			mayNot("see keys", "ls -A /var/lib/levelrail/agent | grep .")
			mayNot("see the control plane's sockets", "ls /run/levelrail/*.sock")
			mayNot("change its weights", "echo x >>$(ls /var/lib/levelrail/weights/chat/*.gguf)")
			mayNot("add to its weights", "touch /var/lib/levelrail/weights/chat/x")
			mayNot("write to the system", "touch /usr/x /etc/x /var/lib/levelrail/x")
			mayNot("see homes", "ls -A /home | grep .")
			mayNot("see others' processes", "ls -d /proc/1")
			mayNot("reach the network", "curl -s --max-time 3 http://"+hubAddress+"/api/models/"+repository)
			mayNot("have an address", "ip -o addr show | grep -v ' lo '")
			may("have nothing but a loopback", "1", "ls /sys/class/net 2>/dev/null | wc -l; true")

			// From outside: the gateway's user and nobody else.
			if out := r.Run("setpriv --reuid levelrail-gateway --regid levelrail-gateway --clear-groups " + ask + own + " http://localhost/health"); out != "200" {
				t.Errorf("the gateway gets %q", out)
			}
			if out, err := r.try("setpriv --reuid stranger --regid stranger --clear-groups " + ask + own + " http://localhost/health"); err == nil || out != "000" {
				t.Errorf("a stranger gets %q, %v", out, err)
			}
			if out, err := r.try("setpriv --reuid stranger --regid stranger --clear-groups ls /run/levelrail/engines/ /var/lib/levelrail/weights/chat"); strings.Contains(out, "engine.sock") || strings.Contains(out, "gguf") || err == nil {
				t.Errorf("a stranger sees %q", out)
			}
			if out := strings.TrimSpace(r.Run("stat -c '%a %U:%G' /run/levelrail/engines")); out != "710 root:levelrail-gateway" {
				t.Errorf("the engines' directory is %s", out)
			}

			// The key shows nowhere that another user can look.
			shown := r.Run("systemctl show " + chatUnit + "; cat /etc/systemd/system/levelrail-*.service; tr '\\0' ' ' </proc/" + strconv.Itoa(r.unit(chatUnit).MainPID) + "/cmdline; journalctl --no-pager -o verbose")
			if strings.Contains(shown, r.key) {
				t.Error("the engine's key shows in the unit, its command line or the journal")
			}
			if out, err := r.try("curl -s --unix-socket " + own + " http://localhost/v1/models"); err != nil || !strings.Contains(out, "Invalid API Key") {
				t.Errorf("without the key: %s, %v", out, err)
			}

			if found := strings.Count(r.Run("journalctl --no-pager -o cat LEVELRAIL_MODEL=chat LEVELRAIL_ENGINE=llamacpp LEVELRAIL_REPLICA=chat"), "\n"); found < 5 {
				t.Errorf("%d journal lines by the model's fields", found)
			}
			r.server.AskLogs(wire.LogRequest{ID: "log_1", Model: "chat", Lines: 5})
			r.Eventually("the model's log", 30*time.Second, func() error {
				if n := len(r.server.Logs("log_1")); n < 5 {
					return fmt.Errorf("%d lines", n)
				}
				return nil
			})
			r.checkUnits()
		})
	}
}

var overall = regexp.MustCompile(`Overall exposure level for (\S+): ([0-9.]+)`)

// checkUnits has systemd look at everything that runs: no complaints, and no unit more exposed than promised.
func (r *rig) checkUnits() {
	r.t.Helper()
	out, _ := r.try("systemd-analyze verify --man=no $(find /etc/systemd/system /usr/lib/systemd/system -maxdepth 1 -type f -name 'levelrail-*') 2>&1")
	for line := range strings.Lines(out) {
		if strings.Contains(line, "levelrail") {
			r.t.Errorf("verify: %s", strings.TrimSpace(line))
		}
	}
	for _, m := range overall.FindAllStringSubmatch(r.Run("for u in $(systemctl list-units --plain --no-legend 'levelrail-*.service' | cut -d' ' -f1); do systemd-analyze security --no-pager $u | tail -1; done"), -1) {
		level, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			r.t.Fatal(err)
		}
		ceiling := 0.5
		switch {
		case m[1] == "levelrail-agent.service":
			ceiling = 2.8
		case strings.HasPrefix(m[1], "levelrail-fetch-"):
			ceiling = 1.5
		}
		r.t.Logf("%s: exposure %.1f, at most %.1f", m[1], level, ceiling)
		if level > ceiling {
			r.t.Errorf("%s: exposure %.1f is over %.1f", m[1], level, ceiling)
		}
	}
}

// TestOllama: an engine without a socket of its own behind its door, from a store that it cannot change.
func TestOllama(t *testing.T) {
	r := newRig(t, hosttest.Bookworm, hosttest.WithEngine(hosttest.Ollama))
	onOllama := func(a *wire.Assignment) {
		a.Spec.Engine, a.Spec.Source = "ollama", hosttest.WeightsPath
		a.Spec.Context = 512
	}
	const socket = "levelrail-model-small.door.socket"
	r.server.Assign(r.assignment("small", onOllama))
	r.server.Assign(r.assignment("twin", onOllama)) // the same port, in another network
	r.serving("small", 1)
	r.serving("twin", 1)
	answer := r.must("small", "small")
	if twin := r.must("twin", "twin"); twin != answer {
		t.Errorf("the same weights answer %q and %q", answer, twin)
	}
	if links := strings.TrimSpace(r.Run("find /var/lib/levelrail/weights -name 'sha256-b179c9523d0e*' -printf '%n\\n' | sort -u")); links != "3" {
		t.Errorf("the file is stored with %s links, want one file with 3", links)
	}
	if out := strings.TrimSpace(r.Run("stat -c '%a %U:%G' /run/levelrail/engines/small/engine.sock")); out != "660 root:levelrail-gateway" {
		t.Errorf("the door is %s", out)
	}
	call := func(path, body string) string {
		out, err := r.try("curl -s --max-time 20 --unix-socket /run/levelrail/engines/small/engine.sock -H 'Host: localhost' -d " + quote(body) + " http://localhost" + path)
		if err != nil {
			t.Errorf("%s: %v", path, err)
		}
		return out
	}
	if out := call("/api/pull", `{"model":"llama3.2","stream":false}`); !strings.Contains(out, "error") {
		t.Errorf("it pulls: %s", out)
	}
	if out, _ := r.try("curl -s --max-time 20 -X DELETE --unix-socket /run/levelrail/engines/small/engine.sock -H 'Host: localhost' -d '{\"model\":\"small\"}' http://localhost/api/delete"); !strings.Contains(out, "read-only") {
		t.Errorf("deleting is answered with %q", out)
	}
	if again := r.must("small", "small"); again != answer {
		t.Errorf("after that it says %q", again)
	}

	// The door stays over a crash of the engine, and leads to the next process.
	door, first := r.unit(socket), r.status("small").Invocation
	r.Kill9(r.unit("levelrail-model-small.service").MainPID)
	r.until("small", "serving again", time.Minute, func(s *wire.ReplicaStatus) bool { return s.Condition.Ready && s.Invocation != first })
	if r.must("small", "small") != answer || r.unit(socket).All["ActiveEnterTimestampMonotonic"] != door.All["ActiveEnterTimestampMonotonic"] {
		t.Error("the door did not stay over the crash")
	}
	// C048: nothing of the old process is left.
	if n := strings.TrimSpace(r.Run("wc -l </sys/fs/cgroup$(systemctl show -P ControlGroup levelrail-model-small.service)/cgroup.procs")); n != "2" {
		t.Errorf("%s processes in the unit, want ollama serve and its runner", n)
	}

	// Stopped by hand, a connection is closed without an answer and starts nothing by itself; the agent starts it again.
	r.Run("systemctl stop levelrail-agent.service levelrail-model-small.service")
	if out, err := r.try(ask + "/run/levelrail/engines/small/engine.sock http://localhost/api/ps"); err == nil || out != "000" {
		t.Errorf("a stopped engine answers %q", out)
	}
	if u := r.unit("levelrail-model-small.service"); u.ActiveState != "inactive" {
		t.Errorf("a connection woke the engine: %s", u.ActiveState)
	}
	crashed := r.status("small").Invocation
	r.Run("systemctl start levelrail-agent.service")
	r.until("small", "serving again", time.Minute, func(s *wire.ReplicaStatus) bool { return s.Condition.Ready && s.Invocation != crashed })
	r.must("small", "small")
	r.checkUnits()

	// Put to sleep: the door is gone with the engine.
	r.server.Assign(r.assignment("small", onOllama, func(a *wire.Assignment) { a.Run = false }))
	r.reason("small", levelrail.Idle)
	if out, err := r.try("test -e /run/levelrail/engines/small/engine.sock"); err == nil {
		t.Errorf("the door's socket is still there %s", out)
	}
	// A reboot brings back what is awake and nothing else.
	r.Run("sync")
	r.Reboot()
	r.serve()
	r.Eventually("twin after the reboot", time.Minute, func() error { _, err := r.chat("twin", "twin"); return err })
	if u := r.unit("levelrail-model-small.service"); u.ActiveState != "inactive" {
		t.Errorf("a sleeping model came back at boot: %s", u.ActiveState)
	}
	r.server.Withdraw("small")
	r.server.Withdraw("twin")
	r.Eventually("both to be gone", time.Minute, func() error {
		if r.status("small") != nil || r.status("twin") != nil {
			return fmt.Errorf("still reported")
		}
		return nil
	})
	if left := strings.TrimSpace(r.Run("find /etc/systemd/system /run/levelrail/engines -name '*small*' -o -name '*twin*'")); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}
