package gateway

import (
	"context"
	"encoding/binary"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/levelrail/levelrail/caddymodule/limit"
	"github.com/levelrail/levelrail/caddymodule/meter"
	"github.com/levelrail/levelrail/caddymodule/openai"
	"github.com/levelrail/levelrail/caddymodule/route"
	"github.com/levelrail/levelrail/caddymodule/wake"
)

// enter takes one of the key's slots. From here on operators see the request.
func (x *exchange) enter() *openai.Error {
	enter := func() (ok bool) {
		x.counter, ok = x.Keys.Enter(x.key.ID, x.key.Limits, x.Now())
		return ok
	}
	if !enter() && !x.more(enter) {
		return x.limited(0)
	}
	x.who = binary.LittleEndian.Uint64(x.key.Hash[:])
	x.ctx, x.cancel = context.WithCancelCause(x.r.Context())
	x.flight = &flight{id: x.record.RequestID, key: x.key.ID, prefix: x.key.Prefix, route: x.match.Path, start: x.record.Start, cancel: x.cancel, w: x.w}
	if x.model != nil {
		x.flight.model = x.model.Name
	} else {
		x.flight.models = x.key.Models
	}
	x.Flights.add(x.flight)
	return nil
}

// takeSlot takes one of the model's slots, as many as the model may have and its engine works on at a time. Where none is free
// the request waits in its key's line.
func (x *exchange) takeSlot() *openai.Error {
	if x.flight.model == "" {
		x.Flights.name(x.flight, x.model.Name)
	}
	if raw, there := x.members.Get("stream"); there && string(raw) == "true" {
		x.flight.stream.Store(true)
		x.bePatient()
	}
	gate := x.Slots.Gate(x.model.Name)
	if !gate.Take(x.who, x.model.Slots) {
		if refusal := x.queue(gate); refusal != nil {
			return refusal
		}
	} else {
		x.gate = gate
	}
	x.flight.state.Store(stateWaiting)
	x.countBody(0)
	return nil
}

// queue waits for a slot. What may have changed meanwhile is checked anew.
func (x *exchange) queue(gate *limit.Gate) *openai.Error {
	// Who is over a limit of the key's need not wait to hear it.
	ticket, wait, ok := x.counter.Charge(x.key.Limits, x.Now())
	if ok {
		x.counter.TakeBack(ticket)
	} else if x.Leases == nil || !x.Leases.Asks() {
		return x.limited(wait)
	}
	x.flight.state.Store(stateQueued)
	seconds := max(x.model.Limits.QueueWaitSeconds, 0)
	full := new(limit.FullError)
	err := gate.Wait(x.ctx, x.Wake.Draining(), x.who, x.key.Limits.Weight, x.model.Slots, time.Duration(seconds)*time.Second)
	switch {
	case err == nil:
		x.gate = gate
		if table := x.Table(); table != x.table {
			return x.again(table)
		}
		return nil
	case errors.As(err, &full):
		gate.Refuse(x.Now())
		return x.limited(full.Wait)
	case errors.Is(err, limit.ErrStopped):
		return openai.Failed(http.StatusServiceUnavailable, openai.CodeStarting, 1, "This gateway stops. Try again in a moment.")
	}
	return x.left()
}

// admit charges the key's limits, all or none, and lets the request in: from here on it counts as use of the model.
func (x *exchange) admit() *openai.Error {
	var wait time.Duration
	charge := func() (ok bool) {
		x.ticket, wait, ok = x.counter.Charge(x.key.Limits, x.Now())
		return ok
	}
	if !charge() && !x.more(charge) {
		return x.limited(wait)
	}
	x.charged = true
	x.use = x.Wake.Begin(x.model.Name)
	return nil
}

// Leases are the parts of keys' limits that this gateway may use, where others share them.
type Leases interface {
	Asks() bool // whether there is anybody to ask for more
	// More waits until a request may try again, for a moment since it began to wait at most; false: there is no more.
	More(ctx context.Context, key string, since time.Time) bool
}

