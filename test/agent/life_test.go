package agent_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/test/engines/faults"
	hosttest "github.com/levelrail/levelrail/test/host"
)

const chatUnit = "levelrail-model-chat.service"

// TestLife: a model from its assignment to its removal, through everything that must not stop it.
func TestLife(t *testing.T) {
	for _, suite := range hosttest.Suites {
		t.Run(string(suite), func(t *testing.T) {
			r := newRig(t, suite)
			began := time.Now()
			r.hub.CDNFaults.Set(faults.Settings{Rate: 60 << 20})
			r.server.Assign(r.assignment("chat"))
			r.until("chat", "downloading with progress", time.Minute, func(s *wire.ReplicaStatus) bool {
				p := s.Condition.Progress
				return s.Condition.Reason == levelrail.Downloading && p != nil && p.TotalBytes != nil && p.DoneBytes > 0 && *p.TotalBytes > p.DoneBytes
			})
			first := r.serving("chat", 1)
			t.Logf("from assignment to serving: %.1f s", time.Since(began).Seconds())
			answer := r.must("chat", "chat")
			if again := r.must("chat", repository); again != answer {
				t.Errorf("by its source's name it says %q, by its own %q", again, answer)
			}
			r.until("chat", "said to compute on cpu", 30*time.Second, func(s *wire.ReplicaStatus) bool { return s.Compute == "cpu" })

			// kill -9 of the agent: the engine stays, the next agent adopts it.
			agent := r.WaitActive("levelrail-agent.service")
			seen := len(r.server.Reports())
			r.Kill9(agent.MainPID)
			r.Eventually("the next agent", time.Minute, func() error {
				if u := r.unit("levelrail-agent.service"); u.ActiveState != "active" || u.MainPID == agent.MainPID || len(r.server.Reports()) == seen {
					return fmt.Errorf("%s, process %d", u.ActiveState, u.MainPID)
				}
				return nil
			})
			adopted := r.serving("chat", 1)
			if adopted.MainPID != first.MainPID || adopted.Invocation != first.Invocation {
				t.Errorf("the engine was restarted with the agent: %+v, then %+v", first, adopted)
			}
			for _, report := range r.server.Reports()[seen:] {
				if len(report.Replicas) != 1 || !report.Replicas[0].Condition.Ready {
					t.Errorf("an agent that adopts says of an engine that serves: %+v", report.Replicas)
				}
			}

			// An orderly restart too, and it stops quickly.
			r.Run("systemctl restart levelrail-agent.service")
			if u := r.unit(chatUnit); u.MainPID != first.MainPID {
				t.Error("the engine was restarted with the agent")
			}

			// kill -9 of the engine: systemd brings it back.
			r.Kill9(r.unit(chatUnit).MainPID)
			r.until("chat", "serving again", time.Minute, func(s *wire.ReplicaStatus) bool { return s.Condition.Ready && s.Invocation != first.Invocation })

			// An update restarts it, with the new spec.
			before := r.unit(chatUnit)
			r.server.Assign(r.assignment("chat", revision(2, func(s *levelrail.ModelSpec) { s.Context = 1024 })))
			r.serving("chat", 2)
			if u := r.unit(chatUnit); u.MainPID == before.MainPID || !strings.Contains(r.Run("cat /etc/systemd/system/"+chatUnit), "--ctx-size 4096") {
				t.Error("the update did not reach the engine: four slots of 1024 tokens each")
			}
			if r.must("chat", "chat") != answer {
				t.Error("another answer after the update")
			}

			// A reboot brings it back without the agent.
			r.Run("systemctl disable --quiet levelrail-agent.service && sync")
			r.Reboot()
			r.WaitActive(chatUnit)
			r.Eventually("the engine after the reboot", time.Minute, func() error { _, err := r.chat("chat", "chat"); return err })
			if u := r.unit("levelrail-agent.service"); u.ActiveState != "inactive" {
				t.Errorf("the agent is %s", u.ActiveState)
			}
			rebooted := r.unit(chatUnit)
			r.serve()
			r.Run("systemctl start levelrail-agent.service")
			r.serving("chat", 2)
			if u := r.unit(chatUnit); u.MainPID != rebooted.MainPID {
				t.Error("the agent restarted an engine that had come back by itself")
			}

			// Removed, it leaves its weights and nothing else.
			r.server.Withdraw("chat")
			r.Eventually("the model to be gone", time.Minute, func() error {
				if s := r.status("chat"); s != nil {
					return fmt.Errorf("still reported: %+v", s)
				}
				return nil
			})
			r.Eventually("systemd to have cleaned up after the unit", 10*time.Second, func() error {
				if u := r.unit(chatUnit); u.LoadState != "not-found" || u.ActiveState != "inactive" {
					return fmt.Errorf("it is %s, %s", u.LoadState, u.ActiveState)
				}
				return nil
			})
			left := r.Run(`find /etc/systemd/system -name 'levelrail-model*' -o -name 'levelrail-fetch*'; find /var/lib/levelrail/agent/credentials /var/lib/levelrail/agent/applied /run/levelrail-agent /run/levelrail/engines -mindepth 1; find /var/cache/private -mindepth 3 2>/dev/null || true`)
			if strings.TrimSpace(left) != "" {
				t.Errorf("left behind:\n%s", left)
			}
			if out := r.Run("ls /var/lib/levelrail/weights/chat"); !strings.Contains(out, ".gguf") {
				t.Errorf("the weights: %q", out)
			}
		})
	}
}

