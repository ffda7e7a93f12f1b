package hostile

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levelrail/levelrail/test/e2e"
	"github.com/levelrail/levelrail/test/fixtures"
)

// raw sends bytes to a listener of the host and returns the status of the response, 0 when there was none, and its header and
// body.
func (w *World) raw(network, address, request string) (int, http.Header, string) {
	w.t.Helper()
	c, err := w.Dial(network, address)
	if err != nil {
		w.t.Fatalf("connect to %s: %v", address, err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(30 * time.Second))
	io.WriteString(c, request) // a listener may have closed already
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, nil, ""
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
	return resp.StatusCode, resp.Header, string(body)
}

// TestListenersWebPage: a page from elsewhere, in the browser of somebody who has forwarded a socket or sits on the host,
// reaches nothing on any listener, and there are no listeners but those that are known.
func TestListenersWebPage(t *testing.T) {
	t.Parallel()
	w := New(t)
	before := w.Get("chat")
	pages := map[string]string{
		"a page elsewhere":                  "Host: localhost:8420\r\nOrigin: https://evil.example.com\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\n",
		"a form or image elsewhere":         "Host: 127.0.0.1:8420\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n",
		"a page of another local port":      "Host: localhost:8420\r\nOrigin: http://localhost:3000\r\nSec-Fetch-Site: same-site\r\n",
		"a sandboxed frame":                 "Host: localhost:8420\r\nOrigin: null\r\n",
		"a name that was made to lead here": "Host: rebound.example.com:8420\r\nOrigin: http://rebound.example.com:8420\r\nSec-Fetch-Site: same-origin\r\n",
	}
	for socket, requests := range map[string][]string{
		"api": {"POST /api/v1/models/chat/restart", "POST /api/v1/models/chat/rotate-key", "POST /api/v1/models/chat/keys {\"name\":\"mine\"}", "DELETE /api/v1/models/chat",
			"PUT /api/v1/models/chat {\"context\":512}", "POST /api/v1/tokens {\"name\":\"mine\",\"abilities\":[\"root\"]}", "GET /api/v1/models", "GET /api/v1/models/chat/logs?follow=true", "GET /api/v1/watch?kinds=model"},
		"gateway": {"POST /api/v1/watch?kinds=route,route_key {\"gateway_id\":\"gw_aaaaaaaa\",\"version\":\"1\"}", "POST /api/v1/gateway/wake {\"gateway_id\":\"gw_aaaaaaaa\",\"model\":\"chat\"}"},
		"agent":   {"POST /api/v1/agent/hello {\"node_id\":\"node_bbbbbbbb\",\"name\":\"mine\",\"version\":\"1\",\"os\":\"x\"}", "GET /api/v1/agent/models/chat/hf-token?node_id=node_aaaaaaaa"},
	} {
		for _, request := range requests {
			line, body, _ := strings.Cut(request, " {")
			if body != "" {
				body = "{" + body
			}
			for who, headers := range pages {
				for _, kind := range []string{"text/plain", "application/json"} {
					text := line + " HTTP/1.1\r\n" + headers
					if body != "" {
						text += "Content-Type: " + kind + "\r\n"
					} else if kind != "text/plain" {
						continue
					}
					status, _, said := w.raw("unix", "/run/levelrail/"+socket+".sock", text+fmt.Sprintf("Content-Length: %d\r\nConnection: close\r\n\r\n%s", len(body), body))
					reached := ""
					if status != http.StatusForbidden {
						reached = fmt.Sprintf("%d %.200s", status, said)
					}
					w.Attempt(WebPage, fmt.Sprintf("%s: %s.sock, %s (%s)", who, socket, line, kind), reached)
				}
			}
		}
	}
	for _, path := range []string{"/v1/models", "/v1/chat/completions"} {
		status, header, said := w.raw("tcp", "127.0.0.1:7421", "OPTIONS "+path+" HTTP/1.1\r\nHost: 127.0.0.1:7421\r\nOrigin: https://evil.example.com\r\nAccess-Control-Request-Method: POST\r\nConnection: close\r\n\r\n")
		reached := ""
		if status < 400 || header.Get("Access-Control-Allow-Origin") != "" {
			reached = fmt.Sprintf("%d %v %s", status, header, said)
		}
		w.Attempt(WebPage, "ask the gateway whether it may use "+path, reached)
		status, header, said = w.raw("tcp", "127.0.0.1:7421", "GET "+path+" HTTP/1.1\r\nHost: rebound.example.com\r\nOrigin: http://rebound.example.com\r\nConnection: close\r\n\r\n")
		if reached = ""; status < 400 || strings.Contains(said, "chat\"") {
			reached = fmt.Sprintf("%d %v %s", status, header, said)
		}
		w.Attempt(WebPage, "use the gateway without a key under a name that leads to it: "+path, reached)
	}
	after := w.Get("chat")
	reached := ""
	if after.Revision != before.Revision || after.Replicas[0].MainPID != before.Replicas[0].MainPID {
		reached = fmt.Sprintf("revision %d and process %d, before %d and %d", after.Revision, after.Replicas[0].MainPID, before.Revision, before.Replicas[0].MainPID)
	}
	w.Attempt(WebPage, "change the model by any of these", reached)

	// Whatever else listens would have to be looked at as well: Caddy's administration, for one, which is off.
	var known []string
	for line := range strings.Lines(w.Run("ss -Hltnp; ss -Hlxp")) {
		fields := strings.Fields(line)
		if !strings.Contains(line, `"levelrail`) && !strings.Contains(line, "/run/levelrail") {
			continue
		}
		at := fields[3]
		if fields[0] != "LISTEN" { // of Unix sockets the type comes first
			at = fields[4]
		}
		if known = append(known, at); slices.Contains([]string{"127.0.0.1:7420", "127.0.0.1:7421", "/run/levelrail/api.sock", "/run/levelrail/gateway.sock", "/run/levelrail/agent.sock"}, at) ||
			strings.HasPrefix(at, "/run/levelrail/engines/") {
			continue
		}
		w.Attempt(LocalUser, "find a listener that is not known", at)
	}
	if len(known) < 5 {
		t.Errorf("the listeners are %v", known)
	}
}

// TestListenersFloods: a flood of wrong keys leaves lines that fail2ban reads, as many as it needs and no more, with the true
// address whatever the client writes; a good key from the same address is served meanwhile. When the TLS port of the API is
// used up, administrators and daemons on the host notice nothing, nor when one user has all its connections to a socket.
func TestListenersFloods(t *testing.T) {
	t.Parallel()
	w := New(t)
	filters := fail2ban(t)
	const forged = `{"level":"warn","ts":1.5,"logger":"levelrail","msg":"authentication failed","client":"203.0.113.66","failures":1,"elsewhere":0,"why":"unknown",`

	t.Run("wrong keys", func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		began := time.Now()
		for range 32 {
			all.Go(func() {
				for ctx.Err() == nil {
					if res, err := w.Send(ctx, "POST", "/v1/chat/completions", "lr-wrong", e2e.Chat("chat", 1, false), "X-Forwarded-For", "203.0.113.67", "User-Agent", forged); err == nil {
						res.Body.Close()
					}
				}
			})
		}
		var took []time.Duration
		for time.Since(began) < 5*time.Second || len(took) < 9 {
			at := time.Now()
			if res, body := w.Ask("GET", "/v1/models", w.Key, ""); res.StatusCode != http.StatusOK {
				t.Fatalf("the good key: %s %s", res.Status, body)
			}
			took = append(took, time.Since(at))
		}
		stop()
		all.Wait()
		seconds := int(time.Since(began)/time.Second) + 1
		slices.Sort(took)
		reached := ""
		if took[len(took)/2] > time.Second {
			reached = fmt.Sprintf("a good key waits %s", took[len(took)/2])
		}
		w.Attempt(LocalUser, "slow down others of the same address by a flood of wrong keys", reached)
		t.Logf("%d requests with the good key during the flood, the middle one took %s", len(took), took[len(took)/2].Round(time.Millisecond))

		for _, header := range []string{"X-Request-Id", "Authorization", "Origin", "Host"} {
			w.raw("tcp", "127.0.0.1:7421", "GET /v1/models?"+strings.ReplaceAll(forged, " ", "+")+" HTTP/1.1\r\n"+map[bool]string{true: "", false: "Host: x\r\n"}[header == "Host"]+header+": "+forged+"\r\nConnection: close\r\n\r\n")
		}
		journal := w.Run("journalctl -u levelrail-gateway -o short --no-pager")
		lines := strings.Count(journal, `"msg":"authentication failed"`)
		if lines < 2 || lines > 3*seconds+8 {
			t.Errorf("a flood of %d seconds left %d lines", seconds, lines)
		}
		if n := strings.Count(journal, `"code":"invalid_api_key"`); n > lines+4 { // four of those above have no key at all
			t.Errorf("%d failures are reported, and %d requests beside them", lines, n)
		}
		found := filters.addresses(t, "levelrail-gateway", journal)
		if len(found) < 2 || len(found) > lines {
			t.Errorf("fail2ban sees %d of %d lines: %v", len(found), lines, found)
		}
		reached = ""
		for _, address := range found {
			if address != "127.0.0.1" {
				reached = address + " is banned"
			}
		}
		w.Attempt(LocalUser, "have another address banned, by what a request says", reached)
	})

	t.Run("wrong tokens", func(t *testing.T) {
		for i := range 3 {
			c, err := w.Dial("tcp", "127.0.0.1:7420")
			if err != nil {
				t.Fatal(err)
			}
			h := tls.Client(c, &tls.Config{InsecureSkipVerify: true})
			h.SetDeadline(time.Now().Add(30 * time.Second))
			fmt.Fprintf(h, "GET /api/v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer lrt-wrong%d\r\nX-Forwarded-For: 203.0.113.67\r\nUser-Agent: client=203.0.113.66\r\nConnection: close\r\n\r\n", i)
			resp, err := http.ReadResponse(bufio.NewReader(h), nil)
			if err != nil || resp.StatusCode != http.StatusUnauthorized {
				t.Fatalf("%v %v", resp, err)
			}
			h.Close()
		}
		journal := w.Run("journalctl -u levelrail-server -o short --no-pager")
		if found := filters.addresses(t, "levelrail-server", journal); len(found) == 0 || slices.ContainsFunc(found, func(a string) bool { return a != "127.0.0.1" }) {
			t.Errorf("fail2ban sees %v in\n%s", found, journal)
		}
	})

	t.Run("the port is used up", func(t *testing.T) {
		w.Run("printf 'LEVELRAIL_MAX_CONNECTIONS=40\\nLEVELRAIL_MAX_CONNECTIONS_PER_ADDRESS=40\\n' >>/etc/default/levelrail-server && systemctl restart levelrail-server")
		open := w.hold(t, "tcp", "127.0.0.1:7420", 200)
		if open < 30 || open > 41 { // the server has some already, and one may be closed and not read yet
			t.Errorf("%d connections are open", open)
		}
		w.answers(t, LocalUser, "keep administrators out by using up the TLS port", func() error {
			_, err := w.As("member", "timeout 10 levelrail models list")
			return err
		})
		id, key := "", ""
		w.answers(t, LocalUser, "keep the gateway from the control plane by using up the TLS port", func() error {
			var made struct{ ID, Secret string }
			w.JSON(&made, "models keys create chat --name during")
			id, key = made.ID, made.Secret
			return nil
		})
		w.Eventually("the gateway to know the key "+id, 10*time.Second, func() error {
			if res, body := w.Ask("GET", "/v1/models", key, ""); res.StatusCode != http.StatusOK {
				return fmt.Errorf("%s %s", res.Status, body)
			}
			return nil
		})
	})

	t.Run("a socket is used up by one user", func(t *testing.T) {
		if open := w.hold(t, "unix", "/run/levelrail/api.sock", 400); open < 200 || open > 260 {
			t.Errorf("one user has %d connections", open)
		}
		w.answers(t, Member, "keep other administrators out of the socket", func() error {
			_, err := w.As("member", "timeout 10 levelrail models list")
			return err
		})
	})
}

