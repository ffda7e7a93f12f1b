package caddymodule

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/levelrail/levelrail/caddymodule/handover"
	"github.com/levelrail/levelrail/caddymodule/meter"
)

// leftEvery is how often a gateway looks for usage that another process has left.
const leftEvery = 10 * time.Second

// sendLeft brings home the usage of processes that were replaced and have ended while they could not send it. It is sent
// as theirs, from their directory, whose lock tells that nobody else does.
func (s *shared) sendLeft(ctx context.Context) {
	for {
		for _, place := range handover.Others(s.dir) {
			if hasUsage(place.Dir) {
				s.sendFrom(ctx, place)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(leftEvery):
		}
	}
}

// sendFrom sends a place's usage until it has none. One whose process still runs sends by itself.
func (s *shared) sendFrom(ctx context.Context, place handover.Place) {
	log := slog.New(s.log.handler())
	slot, err := place.Borrow()
	if err != nil {
		log.Error("usage that another process has left cannot be sent", "directory", place.Dir, "error", err)
	}
	if slot == nil {
		return
	}
	defer slot.Release()
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	id := func() string { return "" } // the file has it
	m := meter.New(meter.Options{ControlPlane: s.client, GatewayID: id, Directory: place.Dir, Settings: s.metering, Log: log})
	go func() { defer close(done); m.Run(ctx) }()
	for hasUsage(place.Dir) && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	if ctx.Err() == nil {
		log.Info("usage that another process has left is sent", "directory", place.Dir)
	}
	cancel()
	<-done
}

// hasUsage tells whether a directory holds usage that is not sent.
func hasUsage(dir string) bool {
	b, err := os.ReadFile(filepath.Join(dir, "usage.json"))
	if err != nil {
		return false
	}
	var left struct {
		Batches []json.RawMessage `json:"batches"`
		Open    []json.RawMessage `json:"open"`
	}
	return json.Unmarshal(b, &left) == nil && len(left.Batches)+len(left.Open) > 0
}
