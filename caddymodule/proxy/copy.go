package proxy

import (
	"bytes"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/levelrail/levelrail/caddymodule/meter"
	"github.com/levelrail/levelrail/caddymodule/openai"
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

// WaitingLine is the comment that a stream's client is sent between two events while it waits. Readers of event streams pass
// comments over.
const WaitingLine = ": waiting\n\n"

// Rewriter changes an answer as it passes. Pass returns what is to be sent now, valid until the next call; Rest what is still
// held at the end.
type Rewriter interface {
	Pass(p []byte) []byte
	Rest() []byte
}

// Send writes the answer to the client as it comes. When the length is unknown or the answer is an event stream, nothing is
// held back while the engine is waited for: the headers go out before the first byte of the body is there, and every piece
// when it is. The error is a *Failure; by then the headers are sent, so all that is left is to cut the connection.
func (a *Answer) Send(w http.ResponseWriter) (Sent, error) {
	kind, encoding := a.Header[contentType], a.Header[contentEncoding]
	events := openai.MediaType(kind) == "text/event-stream"
	var change Rewriter
	switch {
	case encoding != "":
	case a.call.Hide && events:
		change = new(openai.Hider)
	case a.call.Mend != nil && a.StatusCode < 300:
		change = a.call.Mend(events)
	}
	if change != nil {
		a.ContentLength = -1 // what comes of it has another length
	}
	if !a.Begun {
		answerHeader(w.Header(), a, events)
		w.WriteHeader(a.StatusCode)
	}

	rc := http.NewResponseController(w)
	flushes := events || a.ContentLength < 0
	unflushed := true // the headers
	tail := openai.NewTail(kind, encoding, a.call.Limits.UsageScanBytes)
	defer tail.End() // a compressed answer's copy is read by somebody
	sent := Sent{Stream: events}
	border := true // between two events
	if events && encoding == "" {
		a.quiet = seconds(a.call.Limits.KeepAliveSeconds)
	}
	write := func(p []byte) error {
		if len(p) == 0 {
			return nil
		}
		n, err := w.Write(p)
		sent.Bytes += int64(n)
		unflushed = true
		if a.call.Progress != nil {
			a.call.Progress.Bytes.Store(sent.Bytes)
			a.call.Progress.Events.Store(tail.Events())
		}
		return err
	}
	for {
		piece, err := a.body.buffered(a.conn)
		if len(piece) > 0 {
			if sent.FirstByte.IsZero() {
				sent.FirstByte = time.Now()
			}
			tail.Write(piece)
			border = bytes.HasSuffix(piece, []byte("\n\n")) || bytes.HasSuffix(piece, []byte("\r\n\r\n"))
			if change != nil {
				piece = change.Pass(piece)
			}
			if werr := write(piece); werr != nil {
				sent.Seen = tail.End()
				return sent, a.clientGone(werr)
			}
		}
		if err == nil {
			if flushes && unflushed {
				if ferr := rc.Flush(); ferr != nil {
					sent.Seen = tail.End()
					return sent, a.clientGone(ferr)
				}
				unflushed = false
			}
			for err = a.wait(); err == errQuiet; err = a.wait() {
				if border { // clients that wait, and proxies between, give up what is silent
					werr := write([]byte(WaitingLine))
					if werr == nil {
						werr = rc.Flush()
					}
					if werr != nil {
						sent.Seen = tail.End()
						return sent, a.clientGone(werr)
					}
					unflushed = false
				}
			}
			if err == nil {
				continue
			}
		}
		between := tail.Border()
		sent.Seen = tail.End()
		if change != nil {
			if werr := write(change.Rest()); werr != nil {
				return sent, a.clientGone(werr)
			}
		}
		if err == io.EOF {
			return sent, nil
		}
		f, ok := err.(*Failure)
		if !ok {
			f = a.failed(err)
		}
		if f.End != meter.ClientGone {
			// A stream's reader may not notice a cut; an error event it does. The cut that follows says it again.
			if between {
				write(lastWords(f).Event())
			}
			if flushes {
				rc.Flush()
			}
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
