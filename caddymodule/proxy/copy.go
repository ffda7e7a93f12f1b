package proxy

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/levelrail/levelrail/caddymodule/meter"
	"github.com/levelrail/levelrail/caddymodule/openai"
)

// Sizes of the copy buffer: an event is small, and a thousand open streams each hold one.
const (
	eventBuffer = 4 << 10
	plainBuffer = 32 << 10
)

var (
	eventBuffers = sync.Pool{New: func() any { b := make([]byte, eventBuffer); return &b }}
	plainBuffers = sync.Pool{New: func() any { b := make([]byte, plainBuffer); return &b }}
)

// Sent is what came of sending an answer.
type Sent struct {
	Bytes     int64     // of the body, to the client
	FirstByte time.Time // when the engine's first byte of the body was read; zero: none came
	Seen      openai.Seen
}

// Send writes the answer to the client as it comes. When the length is unknown or the answer is an event stream, the
// headers go out before the first byte of the body is there, and every piece is flushed. The error is a *Failure; by then
// the headers are sent, so all that is left is to cut the connection.
func (a *Answer) Send(w http.ResponseWriter) (Sent, error) {
	h := w.Header()
	answerHeader(h, a)
	events := openai.MediaType(a.Header.Get("Content-Type")) == "text/event-stream"
	if events { // proxies in front must not collect events
		h["Cache-Control"] = []string{"no-cache"}
		h["X-Accel-Buffering"] = []string{"no"}
	}
	a.watch.output()
	w.WriteHeader(a.StatusCode)

	pool := &plainBuffers
	if events {
		pool = &eventBuffers
	}
	buf := pool.Get().(*[]byte)
	defer pool.Put(buf)
	rc := http.NewResponseController(w)
	flush := events || a.ContentLength < 0
	tail := openai.NewTail(a.Header.Get("Content-Type"), a.Header.Get("Content-Encoding"))
	var sent Sent
	if flush {
		if err := rc.Flush(); err != nil {
			return sent, a.clientGone(err)
		}
	}
	for {
		n, err := a.Body.Read(*buf)
		if n > 0 {
			if sent.Bytes == 0 {
				sent.FirstByte = time.Now()
			}
			a.watch.stop() // a client that reads slowly is not the engine's silence
			tail.Write((*buf)[:n])
			written, werr := w.Write((*buf)[:n])
			sent.Bytes += int64(written)
			if werr == nil && flush {
				werr = rc.Flush()
			}
			if werr != nil {
				sent.Seen = tail.End()
				return sent, a.clientGone(werr)
			}
			a.watch.output()
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			sent.Seen = tail.End()
			return sent, nil
		default:
			f := failure(a.ctx, a.client, err)
			if tail.Border() && f.End != meter.ClientGone {
				// A stream's reader may not notice a cut; an error event it does.
				n, _ := w.Write(lastWords(f).Event())
				sent.Bytes += int64(n)
				rc.Flush() // the cut that follows says it again
			}
			sent.Seen = tail.End()
			return sent, f
		}
	}
}

func (a *Answer) clientGone(err error) *Failure { return &Failure{End: meter.ClientGone, Err: err} }

func lastWords(f *Failure) *openai.Error {
	if f.End == meter.GapTimeout {
		return openai.Failed(http.StatusGatewayTimeout, openai.CodeEngineTimeout, 0, "The model stopped sending output. The answer is incomplete.")
	}
	return openai.Failed(http.StatusBadGateway, openai.CodeEngineFailed, 0, "The model's engine ended before its answer did. The answer is incomplete.")
}
