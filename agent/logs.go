package agent

import (
	"context"
	"fmt"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/agent/journal"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/systemd"
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
	if len(s.logs) >= mostLogRequests {
		a.Log.Error("a request for logs is refused", "id", q.ID, "error", fmt.Sprintf("%d are being answered already", mostLogRequests))
		return
	}
	if q.Lines == 0 {
		q.Lines = someLogLines
	}
	units := s.unitsOf(q.Model)
	ctx, cancel := context.WithCancel(ctx)
	s.logs[q.ID] = cancel
	a.beside(func() {
		defer cancel()
		err := a.ControlPlane.PostLogs(ctx, q.ID, func(ctx context.Context, send func(wire.LogLine) error) error {
			return a.Journal.Each(ctx, journal.Query{Units: units, Lines: q.Lines, Since: q.Since, Follow: q.Follow}, func(e journal.Entry) error {
				return send(wire.LogLine{At: e.At, Unit: e.Unit, Priority: e.Priority, Message: e.Message})
			})
		})
		if err != nil && ctx.Err() == nil {
			a.Log.Warn("logs were not sent", "model", q.Model, "error", err)
		}
		a.tell(func(s *state) { delete(s.logs, q.ID) })
	})
}

// unitsOf are all units of a model: those of its replicas that are assigned to this node or lie on it, and its fetch. Their
// names are what a line is trusted by: anybody may write a line with the field LEVELRAIL_MODEL.
func (s *state) unitsOf(model string) []string {
	replicas := map[string]bool{levelrail.ReplicaID(model, 0): true}
	for r, as := range s.assignments {
		if as.Model == model {
			replicas[r] = true
		}
	}
	for r, h := range s.have {
		for _, f := range h.Files {
			if f.Marks.Model == model {
				replicas[r] = true
			}
		}
	}
	units := []string{systemd.FetchUnit(model)}
	for _, r := range keys(replicas, map[string]int{}) {
		units = append(units, systemd.EngineUnit(r), systemd.DoorSocket(r), systemd.DoorService(r))
	}
	return units
}

// endLogs ends the answer to one request.
func (s *state) endLogs(id string) {
	if cancel, ok := s.logs[id]; ok {
		cancel()
		delete(s.logs, id)
	}
}
