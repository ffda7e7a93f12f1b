package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/agent/fetch"
	"github.com/levelrail/levelrail/agent/gpu"
	"github.com/levelrail/levelrail/agent/units"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/engine"
	"github.com/levelrail/levelrail/systemd"
)

// TestDeploy: from an assignment to an engine that serves, each phase said on the way, nothing secret in a unit.
func TestDeploy(t *testing.T) {
	inBubble(t, func(n *node) {
		answer("chat", engine.Down)
		n.server.Assign(n.assignment())
		n.until("it starts", time.Minute, n.reason("chat", levelrail.Starting))
		n.until("it runs", time.Minute, func() bool { return n.units.State(chat).Up() })
		answer("chat", engine.Load, "half of it")
		n.until("it loads", time.Minute, n.reason("chat", levelrail.Loading))
		if m := n.status("chat").Condition.Message; m != "half of it" {
			t.Errorf("message %q", m)
		}
		n.journal.Say(chat, n.units.State(chat).Invocation, "computes on cpu")
		answer("chat", engine.Serving)
		n.until("it serves", time.Minute, n.reason("chat", levelrail.ModelLoaded))
		n.until("it says on what it computes", time.Minute, func() bool { return n.status("chat").Compute == "cpu" })
		s := n.status("chat")
		if !s.Condition.Ready || s.Revision != 1 || s.MainPID == 0 || s.Socket != "/run/levelrail/engines/chat/engine.sock" || len(s.Notes) != 0 {
			t.Errorf("status %+v", s)
		}
		text := n.units.Text(chat)
		if strings.Contains(text, "lr-secret") || !strings.Contains(text, "LoadCredential=engine-key:"+n.paths.credentials("chat")+"/engine-key") {
			t.Errorf("the key in the unit, or not given:\n%s", text)
		}
		key := filepath.Join(n.paths.credentials("chat"), "engine-key")
		if n.read(key) != "lr-secret-of-the-engine" || n.mode(key) != "600" || n.mode(n.paths.applied("chat")) != "600" {
			t.Errorf("key file %s, applied %s", n.mode(key), n.mode(n.paths.applied("chat")))
		}
		if n.mode(n.paths.unit(chat)) != "644" || !n.exists(n.paths.wants(chat)) {
			t.Errorf("unit file %s, enabled %v", n.mode(n.paths.unit(chat)), n.exists(n.paths.wants(chat)))
		}
		n.until("the fetch is cleared away", time.Minute, func() bool {
			return !n.exists(n.paths.fetch("chat")) && !n.exists(n.paths.unit("levelrail-fetch-chat.service"))
		})
		reports := n.server.Reports()
		last := reports[len(reports)-1]
		if last.GPUNote != "no cards here" || last.Disk == nil || len(last.Weights) != 1 || last.Weights[0].Nodes[0].Model != "chat" {
			t.Errorf("report %+v", last)
		}
	})
}

// TestAgentRestartKeepsEngine: the next agent adopts what runs, starts and stops nothing, and never says that an engine
// which serves does not (C060).
func TestAgentRestartKeepsEngine(t *testing.T) {
	inBubble(t, func(n *node) {
		before := n.serve()
		n.stop()
		n.units.ForgetCalls()
		seen := len(n.server.Reports())
		n.start()
		n.until("it reports", time.Minute, func() bool { return len(n.server.Reports()) > seen })
		n.hold("nothing is done", time.Minute, func() bool { return len(n.units.Calls()) == 0 })
		for _, r := range n.server.Reports()[seen:] {
			if len(r.Replicas) != 1 || !r.Replicas[0].Condition.Ready || r.Replicas[0].Invocation != before.Invocation {
				t.Fatalf("a report after the restart says %+v", r.Replicas)
			}
		}
		hellos := n.server.Hellos()
		if len(hellos) != 2 || hellos[0].NodeID != hellos[1].NodeID || hellos[0].ClusterID != "" || hellos[1].ClusterID != "clu_1" {
			t.Errorf("greetings %+v", hellos)
		}
	})
}

// TestAgentUpgradeKeepsEngine: an agent that would write the unit differently restarts nothing, and says what would.
func TestAgentUpgradeKeepsEngine(t *testing.T) {
	inBubble(t, func(n *node) {
		n.serve()
		n.stop()
		n.units.ForgetCalls()
		program.Store("/usr/bin/false")
		n.start()
		n.until("it is noted", time.Minute, func() bool { s := n.status("chat"); return s != nil && len(s.Notes) == 1 })
		if note := n.status("chat").Notes[0]; !strings.Contains(note, "models restart chat") {
			t.Errorf("note %q", note)
		}
		n.hold("nothing is done", time.Minute, func() bool { return len(n.units.Calls()) == 0 })
		n.server.Assign(n.assignment(func(a *wire.Assignment) { a.Restarts = 1 }))
		n.until("the new form is in force", time.Minute, func() bool {
			return strings.Contains(n.units.Text(chat), "/usr/bin/false") && len(n.status("chat").Notes) == 0
		})
	})
}

