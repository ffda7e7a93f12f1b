package proxy

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
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

// Progress is how far an answer has come, for whoever asks while it is sent.
type Progress struct {
	Events atomic.Int64 // data events of a stream, about one for each token
	Bytes  atomic.Int64 // of the body, to the client
}

// Sent is what came of sending an answer.
type Sent struct {
	Bytes     int64     // of the body, to the client
	FirstByte time.Time // when the engine's first byte of the body was read; zero: none came
	Stream    bool      // the answer is an event stream
	Seen      openai.Seen
}

// Send writes the answer to the client as it comes. When the length is unknown or the answer is an event stream, the
// headers go out before the first byte of the body is there, and every piece is flushed. The error is a *Failure; by then
// the headers are sent, so all that is left is to cut the connection.
func (a *Answer) Send(w http.ResponseWriter) (Sent, error) {
	h := w.Header()
	events := openai.MediaType(a.Header.Get("Content-Type")) == "text/event-stream"
	var hide *openai.Hider
	if a.call.Hide && events && a.Header.Get("Content-Encoding") == "" {
		hide, a.ContentLength = new(openai.Hider), -1 // what is left of it has another length
	}
	answerHeader(h, a)
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
	tail := openai.NewTail(a.Header.Get("Content-Type"), a.Header.Get("Content-Encoding"), a.call.Limits.UsageScanBytes)
	defer tail.End() // a compressed answer's copy is read by somebody
	sent := Sent{Stream: events}
	if flush {
		if err := rc.Flush(); err != nil {
			return sent, a.clientGone(err)
		}
	}
	write := func(p []byte) error {
		if len(p) == 0 {
			return nil
		}
		n, err := w.Write(p)
		sent.Bytes += int64(n)
		if err == nil && flush {
			err = rc.Flush()
		}
		if a.call.Progress != nil {
			a.call.Progress.Bytes.Store(sent.Bytes)
			a.call.Progress.Events.Store(tail.Events())
		}
		return err
	}
	for {
		n, err := a.Body.Read(*buf)
		if n > 0 {
			if sent.FirstByte.IsZero() {
				sent.FirstByte = time.Now()
			}
			a.watch.stop() // a client that reads slowly is not the engine's silence
			tail.Write((*buf)[:n])
			piece := (*buf)[:n]
			if hide != nil {
				piece = hide.Pass(piece)
			}
			if werr := write(piece); werr != nil {
				sent.Seen = tail.End()
				return sent, a.clientGone(werr)
			}
			a.watch.output()
		}
		if err == nil {
			continue
		}
		border := tail.Border()
		sent.Seen = tail.End()
		if hide != nil {
			if werr := write(hide.Rest()); werr != nil {
				return sent, a.clientGone(werr)
			}
		}
		if errors.Is(err, io.EOF) {
			return sent, nil
		}
		f := failure(a.ctx, a.client, err)
		if border && f.End != meter.ClientGone {
			// A stream's reader may not notice a cut; an error event it does. The cut that follows says it again.
			write(lastWords(f).Event())
		}
		return sent, f
	}
}

func (a *Answer) clientGone(err error) *Failure { return &Failure{End: meter.ClientGone, Err: err} }

func lastWords(f *Failure) *openai.Error {
	if f.End == meter.GapTimeout {
		return openai.Failed(http.StatusGatewayTimeout, openai.CodeEngineTimeout, 0, "The model stopped sending output. The answer is incomplete.")
	}
	return openai.Failed(http.StatusBadGateway, openai.CodeEngineFailed, 0, "The model's engine ended before its answer did. The answer is incomplete.")
}
