package caddymodule

import (
	"crypto/sha256"
	"encoding/hex"
	"github.com/levelrail/levelrail/client/wire"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/levelrail/levelrail/caddymodule/route"
	"github.com/levelrail/levelrail/engine"
)

// blockUntil is an engine that says when a request has come and answers when leave is closed, or the gateway left.
func blockUntil(entered chan<- struct{}, leave <-chan struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		select {
		case <-leave:
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `{"choices":[]}`)
		case <-r.Context().Done():
		}
	}
}

// pooledSlots is how many slots of that name are taken, over all that Caddy's configurations share.
func pooledSlots(name string) (n int64) {
	pool.Range(func(_, v any) bool {
		n += v.(*shared).gateway.Slots.Gate(name).InFlight()
		return true
	})
	return n
}

// audio is an engine of this test that takes forms, as engines for speech do.
type audio struct{ engine.Engine }

func init() { engine.Register(audio{}) }

func (audio) Name() string { return "test-audio" }

func (audio) Repairs() engine.Repairs { return engine.Repairs{} }
func (audio) Routes() []engine.Route {
	return []engine.Route{
		{Path: "/v1/audio/transcriptions", Method: "POST", Kind: "transcriptions", Multipart: true},
		{Path: "/v1/audio/translations", Method: "POST", Kind: "translations", Multipart: true},
	}
}
func (audio) Body() engine.BodyTable { return engine.BodyTable{} }

// log is all that Caddy has logged.
func (h *host) log() string {
	b, err := os.ReadFile(h.logFile())
	if err != nil {
		h.t.Fatal(err)
	}
	return string(b)
}

// table is the gateway's present table.
func (h *host) table() *route.Table {
	v, _ := pool.LoadOrStore(sharedKey{h.cp.socket, filepath.Join(h.dir, "state")}, nil)
	defer pool.Delete(sharedKey{h.cp.socket, filepath.Join(h.dir, "state")})
	return v.(*shared).link.Table()
}

// stop ends Caddy.
func (h *host) stop() {
	h.t.Helper()
	if err := caddy.Stop(); err != nil {
		h.t.Fatal(err)
	}
}

// caughtUp waits until the gateway's table is what the control plane has.
func (h *host) caughtUp() {
	h.t.Helper()
	h.eventually("the gateway has the newest routes and keys", func() bool {
		h.cp.mu.Lock()
		defer h.cp.mu.Unlock()
		table := h.table()
		if models, keys := table.Len(); models != len(h.cp.routes) || keys != len(h.cp.keys) {
			return false
		}
		for name, want := range h.cp.routes {
			m, ok := table.Model(name)
			if !ok {
				return false
			}
			got := m.Wire()
			got.CreatedAt, want.CreatedAt = time.Time{}, time.Time{} // the same moment has several forms
			if !reflect.DeepEqual(got, want) {
				return false
			}
		}
		for _, want := range h.cp.keys {
			sum, _ := hex.DecodeString(want.SHA256)
			if k, ok := table.Key(route.Hash(sum)); !ok || k.ID != want.ID {
				return false
			}
		}
		return true
	})
}

// hashOf is how a key's text is looked up.
func hashOf(secret string) route.Hash { return sha256.Sum256([]byte(secret)) }

// inState is how many requests for the model chat are in a state.
func (h *host) inState(state string) (n int) {
	for _, r := range h.ask(wire.Question{Ask: wire.AskRequests, Model: "chat"}).Requests {
		if r.State == state {
			n++
		}
	}
	return n
}
