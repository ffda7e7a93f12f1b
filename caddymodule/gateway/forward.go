package gateway

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strconv"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/caddymodule/meter"
	"github.com/levelrail/levelrail/caddymodule/openai"
	"github.com/levelrail/levelrail/caddymodule/proxy"
	"github.com/levelrail/levelrail/caddymodule/wake"
)

// notServing refuses while the model is not serving, in words that a client's user understands. What went wrong on the
// node is the operator's to read.
func (x *exchange) notServing() *openai.Error {
	m := x.model
	retry := max(m.Limits.RetryAfterSeconds, 1)
	tell := func(code, what string) *openai.Error {
		return openai.Failed(http.StatusServiceUnavailable, code, retry, m.Name+" "+what)
	}
	const ask = " Whoever runs this service sees why with: levelrail models get "
	switch levelrail.Reason(m.Reason) {
	case levelrail.Pending, levelrail.Starting, levelrail.WakingUp:
		return tell(openai.CodeModelLoading, "is starting. Try again in a moment.")
	case levelrail.Downloading:
		return tell(openai.CodeModelLoading, "is downloading its weights. Try again later.")
	case levelrail.Loading, levelrail.ModelLoaded:
		return tell(openai.CodeModelLoading, "is loading. Try again in a moment.")
	case levelrail.WaitingGPU:
		return tell(openai.CodeModelLoading, "is waiting for GPU memory. Try again later.")
	case levelrail.Stopping:
		return tell(openai.CodeModelUnavailable, "is being taken down.")
	}
	return tell(openai.CodeModelUnavailable, "is not available."+ask+m.Name)
}

// forward sends the request to the engine and its answer to the client.
func (x *exchange) forward() *openai.Error {
	hide := x.askUsage()
	x.rewrite()
	return x.send(hide, true)
}

// send is forward with what askUsage said. again tells whether a model that fell asleep on the way may be woken.
func (x *exchange) send(hide, again bool) *openai.Error {
	call := proxy.Call{Method: x.match.Method, Path: x.match.Path, Header: x.r.Header, Type: x.sentAs, Body: x.body,
		Targets: x.model.Order(random()), Limits: x.model.Limits, Hide: hide, Mend: x.mend(), Progress: &x.flight.progress}
	answer, err := x.Engines.Do(x.ctx, call)
	if err != nil {
		if again && x.fellAsleep(err) {
			if refusal := x.awake(); refusal != nil {
				return refusal
			}
			return x.send(hide, false)
		}
		return x.failed(err)
	}
	defer answer.Close()
	x.reached = true
	if refusal := x.unusable(answer); refusal != nil {
		return refusal
	}
	if answer.Begun = x.patience.end(); answer.Begun && !answer.Events() {
		return x.lateAnswer(answer)
	}
	if isFault(answer) {
		return x.fault(answer)
	}
	if answer.StatusCode == http.StatusServiceUnavailable && answer.Header.Get("Retry-After") == "" {
		x.w.Header().Set("Retry-After", strconv.FormatInt(max(x.model.Limits.RetryAfterSeconds, 1), 10))
	}
	x.answered, x.record.Status = true, answer.StatusCode
	x.flight.state.Store(stateAnswering)
	sent, err := answer.Send(x.w)
	x.sent(sent)
	if err == nil {
		return nil
	}
	if f := new(proxy.Failure); errors.As(err, &f) {
		if x.record.End = f.End; x.wasCancelled() {
			x.record.End = meter.Cancelled
		} else if f.End != meter.ClientGone {
			x.Log.Warn("an engine's answer was cut", "model", x.model.Name, "target", answer.Target.ID, "end", f.End, "error", f.Err, "request_id", x.record.RequestID)
		}
		// The client must see a cut: a clean end would make half an answer look whole.
		panic(http.ErrAbortHandler)
	}
	return nil
}

// fellAsleep tells whether nobody took the connection because the model was put to sleep since the request's table.
func (x *exchange) fellAsleep(err error) bool {
	f := new(proxy.Failure)
	if !errors.As(err, &f) || f.End != meter.DialFailed {
		return false
	}
	m, ok := x.Table().Model(x.model.Name)
	if !ok || m.Serving && !m.Asleep || !wake.Sleeps(m) {
		return false
	}
	x.model = m
	return true
}

func (x *exchange) sent(s proxy.Sent) {
	x.record.Bytes = s.Bytes
	if !s.FirstByte.IsZero() {
		x.record.FirstByte = s.FirstByte.Sub(x.record.Start)
	}
	x.used(s)
	if s.Seen.EngineError {
		x.record.End = meter.EngineError
	}
}

// unusable refuses answers that are about the gateway and not the client: an engine that does not take the gateway's key,
// sends it elsewhere, or wants another protocol.
func (x *exchange) unusable(a *proxy.Answer) *openai.Error {
	s := a.StatusCode
	if s >= 200 && s < 300 || s >= 400 && s != http.StatusUnauthorized && s != http.StatusForbidden && s != http.StatusProxyAuthRequired {
		return nil
	}
	x.record.End = meter.EngineError
	x.Log.Error("an engine refuses the gateway", "model", x.model.Name, "target", a.Target.ID, "status", s, "request_id", x.record.RequestID,
		"next", "levelrail models restart "+x.model.Name)
	return openai.Failed(http.StatusBadGateway, openai.CodeEngineFailed, 0, x.model.Name+"'s engine does not answer the gateway as it should. It has been logged.")
}

// failed is the answer when the engine gave none.
func (x *exchange) failed(err error) *openai.Error {
	f := new(proxy.Failure)
	if !errors.As(err, &f) {
		f = &proxy.Failure{End: meter.EngineGone, Err: err}
	}
	x.record.End, x.reached = f.End, f.End != meter.DialFailed
	name, retry := x.model.Name, max(x.model.Limits.RetryAfterSeconds, 1)
	if f.End == meter.ClientGone {
		return x.left()
	}
	next := "levelrail models get " + name
	if errors.Is(f.Err, fs.ErrPermission) {
		next = "the gateway's user has to be in the group levelrail-gateway"
	}
	x.Log.Warn("no answer from an engine", "model", name, "end", f.End, "error", f.Err, "request_id", x.record.RequestID, "next", next)
	switch {
	case f.End == meter.DialFailed && f.Timeout:
		return openai.Failed(http.StatusGatewayTimeout, openai.CodeModelUnavailable, retry, name+" does not take connections (APP_MODEL_GATEWAY_DIAL_TIMEOUT). Try again in a moment.")
	case f.End == meter.DialFailed:
		return openai.Failed(http.StatusServiceUnavailable, openai.CodeModelUnavailable, retry, name+" is not reachable, it may be starting anew. Try again in a moment.")
	case f.End == meter.HeaderTimeout:
		// It had a slot of the engine's all this time. Asked again it would take as long.
		return openai.Failed(http.StatusGatewayTimeout, openai.CodeEngineTimeout, 0, fmt.Sprintf("%s did not begin to answer within %d seconds (APP_MODEL_GATEWAY_HEADER_TIMEOUT). Ask for a stream, or for fewer tokens.",
			name, x.model.Limits.HeaderTimeout)).Senseless()
	}
	return openai.Failed(http.StatusBadGateway, openai.CodeEngineFailed, 0, name+"'s engine ended without an answer. Try again.")
}
