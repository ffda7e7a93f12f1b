package hostile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/agent/agenttest"
	"github.com/levelrail/levelrail/client/wire"
)

const agentSocket = "/run/levelrail/agent.sock"

// TestCompromisedServer: whoever has taken the control plane over gets no file, no command and no line of another unit's
// journal out of the agent, which is root; each refusal is reported, the engine that serves goes on, and the true server is
// obeyed again as soon as it is back.
func TestCompromisedServer(t *testing.T) {
	t.Parallel()
	w := New(t)
	var status struct {
		ClusterID string `json:"cluster_id"`
	}
	w.JSON(&status, "status")
	before := w.Get("chat").Replicas[0].MainPID
	var applied struct{ Assignment wire.Assignment }
	if err := json.Unmarshal([]byte(w.Run("cat /var/lib/levelrail/agent/applied/chat.json")), &applied); err != nil {
		t.Fatal(err)
	}
	files := func() string {
		return w.Run(`find /etc /usr /root /home /opt /srv /var/lib -newer /tmp/begun -type f -not -path '*/journal/*' -not -path '/var/lib/levelrail/agent/agent.json' -not -path '/var/lib/levelrail/gateway/*' | sort`)
	}

	w.Run("systemctl stop levelrail-server.service 'levelrail-server-*.socket' && rm -f " + agentSocket + " && touch /tmp/begun && sleep 0.1")
	evil := agenttest.NewServer(status.ClusterID)
	l, err := net.Listen("unix", w.Path(agentSocket))
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := os.Chmod(w.Path(agentSocket), 0o600); err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: evil.Handler()}
	go srv.Serve(l)
	defer srv.Close()

	// It has the true server's store, and with that the name of its history. (One that named another history would be taken for
	// a restored one, and the true server had to be restored itself: levelrail-server restore.)
	evil.Restore(strings.TrimSpace(w.Run("jq -r .lineage /var/lib/levelrail/agent/agent.json")), applied.Assignment.Term)
	evil.Assign(applied.Assignment)
	attack := func(name string, change func(*wire.Assignment)) {
		a := applied.Assignment
		a.Model, a.Replica, a.ServedNames, a.EngineKey = name, name, []string{name}, levelrail.NewSecret("lre")
		change(&a)
		evil.Assign(a)
	}
	attacks := map[string]func(*wire.Assignment){
		"../../etc/cron.d/evil": func(*wire.Assignment) {},
		"a/b":                   func(*wire.Assignment) {},
		"evil-key":              func(a *wire.Assignment) { a.EngineKey += "\nLD_PRELOAD=/tmp/evil.so" },
		"evil-name": func(a *wire.Assignment) {
			a.ServedNames = append(a.ServedNames, "x\nExecStartPre=+/bin/touch /root/owned")
		},
		"evil-option": func(a *wire.Assignment) { a.Spec.Options = levelrail.Options{"log-file": "/root/owned"} },
		"evil-value": func(a *wire.Assignment) {
			a.Spec.Options = levelrail.Options{"chat-template": "x --log-file /root/owned"}
		},
		"evil-source":   func(a *wire.Assignment) { a.Spec.Source = "/etc/shadow" },
		"evil-dots":     func(a *wire.Assignment) { a.Spec.Source = "/srv/../etc/shadow.gguf" },
		"evil-gpu":      func(a *wire.Assignment) { a.Devices = []string{"GPU-1\nDeviceAllow=block-* rwm"} },
		"evil-hub":      func(a *wire.Assignment) { a.Spec.Source, a.HubBaseURL = "org/name-GGUF:Q4_0", "file:///etc" },
		"evil-revision": func(a *wire.Assignment) { a.Revision = -1 },
		"evil-term":     func(a *wire.Assignment) { a.Term = 1 << 63 },
	}
	for name, change := range attacks {
		attack(name, change)
	}
	for id, model := range map[string]string{"log_empty": "", "log_glob": "*", "log_option": "--file=/etc/shadow"} {
		id = strings.ReplaceAll(id, "_", "") // an id is log_ and letters
		evil.AskLogs(wire.LogRequest{ID: strings.Replace(id, "log", "log_", 1), Model: model, Lines: 1000})
	}
	evil.AskLogs(wire.LogRequest{ID: "../report", Model: "chat", Lines: 10})
	evil.AskLogs(wire.LogRequest{ID: "log_good", Model: "chat", Lines: 10})

	reasons := func() map[string]levelrail.Condition {
		out := map[string]levelrail.Condition{}
		all := evil.Reports()
		if len(all) > 0 {
			for _, r := range all[len(all)-1].Replicas {
				out[strings.Trim(r.Replica, `"`)] = r.Condition
			}
		}
		return out
	}
	w.Eventually("the agent to tell what it refuses", 30*time.Second, func() error {
		got := reasons()
		for name := range attacks {
			if got[name].Reason != levelrail.AssignmentRefused {
				return fmt.Errorf("%s is %+v", name, got[name])
			}
		}
		if len(evil.Logs("log_good")) == 0 {
			return fmt.Errorf("the lines of chat did not come")
		}
		return nil
	})
	for name := range attacks {
		w.Attempt(Server, "assign "+name, "")
	}
	for _, id := range []string{"log_empty", "log_glob", "log_option", "../report"} {
		reached := ""
		if n := len(evil.Logs(id)); n > 0 {
			reached = fmt.Sprintf("%d lines", n)
		}
		w.Attempt(Server, "ask for the journal as "+id, reached)
	}
	reached := strings.TrimSpace(files())
	w.Attempt(Server, "leave a file on the node", reached)
	if units := strings.TrimSpace(w.Run("systemctl list-units --all --plain --no-legend 'levelrail-*evil*'")); units != "" {
		w.Attempt(Server, "start a unit", units)
	}
	if pid := strings.TrimSpace(w.Run("systemctl show -p MainPID --value levelrail-model-chat")); pid != fmt.Sprint(before) {
		t.Errorf("the engine that served was restarted: %d, then %s", before, pid)
	}

	// An impossible term in the greeting, then the true server.
	evil.Set(false)
	evil.Become(status.ClusterID, 1<<63)
	evil.Set(true)
	w.Eventually("the agent to refuse the term", 30*time.Second, func() error {
		if !strings.Contains(w.Journal("-u", "levelrail-agent", "-o", "cat"), "is not the term of a leader") {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	srv.Close()
	back := time.Now()
	w.Run("rm -f " + agentSocket + " && systemctl start levelrail-server-api.socket levelrail-server-gateway.socket levelrail-server-agent.socket levelrail-server.service")
	w.CLI("models restart chat")
	w.Eventually("the true server to be obeyed", 30*time.Second, func() error {
		if m := w.Get("chat"); !m.Condition.Ready || len(m.Replicas) != 1 || m.Replicas[0].MainPID == before {
			return fmt.Errorf("chat is %+v", m)
		}
		return nil
	})
	t.Logf("the true server was obeyed after %v", time.Since(back).Round(time.Millisecond))
	w.Attempt(Server, "lock the true server out by a term of 2^63", "")
}

// TestCompromisedGateway: code that runs as the gateway gets routes and keys' hashes, as it must, and nothing else: no
// operation for people or agents, no other kind of watch, no other socket.
func TestCompromisedGateway(t *testing.T) {
	t.Parallel()
	w := New(t)
	var document struct {
		Paths map[string]map[string]json.RawMessage
	}
	c := w.UnixClient("/run/levelrail/api.sock")
	res, err := c.Get("http://localhost/api/v1/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(&document); err != nil || len(document.Paths) < 10 {
		t.Fatalf("the API's document has %d paths, %v", len(document.Paths), err)
	}
	gateway := w.UnixClient("/run/levelrail/gateway.sock")
	try := func(method, path, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), strings.ToUpper(method), "http://localhost"+path, bytes.NewReader([]byte(body)))
		if err != nil {
			t.Fatal(err)
		}
		if body != "" {
			req.Header.Set("Content-Type", "application/json")
		}
		res, err := gateway.Do(req)
		if err != nil {
			t.Fatalf("%s %s: %v", method, path, err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(b)
	}
	expect := func(what, method, path, body string) {
		t.Helper()
		status, answer := try(method, path, body)
		reached := ""
		if status < 400 {
			reached = fmt.Sprintf("%d %.200q", status, answer)
		}
		w.Attempt(Gateway, what, reached)
	}
	open := map[string]bool{"/api/v1/openapi.json": true, "/api/v1/ca.pem": true} // anybody's
	for path, methods := range document.Paths {
		for method := range methods {
			if !open[path] && path != "/api/v1/watch" {
				expect(strings.ToUpper(method)+" "+path, method, strings.NewReplacer("{name}", "chat", "{id}", "x").Replace(path), "{}")
			}
		}
	}
	for _, path := range []string{"/api/v1/agent/hello", "/api/v1/agent/report", "/api/v1/agent/logs/log_x"} {
		expect("POST "+path, "post", path, `{"node_id":"node_aaaaaaaaaaaa","name":"x"}`)
	}
	expect("an agent's Hub token", "get", "/api/v1/agent/models/chat/hf-token?node_id=x", "")
	for _, kind := range []string{"assignment", "log_request", "model", "node", "secret", "token", "key", "route,assignment"} {
		expect("watch "+kind, "post", "/api/v1/watch?kinds="+kind, `{"gateway_id":"gw_aaaaaaaaaaaa"}`)
	}
	for _, socket := range []string{"/run/levelrail/api.sock", agentSocket} {
		w.Refused(Gateway, "levelrail-gateway", "connect to "+socket, "curl -sS --max-time 5 --unix-socket "+socket+" http://localhost/api/v1/status")
	}
	for _, path := range []string{"/var/lib/levelrail/server", "/var/lib/levelrail/agent", "/var/lib/levelrail/weights"} {
		w.Refused(Gateway, "levelrail-gateway", "list "+path, "ls "+path)
	}
}
