package controlplane

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
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client"
)

// raw sends a request as it is written and returns its status and what follows the status line.
func raw(t *testing.T, c net.Conn, request string) (int, string) {
	t.Helper()
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("%q: %v", request, err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body) // a stream is cut by its reader
	return resp.StatusCode, string(b)
}

func (r *rig) dial(socket string) net.Conn {
	r.t.Helper()
	where := map[string]*client.Client{"api": r.people, "gateway": r.gateway, "agent": r.agent}[socket].Where()
	c, err := net.Dial("unix", where)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// TestBrowsersFromElsewhere: no listener takes what a browser sends for a page of another origin, with any method and on any
// path, nor anything for a name that is not its own: whoever forwards a socket to a port and browses does not hand the cluster
// to the pages that they visit. Programs are served as before.
func TestBrowsersFromElsewhere(t *testing.T) {
	r := start(t, rigOptions{})
	r.deploy("chat")
	type request struct{ method, path, body, contentType string }
	requests := map[string][]request{
		"api": {
			{"POST", "/api/v1/models/chat/restart", "", ""},
			{"POST", "/api/v1/models/chat/rotate-key", "", ""},
			{"POST", "/api/v1/models", `{"name":"x","engine":"llamacpp","model":"` + smol + `","gpus":{"mode":"none"}}`, "text/plain"},
			{"POST", "/api/v1/models/chat/keys", `{"name":"x"}`, "application/x-www-form-urlencoded"},
			{"DELETE", "/api/v1/models/chat", "", ""},
			{"GET", "/api/v1/models", "", ""},
			{"GET", "/api/v1/watch?kinds=model", "", ""},
			{"OPTIONS", "/api/v1/models/chat", "", ""},
		},
		"gateway": {{"POST", "/api/v1/gateway/seen", `{"gateway_id":"gw_aaaaaaaa","token":"x.1"}`, "text/plain"}, {"GET", "/api/v1/openapi.json", "", ""}},
		"agent":   {{"POST", "/api/v1/agent/hello", `{"node_id":"node_bbbbbbbb","name":"x","version":"1","os":"x"}`, "text/plain"}, {"GET", "/api/v1/ca.pem", "", ""}},
	}
	browsers := map[string]string{
		"a page elsewhere":                       "Host: localhost:8080\r\nOrigin: https://evil.example.com\r\nSec-Fetch-Site: cross-site\r\n",
		"a page elsewhere, in an old browser":    "Host: 127.0.0.1:8080\r\nOrigin: https://evil.example.com\r\n",
		"a link or an image elsewhere":           "Host: localhost:8080\r\nSec-Fetch-Site: cross-site\r\n",
		"a page of another port of this machine": "Host: localhost:8080\r\nOrigin: http://localhost:3000\r\nSec-Fetch-Site: same-site\r\n",
		"a sandboxed page":                       "Host: localhost:8080\r\nOrigin: null\r\n",
		"a name that was made to lead here":      "Host: evil.example.com:8080\r\nOrigin: http://evil.example.com:8080\r\nSec-Fetch-Site: same-origin\r\n",
	}
	for socket, all := range requests {
		for _, q := range all {
			for who, headers := range browsers {
				text := q.method + " " + q.path + " HTTP/1.1\r\n" + headers
				if q.body != "" {
					text += "Content-Type: " + q.contentType + "\r\n"
				}
				text += fmt.Sprintf("Content-Length: %d\r\nConnection: close\r\n\r\n%s", len(q.body), q.body)
				status, body := raw(t, r.dial(socket), text)
				if e := (answer{body: body}).refused(t); status != 403 || e.Kind != levelrail.ErrForbidden {
					t.Errorf("%s on the %s socket, %s %s: %d %s", who, socket, q.method, q.path, status, body)
				}
			}
		}
	}
	d := r.state()
	keys, err := r.people.Keys(t.Context(), "chat")
	if err != nil {
		t.Fatal(err)
	}
	if m, ok := d.Model("chat"); !ok || m.Restarts != 0 || len(d.Models) != 1 || len(keys) != 1 || len(d.Nodes) != 0 {
		t.Errorf("something was changed: %+v, %d models, %d keys, %d nodes", m, len(d.Models), len(keys), len(d.Nodes))
	}
	for _, host := range []string{"localhost", "127.0.0.1:8080", "[::1]:8080", "localhost:1"} {
		if status, body := raw(t, r.dial("api"), "GET /api/v1/status HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n"); status != 200 {
			t.Errorf("a program that asks %s: %d %s", host, status, body)
		}
	}
	if status, body := raw(t, r.dial("api"), "GET /api/v1/status HTTP/1.1\r\nHost: localhost:8080\r\nOrigin: http://localhost:8080\r\nSec-Fetch-Site: same-origin\r\nConnection: close\r\n\r\n"); status != 200 {
		t.Errorf("a page that the listener serves itself: %d %s", status, body)
	}
}

// TestContentType: a body is read only where it says that it is JSON, which no page can send elsewhere without asking.
func TestContentType(t *testing.T) {
	r := start(t, rigOptions{})
	r.deploy("chat")
	for kind, want := range map[string]int{
		"application/json": 201, "application/json; charset=utf-8": 201,
		"": 415, "text/plain": 415, "text/plain; application/json": 415, "application/x-www-form-urlencoded": 415, "multipart/form-data": 415, "application/x-ndjson": 415, "json": 415,
	} {
		body := `{"name":"k"}`
		header := ""
		if kind != "" {
			header = "Content-Type: " + kind + "\r\n"
		}
		for how, framing := range map[string]string{
			"a length": fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body),
			"chunks":   fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body),
		} {
			status, said := raw(t, r.dial("api"), "POST /api/v1/models/chat/keys HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"+header+framing)
			if status != want && !(want == 201 && status == 409) { // the key is there already
				t.Errorf("%q with %s: %d %s", kind, how, status, said)
			}
			if status == 415 {
				if e := (answer{body: said}).refused(t); e.Kind != levelrail.ErrInvalid || !strings.Contains(e.Next, "application/json") {
					t.Errorf("%q: %s", kind, said)
				}
			}
		}
	}
}

