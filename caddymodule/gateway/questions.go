package gateway

import (
	"encoding/binary"
	"time"

	"github.com/levelrail/levelrail/caddymodule/limit"
	"github.com/levelrail/levelrail/caddymodule/route"
	"github.com/levelrail/levelrail/client/wire"
)

// modelInFlight names the limit on a model's slots, bodyMemory that on the memory of a key's bodies.
const (
	modelInFlight = "model_inflight"
	bodyMemory    = "body_memory"
)

// Answer answers what the control plane asks for an operator. A question of a kind that this gateway does not know, or
// about what it does not have, gets an empty answer.
func (g *Gateway) Answer(q wire.Question) wire.Answer {
	var a wire.Answer
	switch q.Ask {
	case wire.AskRequests:
		a.Requests = g.Flights.list(q.Model, g.Now())
	case wire.AskCancel:
		if a.Cancelled = g.Flights.end(q.Model, q.Request); a.Cancelled {
			g.Log.Info("a request is cancelled for an operator", "model", q.Model, "request_id", q.Request)
		}
	case wire.AskRevoke:
		if a.Ended = g.Flights.endKey(q.KeyID); a.Ended > 0 {
			g.Log.Info("the requests of a revoked key are ended", "key", q.KeyID, "requests", a.Ended)
		}
	case wire.AskExplain:
		a.Limits = g.explain(q.Model, q.KeyID)
	}
	return a
}

// explain tells where the limits of a key and of its model stand.
func (g *Gateway) explain(model, keyID string) []wire.LimitState {
	table := g.Table()
	var key *route.Key
	table.Keys(func(k *route.Key) bool { // operators ask rarely, and requests need no index by id
		if k.ID == keyID {
			key = k
		}
		return key == nil
	})
	now := g.Now()
	var states []limit.State
	if key != nil {
		states = g.Keys.State(key.ID, key.Limits, now)
	}
	m, ok := table.Model(model)
	if ok && m.Slots > 0 {
		gate := g.Slots.Gate(m.Name)
		s := limit.State{Limit: modelInFlight, Most: m.Slots, Used: gate.InFlight(), Refused: gate.Refused()}
		if s.Used >= s.Most {
			s.Reset = time.Second // a slot may come free at any moment
		}
		states = append(states, s)
	}
	if ok && key != nil && m.Limits.BodyMemoryKey > 0 {
		s := limit.State{Limit: bodyMemory, Most: m.Limits.BodyMemoryKey, Used: g.Bodies.Of(binary.LittleEndian.Uint64(key.Hash[:])), Refused: g.Bodies.Refused()}
		states = append(states, s)
	}
	out := []wire.LimitState{}
	for _, s := range states {
		w := wire.LimitState{Limit: s.Limit, Most: s.Most, Used: s.Used, ResetSeconds: seconds(s.Reset), FreesSeconds: seconds(s.Frees)}
		if part := s.Share; s.Part {
			w.Lease = &part
		}
		if !s.Refused.IsZero() {
			at := s.Refused.UTC()
			w.RefusedLast = &at
		}
		out = append(out, w)
	}
	return out
}

// seconds rounds up.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }
