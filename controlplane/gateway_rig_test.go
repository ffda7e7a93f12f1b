package controlplane

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client"
	"github.com/levelrail/levelrail/client/wire"
)

// gw is a gateway that keeps to the protocol and serves nothing: it follows, says what it has seen, and answers what it is
// told to.
type gw struct {
	t     *testing.T
	r     *rig
	id    string
	watch *following
}

// follows begins a gateway's watch with some kinds.
func (r *rig) follows(kinds ...string) *gw {
	r.t.Helper()
	g := &gw{t: r.t, r: r, id: levelrail.NewID("gw")}
	g.watch = follow(r.t, r.gateway, client.WatchOptions{Kinds: kinds, Body: wire.WatchGateway{GatewayID: g.id, URL: "http://127.0.0.1:7421/v1"}})
	eventually(r.t, "the gateway's watch is synced", g.watch.synced)
	return g
}

// post says something on the gateway's socket and returns the answer's status and body.
func (g *gw) post(path string, body any) answer {
	g.t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		g.t.Fatal(err)
	}
	return g.r.over("gateway", http.MethodPost, "/api/v1/gateway/"+path, string(text))
}

func (g *gw) must(path string, body any) answer {
	g.t.Helper()
	a := g.post(path, body)
	if a.status >= 300 {
		g.t.Fatalf("POST %s: %d %s", path, a.status, a.body)
	}
	return a
}

// saysSeen says that the gateway has come as far as its watch has.
func (g *gw) saysSeen() {
	g.t.Helper()
	g.watch.mu.Lock()
	token := g.watch.token
	g.watch.mu.Unlock()
	g.must("seen", wire.Seen{GatewayID: g.id, Token: token})
}

// question waits for a question, and returns it.
func (g *gw) question() (q wire.Question) {
	g.t.Helper()
	eventually(g.t, "the gateway is asked", func() bool {
		g.watch.mu.Lock()
		defer g.watch.mu.Unlock()
		for id, text := range g.watch.state {
			if strings.HasPrefix(id, wire.WatchQuestion+"/") && json.Unmarshal(text, &q) == nil {
				return true
			}
		}
		return false
	})
	return q
}

// inBackground calls something that waits for gateways.
func inBackground[T any](call func() (T, error)) func() (T, error) {
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	go func() {
		v, err := call()
		done <- result{v, err}
	}()
	return func() (T, error) { r := <-done; return r.v, r.err }
}