// TestReadingChangesNothing: no GET of any operation writes to the store, so a link cannot.
func TestReadingChangesNothing(t *testing.T) {
	r := start(t, rigOptions{})
	r.deploy("chat")
	key := r.deploy("other").Key
	pass := func() (n int, changed bool) {
		before := r.store.Status().Index
		for _, op := range operations(t) {
			if op.method != "GET" || op.path == "/api/v1/watch" {
				continue
			}
			path := strings.NewReplacer("{name}", "chat", "{id}", "no-such").Replace(op.path)
			if strings.HasSuffix(path, "/explain") {
				path += "?key=" + key.ID
			}
			r.over("api", "GET", path, "")
			n++
		}
		return n, r.store.Status().Index != before
	}
	// The reconciler may still be busy with what was deployed.
	eventually(t, "everything is read and nothing is written", func() bool {
		n, changed := pass()
		return n >= 8 && !changed
	})
}

// TestNamesOfTheTLSPort: the port answers to the names of its certificate and to its own address, and to no other.
func TestNamesOfTheTLSPort(t *testing.T) {
	r := start(t, rigOptions{env: map[string]string{"APP_PUBLIC_HOST": "CP.example.com", "LEVELRAIL_LISTEN": "0.0.0.0:0"}})
	_, port, err := net.SplitHostPort(r.tls)
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]int{"cp.example.com": 401, "CP.EXAMPLE.COM:7420": 401, "localhost": 401, "127.0.0.1:7420": 401, "127.0.0.9": 401, "127.0.0.8": 403, "evil.example.com": 403, "cp.example.com.evil.example.com": 403} {
		c, err := tls.Dial("tcp", "127.0.0.9:"+port, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		if status, body := raw(t, c, "GET /api/v1/models HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n"); status != want {
			t.Errorf("asked for %s: %d %s", host, status, body)
		}
	}
}

// TestFailedTokens: wrong tokens are reported with their address, once a second and counted, and answered late; a good token
// from the same address is not. A request without a token is no attempt.
func TestFailedTokens(t *testing.T) {
	r := start(t, rigOptions{})
	good := r.token("ci", levelrail.AbilityRead)
	r.from = "127.0.0.77"
	lines := func() (out []string) {
		for line := range strings.Lines(r.log.String()) {
			if strings.Contains(line, `msg="authentication failed"`) {
				out = append(out, line)
			}
		}
		return out
	}
	for range 20 {
		r.ask("", "GET", "/api/v1/models", "")
	}
	if l := lines(); len(l) != 0 {
		t.Errorf("requests without a token: %q", l)
	}
	for range 11 {
		if a := r.ask("lrt-wrong", "GET", "/api/v1/models", ""); a.status != 401 {
			t.Fatalf("%d %s", a.status, a.body)
		}
	}
	if l := lines(); len(l) == 0 || !strings.Contains(l[0], `level=WARN msg="authentication failed" client=127.0.0.77 failures=1 `) || strings.Contains(l[0], "lrt-") {
		t.Errorf("the lines %q", l)
	}
	for i := range 4 {
		began := time.Now()
		r.ask("lrt-wrong", "GET", "/api/v1/models", "")
		bad := time.Since(began)
		if bad < 100*time.Millisecond {
			t.Errorf("failure %d was answered within %s", 12+i, bad)
		}
	}
	// The address goes on failing while the good token is timed.
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	flood := r.http()
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			req, err := http.NewRequest("GET", "https://"+r.tls+"/api/v1/models", nil)
			if err != nil {
				panic(err)
			}
			req.Header.Set("Authorization", "Bearer lrt-wrong")
			if resp, err := flood.Do(req); err == nil {
				resp.Body.Close()
			}
		}
	}()
	quickest := time.Hour
	for range 5 {
		began := time.Now()
		if a := r.ask(good, "GET", "/api/v1/models", ""); a.status != 200 {
			t.Fatalf("%d %s", a.status, a.body)
		}
		quickest = min(quickest, time.Since(began))
	}
	stop()
	<-done
	if quickest > 500*time.Millisecond {
		t.Errorf("a good token was answered after %s at best", quickest)
	}
}

