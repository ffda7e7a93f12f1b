package caddymodule

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddytls"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/caddymodule/link"
	"github.com/levelrail/levelrail/client/wire"
)

// TestReloadCutsNothing: a stream goes on over reloads, over new keys and over a route's change, with the table it began
// with; what the configurations share is the same before and after.
func TestReloadCutsNothing(t *testing.T) {
	h := newHost(t)
	h.each(func(t *testing.T, c *http.Client, proto int) {
		s := newScript()
		h.engine.on(s.serve)
		resp, err := c.Do(h.request("POST", chatPath, streamBody))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Fatalf("the stream was answered with %s", resp.Status)
		}
		r := bufio.NewReader(resp.Body)
		say := func(what string) {
			t.Helper()
			s.pieces <- "data: " + what + "\n\n"
			if line, err := r.ReadString('\n'); err != nil || line != "data: "+what+"\n" {
				t.Fatalf("%s: %q %v", what, line, err)
			}
			r.ReadString('\n')
		}
		say("before")
		watches := len(h.cp.watched())
		h.load()
		say("after a reload")
		h.changes = append(h.changes, "idle 2m", "idle 3m")
		h.load()
		h.changes = h.changes[:len(h.changes)-2]
		say("after a changed configuration")
		if err := h.tryLoad(strings.ReplaceAll(h.caddyfile(), "\tlevelrail\n", "\tlevelrail nonsense\n")); err == nil || !strings.Contains(err.Error(), "Caddyfile:") {
			t.Errorf("a broken configuration: %v", err)
		}
		say("after a broken configuration")
		second := h.cp.newKey(fmt.Sprintf("key_%d", proto), "chat")
		h.eventually("the new key is there", func() bool {
			resp, _ := h.do("GET", "/v1/models", "", "Authorization", "Bearer "+second)
			return resp.StatusCode == 200
		})
		h.cp.revoke(fmt.Sprintf("key_%d", proto))
		route := h.route("chat")
		route.Targets[0].Address = filepath.Join(h.dir, "elsewhere.sock")
		h.cp.putRoute(route)
		h.eventually("the route is changed", func() bool {
			m, _ := h.table().Model("chat")
			return m.Targets[0].Address == route.Targets[0].Address
		})
		if resp, _ := h.do("POST", chatPath, chatBody); resp.StatusCode != 503 {
			t.Errorf("the route leads nowhere, and a new request got %d", resp.StatusCode)
		}
		say("after changes of keys and routes")
		back := h.route("chat")
		h.cp.putRoute(back)
		h.eventually("the route is changed back", func() bool {
			m, _ := h.table().Model("chat")
			return m.Targets[0].Address == back.Targets[0].Address
		})
		if n := pooledSlots("chat"); n != 1 {
			t.Errorf("%d slots are taken, want the stream's", n)
		}
		if got := len(h.cp.watched()); got != watches {
			t.Errorf("reloads began %d watches anew", got-watches)
		}
		close(s.pieces)
		if _, err := io.ReadAll(r); err != nil {
			t.Errorf("the stream's end: %v", err)
		}
		h.eventually("the slot is free", func() bool { return pooledSlots("chat") == 0 })
	})
}

// TestServesWithoutControlPlane: a lost control plane changes nothing for clients, a restarted gateway serves from its disk
// from the first request on, and what changed meanwhile arrives when the control plane is back, from where it was.
func TestServesWithoutControlPlane(t *testing.T) {
	h := newHost(t)
	h.eventually("the table is on disk", func() bool { b, _ := os.ReadFile(h.tableFile()); return strings.Contains(string(b), `"key_a"`) })
	h.cp.stop()
	if resp, body := h.do("POST", chatPath, chatBody); resp.StatusCode != 200 {
		t.Errorf("with the control plane stopped: %d %s", resp.StatusCode, body)
	}
	h.stop()
	h.load()
	if resp, body := h.do("POST", chatPath, chatBody); resp.StatusCode != 200 {
		t.Errorf("restarted without a control plane: %d %s", resp.StatusCode, body)
	}
	h.eventually("the log says what is wrong", func() bool { return strings.Contains(h.log(), "serving the last known routes and keys") })
	hello := h.cp.hello.GatewayID

	// Meanwhile one key is revoked, one is new, and a model is gone.
	old := h.key
	h.cp.revoke("key_a")
	h.key = h.cp.newKey("key_b", "chat")
	h.cp.start()
	h.settled()
	resp, body := h.do("GET", "/v1/models", "", "Authorization", "Bearer "+old)
	h.refused(resp, body, 401, "invalid_api_key")
	watches := h.cp.watched()
	if last := watches[len(watches)-1]; !strings.HasPrefix(last, "lineage.") {
		t.Errorf("the watch began anew (after %q), not from where it was", last)
	}
	if h.cp.hello.GatewayID != hello || !strings.HasPrefix(hello, "gw_") {
		t.Errorf("the gateway's id was %q, is %q", hello, h.cp.hello.GatewayID)
	}
	for _, f := range []string{h.tableFile(), filepath.Join(h.dir, "state", "gateway-id")} {
		if info, err := os.Stat(f); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", f, info, err)
		}
	}
	if b, _ := os.ReadFile(h.tableFile()); strings.Contains(string(b), h.key) {
		t.Error("a key's text is on disk")
	}
}

