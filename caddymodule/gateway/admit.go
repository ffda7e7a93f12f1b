package gateway

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/levelrail/levelrail/caddymodule/meter"
	"github.com/levelrail/levelrail/caddymodule/openai"
	"github.com/levelrail/levelrail/caddymodule/route"
	"github.com/levelrail/levelrail/caddymodule/wake"
)

// admit charges the key's limits, all or none, and lets the request in: from here on it counts as use of the model, and
// operators see it.
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
	x.ctx, x.cancel = context.WithCancelCause(x.r.Context())
	raw, _ := x.members.Get("stream")
	x.flight = &flight{id: x.record.RequestID, key: x.key.ID, prefix: x.key.Prefix, route: x.match.Path, model: x.model.Name, stream: string(raw) == "true",
		start: x.record.Start, cancel: x.cancel, w: x.w}
	x.Flights.add(x.flight)
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
		return openai.Refuse(http.StatusForbidden, openai.CodeCancelled, "", "Whoever runs this service has ended the request.")
	}
	return clientGone()
}

func (x *exchange) wasCancelled() bool {
	return x.ctx != nil && errors.Is(context.Cause(x.ctx), errCancelled)
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
	case x.record.Partial: // what the first of several answers has cost, and each of the others about the same
		x.counter.Spend(x.key.Limits, (x.record.Input+x.record.Output)*max(x.parts, 1), x.Now())
	case x.record.HasUsage:
		x.counter.Spend(x.key.Limits, x.record.Input+x.record.Output, x.Now())
	default: // a stream that was cut, or does not tell: an event is about a token
		x.counter.Spend(x.key.Limits, x.flight.progress.Events.Load(), x.Now())
	}
	x.use.End()
	if x.Flights.remove(x.flight) && x.flight.state.Load() == stateAnswering {
		x.record.End, x.cut = meter.Cancelled, true
	}
	x.cancel(nil)
}

// again repeats, by the table in which a model has woken, what may have changed since: the key, the model's routes and
// what its engine reads.
func (x *exchange) again(table *route.Table) *openai.Error {
	key, there := table.Key(x.key.Hash)
	m, ok := table.Model(x.model.Name)
	switch {
	case !there || !key.Live(x.Now()):
		return badKey()
	case !ok:
		return modelNotFound()
	}
	x.table, x.model, x.changes = table, m, nil
	if x.site != nil {
		x.site = m
	}
	if refusal := x.lookUp(m.Paths); refusal != nil {
		return refusal
	}
	if _, _, refusal := x.bodyModel(); refusal != nil {
		return refusal
	}
	return x.checkCost()
}