// more asks for more of what the key's requests may use here, where others may have it, and tries again as long as that
// can help. What is refused for the limit itself, or for the model's slots, is refused at once.
func (x *exchange) more(try func() bool) bool {
	if x.Leases == nil || !x.Leases.Asks() {
		return false
	}
	for since := x.Now(); x.Keys.Short(x.key.ID, x.Now()) && x.Leases.More(x.r.Context(), x.key.ID, since); {
		if try() {
			return true
		}
		if !x.Leases.Asks() { // since a moment ago
			return false
		}
	}
	x.Keys.Refused(x.key.ID, x.Now())
	return false
}

// limited is the one answer that every limit gives. wait is the true wait, where there is one.
func (x *exchange) limited(wait time.Duration) *openai.Error {
	l := x.limits()
	retry := l.RetryAfterSeconds
	if l.RetryAfterExact && wait > 0 {
		retry = int64((wait + time.Second - 1) / time.Second)
	}
	return openai.Limited(retry)
}

// awake lets requests for a model that serves pass. For one that sleeps they make it wake, and wait.
func (x *exchange) awake() *openai.Error {
	if x.model.Serving && !x.model.Asleep {
		return nil
	}
	if !wake.Sleeps(x.model) {
		return x.notServing()
	}
	x.flight.state.Store(stateWaking)
	l := x.model.Limits
	table, err := x.Wake.Hold(x.ctx, x.model.Name, time.Duration(max(l.WakeWaitSeconds, 0))*time.Second)
	x.flight.state.Store(stateWaiting)
	switch {
	case err == nil:
		return x.again(table)
	case errors.Is(err, wake.ErrNotSoon):
		if m, ok := x.Table().Model(x.model.Name); ok {
			x.model = m
			return x.notServing()
		}
		return modelNotFound()
	case errors.Is(err, wake.ErrWaking):
		return openai.Failed(http.StatusServiceUnavailable, openai.CodeModelWaking, max(l.WakeRetryAfterSeconds, 1), x.model.Name+" is waking up. Try again in a moment.")
	case errors.Is(err, wake.ErrDraining):
		return openai.Failed(http.StatusServiceUnavailable, openai.CodeModelWaking, max(l.WakeRetryAfterSeconds, 1), x.model.Name+" is waking up, and this gateway stops. Try again in a moment.")
	}
	return x.left()
}

// left is the answer when the request's context has ended before an answer began.
func (x *exchange) left() *openai.Error {
	if x.wasCancelled() {
		x.record.End = meter.Cancelled
		if errors.Is(context.Cause(x.ctx), errRevoked) {
			return badKey()
		}
		return openai.Refuse(http.StatusForbidden, openai.CodeCancelled, "", "Whoever runs this service has ended the request.")
	}
	return clientGone()
}

func (x *exchange) wasCancelled() bool {
	if x.ctx == nil {
		return false
	}
	cause := context.Cause(x.ctx)
	return cause == errCancelled || cause == errRevoked
}

// settle gives back what admit took, with what the request has cost.
func (x *exchange) settle() {
	if !x.charged {
		return
	}
	x.charged = false
	switch {
	case !x.reached: // a request that no engine has seen has cost nothing, however it was refused
		x.counter.TakeBack(x.ticket)
	default:
		x.counter.Spend(x.key.Limits, x.cost(), x.Now())
	}
	x.use.End()
}

// again repeats, by the table in which a model has woken or a slot came free, what may have changed since: the key and what it
// opens, the model's routes and what its engine reads.
func (x *exchange) again(table *route.Table) *openai.Error {
	key, there := table.Key(x.key.Hash)
	m, ok := table.Model(x.model.Name)
	switch {
	case !there || !key.Live(x.Now()):
		return badKey()
	case !ok:
		return modelNotFound()
	case !slices.Contains(key.Models, m.Name) && x.site != nil:
		return badKey()
	case !slices.Contains(key.Models, m.Name):
		return modelNotFound()
	}
	x.key.Models, x.key.AllowPaths, x.key.AllowNames = key.Models, key.AllowPaths, key.AllowNames
	x.table, x.model, x.changes = table, m, nil
	if x.site != nil {
		x.site = m
	}
	if refusal := x.lookUp(m.Paths); refusal != nil {
		return refusal
	}
	if refusal := x.keyOpensPath(); refusal != nil {
		return refusal
	}
	name, _, refusal := x.bodyModel()
	if refusal != nil {
		return refusal
	}
	if refusal := x.keyOpensName(name); refusal != nil {
		return refusal
	}
	return x.checkCost()
}
