package gateway

import (
	"net/http"
	"strconv"

	"github.com/levelrail/levelrail/caddymodule/openai"
	"github.com/levelrail/levelrail/caddymodule/proxy"
	"github.com/levelrail/levelrail/engine"
)

// mostFault bounds an error response of an engine.
const mostFault = 64 << 10

// ask is the request, for the engine's repairs.
func (x *exchange) ask() engine.Ask {
	return engine.Ask{Model: x.model.Name, Kind: x.match.Kind, At: x.record.Start.Unix()}
}

// mend says what changes an answer on its way: what the engine's repairs say for this route; nil for most.
func (x *exchange) mend() func(events bool) proxy.Rewriter {
	repairs := &x.model.Repairs
	if repairs.Events == nil && repairs.Whole == nil {
		return nil
	}
	return func(events bool) proxy.Rewriter {
		switch {
		case events && repairs.Events != nil:
			if mend := repairs.Events(x.ask()); mend != nil {
				return openai.NewMender(mend)
			}
		case !events && repairs.Whole != nil:
			if mend := repairs.Whole(x.ask()); mend != nil {
				return openai.NewWholeMender(mend)
			}
		}
		return nil
	}
}

// fault sends an engine's error response in the shape that clients know, with the status and words that the engine's repairs say.
func (x *exchange) fault(a *proxy.Answer) *openai.Error {
	body, err := a.ReadAll(mostFault)
	if err != nil {
		return x.failed(err)
	}
	x.answered, x.record.Status = true, a.StatusCode
	x.flight.state.Store(stateAnswering)
	if after := a.Header.Get("Retry-After"); after != "" {
		x.w.Header().Set("Retry-After", after)
	}
	e := x.readFault(a.StatusCode, body)
	if e == nil {
		x.asItIs(a, body)
		return nil
	}
	if x.record.Status = e.Status; e.Status == http.StatusServiceUnavailable && a.Header.Get("Retry-After") == "" {
		e.RetryAfter = max(x.model.Limits.RetryAfterSeconds, 1)
	}
	x.record.Bytes = int64(e.Write(x.w))
	return nil
}

// readFault reads an engine's error response, and mends it; nil: it says nothing of an error.
func (x *exchange) readFault(status int, body []byte) *openai.Error {
	e := openai.ReadFault(status, body)
	if repair := x.model.Repairs.Fault; e != nil && repair != nil {
		f := repair(x.ask(), engine.Fault{Status: e.Status, Type: e.Type, Code: e.Code, Message: e.Message})
		e.Status, e.Type, e.Code, e.Message = f.Status, f.Type, f.Code, f.Message
	}
	return e
}

// isFault tells whether an answer is an error response that fault reads: one in the clear, and no stream.
func isFault(a *proxy.Answer) bool {
	return a.StatusCode >= 400 && a.Header.Get("Content-Encoding") == "" && openai.MediaType(a.Header.Get("Content-Type")) != "text/event-stream"
}

// asItIs sends an error response that says nothing of an error.
func (x *exchange) asItIs(a *proxy.Answer, body []byte) {
	h, kind := x.w.Header(), a.Header.Get("Content-Type")
	if kind != "" {
		h.Set("Content-Type", kind)
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("X-Content-Type-Options", "nosniff")
	tail := openai.NewTail(kind, "", x.model.Limits.UsageScanBytes)
	tail.Write(body)
	x.w.WriteHeader(a.StatusCode)
	n, _ := x.w.Write(body) // a client that left misses nothing
	x.sent(proxy.Sent{Bytes: int64(n), Seen: tail.End()})
}
