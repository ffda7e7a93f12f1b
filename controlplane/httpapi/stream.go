package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/levelrail/levelrail"
)

const (
	ndjson    = "application/x-ndjson"
	heartbeat = 10 * time.Second
	// slowest is how long a reader may take for one line: whoever is slower is cut off and comes back with its token.
	slowest = 10 * time.Second
	// lastLine is how long the last line of a stream may take whose reader may no longer read it.
	lastLine = time.Second
)

// streamed is an answer that is written while it comes about.
type streamed struct{ Body func(huma.Context) }

// stream is the writing side of such an answer: one JSON object a line.
type stream struct {
	ctx  context.Context // ends when the reader leaves, or when it may no longer read
	w    http.ResponseWriter
	rc   *http.ResponseController
	mu   sync.Mutex // of the deadline
	stop func() bool
}

// startStream sends the headers. Close the stream at its end.
func startStream(ctx huma.Context) *stream {
	_, w := humago.Unwrap(ctx)
	w.Header().Set("Content-Type", ndjson)
	w.Header().Set("X-Accel-Buffering", "no")
	st := &stream{ctx: ctx.Context(), w: w, rc: http.NewResponseController(w)}
	w.WriteHeader(http.StatusOK)
	// A reader that takes nothing must not keep a write waiting beyond the end of its right.
	st.stop = context.AfterFunc(st.ctx, func() { st.deadline() })
	return st
}

func (st *stream) close() { st.stop() }

// deadline gives the next writes their time.
func (st *stream) deadline() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	within := slowest
	if st.ctx.Err() != nil {
		within = lastLine
	}
	return st.rc.SetWriteDeadline(time.Now().Add(within))
}

// fail sends why the stream ends before its time, as its last line.
func (st *stream) fail(err error, line func(levelrail.Error) any) {
	var e *levelrail.Error
	if !errors.As(err, &e) {
		return
	}
	last := *e
	if last.Next == "" {
		last.Next = nextFor(last.Kind)
	}
	st.send(true, line(last)) // the reader may have left
}

// send writes lines, and flushes them when flush is set. It fails when the reader has left or is too slow.
func (st *stream) send(flush bool, lines ...any) error {
	if err := st.deadline(); err != nil {
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
