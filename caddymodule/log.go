package caddymodule

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"
	"go.uber.org/zap/exp/zapslog"

	"github.com/levelrail/levelrail/caddymodule/meter"
)

// currentLog is the log of the newest configuration. Caddy closes a configuration's log with it, and what writes here lives
// longer. It is also the meter.Sink that writes a line for each request.
type currentLog struct {
	now atomic.Pointer[logs]
}

type logs struct {
	zap  *zap.Logger
	slog slog.Handler
}

func newCurrentLog(log *zap.Logger) *currentLog {
	c := new(currentLog)
	c.use(log)
	return c
}

func (c *currentLog) use(log *zap.Logger) {
	// A request's line has no caller and no stack: its fields say all.
	c.now.Store(&logs{zap: log.WithOptions(zap.WithCaller(false), zap.AddStacktrace(zap.DPanicLevel)), slog: zapslog.NewHandler(log.Core(), zapslog.WithName("levelrail"))})
}

// lines are the fields of a request's line, kept for the next one: whoever takes a line has written it down when Write returns.
var lines = sync.Pool{New: func() any { f := make([]zap.Field, 0, 16); return &f }}

// Record writes the request's line: what, whose, how it ended, and of a refusal to whom. Never a body, a key, a query or a
// path of the client's.
func (c *currentLog) Record(r meter.Record) {
	if r.Quiet {
		return
	}
	entry := c.now.Load().zap.Check(zap.InfoLevel, "request")
	if entry == nil {
		return
	}
	kept := lines.Get().(*[]zap.Field)
	fields := append((*kept)[:0], zap.String("request_id", r.RequestID), zap.String("method", r.Method), zap.String("route", r.Route), zap.String("model", r.Model),
		zap.String("key", r.KeyPrefix), zap.Int("status", r.Status), zap.Int64("duration_ms", r.Duration.Milliseconds()), zap.Int64("bytes", r.Bytes), zap.String("end", string(r.End)))
	if r.Code != "" {
		fields = append(fields, zap.String("code", r.Code))
	}
	if r.Client != "" {
		fields = append(fields, zap.String("client", r.Client))
	}
	if r.FirstByte > 0 {
		fields = append(fields, zap.Int64("first_byte_ms", r.FirstByte.Milliseconds()))
	}
	if r.HasUsage {
		fields = append(fields, zap.Int64("input_tokens", r.Input), zap.Int64("output_tokens", r.Output))
	}
	if r.Estimated > 0 {
		fields = append(fields, zap.Int64("estimated_tokens", r.Estimated))
	}
	entry.Write(fields...)
	*kept = fields
	lines.Put(kept)
}

func (c *currentLog) handler() slog.Handler { return &currentHandler{log: c} }

// currentHandler hands each record to the newest log.
type currentHandler struct {
	log   *currentLog
	attrs []slog.Attr
}

func (h *currentHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return h.log.now.Load().slog.Enabled(ctx, l)
}

func (h *currentHandler) Handle(ctx context.Context, r slog.Record) error {
	r.AddAttrs(h.attrs...)
	return h.log.now.Load().slog.Handle(ctx, r)
}

func (h *currentHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &currentHandler{log: h.log, attrs: append(h.attrs[:len(h.attrs):len(h.attrs)], attrs...)}
}

// WithGroup leaves names as they are: nothing here uses groups.
func (h *currentHandler) WithGroup(string) slog.Handler { return h }
