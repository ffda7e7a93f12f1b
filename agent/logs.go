package agent

import (
	"context"

	"github.com/levelrail/levelrail/agent/journal"
	"github.com/levelrail/levelrail/client/wire"
)

// syncLogs begins the log requests that the server has and ends those it no longer has.
func (a *Agent) syncLogs(ctx context.Context, s *state, asked map[string]wire.LogRequest) {
	for id := range s.logs {
		if _, ok := asked[id]; !ok {
			s.endLogs(id)
		}
	}
	for _, q := range asked {
		a.beginLogs(ctx, s, q)
	}
}

// beginLogs answers a request for a model's journal, beside the loop. The lines go to the server as they come; the
// request ends with the last one, when the server stops reading, when it takes the request back, or with the connection.
func (a *Agent) beginLogs(ctx context.Context, s *state, q wire.LogRequest) {
	if _, running := s.logs[q.ID]; running {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	s.logs[q.ID] = cancel
	a.beside(func() {
		defer cancel()
		err := a.ControlPlane.PostLogs(ctx, q.ID, func(ctx context.Context, send func(wire.LogLine) error) error {
			return a.Journal.Each(ctx, journal.Query{Model: q.Model, Lines: q.Lines, Since: q.Since, Follow: q.Follow}, func(e journal.Entry) error {
				return send(wire.LogLine{At: e.At, Unit: e.Unit, Priority: e.Priority, Message: e.Message})
			})
		})
		if err != nil && ctx.Err() == nil {
			a.Log.Warn("logs were not sent", "model", q.Model, "error", err)
		}
		a.tell(func(s *state) { delete(s.logs, q.ID) })
	})
}

// endLogs ends the answer to one request.
func (s *state) endLogs(id string) {
	if cancel, ok := s.logs[id]; ok {
		cancel()
		delete(s.logs, id)
	}
}
