package controlplane

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client"
	"github.com/levelrail/levelrail/client/wire"
)

// endsWithin is how long a response may go on after its principal has lost its right.
const endsWithin = 2 * time.Second

// TestRevokedEnds: every operation that can last ends within two seconds after its token was revoked or has expired, with a
// last line that says why; those of other tokens go on. No operation is named here: whatever streams is found by trying.
func TestRevokedEnds(t *testing.T) {
	r := start(t, rigOptions{})
	r.deploy("chat")
	n := r.join(0)
	n.assigned("chat", anyAssignment)
	type loss struct {
		how  string
		lose func(id string)
		make wire.CreateToken
		says string
	}
	for _, l := range []loss{
		{"revoked", func(id string) {
			if _, err := r.people.RevokeToken(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}, wire.CreateToken{}, "was revoked"},
		{"expired", func(string) {}, wire.CreateToken{ExpiresInSeconds: 3}, "expired at"},
	} {
		t.Run(l.how, func(t *testing.T) {
			l.make.Abilities = []levelrail.Ability{levelrail.AbilityRoot}
			l.make.Name = "loses-" + l.how
			made, err := r.people.CreateToken(t.Context(), l.make)
			if err != nil {
				t.Fatal(err)
			}
			keeps := r.token("keeps-"+l.how, levelrail.AbilityRead)
			streams := map[string]*bufio.Scanner{}
			for _, op := range operations(t) {
				if op.method != http.MethodGet || op.ability == "" {
					continue
				}
				path := strings.NewReplacer("{name}", "chat", "{id}", "x").Replace(op.path)
				switch {
				case strings.HasSuffix(op.path, "/watch"):
					path += "?kinds=model,node"
				case strings.HasSuffix(op.path, "/logs"):
					path += "?follow=true"
					// The agent answers each request for logs and never ends by itself.
					go n.serveLogs(t.Context())
				}
				resp, stays := r.open(t, made.Secret, path)
				if stays {
					streams[path] = bufio.NewScanner(resp.Body)
				}
			}
			if len(streams) < 2 {
				t.Fatalf("only these last: %v", streams)
			}
			other, _ := r.open(t, keeps, "/api/v1/watch?kinds=model")
			l.lose(made.ID)
			lost := time.Now()
			if made.ExpiresAt != nil {
				lost = *made.ExpiresAt
			}
			for path, lines := range streams {
				last := ""
				for lines.Scan() {
					last = lines.Text()
				}
				took := time.Since(lost)
				t.Logf("%s ended %v after it was %s: %s", path, took.Round(time.Millisecond), l.how, last)
				if took > endsWithin || took < 0 {
					t.Errorf("%s ended %v after", path, took)
				}
				var line struct{ Error levelrail.Error }
				if err := json.Unmarshal([]byte(last), &line); err != nil || line.Error.Kind != levelrail.ErrUnauthorized || !strings.Contains(line.Error.Message, l.says) || line.Error.Next == "" {
					t.Errorf("%s ends with %q, %v", path, last, err)
				}
			}
			goesOn := make(chan error, 1)
			go func() { _, err := io.Copy(io.Discard, other.Body); goesOn <- err }()
			select {
			case err := <-goesOn:
				t.Errorf("another token's watch ended too: %v", err)
			case <-time.After(2 * endsWithin / 4):
			}
		})
	}
}

// TestRevokedReaderThatTakesNothing: a reader that takes nothing is cut off as soon as one that reads.
func TestRevokedReaderThatTakesNothing(t *testing.T) {
	r := start(t, rigOptions{})
	r.deploy("chat")
	n := r.join(0)
	a := n.assigned("chat", anyAssignment)
	made, err := r.people.CreateToken(t.Context(), wire.CreateToken{Name: "slow", Abilities: []levelrail.Ability{levelrail.AbilityRead}})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := tls.Dial("tcp", r.tls, &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /api/v1/watch?kinds=model HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n", made.Secret)
	if _, err := bufio.NewReaderSize(conn, 16).ReadByte(); err != nil {
		t.Fatal(err)
	}
	f := follow(t, r.people, client.WatchOptions{Kinds: []string{wire.WatchModel}})
	eventually(t, "it is synced", f.synced)
	for i := range 60 { // far more than a socket holds: the server's write waits
		n.say(a, levelrail.Condition{Reason: levelrail.Loading, Message: fmt.Sprint(i, strings.Repeat("x", 64<<10))})
		eventually(t, "it is published", func() bool {
			return strings.HasPrefix(get[wire.Model](t, f, "model/chat").Condition.Message, fmt.Sprint(i, "x"))
		})
	}
	if _, err := r.people.RevokeToken(t.Context(), made.ID); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	eventually(t, "the server has ended the watch", func() bool { return strings.Contains(r.log.String(), "a watch has ended") })
	if took := time.Since(began); took > endsWithin {
		t.Errorf("it ended %v after", took)
	}
}

// open begins a request and tells whether its response lasts. The connection is its own.
func (r *rig) open(t *testing.T, token, path string) (*http.Response, bool) {
	t.Helper()
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DialContext: (&net.Dialer{}).DialContext}
	t.Cleanup(tr.CloseIdleConnections)
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+r.tls+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "application/x-ndjson") {
		return resp, true
	}
	_, err = io.Copy(io.Discard, resp.Body)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return resp, false
}

// serveLogs answers the next request for logs with a line each 100 ms.
func (n *node) serveLogs(ctx context.Context) {
	answered := map[string]bool{}
	for ctx.Err() == nil {
		n.watch.mu.Lock()
		id := ""
		for key := range n.watch.state {
			if kind, rest, _ := strings.Cut(key, "/"); kind == wire.WatchLogRequest && !answered[rest] {
				id = rest
			}
		}
		n.watch.mu.Unlock()
		if id == "" {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		answered[id] = true
		n.r.agent.PostLogs(ctx, id, func(ctx context.Context, send func(wire.LogLine) error) error {
			for {
				if err := send(wire.LogLine{Message: "a line"}); err != nil {
					return err
				}
				select {
				case <-time.After(100 * time.Millisecond):
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		})
		return
	}
}