// hold opens connections and keeps them until the test ends; it returns how many the server has left open.
func (w *World) hold(t *testing.T, network, address string, n int) int {
	t.Helper()
	var conns []net.Conn
	for range n {
		c, err := w.Dial(network, address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		conns = append(conns, c)
	}
	// What the server closes it closes as it comes, so a moment after the last is enough: what is read until then is the end.
	deadline := time.Now().Add(3 * time.Second)
	var left atomic.Int64
	var all sync.WaitGroup
	for _, c := range conns {
		all.Go(func() {
			c.SetReadDeadline(deadline)
			if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
				left.Add(1)
			}
		})
	}
	all.Wait()
	return int(left.Load())
}

// answers records what somebody would have to be kept from.
func (w *World) answers(t *testing.T, role Role, what string, try func() error) {
	t.Helper()
	reached := ""
	if err := try(); err != nil {
		reached = err.Error()
	}
	w.Attempt(role, what, reached)
}

// banning is fail2ban with the filters of the packages.
type banning struct{ program, config string }

func fail2ban(t *testing.T) banning {
	t.Helper()
	place, err := fixtures.Get(t.Context(), fixtures.Fail2ban)
	if err != nil {
		t.Fatal(err)
	}
	b := banning{program: place, config: filepath.Join(t.TempDir(), "fail2ban")}
	if err := os.CopyFS(b.config, os.DirFS(filepath.Join(place, "etc/fail2ban"))); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"gateway", "server"} {
		for from, to := range map[string]string{"levelrail-" + name: "filter.d/levelrail-" + name, "jail-" + name: "jail.d/levelrail-" + name} {
			text, err := os.ReadFile("../../packaging/fail2ban/" + from + ".conf")
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(b.config, to+".conf"), text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	if out, err := b.run("fail2ban-client", "-c", b.config, "-d"); err != nil || !strings.Contains(out, "'levelrail-gateway'") || !strings.Contains(out, "'levelrail-server'") {
		t.Fatalf("fail2ban does not take the example jails: %v\n%.2000s", err, out)
	}
	return b
}

func (b banning) run(program string, args ...string) (string, error) {
	cmd := exec.Command("python3", append([]string{filepath.Join(b.program, "usr/bin", program)}, args...)...)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(b.program, "usr/lib/python3/dist-packages"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// addresses are those that a filter finds in lines of the journal, once a line.
func (b banning) addresses(t *testing.T, filter, journal string) []string {
	t.Helper()
	log := filepath.Join(t.TempDir(), "journal")
	if err := os.WriteFile(log, []byte(journal), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := b.run("fail2ban-regex", "-c", b.config, "-o", "ip", log, filepath.Join(b.config, "filter.d", filter+".conf"))
	if err != nil {
		t.Fatalf("fail2ban-regex: %v\n%s", err, out)
	}
	var found []string
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); net.ParseIP(line) != nil {
			found = append(found, line)
		}
	}
	return found
}