// TestUpdate: another revision stops the old engine, starts the new one, and says which is which meanwhile.
func TestUpdate(t *testing.T) {
	inBubble(t, func(n *node) {
		n.serve()
		first := n.units.State(chat)
		n.units.ForgetCalls()
		n.server.Assign(n.assignment(func(a *wire.Assignment) { a.Revision = 2; a.Spec.Context = 4096 }))
		n.until("revision 2 serves", time.Minute, func() bool {
			s := n.status("chat")
			return s.Revision == 2 && s.Condition.Ready && s.Invocation != first.Invocation
		})
		calls := n.units.Calls()
		if stop, start := slices.Index(calls, "stop "+chat), slices.Index(calls, "start "+chat); stop < 0 || start < stop {
			t.Errorf("calls %q", calls)
		}
		n.units.ForgetCalls()
		// A revision that changes nothing of the process restarts nothing.
		n.server.Assign(n.assignment(func(a *wire.Assignment) { a.Revision = 3; a.Spec.Context = 4096 }))
		n.until("revision 3 is reported", time.Minute, func() bool { return n.status("chat").Revision == 3 })
		if n.did("stop "+chat) || n.did("start "+chat) || !n.status("chat").Condition.Ready {
			t.Errorf("calls %q", n.units.Calls())
		}
	})
}

// TestUpdateKeepsServingWhileFetching: the old revision serves until the new one's weights are there; what keeps the new
// one away is said.
func TestUpdateKeepsServingWhileFetching(t *testing.T) {
	inBubble(t, func(n *node) {
		fromFile := func(a *wire.Assignment) { a.Spec.Engine = "local" }
		n.serve(fromFile)
		n.units.ForgetCalls()
		other := n.source + ".2.gguf"
		n.server.Assign(n.assignment(fromFile, func(a *wire.Assignment) { a.Revision = 2; a.Spec.Source = other }))
		n.until("it says what is missing", time.Minute, n.reason("chat", levelrail.DownloadFailed))
		s := n.status("chat")
		if !s.Condition.Ready || s.Revision != 1 || !strings.Contains(s.Condition.Message, other) {
			t.Errorf("status %+v", s)
		}
		n.hold("the old one serves", time.Minute, func() bool { return n.status("chat").Condition.Ready && !n.did("stop "+chat) })
		n.write(other, "GGUF of another")
		n.until("revision 2 serves", time.Minute, func() bool {
			s := n.status("chat")
			return s.Revision == 2 && s.Condition.Reason == levelrail.ModelLoaded
		})
		if !strings.Contains(n.units.Text(chat), filepath.Base(other)) {
			t.Error("the unit runs from the old weights")
		}
	})
}

// TestSinceIsOfTheOrder: the same lack under a newer revision is said anew, with its own time, so that nobody takes it for
// a word about the revision before.
func TestSinceIsOfTheOrder(t *testing.T) {
	inBubble(t, func(n *node) {
		n.serve()
		program.Store("/nonexistent/engine")
		var since [4]time.Time
		for rev := 2; rev < 4; rev++ {
			time.Sleep(time.Minute)
			asked := time.Now()
			n.server.Assign(n.assignment(func(a *wire.Assignment) { a.Revision, a.Spec.Context = rev, 1000*rev }))
			n.until("the lack is said of it", time.Minute, func() bool {
				c := n.status("chat").Condition
				return c.Reason == levelrail.EngineNotInstalled && !c.Since.Before(asked)
			})
			since[rev] = n.status("chat").Condition.Since
			if !n.status("chat").Condition.Ready {
				t.Error("the old revision was taken away")
			}
		}
		n.hold("it is said once", time.Minute, func() bool { return n.status("chat").Condition.Since.Equal(since[3]) })
	})
}

// TestDelete: a withdrawn model leaves nothing but its weights.
func TestDelete(t *testing.T) {
	inBubble(t, func(n *node) {
		n.serve()
		n.server.Withdraw("chat")
		n.until("it is gone from the report", time.Minute, func() bool { return n.status("chat") == nil })
		if n.units.State(chat).Running() || !n.did("clean "+chat) {
			t.Errorf("state %v, calls %q", n.units.State(chat), n.units.Calls())
		}
		for _, p := range []string{n.paths.unit(chat), n.paths.wants(chat), n.paths.credentials("chat"), n.paths.applied("chat")} {
			if n.exists(p) {
				t.Errorf("%s is still there", p)
			}
		}
		if n.read(filepath.Join(n.paths.set("chat"), "model.gguf")) != "GGUF weights" {
			t.Error("the weights are gone")
		}
		// Deployed again, nothing is fetched.
		before := n.fetches
		n.serve()
		if n.fetches != before {
			t.Error("weights that were there were fetched again")
		}
	})
}