// TestFetch: a fetch that is killed goes on where it was, a deleted model's fetch ends, the token shows nowhere, and a
// second model of the same file downloads nothing.
func TestFetch(t *testing.T) {
	r := newRig(t, hosttest.Bookworm)
	const unit = "levelrail-fetch-chat.service"
	r.server.SetToken("chat", "hf_TopSecretToken", nil)
	r.hub.CDNFaults.Set(faults.Settings{Rate: 10 << 20})
	order := r.assignment("chat", func(a *wire.Assignment) { a.HubTokenSet = true })
	r.server.Assign(order)
	underWay := func(s *wire.ReplicaStatus) bool {
		return s.Condition.Progress != nil && s.Condition.Progress.DoneBytes > 10<<20
	}
	r.until("chat", "under way", time.Minute, underWay)
	shown := r.Run("systemctl show " + unit + "; cat /etc/systemd/system/" + unit + "; for f in /proc/[0-9]*/cmdline /proc/[0-9]*/environ; do tr '\\0' '\\n' <$f 2>/dev/null; done; journalctl --no-pager -o verbose; find /var/lib/levelrail /run/levelrail-agent -type f -size -64k | xargs cat")
	if strings.Contains(shown, "TopSecret") {
		t.Error("the Hub token shows in the unit, a process, a file or the journal")
	}
	if r.hub.LeakedTokens() != 0 {
		t.Error("the token went to the content network")
	}
	asked := false
	for _, q := range r.hub.Requests() {
		asked = asked || q.Token == "hf_TopSecretToken"
	}
	if !asked {
		t.Error("the Hub was never shown the token")
	}

	r.Kill9(r.unit(unit).MainPID)
	r.hub.CDNFaults.Set(faults.Settings{})
	r.serving("chat", 1)
	resumed := false
	for _, q := range r.hub.Requests() {
		resumed = resumed || q.CDN && q.Range != "" && q.Range != "bytes=0-"
	}
	if !resumed {
		t.Error("the download began from the start")
	}

	before := len(r.hub.Requests())
	r.server.Assign(r.assignment("second"))
	r.serving("second", 1)
	for _, q := range r.hub.Requests()[before:] {
		if q.CDN {
			t.Errorf("the second model downloaded: %+v", q)
		}
	}
	if out := strings.Fields(r.Run("stat -c %h /var/lib/levelrail/weights/chat/*.gguf /var/lib/levelrail/weights/second/*.gguf")); len(out) != 2 || out[0] != "3" || out[1] != "3" {
		t.Errorf("hard links: %v", out)
	}

	// Deleting in mid-download ends it and takes the partial file along.
	r.server.Withdraw("chat")
	r.server.Withdraw("second")
	r.Eventually("both to be gone", time.Minute, func() error {
		if r.status("chat") != nil || r.status("second") != nil {
			return fmt.Errorf("still reported")
		}
		return nil
	})
	r.Run("rm -rf /var/lib/levelrail/weights/.blobs /var/lib/levelrail/weights/chat /var/lib/levelrail/weights/second")
	r.hub.CDNFaults.Set(faults.Settings{Rate: 10 << 20})
	r.server.Assign(order)
	r.until("chat", "under way", time.Minute, underWay)
	r.server.Withdraw("chat")
	r.Eventually("the fetch to be gone", time.Minute, func() error {
		if out := strings.TrimSpace(r.Run("systemctl is-active " + unit + " || true; find /run/levelrail-agent /var/lib/levelrail/weights -type f ! -name .levelrail-store")); out != "inactive" {
			return fmt.Errorf("there are still: %s", out)
		}
		return nil
	})
}