// TestExhaustedPort: an address that has all its connections on the TLS port is refused more, another address is served, and
// when the port is used up the sockets still answer at once.
func TestExhaustedPort(t *testing.T) {
	r := start(t, rigOptions{env: map[string]string{"LEVELRAIL_MAX_CONNECTIONS": "40", "LEVELRAIL_MAX_CONNECTIONS_PER_ADDRESS": "30"}})
	hold := func(from string, n int) (open int) {
		t.Helper()
		var conns []net.Conn
		for range n {
			c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).Dial("tcp", r.tls)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			conns = append(conns, c)
		}
		for _, c := range conns {
			h := tls.Client(c, &tls.Config{InsecureSkipVerify: true})
			h.SetDeadline(time.Now().Add(20 * time.Second))
			if h.Handshake() == nil {
				open++
			}
		}
		return open
	}
	if open := hold("127.0.0.5", 50); open != 30 {
		t.Errorf("one address has %d connections", open)
	}
	r.from = "127.0.0.6"
	if a := r.ask("", "GET", "/api/v1/openapi.json", ""); a.status != 200 {
		t.Errorf("another address: %d", a.status)
	}
	hold("127.0.0.7", 50)
	// The connection of a moment ago may still have been counted.
	eventually(t, "the port is used up", func() bool { return hold("127.0.0.8", 1) == 0 })
	for _, socket := range []string{"api", "gateway", "agent"} {
		began := time.Now()
		if a := r.over(socket, "GET", "/api/v1/openapi.json", ""); a.status != 200 || time.Since(began) > 5*time.Second {
			t.Errorf("the %s socket: %d after %s", socket, a.status, time.Since(began))
		}
	}
	if l := r.log.String(); !strings.Contains(l, "connections were closed as they came") || !strings.Contains(l, "peer=127.0.0.5/32") || !strings.Contains(l, "LEVELRAIL_MAX_CONNECTIONS") {
		t.Errorf("the log says nothing of it:\n%s", l)
	}
}

// TestPortLater: a server whose TLS port another program has, or whose address this machine does not have, serves its sockets,
// says in its status and in its log what is missing, and opens the port when it can. A port that can never be opened is refused.
func TestPortLater(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	r := start(t, rigOptions{env: map[string]string{"LEVELRAIL_LISTEN": other.Addr().String()}})
	warned := func() string {
		t.Helper()
		st, err := r.people.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(st.Warnings, "; ")
	}
	if w := warned(); !strings.Contains(w, other.Addr().String()) || !strings.Contains(w, "address already in use") {
		t.Errorf("the status warns %q", w)
	}
	other.Close()
	eventually(t, "the port is open", func() bool { return warned() == "" })
	if a := r.ask("", "GET", "/api/v1/openapi.json", ""); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
	if l := r.log.String(); strings.Count(l, "is not open") != 1 || !strings.Contains(l, "LEVELRAIL_LISTEN") || !strings.Contains(l, "the TLS port is open") {
		t.Errorf("the log:\n%s", l)
	}

	away := start(t, rigOptions{env: map[string]string{"LEVELRAIL_LISTEN": "192.0.2.77:7420"}})
	if a := away.over("api", "GET", "/api/v1/status", ""); a.status != 200 || !strings.Contains(a.body, "192.0.2.77:7420 is not open") {
		t.Errorf("%d %s", a.status, a.body)
	}
	for _, never := range []string{"nonsense", "127.0.0.1:99999"} {
		if _, err := tryStart(t, rigOptions{env: map[string]string{"LEVELRAIL_LISTEN": never}}); err == nil || !strings.Contains(err.Error(), "LEVELRAIL_LISTEN") {
			t.Errorf("%s: %v", never, err)
		}
	}
}

// TestTimesOfThePort: on the TLS port a request has a time in which it has to be there, also what of it nobody reads; a stream goes
// on beyond it.
func TestTimesOfThePort(t *testing.T) {
	const limit = time.Second
	r := start(t, rigOptions{network: limit, heartbeat: 100 * time.Millisecond})
	token := r.token("ci", levelrail.AbilityRead)
	dial := func() net.Conn {
		t.Helper()
		c, err := tls.Dial("tcp", r.tls, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(30 * time.Second))
		return c
	}
	unread := dial() // a body that no handler reads
	fmt.Fprintf(unread, "DELETE /api/v1/models/chat HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{", token)

	began := time.Now()
	stream := dial()
	fmt.Fprintf(stream, "GET /api/v1/watch?kinds=model HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n", token)
	lines := bufio.NewScanner(stream)
	for time.Since(began) < 3*limit {
		if !lines.Scan() {
			t.Fatalf("the stream ended after %s: %v", time.Since(began), lines.Err())
		}
	}
	said, err := io.ReadAll(unread)
	if errors.Is(err, os.ErrDeadlineExceeded) || !strings.Contains(string(said), " 403 ") {
		t.Errorf("the connection with a body that nobody reads: %v, and it got %q", err, said)
	}
}