// TestDeleteInMidFetch: withdrawing a model that is still being fetched ends the fetch.
func TestDeleteInMidFetch(t *testing.T) {
	inBubble(t, func(n *node) {
		n.units.OnStart = nil // a fetch that takes for ever
		n.server.Assign(n.assignment())
		n.until("it is fetched", time.Minute, n.reason("chat", levelrail.Downloading))
		n.until("the unit runs", time.Minute, func() bool { return n.units.State("levelrail-fetch-chat.service").Up() })
		n.server.Withdraw("chat")
		n.until("the fetch is gone", time.Minute, func() bool {
			return !n.units.State("levelrail-fetch-chat.service").Up() && !n.exists(n.paths.fetch("chat")) && !n.exists(n.paths.unit("levelrail-fetch-chat.service"))
		})
	})
}

// TestCrashLoop: an engine that does not stay up is EngineFailed with its first cause; it is tried again by itself, more
// and more slowly, and after a user's cure at once, although systemd would refuse (C050).
func TestCrashLoop(t *testing.T) {
	inBubble(t, func(n *node) {
		answer("chat", engine.Down)
		n.server.Assign(n.assignment())
		n.until("it runs", time.Minute, func() bool { return n.units.State(chat).Up() })
		crash := func(giveUp bool) {
			n.journal.Say(chat, n.units.State(chat).Invocation, "loading")
			n.journal.Say(chat, n.units.State(chat).Invocation, "fatal: no such tensor")
			n.journal.Say(chat, n.units.State(chat).Invocation, "bye")
			n.units.Crash(chat, 1, giveUp)
		}
		crash(false)
		n.hold("one crash is no failure", 3*time.Second, func() bool { s := n.status("chat"); return s == nil || s.Condition.Reason == levelrail.Starting })
		n.units.Again(chat)
		crash(false)
		n.units.Again(chat)
		n.until("it is called failed", time.Minute, n.reason("chat", levelrail.EngineFailed))
		n.until("the cause is said", time.Minute, func() bool { return strings.Contains(n.status("chat").Condition.Message, "no such tensor") })
		crash(true)
		n.units.ForgetCalls()
		gaveUp := time.Now()
		n.until("it is tried again", 10*time.Minute, func() bool { return n.did("start " + chat) })
		if d := time.Since(gaveUp); d < 50*time.Second || !n.did("reset "+chat) || !n.units.State(chat).Up() {
			t.Errorf("tried again after %v with %q", d, n.units.Calls())
		}
		crash(true)
		n.units.ForgetCalls()
		gaveUp = time.Now()
		n.until("it is tried a third time", 10*time.Minute, func() bool { return n.did("start " + chat) })
		if d := time.Since(gaveUp); d < 110*time.Second {
			t.Errorf("tried a third time already after %v", d)
		}
		crash(true)
		n.until("it is given up on", time.Minute, func() bool { return n.units.State(chat).Failed() })
		// The user mends it.
		answer("chat", engine.Serving)
		mended := time.Now()
		n.server.Assign(n.assignment(func(a *wire.Assignment) { a.Restarts = 1 }))
		n.until("it serves", time.Minute, n.reason("chat", levelrail.ModelLoaded))
		if d := time.Since(mended); d > 5*time.Second {
			t.Errorf("the start after the cure took %v", d)
		}
	})
}

// TestOneCrashWhileServing: a served model that dies once is starting again, not failed.
func TestOneCrashWhileServing(t *testing.T) {
	inBubble(t, func(n *node) {
		n.serve()
		answer("chat", engine.Down)
		n.units.Crash(chat, 9, false)
		n.until("it is not ready", time.Minute, func() bool { return !n.status("chat").Condition.Ready })
		if r := n.status("chat").Condition.Reason; r != levelrail.Starting {
			t.Errorf("reason %s", r)
		}
		n.units.Again(chat)
		answer("chat", engine.Serving)
		n.until("it serves", time.Minute, n.reason("chat", levelrail.ModelLoaded))
	})
}

// TestBusyEngineStaysReady: a single probe that fails takes no model out of service.
func TestBusyEngineStaysReady(t *testing.T) {
	inBubble(t, func(n *node) {
		n.serve()
		answer("chat", engine.Down)
		time.Sleep(probeCalm + probeSlow/2)
		answer("chat", engine.Serving)
		n.hold("it is ready", 30*time.Second, func() bool { return n.status("chat").Condition.Ready })
		answer("chat", engine.Broken, "out of memory")
		n.until("it is broken", time.Minute, n.reason("chat", levelrail.EngineFailed))
		if m := n.status("chat").Condition.Message; !strings.Contains(m, "out of memory") {
			t.Errorf("message %q", m)
		}
	})
}

