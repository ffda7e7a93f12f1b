package proxy

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/levelrail/levelrail/caddymodule/meter"
)

// Failure is why a call has no whole answer.
type Failure struct {
	End     meter.End
	Timeout bool // DialFailed: nobody accepted in time
	Err     error
	unsent  bool // on a kept connection, of which the engine has seen nothing
}

func (f *Failure) Error() string { return string(f.End) + ": " + f.Err.Error() }
func (f *Failure) Unwrap() error { return f.Err }

// failure judges an error of the transport, or of reading an answer's body. The client's departure comes first: it is what
// made everything else fail.
func failure(ctx, client context.Context, err error) *Failure {
	cause := context.Cause(ctx)
	var dialling *net.OpError
	switch {
	case client.Err() != nil:
		return &Failure{End: meter.ClientGone, Err: context.Cause(client)}
	case errors.Is(cause, errHeaderTimeout):
		return &Failure{End: meter.HeaderTimeout, Err: cause}
	case errors.Is(cause, errGapTimeout):
		return &Failure{End: meter.GapTimeout, Err: cause}
	case errors.As(err, &dialling) && dialling.Op == "dial":
		return &Failure{End: meter.DialFailed, Timeout: dialling.Timeout() || errors.Is(err, os.ErrDeadlineExceeded), Err: err}
	}
	return &Failure{End: meter.EngineGone, Err: err}
}

// watchdog ends a call that takes too long: until the headers by the header timeout, then by the gap between two pieces
// of output. One timer serves both, and costs nothing while output flows.
type watchdog struct {
	cancel context.CancelCauseFunc
	gap    time.Duration

	mu    sync.Mutex
	timer *time.Timer
	cause error
}

func newWatchdog(cancel context.CancelCauseFunc, header, gap time.Duration) *watchdog {
	w := &watchdog{cancel: cancel, gap: gap, cause: errHeaderTimeout}
	if header > 0 {
		w.timer = time.AfterFunc(header, w.fire)
	}
	return w
}

func (w *watchdog) fire() {
	w.mu.Lock()
	cause := w.cause
	w.mu.Unlock()
	w.cancel(cause)
}

// output begins the next gap.
func (w *watchdog) output() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cause = errGapTimeout
	switch {
	case w.gap <= 0:
		if w.timer != nil {
			w.timer.Stop()
		}
	case w.timer == nil:
		w.timer = time.AfterFunc(w.gap, w.fire)
	default:
		w.timer.Reset(w.gap)
	}
}

// stop stops the clock: at the end, and while the client and not the engine is waited for.
func (w *watchdog) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Stop()
	}
}