// TestWatch: routes come whole at each watch, so one that went meanwhile is gone; a token that is too old begins anew,
// during which the old table serves; the key that left then is gone too.
func TestWatch(t *testing.T) {
	h := newHost(t)
	h.cp.putRoute(h.route("brief"))
	brief := h.cp.newKey("key_brief", "brief")
	opens := func(key string) bool {
		resp, _ := h.do("POST", chatPath, `{"model":"brief"}`, "Authorization", "Bearer "+key)
		return resp.StatusCode == 200
	}
	h.eventually("the model brief serves", func() bool { return opens(brief) })
	h.cp.stop()
	h.cp.dropRoute("brief")
	h.cp.start()
	h.eventually("the model that went is gone", func() bool {
		resp, body := h.do("POST", chatPath, `{"model":"brief"}`, "Authorization", "Bearer "+brief)
		return resp.StatusCode == 404 && errorCode(body) == "model_not_found"
	})
	h.cp.stop()
	h.cp.revoke("key_brief")
	h.cp.forget()
	h.cp.start()
	h.eventually("the key that went is gone", func() bool {
		if resp, _ := h.do("GET", "/v1/models", ""); resp.StatusCode != 200 {
			t.Fatal("the table was empty for a moment")
		}
		resp, _ := h.do("GET", "/v1/models", "", "Authorization", "Bearer "+brief)
		return resp.StatusCode == 401
	})
	if w := h.cp.watched(); !slices.Contains(w[1:], "") {
		t.Errorf("after 410 the watch did not begin anew: %q", w)
	}
}

// TestRevokedWithinASecond: a revoked key stops within a second of the control plane's word, whatever else goes on.
func TestRevokedWithinASecond(t *testing.T) {
	h := newHost(t)
	key := h.cp.newKey("key_r", "chat")
	status := func() int {
		resp, _ := h.do("GET", "/v1/models", "", "Authorization", "Bearer "+key)
		return resp.StatusCode
	}
	h.eventually("the key opens", func() bool { return status() == 200 })
	h.cp.revoke("key_r")
	began := time.Now()
	h.eventually("the key is refused", func() bool { return status() == 401 })
	if took := time.Since(began); took > time.Second {
		t.Errorf("it took %s", took)
	}
}

// TestBrokenCopy: a kept table that is cut short, of another format or not there at all is not
// half believed; and while nothing is known, a good key is not called a wrong one.
func TestBrokenCopy(t *testing.T) {
	h := newHost(t)
	h.eventually("the table is on disk", func() bool { b, _ := os.ReadFile(h.tableFile()); return strings.Contains(string(b), `"key_a"`) })
	h.stop()
	h.cp.stop()
	whole, err := os.ReadFile(h.tableFile())
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(strings.TrimSpace(string(whole)), "\n")
	for name, content := range map[string]string{
		"without its end":     strings.Join(lines[:len(lines)-1], ""),
		"with a line too few": strings.Join(slices.Delete(slices.Clone(lines), 1, 2), ""),
		"cut in a line":       string(whole[:len(whole)/2]),
		"of another format":   strings.Replace(string(whole), `"format":1`, `"format":99`, 1),
		"empty":               "",
	} {
		if err := os.WriteFile(h.tableFile(), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		h.load()
		if resp, body := h.do("GET", "/v1/models", ""); resp.StatusCode != 503 || errorCode(body) != "gateway_starting" || resp.Header.Get("Retry-After") == "" {
			t.Errorf("%s: %d %s", name, resp.StatusCode, body)
		}
		h.stop()
	}
	h.cp.start()
	h.load()
	h.settled()
}

// TestUnusableRoutes: a route or key that this gateway does not understand takes down neither the watch nor its
// neighbours, and is not served by what it was before.
func TestUnusableRoutes(t *testing.T) {
	h := newHost(t)
	other := h.route("other")
	h.cp.putRoute(other)
	key := h.cp.newKey("key_o", "other")
	serves := func() int {
		resp, _ := h.do("POST", chatPath, `{"model":"other"}`, "Authorization", "Bearer "+key)
		return resp.StatusCode
	}
	h.eventually("other serves", func() bool { return serves() == 200 })
	other.Engine = "of-the-future"
	h.cp.putRoute(other)
	h.eventually("other is not served any more", func() bool { return serves() == 404 })
	k := h.cp.keys["key_o"]
	k.SHA256 = "short"
	h.cp.putKey(k)
	h.eventually("the broken key opens nothing", func() bool { return serves() == 401 })
	if resp, _ := h.do("POST", chatPath, chatBody); resp.StatusCode != 200 {
		t.Errorf("its neighbour: %d", resp.StatusCode)
	}
}

// TestSettings: what is wrong in a Caddyfile is said with its line and the way out; defaults come from the environment that
// systemd sets.
func TestSettings(t *testing.T) {
	h := prepareHost(t)
	h.cp.stop()
	for _, c := range []struct{ old, new, want string }{
		{"levelrail {\n", "levelrail now {\n", "settings go into a block"},
		{"levelrail {\n", "levelrail {\n\t\tmax_body 1\n", `levelrail has no setting "max_body"; it has control_plane, state_dir and url`},
		{"levelrail {\n", "levelrail {\n\t\turl a b\n", "url needs one value"},
		{"levelrail {\n", "levelrail {\n\t\turl\n", "url needs one value"},
		{"levelrail {\n", "levelrail {\n\t\tstate_dir /tmp/x\n", "state_dir stands twice"},
		{"control_plane unix/", "control_plane https:", "write it like unix//run/levelrail/gateway.sock"},
		{"state_dir /", "state_dir ", "state_dir \"" + strings.TrimPrefix(h.dir, "/") + "/state\" is not an absolute path"},
		{"\tlevelrail\n", "\tlevelrail {\n\t\tcontrol_plane unix//x\n\t}\n", "go into the global options"},
		{"\tlevelrail\n", "\tlevelrail chat\n", "the directive stands alone"},
	} {
		err := h.tryLoad(strings.Replace(h.caddyfile(), c.old, c.new, 1))
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "Caddyfile:") {
			t.Errorf("%q: %v, want the line and %q", c.new, err, c.want)
		}
	}
	t.Setenv("LEVELRAIL_RUNTIME_DIR", "/run/elsewhere")
	t.Setenv("STATE_DIRECTORY", "/var/lib/one:/var/lib/two")
	var a App
	if err := a.defaults(); err != nil || a.key != (sharedKey{"/run/elsewhere/gateway.sock", "/var/lib/one"}) {
		t.Errorf("%+v %v", a.key, err)
	}
	t.Setenv("LEVELRAIL_RUNTIME_DIR", "")
	t.Setenv("STATE_DIRECTORY", "")
	a = App{}
	if err := a.defaults(); err != nil || a.key != (sharedKey{"/run/levelrail/gateway.sock", "/var/lib/levelrail/gateway"}) {
		t.Errorf("%+v %v", a.key, err)
	}
}

