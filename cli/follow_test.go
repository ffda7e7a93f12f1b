package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client"
	"github.com/levelrail/levelrail/client/wire"
)

// scripted is a server of which only the watch is asked: it tells of a model at the times given.
type scripted struct {
	API
	began time.Time
	says  []saying
}

// saying is what a watch says at a time after the beginning: a model, or an error that ends the watch.
type saying struct {
	after time.Duration
	model wire.Model
	err   error
}

// Watch says what is due since the last watch ended, and what comes.
func (s *scripted) Watch(ctx context.Context, o client.WatchOptions, each func(wire.WatchLine) error) error {
	for len(s.says) > 0 {
		next := s.says[0]
		select {
		case <-time.After(time.Until(s.began.Add(next.after))):
		case <-ctx.Done():
			return ctx.Err()
		}
		s.says = s.says[1:]
		if next.err != nil {
			return next.err
		}
		b, _ := json.Marshal(next.model)
		if err := each(wire.WatchLine{Type: wire.WatchPut, Kind: wire.WatchModel, ID: o.ID, Object: b}); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return ctx.Err()
}

func standingAt(revision, restarts int, reason levelrail.Reason) wire.Model {
	c := levelrail.Condition{Reason: reason, Ready: reason == levelrail.ModelLoaded}
	return wire.Model{Name: "chat", Revision: 2, Condition: c, Replicas: []wire.ReplicaStatus{{Replica: "chat", Revision: revision, Restarts: restarts}}}
}

// TestFollow: when a wait ends, and with what, by the clock.
func TestFollow(t *testing.T) {
	unavailable := levelrail.Errorf(levelrail.ErrUnavailable, "the server left")
	for _, tc := range []struct {
		name  string
		goal  goal
		limit time.Duration
		says  []saying
		took  time.Duration
		err   string // contained in the error, "" for none
	}{
		{"ready at once", goal{revision: 2}, 0, []saying{{0, standingAt(2, 0, levelrail.ModelLoaded), nil}}, 0, ""},
		{"the engine of before is ready", goal{revision: 2}, 0,
			[]saying{{0, standingAt(1, 0, levelrail.ModelLoaded), nil}, {time.Minute, standingAt(2, 0, levelrail.ModelLoaded), nil}}, time.Minute, ""},
		{"not restarted yet", goal{revision: 2, restarts: 4}, 0,
			[]saying{{0, standingAt(2, 3, levelrail.ModelLoaded), nil}, {time.Minute, standingAt(2, 4, levelrail.ModelLoaded), nil}}, time.Minute, ""},
		{"asleep is an end", goal{revision: 2}, 0, []saying{{time.Second, standingAt(2, 0, levelrail.Idle), nil}}, time.Second, ""},
		{"a reason that needs a person", goal{revision: 2}, 0, []saying{{time.Second, standingAt(2, 0, levelrail.DownloadFailed), nil}}, time.Second, "chat is not ready: DownloadFailed"},
		{"one of before, mended by the new revision", goal{revision: 2}, 0,
			[]saying{{0, standingAt(1, 0, levelrail.DownloadFailed), nil}, {9 * time.Second, standingAt(2, 0, levelrail.ModelLoaded), nil}}, 9 * time.Second, ""},
		{"one that stays, though the node never told of the new revision", goal{revision: 2}, 0,
			[]saying{{0, standingAt(1, 0, levelrail.InsufficientGPUs), nil}}, patience, "InsufficientGPUs"},
		{"time runs out", goal{revision: 2, doing: "the update of chat"}, time.Minute, []saying{{0, standingAt(2, 0, levelrail.Loading), nil}}, time.Minute,
			"chat is not ready after 1m: it is at Loading; the update of chat goes on"},
		{"nothing is ever said", goal{doing: "the update of chat"}, time.Minute, nil, time.Minute, "nothing was heard of it"},
		{"the server leaves and comes back", goal{revision: 2}, 0,
			[]saying{{0, standingAt(2, 0, levelrail.Loading), nil}, {time.Second, wire.Model{}, unavailable}, {time.Second, wire.Model{}, unavailable},
				{10 * time.Second, standingAt(2, 0, levelrail.ModelLoaded), nil}}, 10 * time.Second, ""},
		{"a refusal ends it", goal{revision: 2}, 0, []saying{{time.Second, wire.Model{}, levelrail.Errorf(levelrail.ErrForbidden, "no")}}, time.Second, "no"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var talk bytes.Buffer
				s := newSession(t.Context(), Env{Stdout: &talk, Stderr: &talk, Getenv: func(string) string { return "" }, Now: time.Now})
				tc.goal.model = "chat"
				began := time.Now()
				_, err := s.follow(&scripted{began: began, says: tc.says}, tc.goal, tc.limit)
				if took := time.Since(began); took != tc.took {
					t.Errorf("took %s, want %s", took, tc.took)
				}
				if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
					t.Errorf("ended with %v, want %q", err, tc.err)
				}
				if n := strings.Count(talk.String(), "waiting for the server"); n > 1 {
					t.Errorf("says %d times that the server is away:\n%s", n, talk.String())
				}
			})
		})
	}
}

// TestFollowStops: a wait that is told to stop ends at once and leaves nothing running.
func TestFollowStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var talk bytes.Buffer
		s := newSession(ctx, Env{Stdout: &talk, Stderr: &talk, Getenv: func(string) string { return "" }, Now: time.Now})
		time.AfterFunc(time.Second, cancel)
		last, err := s.follow(&scripted{began: time.Now(), says: []saying{{0, standingAt(1, 0, levelrail.Loading), nil}}}, goal{model: "chat", doing: "the update of chat"}, 0)
		if !errors.Is(err, errInterrupted) || last == nil || !strings.Contains(talk.String(), "the update of chat goes on; follow it with: levelrail models wait chat") {
			t.Errorf("ended with %v, %v\n%s", last, err, talk.String())
		}
	})
}