// TestEngineNotInstalled: a missing program is named with the way to install it, and the model starts by itself once it
// is there.
func TestEngineNotInstalled(t *testing.T) {
	inBubble(t, func(n *node) {
		path := fmt.Sprintf("/opt/levelrail-test-%d/engine", os.Getpid())
		program.Store(path)
		answer("chat", engine.Serving)
		n.server.Assign(n.assignment())
		n.until("it is missed", time.Minute, n.reason("chat", levelrail.EngineNotInstalled))
		if c := n.status("chat").Condition; c.Next != "apt install echo on debian 12" || !strings.Contains(c.Message, "echo is not installed") {
			t.Errorf("condition %+v", c)
		}
		if n.fetches != 0 {
			t.Error("weights are fetched for an engine that is not there")
		}
		n.until("the node says so", time.Minute, func() bool {
			reports := n.server.Reports()
			return slices.ContainsFunc(reports[len(reports)-1].Engines, func(e wire.EngineStatus) bool { return e.Engine == "echo" && !e.Installed && e.Next != "" })
		})
		if os.Getuid() != 0 {
			t.Skip("putting a program below /opt takes root")
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(filepath.Dir(path))
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		n.until("it starts by itself", time.Minute, n.reason("chat", levelrail.ModelLoaded))
	})
}

// TestLostServer: without a control plane every unit stays as it is, and one that has nothing to say yet takes nothing
// away.
func TestLostServer(t *testing.T) {
	inBubble(t, func(n *node) {
		n.serve()
		n.units.ForgetCalls()
		n.server.Set(false)
		n.hold("nothing is done", 5*time.Minute, func() bool { return len(n.units.Calls()) == 0 && n.units.State(chat).Up() })
		n.server.Forget()
		n.server.Set(true)
		n.hold("nothing is done", 5*time.Minute, func() bool { return len(n.units.Calls()) == 0 && n.units.State(chat).Up() })
		n.stop()
		n.start()
		n.hold("nor by a new agent", 5*time.Minute, func() bool { return len(n.units.Calls()) == 0 && n.units.State(chat).Up() })
	})
}

// TestReconnect: a server that comes back is greeted within seconds and hears everything at once.
func TestReconnect(t *testing.T) {
	inBubble(t, func(n *node) {
		n.serve()
		n.server.Set(false)
		time.Sleep(time.Minute)
		seen, back := len(n.server.Reports()), time.Now()
		n.server.Set(true)
		n.until("it reports", time.Minute, func() bool { return len(n.server.Reports()) > seen })
		if d := time.Since(back); d > linkMost+time.Second {
			t.Errorf("took %v", d)
		}
		if !n.status("chat").Condition.Ready {
			t.Error("the model is no longer ready")
		}
	})
}

// TestOtherCluster: an agent serves one cluster, and no server that has been overtaken.
func TestOtherCluster(t *testing.T) {
	inBubble(t, func(n *node) {
		n.serve()
		n.units.ForgetCalls()
		become := func(cluster string, term uint64, change func(*wire.Assignment)) {
			n.server.Set(false)
			time.Sleep(time.Second)
			n.server.Become(cluster, term)
			n.server.Assign(n.assignment(func(a *wire.Assignment) { a.Term = term }, change))
			n.server.Set(true)
		}
		become("clu_other", 9, func(a *wire.Assignment) { a.Spec.Context = 1 })
		seen := len(n.server.Reports())
		n.hold("nothing is done for another cluster", time.Minute, func() bool { return len(n.units.Calls()) == 0 && len(n.server.Reports()) == seen })
		become("clu_1", 5, func(*wire.Assignment) {})
		n.until("its own cluster is obeyed", time.Minute, func() bool { return len(n.server.Reports()) > seen })
		become("clu_1", 4, func(a *wire.Assignment) { a.Spec.Context = 2; a.Revision = 2 })
		seen = len(n.server.Reports())
		n.hold("nothing is done for a lower term", time.Minute, func() bool { return len(n.units.Calls()) == 0 && len(n.server.Reports()) == seen })
		n.stop() // and what was seen outlives the agent
		n.start()
		n.hold("nothing is done for a lower term", time.Minute, func() bool { return len(n.units.Calls()) == 0 && len(n.server.Reports()) == seen })
	})
}

// TestRestoredHistory: a control plane that was restored from a backup is followed although its terms are lower, engines
// run on through it, and a server that is left over from the replaced history gives no orders.
func TestRestoredHistory(t *testing.T) {
	inBubble(t, func(n *node) {
		n.serve()
		become := func(lineage string, term uint64, change func(*wire.Assignment)) {
			n.server.Set(false)
			time.Sleep(time.Second)
			n.server.Restore(lineage, term)
			n.server.Assign(n.assignment(func(a *wire.Assignment) { a.Term = term }, change))
			n.server.Set(true)
		}
		seen := len(n.server.Reports())
		become("first", 9, func(*wire.Assignment) {})
		n.until("the agent has seen term 9", time.Minute, func() bool { return len(n.server.Reports()) > seen })
		n.units.ForgetCalls()
		become("restored", 2, func(*wire.Assignment) {})
		seen = len(n.server.Reports())
		n.until("the restored history is followed", time.Minute, func() bool { return len(n.server.Reports()) > seen })
		n.hold("the engine runs on", time.Minute, func() bool { return len(n.units.Calls()) == 0 })
		if h := n.server.Hellos(); h[len(h)-1].Lineage != "first" || h[len(h)-1].Term != 9 {
			t.Errorf("the agent said that it has followed %+v", h[len(h)-1])
		}
		become("first", 10, func(a *wire.Assignment) { a.Spec.Context = 1; a.Revision = 2 })
		seen = len(n.server.Reports())
		n.hold("the replaced history gives no orders", time.Minute, func() bool { return len(n.units.Calls()) == 0 && len(n.server.Reports()) == seen })
		n.stop() // which outlives the agent
		n.start()
		n.hold("nor to the next agent", time.Minute, func() bool { return len(n.units.Calls()) == 0 && len(n.server.Reports()) == seen })
		become("restored", 1, func(*wire.Assignment) {})
		n.hold("nor does a lower term of the restored one", time.Minute, func() bool { return len(n.server.Reports()) == seen })
		become("restored", 3, func(*wire.Assignment) {})
		n.until("the restored history goes on", time.Minute, func() bool { return len(n.server.Reports()) > seen })
	})
}

// TestTermOfAnother: a server that names a term which no election reaches is refused, and the true one is obeyed at once. One
// that named a possible term, or another history, is followed, and the true one after it has a new history.
func TestTermOfAnother(t *testing.T) {
	for name, row := range map[string]struct {
		lie     func(*node)
		restore bool
	}{
		"impossible":                  {func(n *node) { n.server.Become("clu_1", 1<<63) }, false},
		"impossible in an assignment": {func(n *node) { n.server.Assign(n.assignment(func(a *wire.Assignment) { a.Term = 1 << 63 })) }, false},
		"a history of many lines":     {func(n *node) { n.server.Restore("a\nb", 1) }, false},
		"high":                        {func(n *node) { n.server.Become("clu_1", 1<<40) }, true},
		"another history":             {func(n *node) { n.server.Restore("evil", 1) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(n *node) {
				n.server.Restore("true", 1)
				n.serve()
				n.server.Set(false)
				row.lie(n)
				n.server.Set(true)
				time.Sleep(10 * time.Second)
				n.server.Set(false)
				n.server.Restore("true", 1)
				if row.restore {
					n.server.Restore("true-restored", 1)
				}
				n.server.Assign(n.assignment(func(a *wire.Assignment) { a.Revision, a.Spec.Context = 2, 512 }))
				n.server.Set(true)
				n.until("the true server is obeyed", 10*time.Second, func() bool { s := n.status("chat"); return s != nil && s.Revision == 2 })
			})
		})
	}
}

