package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	hosttest "github.com/levelrail/levelrail/test/host"
)

const (
	gatewayUnit   = "levelrail-gateway.service"
	serverSockets = "levelrail-server-api.socket levelrail-server-gateway.socket levelrail-server-agent.socket"
)

// caller sends one request after another, each on a connection of its own, until it is stopped.
type caller struct {
	sent, answered atomic.Int64
	stop           chan struct{}
	done           sync.WaitGroup
	mu             sync.Mutex
	wrong          []string
}

// call begins. Each answer must have that status.
func call(h *Host, key, path, body string, status int, pause time.Duration) *caller {
	c := &caller{stop: make(chan struct{})}
	c.done.Go(func() {
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for {
			select {
			case <-c.stop:
				return
			case <-tick.C:
			}
			c.sent.Add(1)
			began := time.Now()
			res, err := h.Send(context.Background(), "POST", path, key, body)
			if err == nil {
				_, err = io.Copy(io.Discard, res.Body)
				res.Body.Close()
			}
			switch {
			case err != nil:
				c.say("after %s: %v", time.Since(began), err)
			case res.StatusCode != status:
				c.say("after %s: %s", time.Since(began), res.Status)
			default:
				c.answered.Add(1)
			}
		}
	})
	return c
}

func (c *caller) say(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wrong = append(c.wrong, fmt.Sprintf(format, args...))
}

// end stops and returns how many requests there were, all of which must have been answered.
func (c *caller) end(t *testing.T, what string) int64 {
	t.Helper()
	close(c.stop)
	c.done.Wait()
	if len(c.wrong) > 0 {
		t.Errorf("%s: %d of %d requests were not answered as they should be: %s", what, len(c.wrong), c.sent.Load(), strings.Join(c.wrong[:min(len(c.wrong), 5)], "; "))
	}
	return c.sent.Load()
}

// processes are the gateways of the host: the service's main process, and all that belong to the service.
func processes(h *Host) (main int, all []string) {
	h.t.Helper()
	u := h.WaitActive(gatewayUnit)
	return u.MainPID, strings.Fields(h.Run("cat /sys/fs/cgroup/system.slice/" + gatewayUnit + "/cgroup.procs"))
}

// onlyOne waits until one process of the gateway is left.
func onlyOne(h *Host, limit time.Duration) {
	h.t.Helper()
	h.Eventually("one gateway to be left", limit, func() error {
		if main, all := processes(h); len(all) != 1 || all[0] != fmt.Sprint(main) {
			return fmt.Errorf("there are %v, the main one is %d", all, main)
		}
		return nil
	})
}

// requestsOf are the requests that the control plane has counted, by key.
func requestsOf(h *Host) map[string]int64 {
	h.t.Helper()
	var raw struct {
		Keys []struct {
			KeyID string         `json:"key_id"`
			Usage map[string]any `json:"usage"`
		} `json:"keys"`
	}
	h.JSON(&raw, "models usage chat --since 2h")
	counts := map[string]int64{}
	for _, k := range raw.Keys {
		n, _ := k.Usage["requests"].(float64)
		counts[k.KeyID] = int64(n)
	}
	return counts
}

