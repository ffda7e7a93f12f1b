package raftstore

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// raftLogger brings raft's lines into slog. What raft calls info is of interest to whoever looks for a fault in raft.
func raftLogger(to *slog.Logger) hclog.Logger {
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: "raft", Level: hclog.Info, Output: io.Discard})
	l.RegisterSink(slogSink{to})
	return l
}

type slogSink struct{ to *slog.Logger }

func (s slogSink) Accept(name string, level hclog.Level, msg string, args ...any) {
	at := slog.LevelDebug
	switch {
	case level >= hclog.Error:
		at = slog.LevelError
	case level == hclog.Warn && msg != "heartbeat timeout reached, starting election": // which is how every start begins
		at = slog.LevelWarn
	}
	if !s.to.Enabled(context.Background(), at) {
		return
	}
	for i, a := range args {
		if f, ok := a.(hclog.Format); ok && len(f) > 0 {
			if format, ok := f[0].(string); ok {
				args[i] = fmt.Sprintf(format, f[1:]...)
			}
		}
	}
	s.to.Log(context.Background(), at, name+": "+msg, args...)
}

var discard = slog.New(slog.DiscardHandler)
