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
	stateReading   = iota // the body
	stateQueued           // for a slot
	stateWaiting          // for the engine's headers
	stateWaking           // for the model
	stateAnswering        //
)

var stateNames = [...]string{stateReading: "reading", stateQueued: "queued", stateWaiting: "waiting", stateWaking: "waking", stateAnswering: "answering"}

// Why a request ends that an operator has cancelled, or whose key an operator has revoked with all that it does.
var (
	errCancelled = errors.New("cancelled by an operator")
	errRevoked   = errors.New("its key is revoked")
)

// flight is one request whose key is known, for who asks while it lasts.
type flight struct {
	id, key, prefix, route string
	model                  string   // under the lock of its shard; empty while only the body can say it
	models                 []string // that it may be for then
	stream                 atomic.Bool
	received               atomic.Int64 // of the body
	start                  time.Time
	state                  atomic.Int32
	progress               proxy.Progress
	cancel                 context.CancelCauseFunc
	w                      http.ResponseWriter
	cancelled              bool // under the lock of its shard
	shard                  int  // set by add
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

// name says for which model a flight is.
func (s *Flights) name(f *flight, model string) {
	sh := &s.shards[f.shard]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	f.model = model
}

// of tells whether the flight is for a model, or may be.
func (f *flight) of(model string) bool {
	return f.model == model || f.model == "" && slices.Contains(f.models, model)
}

// list is what is in flight for a model, oldest first.
func (s *Flights) list(model string, now time.Time) []wire.InFlight {
	out := []wire.InFlight{}
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for f := range sh.all {
			if f.of(model) {
				out = append(out, wire.InFlight{ID: f.id, KeyID: f.key, KeyPrefix: f.prefix, Route: f.route, Stream: f.stream.Load(), State: stateNames[f.state.Load()], Received: f.received.Load(),
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
		if f.id == id && f.of(model) {
			f.end(errCancelled)
			found = true
		}
	}
	return found
}

// endKey cancels all requests of a key, and tells how many there were.
func (s *Flights) endKey(key string) (n int64) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for f := range sh.all {
			if f.key == key && !f.cancelled {
				f.end(errRevoked)
				n++
			}
		}
		sh.mu.Unlock()
	}
	return n
}

// end cancels a flight. Its shard is locked.
func (f *flight) end(cause error) {
	f.cancelled = true
	f.cancel(cause)
	switch f.state.Load() {
	case stateAnswering:
		// A client that does not read holds the answer up in a write. The connection is cut in any case.
		http.NewResponseController(f.w).SetWriteDeadline(time.Now())
	case stateReading:
		// One that does not send holds it up in a read.
		http.NewResponseController(f.w).SetReadDeadline(time.Now())
	}
}