// TestReplacedCluster: on a machine made anew, whose own cluster a restored one takes the place of, the agent goes over and
// becomes the node that the restored cluster has of this machine. An agent with a cluster of its own never does so.
func TestReplacedCluster(t *testing.T) {
	inBubble(t, func(n *node) {
		n.serve()
		n.server.Set(false)
		time.Sleep(time.Second)
		n.server.Replace("clu_restored", "node_ofthebackup")
		n.server.Set(true)
		became := func() bool {
			h := n.server.Hellos()
			last := h[len(h)-1]
			return last.NodeID == "node_ofthebackup" && last.ClusterID == "clu_restored"
		}
		seen := len(n.server.Reports())
		n.until("it reports to the restored cluster", time.Minute, func() bool { return len(n.server.Reports()) > seen })
		if r := n.server.Reports(); r[len(r)-1].NodeID != "node_ofthebackup" {
			t.Errorf("it reports as %s", r[len(r)-1].NodeID)
		}
		n.stop() // which outlives the agent
		n.start()
		n.until("the next agent is the same node", time.Minute, became)

		n.server.Set(false)
		time.Sleep(time.Second)
		n.server.Become("clu_third", 1)
		n.server.Set(true)
		seen = len(n.server.Reports())
		n.hold("a third cluster is not followed", time.Minute, func() bool { return len(n.server.Reports()) == seen })
	})
}

// TestChangedByHand: a change of the file is told, kept, and replaced with the next change of the model (C059); drop-ins
// are listed.
func TestChangedByHand(t *testing.T) {
	inBubble(t, func(n *node) {
		n.serve()
		n.units.ForgetCalls()
		path := n.paths.unit(chat)
		n.write(path, strings.Replace(n.read(path), "Restart=always", "Restart=always\nNice=7", 1))
		n.until("it is told", time.Minute, func() bool {
			return slices.ContainsFunc(n.status("chat").Notes, func(s string) bool { return strings.Contains(s, "changed by hand") })
		})
		n.hold("it stays", time.Minute, func() bool { return strings.Contains(n.read(path), "Nice=7") && len(n.units.Calls()) == 0 })
		n.server.Assign(n.assignment(func(a *wire.Assignment) { a.Restarts = 1 }))
		n.until("it is replaced", time.Minute, func() bool { return !strings.Contains(n.read(path), "Nice=7") && len(n.status("chat").Notes) == 0 })
	})
}