// TestPoolIsEmpty: when Caddy has stopped, nothing of a configuration is left: no link, no reference.
func TestPoolIsEmpty(t *testing.T) {
	h := newHost(t)
	h.load()
	var last *shared
	pool.Range(func(_, v any) bool { last = v.(*shared); return true })
	h.stop()
	pool.Range(func(key, _ any) bool { t.Errorf("%v is still in the pool", key); return true })
	select {
	case <-last.done:
	default:
		t.Error("the link still runs")
	}
	if left, err := filepath.Glob(h.tableFile() + ".*"); err != nil || len(left) != 0 {
		t.Errorf("unfinished files are left: %q %v", left, err)
	}
}

func (h *host) tableFile() string { return filepath.Join(h.dir, "state", "table.jsonl") }

// TestAnnounces: the control plane is told the address that clients use, by itself or as the Caddyfile has it, and is told
// anew when a reload changes it or brings a public site; the watch goes on from where it was.
func TestAnnounces(t *testing.T) {
	h := newHost(t)
	said := func() wire.WatchGateway {
		h.cp.mu.Lock()
		defer h.cp.mu.Unlock()
		return h.cp.hello
	}
	if got := said(); got.URL != h.url()+"/v1" || got.Public || got.Version != levelrail.Version {
		t.Errorf("the gateway says %+v", got)
	}
	h.changes = []string{"\tlevelrail {\n", "\tlevelrail {\n\t\turl https://llm.example.com/\n"}
	h.load()
	h.eventually("the new address is told", func() bool { return said().URL == "https://llm.example.com/v1" })
	h.settled()
	if w := h.cp.watched(); len(w) != 2 || !strings.HasPrefix(w[1], "lineage.") {
		t.Errorf("the watches began after %q", w)
	}
	var a App
	a.servedBy(&caddyhttp.Server{Listen: []string{":443"}})
	a.servedBy(&caddyhttp.Server{Listen: []string{"127.0.0.1:8443"}, TLSConnPolicies: caddytls.ConnectionPolicies{{}}})
	a.servedBy(&caddyhttp.Server{Listen: []string{":80", "unix//run/x.sock", "192.0.2.1:81"}})
	if a.serves != (link.Serves{}) || !a.https {
		t.Errorf("a site on 443 is %+v, https %v", a.serves, a.https)
	}
	a.servedBy(&caddyhttp.Server{Listen: []string{"[::1]:7421"}})
	a.servedBy(&caddyhttp.Server{Listen: []string{"127.0.0.1:7421"}})
	if a.serves != (link.Serves{URL: "http://127.0.0.1:7421/v1"}) {
		t.Errorf("with a loopback site it is %+v", a.serves)
	}
}
