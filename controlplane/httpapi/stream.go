package httpapi

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
)

const (
	ndjson    = "application/x-ndjson"
	heartbeat = 10 * time.Second
	// slowest is how long a reader may take for one line: whoever is slower is cut off and comes back with its token.
	slowest = 10 * time.Second
)

// streamed is an answer that is written while it comes about.
type streamed struct{ Body func(huma.Context) }

// stream is the writing side of such an answer: one JSON object a line.
type stream struct {
	w  http.ResponseWriter
	rc *http.ResponseController
}

// startStream sends the headers.
func startStream(ctx huma.Context) (*stream, *http.Request) {
	r, w := humago.Unwrap(ctx)
	w.Header().Set("Content-Type", ndjson)
	w.Header().Set("X-Accel-Buffering", "no")
	st := &stream{w: w, rc: http.NewResponseController(w)}
	st.rc.SetReadDeadline(time.Time{}) // that of the request ends with it; what is read now is only whether the reader has left
	w.WriteHeader(http.StatusOK)
	return st, r
}

// send writes lines, and flushes them when flush is set. It fails when the reader has left or is too slow.
func (st *stream) send(flush bool, lines ...any) error {
	if err := st.rc.SetWriteDeadline(time.Now().Add(slowest)); err != nil {
		return err
	}
	for _, l := range lines {
		text, err := json.Marshal(l)
		if err != nil {
			return err
		}
		if _, err := st.w.Write(append(text, '\n')); err != nil {
			return err
		}
	}
	if !flush {
		return nil
	}
	return st.rc.Flush()
}