// TestNotIsolated: a drop-in that takes isolation away, and a line taken out of the file by hand, are told as such, and no
// longer once they are gone; a drop-in that does not is only listed.
func TestNotIsolated(t *testing.T) {
	inBubble(t, func(n *node) {
		n.serve()
		dropIn := filepath.Join(t.TempDir(), "override.conf")
		tells := func(want ...string) func() bool {
			return func() bool { return slices.Equal(n.status("chat").NotIsolated, want) }
		}
		n.write(dropIn, "[Service]\nCPUWeight=200\n")
		n.units.DropIns(chat, dropIn)
		n.until("it is listed", time.Minute, func() bool { return slices.Equal(n.status("chat").DropIns, []string{dropIn}) })
		n.hold("it weakens nothing", 10*time.Second, tells())
		n.write(dropIn, "[Service]\nPrivateNetwork=no\n")
		n.until("it is told", time.Minute, tells("PrivateNetwork=no ("+dropIn+")"))
		n.units.DropIns(chat)
		n.until("it is not told any more", time.Minute, tells())
		path := n.paths.unit(chat)
		n.write(path, strings.Replace(n.read(path), "NoNewPrivileges=yes\n", "", 1))
		n.until("the missing line is told", time.Minute, tells("NoNewPrivileges=yes is missing"))
	})
}

// TestForeignFiles: files without the mark are never touched, whatever their name.
func TestForeignFiles(t *testing.T) {
	inBubble(t, func(n *node) {
		foreign := n.paths.unit("levelrail-model-mine.service")
		n.write(foreign, "[Service]\nExecStart=/bin/true\n")
		n.serve()
		n.server.Withdraw("chat")
		n.until("chat is gone", time.Minute, func() bool { return !n.exists(n.paths.unit(chat)) })
		n.hold("the other stays", time.Minute, func() bool { return n.exists(foreign) })
		if slices.ContainsFunc(n.units.Calls(), func(c string) bool { return strings.Contains(c, "mine") }) {
			t.Errorf("calls %q", n.units.Calls())
		}
	})
}

// TestStageIsCleared: what a fetch left in its stage goes once the weights are there, also when an agent was killed in between,
// and is no reason to look again and again.
func TestStageIsCleared(t *testing.T) {
	inBubble(t, func(n *node) {
		n.serve()
		n.stop()
		stage := fetch.Store{Dir: n.paths.Weights}.Stage("chat")
		if err := os.MkdirAll(filepath.Join(stage, "files"), 0o755); err != nil {
			t.Fatal(err)
		}
		n.start()
		n.until("the stage is gone", time.Minute, func() bool { return !n.exists(stage) })
		n.until("it serves", time.Minute, n.reason("chat", levelrail.ModelLoaded))
		n.units.ForgetCalls()
		n.hold("nothing more is done", time.Minute, func() bool { return len(n.units.Calls()) == 0 })
	})
}

// TestHubToken: the token reaches the fetch as a file that is there only while it starts; a token that cannot be had is a
// reason of its own, and passes when it can.
func TestHubToken(t *testing.T) {
	inBubble(t, func(n *node) {
		n.server.SetToken("chat", "", levelrail.Errorf(levelrail.ErrRefused, "the master key does not open it"))
		answer("chat", engine.Serving)
		n.server.Assign(n.assignment(func(a *wire.Assignment) { a.HubTokenSet = true }))
		n.until("it is said", time.Minute, n.reason("chat", levelrail.HFTokenUnavailable))
		if n.fetches != 0 {
			t.Error("fetched without the token")
		}
		token := filepath.Join(n.paths.fetch("chat"), "token")
		seen := ""
		process := n.units.OnStart
		n.units.OnStart = func(ctx context.Context, unit string) error {
			if unit == "levelrail-fetch-chat.service" {
				seen = n.units.Text(unit)
			}
			return process(ctx, unit)
		}
		n.server.SetToken("chat", "hf_secret", nil)
		n.until("it serves", 2*time.Minute, n.reason("chat", levelrail.ModelLoaded))
		if !strings.Contains(seen, "LoadCredential=hf_token:"+token) || strings.Contains(seen, "hf_secret") {
			t.Errorf("the fetch unit:\n%s", seen)
		}
		if n.exists(token) {
			t.Error("the token is still on disk")
		}
	})
}

// TestFetchRetries: a fetch that was killed goes on soon, one that failed after a while.
func TestFetchRetries(t *testing.T) {
	inBubble(t, func(n *node) {
		process := n.units.OnStart
		killed := 0
		n.units.OnStart = func(ctx context.Context, unit string) error {
			if strings.HasPrefix(unit, "levelrail-fetch-") && killed < 2 {
				killed++
				return errors.New("killed")
			}
			return process(ctx, unit)
		}
		answer("chat", engine.Serving)
		began := time.Now()
		n.server.Assign(n.assignment())
		n.until("it serves", time.Minute, n.reason("chat", levelrail.ModelLoaded))
		if d := time.Since(began); killed != 2 || d > 20*time.Second {
			t.Errorf("killed %d times, took %v", killed, d)
		}
	})
}

