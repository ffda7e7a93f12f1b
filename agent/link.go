package agent

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client"
	"github.com/levelrail/levelrail/client/wire"
)

// How long the agent waits before it tries to reach the server again.
const (
	linkPause = 100 * time.Millisecond
	linkMost  = 2 * time.Second
)

// link keeps the agent in touch with the control plane until ctx ends. While it is not, nothing on the node changes.
func (a *Agent) link(ctx context.Context, reports <-chan wire.Report) {
	wait := linkPause
	said := ""
	for ctx.Err() == nil {
		began := time.Now()
		err := a.connect(ctx, reports)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errGreetAgain) {
			pause(ctx, linkPause)
			continue
		}
		if text := err.Error(); text != said { // once for each reason, not twice a second
			a.Log.Warn("no control plane; engines keep serving", "error", text)
			a.Notify("STATUS=Waiting for the control plane: " + oneLine(text))
			said = text
		}
		if time.Since(began) > linkMost {
			wait, said = linkPause, ""
		}
		pause(ctx, wait)
		wait = min(2*wait, linkMost)
		if levelrail.KindOf(err) == levelrail.ErrRefused {
			wait = linkMost
		}
	}
}

// errGreetAgain ends a connection whose agent has become another node.
var errGreetAgain = errors.New("greet again")

// connect greets the server, then watches and reports until one of the two fails.
func (a *Agent) connect(ctx context.Context, reports <-chan wire.Report) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	id := a.whoami()
	welcome, err := a.ControlPlane.Hello(ctx, wire.Hello{NodeID: id.NodeID, Name: a.Host.Name, ClusterID: id.ClusterID, Lineage: id.Lineage, Term: id.Term, Version: levelrail.Version, OS: a.Host.String()})
	if err != nil {
		return err
	}
	if err := checkWelcome(welcome); err != nil {
		return err
	}
	if welcome.NodeID != "" && welcome.NodeID != id.NodeID {
		if err := a.obey(func() error { return a.id.become(welcome) }); err != nil {
			return err
		}
		a.Log.Warn("this agent goes on as the node that the cluster has of this machine", "node", welcome.NodeID, "instead_of", id.NodeID)
		return errGreetAgain
	}
	restored := false
	if err := a.obey(func() (err error) {
		restored, err = a.id.greet(welcome)
		return err
	}); err != nil {
		return err
	}
	if restored {
		a.Log.Warn("the control plane was restored from a backup; what is assigned here is read anew", "cluster", welcome.ClusterID, "lineage", welcome.Lineage, "term", welcome.Term)
	}
	a.tell(func(s *state) { s.lastSent = nil }) // a server that was away knows nothing: report at once
	a.Log.Info("connected to the control plane", "cluster", welcome.ClusterID, "term", welcome.Term)
	done := make(chan struct{})
	go func() {
		defer close(done)
		cancel(a.send(ctx, reports))
	}()
	err = a.watch(ctx, id.NodeID)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	cancel(err)
	<-done
	return err
}

// whoami and obey read and change the identity where its owner is: in the goroutine of Run.
func (a *Agent) whoami() identity {
	got := make(chan identity, 1)
	a.tell(func(*state) { got <- a.id })
	select {
	case id := <-got:
		return id
	case <-a.ending:
		return identity{}
	}
}

func (a *Agent) obey(f func() error) error {
	got := make(chan error, 1)
	a.tell(func(*state) { got <- f() })
	select {
	case err := <-got:
		return err
	case <-a.ending:
		return context.Canceled
	}
}

// watch follows what is assigned to the node. What the server says between reset and synced takes the place of all that
// was, in one step: an assignment that is merely not said yet is not one that is gone.
func (a *Agent) watch(ctx context.Context, node string) error {
	var fresh map[string]wire.Assignment // between reset and synced
	var asked map[string]wire.LogRequest
	err := a.ControlPlane.Watch(ctx, client.WatchOptions{
		Kinds: []string{wire.WatchAssignment, wire.WatchLogRequest, wire.WatchWeightsOrder}, Body: wire.WatchAgent{NodeID: node},
	}, func(line wire.WatchLine) error {
		switch line.Type {
		case wire.WatchReset:
			fresh, asked = map[string]wire.Assignment{}, map[string]wire.LogRequest{}
			a.tell(func(s *state) { clear(s.refused) })
		case wire.WatchSynced:
			all, logs := fresh, asked
			fresh, asked = nil, nil
			if all == nil {
				return nil
			}
			a.tell(func(s *state) {
				s.assignments, s.synced = all, true
				a.syncLogs(ctx, s, logs)
			})
		case wire.WatchPut:
			return a.put(ctx, line, fresh, asked)
		case wire.WatchDelete:
			switch {
			case line.Kind == wire.WatchAssignment && fresh != nil:
				delete(fresh, line.ID)
			case line.Kind == wire.WatchAssignment:
				a.tell(func(s *state) {
					delete(s.assignments, line.ID)
					delete(s.refused, line.ID)
				})
			case line.Kind == wire.WatchLogRequest && asked != nil:
				delete(asked, line.ID)
			case line.Kind == wire.WatchLogRequest:
				a.tell(func(s *state) { s.endLogs(line.ID) })
			}
		}
		return nil
	})
	if err == nil {
		err = levelrail.Errorf(levelrail.ErrUnavailable, "the server ended the watch")
	}
	return err
}

func (a *Agent) put(ctx context.Context, line wire.WatchLine, fresh map[string]wire.Assignment, asked map[string]wire.LogRequest) error {
	switch line.Kind {
	case wire.WatchWeightsOrder:
		var o wire.WeightsOrder
		if err := json.Unmarshal(line.Object, &o); err != nil {
			a.Log.Error("an order about weights is refused", "id", clip(line.ID), "error", err)
			return nil
		}
		a.ordered(ctx, o)
	case wire.WatchAssignment:
		var as wire.Assignment
		err := json.Unmarshal(line.Object, &as)
		if err == nil {
			err = checkTerm(as.Term)
		}
		if err == nil {
			err = checkName(line.ID, as)
		}
		if err != nil {
			a.Log.Error("an assignment is refused", "id", clip(line.ID), "error", err)
			a.tell(func(s *state) { s.refuse(line.ID, err) })
			return nil
		}
		if as.Term > 0 {
			if err := a.obey(func() error { return a.id.obey(as.Term) }); err != nil {
				return err
			}
		}
		if fresh != nil && (len(fresh) < mostAssignments || fresh[as.Replica].Replica != "") {
			fresh[as.Replica] = as
			return nil
		}
		a.tell(func(s *state) {
			if _, known := s.assignments[as.Replica]; !known && len(s.assignments) >= mostAssignments || fresh != nil {
				s.refuse(as.Replica, refused("this node has %d replicas already, the most that it takes", mostAssignments))
				return
			}
			s.assignments[as.Replica] = as
			delete(s.refused, as.Replica)
		})
	case wire.WatchLogRequest:
		var q wire.LogRequest
		err := json.Unmarshal(line.Object, &q)
		if err == nil {
			err = checkLogRequest(line.ID, q)
		}
		if err == nil && asked != nil && len(asked) >= mostLogRequests {
			err = refused("%d are being answered already", mostLogRequests)
		}
		if err != nil {
			a.Log.Error("a request for logs is refused", "id", clip(line.ID), "error", err)
			return nil
		}
		if asked != nil {
			asked[q.ID] = q
			return nil
		}
		a.tell(func(s *state) { a.beginLogs(ctx, s, q) })
	}
	return nil
}
