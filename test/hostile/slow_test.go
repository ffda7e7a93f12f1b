package hostile

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/test/e2e"
)

// TestSlowBodies: the holder of one key opens 64 connections that announce 32 MB and send 1.1 KB a second. They are seen,
// another key's requests are answered meanwhile, and each ends with 408 once its time is over. A hundred requests at once of that
// key do not keep the other's waiting for more than a few turns, and its revocation with --now ends them.
func TestSlowBodies(t *testing.T) {
	t.Parallel()
	w := New(t)
	// As shipped it is a minute, which is only longer to watch.
	w.Run("echo APP_MODEL_GATEWAY_BODY_TIMEOUT=10s >>/etc/default/levelrail-server && systemctl restart levelrail-server")
	w.Eventually("the gateway to know the setting", 30*time.Second, func() error {
		var m struct{ Limits wire.Limits }
		w.JSON(&m, "models get chat")
		if m.Limits.BodyTimeoutSeconds != 10 {
			return fmt.Errorf("%+v", m.Limits)
		}
		return nil
	})
	var made wire.NewKey
	w.JSON(&made, "models keys create chat --name good")
	good := made.Secret
	var all wire.List[wire.Key]
	w.JSON(&all, "models keys list chat")
	var bad string
	for _, k := range all.Items {
		if k.Name == "default" {
			bad = k.ID
		}
	}
	requests := func() map[string]int {
		var r wire.Requests
		w.JSON(&r, "models requests list chat")
		n := map[string]int{}
		for _, q := range r.Items {
			n[q.State]++
		}
		return n
	}

	const conns = 64
	statuses := make(chan int, conns)
	began := time.Now()
	for range conns {
		conn, err := w.Dial("tcp", "127.0.0.1:7421")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n{", w.Key, 32<<20)
		go trickle(conn)
		go func() {
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				statuses <- 0
				return
			}
			statuses <- resp.StatusCode
		}()
	}
	w.Eventually("all to be seen", 8*time.Second, func() error {
		if n := requests(); n["reading"] != conns {
			return fmt.Errorf("%v", n)
		}
		return nil
	})
	asked := time.Now()
	resp, body := w.Ask("POST", "/v1/chat/completions", good, e2e.Chat("chat", 4, false))
	reached := ""
	if took := time.Since(asked); resp.StatusCode != 200 || took > 8*time.Second {
		reached = fmt.Sprintf("another key's %d after %v: %.200s", resp.StatusCode, took, body)
	}
	w.Attempt(KeyHolder, "holds a model with 64 bodies at 1.1 KB/s", reached)
	reached = ""
	for range conns {
		select {
		case got := <-statuses:
			if got != 408 {
				reached = fmt.Sprintf("a status of %d", got)
			}
		case <-time.After(time.Until(began.Add(40 * time.Second))):
			t.Fatalf("bodies are still read after %v: %v", time.Since(began), requests())
		}
	}
	w.Attempt(KeyHolder, "sends a body for longer than its time", reached)

	// The engine has four slots; each of the hundred takes a while.
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	ends := make(chan error, 100)
	for range cap(ends) {
		go func() {
			resp, err := w.Send(ctx, "POST", "/v1/chat/completions", w.Key, e2e.Chat("chat", 400, true))
			if err != nil {
				ends <- err
				return
			}
			defer resp.Body.Close()
			if _, err = io.Copy(io.Discard, resp.Body); err == nil && resp.StatusCode != 200 {
				err = fmt.Errorf("status %d", resp.StatusCode)
			}
			ends <- err
		}()
	}
	w.Eventually("most of them to wait", 30*time.Second, func() error {
		if n := requests(); n["queued"] < 50 {
			return fmt.Errorf("%v", n)
		}
		return nil
	})
	asked = time.Now()
	resp, body = w.Ask("POST", "/v1/chat/completions", good, e2e.Chat("chat", 4, false))
	waited, left := time.Since(asked), requests()
	t.Logf("another key waited %v; then %v", waited.Round(time.Millisecond), left)
	reached = ""
	if resp.StatusCode != 200 || left["queued"] < 20 {
		reached = fmt.Sprintf("another key's %d after %v, when %d of its own still waited: %.200s", resp.StatusCode, waited, left["queued"], body)
	}
	w.Attempt(KeyHolder, "keeps others waiting with a hundred requests", reached)

	revoked := time.Now()
	out, _ := w.CLI("models keys revoke chat " + bad + " --now --yes")
	for range cap(ends) {
		<-ends
	}
	took := time.Since(revoked)
	if n := requests(); len(n) != 0 || took > 5*time.Second {
		t.Errorf("after the revocation, %v: %v", took, n)
	}
	reached = ""
	if !strings.Contains(out, "are ended: ") || strings.Contains(out, "are ended: 0") {
		reached = "requests that go on: " + out
	}
	w.Attempt(KeyHolder, "goes on after its key is revoked with --now", reached)
}

// trickle writes 1.1 KB a second until it cannot.
func trickle(conn net.Conn) {
	for range time.Tick(time.Second) {
		if _, err := conn.Write(bytes.Repeat([]byte(" "), 1100)); err != nil {
			return
		}
	}
}