// TestFetchFailsAtOnce: a fetch that fails before its start job has ended fails that job too; the model says what the fetch
// found, not that a job failed. One that never ran says where to look.
func TestFetchFailsAtOnce(t *testing.T) {
	wrong := strings.Repeat("0", 64)
	for _, early := range []bool{false, true} {
		inBubble(t, func(n *node) {
			n.units.EndsEarly = early
			n.server.Assign(n.assignment(func(a *wire.Assignment) { a.Spec.SHA256 = wrong }))
			n.until("it says why", time.Minute, n.reason("chat", levelrail.DownloadFailed))
			if c := n.status("chat").Condition; !strings.Contains(c.Message, "not the expected "+wrong) {
				t.Errorf("early %t: condition %+v", early, c)
			}
			answer("chat", engine.Serving)
			n.server.Assign(n.assignment())
			n.until("it serves", time.Minute, n.reason("chat", levelrail.ModelLoaded))
		})
	}
	inBubble(t, func(n *node) {
		n.units.EndsEarly = true
		n.units.OnStart = func(context.Context, string) error { return errors.New("not even begun") }
		n.server.Assign(n.assignment())
		n.until("it says where to look", time.Minute, n.reason("chat", levelrail.DownloadFailed))
		if c := n.status("chat").Condition; !strings.Contains(c.Message, "could not be started") || !strings.Contains(c.Next, "journalctl -u levelrail-fetch-chat.service") {
			t.Errorf("condition %+v", c)
		}
	})
}

// TestSleepAndWake: an assignment that is not to run is stopped and does not come at boot; woken, it does again.
func TestSleepAndWake(t *testing.T) {
	inBubble(t, func(n *node) {
		n.serve()
		n.server.Assign(n.assignment(func(a *wire.Assignment) { a.Run = false }))
		n.until("it is idle", time.Minute, n.reason("chat", levelrail.Idle))
		if n.units.State(chat).Running() || n.exists(n.paths.wants(chat)) || !n.exists(n.paths.unit(chat)) {
			t.Error("it runs, would come at boot, or lost its file")
		}
		n.serve()
		if !n.exists(n.paths.wants(chat)) {
			t.Error("it would not come back at boot")
		}
	})
}

// TestReboot: what was enabled comes back without the agent.
func TestReboot(t *testing.T) {
	inBubble(t, func(n *node) {
		n.serve()
		n.stop()
		n.units.Reboot()
		if !n.units.State(chat).Up() {
			t.Fatal("the engine did not come back")
		}
		n.units.ForgetCalls()
		n.start()
		n.until("it serves", time.Minute, func() bool {
			s := n.status("chat")
			return s != nil && s.Invocation == n.units.State(chat).Invocation && s.Condition.Ready
		})
		if len(n.units.Calls()) != 0 {
			t.Errorf("calls %q", n.units.Calls())
		}
	})
}

// TestDoor: an engine without a socket of its own gets a door, which opens and closes with it.
func TestDoor(t *testing.T) {
	inBubble(t, func(n *node) {
		socket, service := systemd.DoorSocket("chat"), systemd.DoorService("chat")
		n.serve(func(a *wire.Assignment) { a.Spec.Engine = "doored" })
		if !n.units.State(socket).Running() || n.did("start "+service) {
			t.Errorf("door %v, calls %q", n.units.State(socket), n.units.Calls())
		}
		if err := n.units.Stop(t.Context(), socket); err != nil {
			t.Fatal(err)
		}
		n.until("the door is opened again", time.Minute, func() bool { return n.units.State(socket).Running() })
		// Another engine needs none.
		n.serve(func(a *wire.Assignment) { a.Revision = 2 })
		n.until("the door is gone", time.Minute, func() bool { return !n.exists(n.paths.unit(socket)) && !n.exists(n.paths.unit(service)) })
		n.server.Withdraw("chat")
		n.until("it is gone", time.Minute, func() bool { return n.status("chat") == nil })
	})
}

// TestLogs: lines go to the server as they come, until it takes the request back.
func TestLogs(t *testing.T) {
	inBubble(t, func(n *node) {
		n.serve()
		n.journal.Say(chat, "r", "one")
		n.journal.Say("x", "r", "not this")
		n.server.AskLogs(wire.LogRequest{ID: "log_1", Model: "chat", Follow: true})
		lines := func(want ...string) func() bool {
			return func() bool {
				var got []string
				for _, l := range n.server.Logs("log_1") {
					got = append(got, l.Message)
				}
				return slices.Equal(got, want)
			}
		}
		n.until("the first line came", time.Minute, lines("one"))
		n.journal.Say(chat, "r", "two")
		n.until("the next line came", time.Minute, lines("one", "two"))
		n.server.Unask("log_1")
		time.Sleep(time.Second)
		n.journal.Say(chat, "r", "three")
		n.hold("no more lines come", 10*time.Second, lines("one", "two"))
	})
}

// cards is a node with two of them.
type cards struct{ missing []string }

func (c cards) Read(context.Context) gpu.Snapshot {
	return gpu.Snapshot{Devices: []levelrail.Device{{UUID: "GPU-a", Index: 0}, {UUID: "GPU-b", Index: 1}}, Minors: map[string]int{"GPU-a": 2, "GPU-b": 0}, Missing: c.missing}
}

