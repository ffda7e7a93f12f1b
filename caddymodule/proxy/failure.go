package proxy

import (
	"context"
	"errors"
	"net"
	"os"

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

// The waits that the gateway itself ends.
var (
	errHeaderTimeout = errors.New("no answer within the header timeout")
	errGapTimeout    = errors.New("no output within the idle timeout")
)

// failure judges an error of talking to an engine, with what it means if it took too long. The client's departure comes
// first: it closes the connection, which is what made everything else fail.
func failure(client context.Context, err error, late meter.End, lateness error) *Failure {
	switch {
	case client.Err() != nil:
		return &Failure{End: meter.ClientGone, Err: context.Cause(client)}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &Failure{End: late, Err: lateness}
	}
	return &Failure{End: meter.EngineGone, Err: err}
}

// dialFailure judges an error of connecting.
func dialFailure(client context.Context, err error) *Failure {
	if client.Err() != nil {
		return &Failure{End: meter.ClientGone, Err: context.Cause(client)}
	}
	var dialling *net.OpError
	return &Failure{End: meter.DialFailed, Timeout: errors.As(err, &dialling) && dialling.Timeout() || errors.Is(err, os.ErrDeadlineExceeded), Err: err}
}
