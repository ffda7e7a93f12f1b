package gateway

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/levelrail/levelrail/caddymodule/proxy"
	"github.com/levelrail/levelrail/client/wire"
)

// The states of a request in flight.
const (
	stateWaiting   = iota // for the engine's headers
	stateWaking           // for the model
	stateAnswering        //
)

var stateNames = [...]string{stateWaiting: "waiting", stateWaking: "waking", stateAnswering: "answering"}

// errCancelled is why a request ends that an operator has cancelled.
var errCancelled = errors.New("cancelled by an operator")

// flight is one admitted request, for who asks while it lasts.
type flight struct {
	id, key, prefix, route, model string
	stream                        bool
	start                         time.Time
	state                         atomic.Int32
	progress                      proxy.Progress
	cancel                        context.CancelCauseFunc
	w                             http.ResponseWriter
	cancelled                     bool // under the lock of its shard
	shard                         int  // set by add
}

// Flights are the requests in flight. The zero Flights is ready. It is split, so that requests do not wait for each other.
type Flights struct {
	shards [64]struct {
		mu  sync.Mutex
		all map[*flight]struct{}
		_   [40]byte // apart in memory
	}
}

var flightSeed = maphash.MakeSeed()

func (s *Flights) shard(id string) int {
	return int(maphash.String(flightSeed, id) % uint64(len(s.shards)))
}

func (s *Flights) add(f *flight) {
	f.shard = s.shard(f.id)
	sh := &s.shards[f.shard]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.all == nil {
		sh.all = map[*flight]struct{}{}
	}
	sh.all[f] = struct{}{}
}

// remove ends a flight and tells whether it was cancelled. After it nobody touches the request's writer.
func (s *Flights) remove(f *flight) (cancelled bool) {
	sh := &s.shards[f.shard]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	delete(sh.all, f)
	return f.cancelled
}

// list is what is in flight for a model, oldest first.
func (s *Flights) list(model string, now time.Time) []wire.InFlight {
	out := []wire.InFlight{}
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for f := range sh.all {
			if f.model == model {
				out = append(out, wire.InFlight{ID: f.id, KeyID: f.key, KeyPrefix: f.prefix, Route: f.route, Stream: f.stream, State: stateNames[f.state.Load()],
					StartedAt: f.start.UTC(), AgeSeconds: int64(now.Sub(f.start) / time.Second), Tokens: f.progress.Events.Load(), Bytes: f.progress.Bytes.Load()})
			}
		}
		sh.mu.Unlock()
	}
	slices.SortFunc(out, func(a, b wire.InFlight) int { return cmp.Or(a.StartedAt.Compare(b.StartedAt), cmp.Compare(a.ID, b.ID)) })
	return out
}

// end cancels the requests of a model that carry the id, and tells whether there was one. An id may be a client's own, and
// clients may give one twice.
func (s *Flights) end(model, id string) (found bool) {
	sh := &s.shards[s.shard(id)]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for f := range sh.all {
		if f.id != id || f.model != model {
			continue
		}
		found, f.cancelled = true, true
		f.cancel(errCancelled)
		if f.state.Load() == stateAnswering {
			// A client that does not read holds the answer up in a write. The connection is cut in any case.
			http.NewResponseController(f.w).SetWriteDeadline(time.Now())
		}
	}
	return found
}