// TestGatewayUpgrade: another version of the gateway's package, with and without a control plane, cuts no stream that is
// open, refuses no connection that comes meanwhile, leaves one process, and each request is counted once. A new version
// that cannot start leaves the old one serving, and a new process that dies is replaced at once.
func TestGatewayUpgrade(t *testing.T) {
	h := Install(t, hosttest.Trixie, hosttest.WithEngine(hosttest.LlamaCpp), hosttest.WithWeights())
	h.Run("echo APP_MODEL_USAGE_FLUSH_INTERVAL=1s >>/etc/default/levelrail-server && systemctl restart levelrail-server")
	h.Deploy(deployChat)
	// Three clients: one with a long answer, one that asks the engine, and one that the gateway answers by itself and fast.
	longID, long := newKey(h, "long", "")
	realID, real := newKey(h, "real", "")
	fastID, fast := newKey(h, "fast", "--allow-models other")
	want := map[string]int64{}

	var first string
	for _, deb := range Debs(t) {
		if strings.Contains(deb, "levelrail-gateway_") {
			first = deb
		}
	}
	later := hosttest.NewerDeb(t, first, "usr/bin/levelrail-gateway")
	// As many tokens as this machine makes in a while, so that the long answer ends after the handover and not long after.
	const enough = 10 * time.Second
	s := openStream(t, h, long, longChat(60))
	s.flows(t, "at first")
	began := time.Now()
	s.finish(t)
	tokens := min(max(int(50*enough/time.Since(began)), 300), 6000)
	want[longID]++
	// change installs a version while clients are at it.
	change := func(t *testing.T, deb string, meanwhile func()) {
		t.Helper()
		before, _ := processes(h)
		s := openStream(t, h, long, longChat(tokens))
		s.flows(t, "at first")
		quick := call(h, fast, "/v1/chat/completions", `{"model":"chat","messages":[]}`, http.StatusForbidden, 5*time.Millisecond)
		slow := call(h, real, "/v1/completions", `{"model":"chat","prompt":"one","max_tokens":1}`, http.StatusOK, 500*time.Millisecond)

		began := time.Now()
		h.Apt(append([]string{"install", "--allow-downgrades", "--no-install-recommends"}, h.CopyDebs(deb)...)...)
		took := time.Since(began)
		main, all := processes(h)
		if main == before {
			t.Error("the old process is still the main one")
		}
		s.flows(t, "after the new version was installed")
		h.Eventually("the old process to close its listeners", 15*time.Second, func() error {
			if n := len(strings.Fields(h.Run("ss -Hltn 'sport = :7421' | awk '{print $4}'"))); n != 1 {
				return fmt.Errorf("there are %d", n)
			}
			return nil
		})
		meanwhile()
		s.flows(t, "after the old process has closed its listeners")
		if got := s.finish(t); got != tokens {
			t.Errorf("the stream brought %d tokens, not the %d asked for", got, tokens)
		}
		want[longID]++
		onlyOne(h, 10*time.Second)
		want[fastID] += quick.end(t, "clients with a connection for each request")
		want[realID] += slow.end(t, "clients of the engine")
		t.Logf("apt took %.1f s; %d processes then; requests so far %v", took.Seconds(), len(all), want)
	}
	counted := func(t *testing.T) {
		t.Helper()
		h.Eventually("all usage to arrive", 20*time.Second, func() error {
			got := requestsOf(h)
			for id, n := range want {
				if got[id] != n {
					return fmt.Errorf("%s has %d requests, %d were sent; all: %v, %v", id, got[id], n, got, want)
				}
			}
			return nil
		})
	}

	t.Run("upgrade", func(t *testing.T) {
		change(t, later, func() {})
		counted(t)
	})
	t.Run("without a control plane", func(t *testing.T) {
		// A gateway that calls at this moment makes systemd start the server again, so once may not be enough.
		h.Eventually("the control plane to be stopped", 20*time.Second, func() error {
			_, _, err := h.Exec(context.Background(), "systemctl stop levelrail-server.service "+serverSockets+"; ! systemctl is-active levelrail-server.service "+serverSockets)
			return err
		})
		change(t, first, func() {})
		h.Run("systemctl start " + serverSockets + " levelrail-server.service")
		counted(t)
	})
	t.Run("a configuration that is broken", func(t *testing.T) {
		before, _ := processes(h)
		h.Run(`echo 'nonsense {' >/etc/levelrail/sites/broken.caddy`)
		if _, _, err := h.Exec(context.Background(), "systemctl reload levelrail-gateway"); err == nil {
			t.Error("a reload with a broken configuration is said to be done")
		}
		out := h.Apt(append([]string{"install"}, h.CopyDebs(later)...)...)
		for _, words := range []string{"serves on, in its old version", "journalctl -u levelrail-gateway", "systemctl reload levelrail-gateway"} {
			if !strings.Contains(out, words) {
				t.Errorf("apt does not say %q:\n%s", words, out)
			}
		}
		if got := h.Run("dpkg-query -W -f '${Status}' levelrail-gateway"); got != "install ok installed" {
			t.Errorf("the package is %s", got)
		}
		if main, all := processes(h); main != before || len(all) != 1 {
			t.Errorf("the processes are %d and %v; want the old one, %d", main, all, before)
		}
		if err := serves(h, real); err != nil {
			t.Error(err)
		}
		want[realID]++
		h.Run("rm /etc/levelrail/sites/broken.caddy && systemctl reload levelrail-gateway")
		if main, _ := processes(h); main == before {
			t.Error("after it was mended a reload leaves the old version running")
		}
	})
	t.Run("the new process dies", func(t *testing.T) {
		s := openStream(t, h, long, longChat(5000))
		s.flows(t, "at first")
		h.Run("levelrail-gateway replace")
		s.flows(t, "after a replacement by hand")
		main, _ := processes(h)
		h.Kill9(main)
		began := time.Now()
		h.Eventually("the service to be there again", 30*time.Second, func() error { // by what is not counted
			res, err := h.Send(context.Background(), "GET", "/v1/models", real, "")
			if err == nil {
				res.Body.Close()
				if u, _ := h.Show(context.Background(), gatewayUnit); u.MainPID == main || u.MainPID == 0 {
					err = fmt.Errorf("the main process is %d", u.MainPID)
				}
			}
			return err
		})
		t.Logf("the gateway served %.1f s after its death", time.Since(began).Seconds())
		if err := serves(h, real); err != nil {
			t.Error(err)
		}
		if now, _ := processes(h); now == main {
			t.Error("the dead process is still the main one")
		}
		want[longID]++
		want[realID]++
		onlyOne(h, 10*time.Second)
		counted(t)
	})
}