// TestMended: what a node lacks is a reason with a next step, and the model starts by itself once it is there.
func TestMended(t *testing.T) {
	r := newRig(t, hosttest.Bookworm)
	// A program that is not there.
	r.Run("echo APP_MODEL_ENGINE_LLAMACPP=/usr/local/bin/my-llama >>/etc/default/levelrail-agent; systemctl restart levelrail-agent")
	r.server.Assign(r.assignment("chat", fromFile("/srv/models/my.gguf")))
	c := r.reason("chat", levelrail.EngineNotInstalled)
	if !strings.Contains(c.Message, "/usr/local/bin/my-llama") || !strings.Contains(c.Next, "APP_MODEL_ENGINE_LLAMACPP") {
		t.Errorf("condition %+v", c)
	}
	r.Run("printf '#!/bin/sh\\nexec " + r.llamaServer() + " \"$@\"\\n' >/usr/local/bin/my-llama; chmod 755 /usr/local/bin/my-llama")
	// A file that is not there.
	c = r.reason("chat", levelrail.DownloadFailed)
	if !strings.Contains(c.Message, "/srv/models/my.gguf on this node is not there") || c.Next == "" {
		t.Errorf("condition %+v", c)
	}
	// A file that is no model at all, and one that only begins like one: the engine does not stay up, and its first cause is said.
	r.Run("mkdir -p /srv/models; echo hello >/srv/models/my.gguf")
	r.until("chat", "told that it is no model", time.Minute, func(s *wire.ReplicaStatus) bool {
		return strings.Contains(s.Condition.Message, "does not begin as a GGUF file does")
	})
	r.Run("(printf GGUF; head -c 100000 /dev/urandom) >/srv/models/new; mv /srv/models/new /srv/models/my.gguf")
	c = r.reason("chat", levelrail.EngineFailed)
	if c.Next == "" || !strings.Contains(c.Message, "status 1: ") {
		t.Errorf("condition %+v", c)
	}
	t.Logf("a broken model: %s", c.Message)
	// Quick crashes reach systemd's limit; the start after the cure comes all the same (C050). A changed file is taken anew.
	r.Eventually("systemd to give up", time.Minute, func() error {
		if u := r.unit(chatUnit); u.ActiveState != "failed" {
			return fmt.Errorf("it is %s after %d restarts", u.ActiveState, u.NRestarts)
		}
		return nil
	})
	if _, err := r.try("systemctl start " + chatUnit); err == nil {
		t.Log("systemd does not refuse the start here")
	}
	r.Run("cp " + hosttest.WeightsPath + " /srv/models/my.gguf")
	r.server.Assign(r.assignment("chat", fromFile("/srv/models/my.gguf"), func(a *wire.Assignment) { a.Restarts = 1 }))
	r.serving("chat", 1)
	r.must("chat", "chat")

	// A change by hand holds until the next change of the model, a drop-in for good (C059).
	r.Run("sed -i 's/^RestartSec=5/RestartSec=7/' /etc/systemd/system/" + chatUnit + "; mkdir -p /etc/systemd/system/" + chatUnit + ".d; printf '[Service]\\nNice=3\\n' >/etc/systemd/system/" + chatUnit + ".d/mine.conf; systemctl daemon-reload")
	before := r.unit(chatUnit)
	s := r.until("chat", "told about", time.Minute, func(s *wire.ReplicaStatus) bool { return len(s.Notes) > 0 && len(s.DropIns) == 1 })
	if !strings.Contains(s.Notes[0], "changed by hand") || !strings.HasSuffix(s.DropIns[0], chatUnit+".d/mine.conf") || r.unit(chatUnit).MainPID != before.MainPID {
		t.Errorf("notes %q, drop-ins %q", s.Notes, s.DropIns)
	}
	r.server.Assign(r.assignment("chat", fromFile("/srv/models/my.gguf"), func(a *wire.Assignment) { a.Restarts = 2 }))
	r.until("chat", "restarted", time.Minute, func(s *wire.ReplicaStatus) bool {
		return s.Restarts == 2 && s.Condition.Ready && len(s.Notes) == 0 && len(s.DropIns) == 1
	})
	if u := r.unit(chatUnit); u.All["RestartUSec"] != "5s" || u.All["Nice"] != "3" {
		t.Errorf("RestartSec %s, Nice %s", u.All["RestartUSec"], u.All["Nice"])
	}
}

// TestWithoutBus: on a machine without a D-Bus daemon the agent reaches systemd by its own socket.
func TestWithoutBus(t *testing.T) {
	r := newRig(t, hosttest.Bookworm)
	r.Run("systemctl stop levelrail-agent.service dbus.socket dbus.service && systemctl mask --runtime --quiet dbus.socket dbus.service && rm -f /run/dbus/system_bus_socket && systemctl start levelrail-agent.service")
	r.server.Assign(r.assignment("chat", fromFile(hosttest.WeightsPath)))
	first := r.serving("chat", 1)
	r.Kill9(r.unit(chatUnit).MainPID)
	r.until("chat", "serving again", time.Minute, func(s *wire.ReplicaStatus) bool { return s.Condition.Ready && s.Invocation != first.Invocation })
	r.server.Withdraw("chat")
	r.Eventually("the model to be gone", time.Minute, func() error {
		if s := r.status("chat"); s != nil {
			return fmt.Errorf("still reported: %+v", s)
		}
		return nil
	})
	if left := strings.TrimSpace(r.Run("find /var/cache/private -mindepth 3 2>/dev/null || true")); left != "" {
		t.Errorf("the cache stayed:\n%s", left)
	}
	// With the bus back, the agent goes on without a restart.
	r.Run("systemctl unmask --runtime --quiet dbus.socket dbus.service && systemctl start dbus.socket")
	r.server.Assign(r.assignment("chat", fromFile(hosttest.WeightsPath)))
	r.until("chat", "serving once more", time.Minute, func(s *wire.ReplicaStatus) bool { return s.Condition.Ready })
}
