package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/agent/fetch"
	"github.com/levelrail/levelrail/client/wire"
)

const (
	reportEvery  = 10 * time.Second // at the latest
	programsEach = 5 * time.Second  // how often programs are looked for
)

// boot names this process in reports.
var boot = levelrail.NewID("boot")

// report hands the node's state to the reporter when it changed, and every 10 seconds. The newest takes the place of one
// that has not been sent.
func (a *Agent) report(s *state, now time.Time, out chan wire.Report) {
	if !s.knows(now) {
		return
	}
	if now.Sub(s.enginesAt) >= programsEach {
		s.engines, s.enginesAt = a.engines(), now
	}
	r := wire.Report{
		NodeID: a.id.NodeID, Boot: boot, Devices: s.gpus.Devices, Readings: s.gpus.Readings, GPUNote: s.gpus.Note,
		Engines: s.engines, Weights: s.weights(a.id.NodeID), Replicas: []wire.ReplicaStatus{},
	}
	if r.Devices == nil {
		r.Devices = []levelrail.Device{}
	}
	if r.Readings == nil {
		r.Readings = []levelrail.DeviceReading{}
	}
	serving, all := 0, 0
	for _, replica := range keys(s.want, s.have) {
		st := a.status(s, replica)
		if _, wanted := s.want[replica]; !wanted && len(s.have[replica].Files) == 0 && !s.have[replica].Engine.Running() {
			continue
		}
		all++
		if st.Condition.Ready {
			serving++
		}
		r.Replicas = append(r.Replicas, st)
	}
	for _, id := range keys(s.refused, map[string]int{}) {
		l := refusal(s.refused[id])
		r.Replicas = append(r.Replicas, wire.ReplicaStatus{Replica: clip(id), UnitState: "inactive/dead",
			Condition: levelrail.Condition{Reason: l.Reason, Message: l.Message, Next: l.Next}})
	}
	b, err := json.Marshal(r)
	if err != nil {
		a.Log.Error("cannot write the report", "error", err)
		return
	}
	if slices.Equal(b, s.lastSent) && now.Sub(s.lastReport) < reportEvery {
		return
	}
	if !slices.Equal(b, s.lastSent) {
		a.Notify(fmt.Sprintf("STATUS=%d of %d models serving", serving, all))
	}
	s.lastSent, s.lastReport = b, now
	s.sequence++
	r.Sequence, r.At = s.sequence, now.UTC()
	if d, err := fetch.FreeSpace(a.Paths.Weights); err == nil {
		r.Disk = &levelrail.DiskReading{Path: a.Paths.Weights, TotalBytes: d.Total, FreeBytes: d.Free}
	}
	select {
	case <-out: // an older one that nobody has taken yet
	default:
	}
	out <- r // there is room: this goroutine alone puts reports in
}

// send passes reports on while the connection lasts.
func (a *Agent) send(ctx context.Context, reports <-chan wire.Report) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case r := <-reports:
			if err := a.ControlPlane.Report(ctx, r); err != nil {
				return fmt.Errorf("report: %w", err)
			}
		}
	}
}