// TestCards: an engine may open its own cards and no other; what is missing on the node is named and waited for.
func TestCards(t *testing.T) {
	inBubble(t, func(n *node) {
		n.stop()
		n.config.GPUs = cards{missing: []string{"/dev/nvidia-uvm"}}
		n.start()
		answer("chat", engine.Serving)
		given := func(id string) func(*wire.Assignment) { return func(a *wire.Assignment) { a.Devices = []string{id} } }
		n.server.Assign(n.assignment(given("GPU-a")))
		n.until("it is missed", time.Minute, n.reason("chat", levelrail.GPURuntimeMissing))
		if c := n.status("chat").Condition; !strings.Contains(c.Message, "/dev/nvidia-uvm") || !strings.Contains(c.Next, "nvidia-modprobe") {
			t.Errorf("condition %+v", c)
		}
		n.stop()
		n.config.GPUs = cards{}
		n.start()
		n.until("it serves", time.Minute, n.reason("chat", levelrail.ModelLoaded))
		text := n.units.Text(chat)
		if !strings.Contains(text, "DeviceAllow=/dev/char/195:2 rw\n") || strings.Contains(text, "/dev/char/195:0 ") || strings.Contains(text, "PrivateDevices") {
			t.Errorf("the unit:\n%s", text)
		}
		n.server.Assign(n.assignment(given("GPU-gone"), func(a *wire.Assignment) { a.Revision = 2 }))
		n.until("it is missed", time.Minute, func() bool {
			return strings.Contains(n.status("chat").Condition.Message, "GPU-gone is not on this node")
		})
		if !n.status("chat").Condition.Ready {
			t.Error("the old revision was taken away for one that cannot run")
		}
	})
}

// TestStartFails: a start that systemd refuses is told and tried again.
func TestStartFails(t *testing.T) {
	inBubble(t, func(n *node) {
		n.units.Refuse(chat, &units.JobError{Verb: "start", Unit: chat, Result: "assert"})
		answer("chat", engine.Serving)
		n.server.Assign(n.assignment())
		n.until("it is told", time.Minute, n.reason("chat", levelrail.EngineFailed))
		if c := n.status("chat").Condition; !strings.Contains(c.Message, "a condition of the unit does not hold") || c.Next != "systemctl status "+chat {
			t.Errorf("condition %+v", c)
		}
		n.units.Refuse(chat, nil)
		n.until("it serves", time.Minute, n.reason("chat", levelrail.ModelLoaded))
	})
}

// TestBadAssignment: a name that would lead to other files is refused, whoever sent it: the report says so, and the other
// replicas are looked after as if it had not been sent.
func TestBadAssignment(t *testing.T) {
	inBubble(t, func(n *node) {
		n.server.Assign(n.assignment(func(a *wire.Assignment) { a.Replica, a.Model = "../x", "../x" }))
		n.serve()
		refusedName := func() bool {
			s := n.status(`"../x"`)
			return s != nil && s.Condition.Reason == levelrail.AssignmentRefused && strings.Contains(s.Condition.Message, "not the name of a model")
		}
		n.until("the refusal is reported", time.Minute, refusedName)
		for _, c := range n.units.Calls() {
			if strings.Contains(c, "../x") {
				t.Errorf("systemd was asked to %s", c)
			}
		}
		n.server.Withdraw("../x")
		n.until("it is not reported any more", time.Minute, func() bool { return n.status(`"../x"`) == nil })
	})
}

// TestRefusedAssignment: what an assignment must not hold is told as the replica's reason, and the engine that serves goes on.
func TestRefusedAssignment(t *testing.T) {
	inBubble(t, func(n *node) {
		before := n.serve()
		n.units.ForgetCalls()
		n.server.Assign(n.assignment(func(a *wire.Assignment) { a.Revision, a.EngineKey = 2, "x\nLD_PRELOAD=/tmp/evil.so" }))
		n.until("it is refused", time.Minute, n.reason("chat", levelrail.AssignmentRefused))
		s := n.status("chat")
		if !s.Condition.Ready || s.MainPID != before.MainPID || len(n.units.Calls()) > 0 || strings.Contains(s.Condition.Message, "LD_PRELOAD") || s.Condition.Next == "" {
			t.Errorf("status %+v, calls %q", s, n.units.Calls())
		}
		n.server.Assign(n.assignment())
		n.until("it serves", time.Minute, n.reason("chat", levelrail.ModelLoaded))
	})
}

// TestRefusedLogs: a request for anything but a model's own lines starts nothing, and a model's lines are those of its units.
func TestRefusedLogs(t *testing.T) {
	inBubble(t, func(n *node) {
		n.serve()
		n.journal.Say("sshd.service", "r", "somebody logged in")
		n.journal.Say(chat, "r", "one")
		n.server.AskLogs(wire.LogRequest{ID: "log_1", Model: "", Lines: 10})
		n.server.AskLogs(wire.LogRequest{ID: "log_2", Model: "chat --directory=/", Lines: 10})
		n.server.AskLogs(wire.LogRequest{ID: "log_3", Model: "chat", Lines: 10})
		n.until("the good one is answered", time.Minute, func() bool { return len(n.server.Logs("log_3")) == 1 })
		n.hold("the others are not", 10*time.Second, func() bool { return len(n.server.Logs("log_1")) == 0 && len(n.server.Logs("log_2")) == 0 })
	})
}
