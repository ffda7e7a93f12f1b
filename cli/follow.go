package cli

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	ucli "github.com/urfave/cli/v2"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client"
	"github.com/levelrail/levelrail/client/wire"
)

// goal is what a wait waits for: a model that is ready, at least of this revision and restarted so often.
type goal struct {
	model    string
	doing    string // what goes on when the wait is left: "the deployment of chat"
	revision int
	restarts int
	settled  bool // nothing was begun, so there is nothing to follow
}

// patience is how long a reason that needs a person may be one of before, while the node has not told of the new engine:
// a node reports every 10 seconds.
const patience = 15 * time.Second

// reached tells whether the wait is over: with nil when the model serves, or sleeps until its first request; with a
// refusal when its reason needs a person. While a node still reports the engine of before, ready is not the end, and a
// reason that needs a person is not while early.
func (g goal) reached(m wire.Model, early bool) (bool, error) {
	behind := m.Revision < g.revision
	for _, r := range m.Replicas {
		behind = behind || r.Revision < g.revision || r.Restarts < g.restarts
	}
	c := m.Condition
	switch {
	case c.Ready, c.Reason == levelrail.Idle:
		return !behind, nil
	case c.Reason.NeedsPerson() && !(behind && early):
		return true, needsPerson(m)
	}
	return false, nil
}

// shown is the condition to show on the way to the goal: an engine of before may still be ready, or broken, which says
// nothing about the new one.
func (g goal) shown(m wire.Model) levelrail.Condition {
	if c := m.Condition; !c.Ready && !c.Reason.NeedsPerson() {
		return c
	}
	return levelrail.Condition{Reason: levelrail.Pending, Message: "the node has not begun yet", Since: m.Condition.Since}
}

// needsPerson is a model's reason as an error.
func needsPerson(m wire.Model) error {
	e := levelrail.Errorf(levelrail.ErrRefused, "%s is not ready: %s", m.Name, m.Condition.Reason)
	if m.Condition.Message != "" {
		e.Message += ": " + m.Condition.Message
	}
	e.Next = m.Condition.Next
	if e.Next == "" {
		e.Next = "levelrail models logs " + m.Name
	}
	return e
}

// event is one word of a watch on a model.
type event struct {
	model   *wire.Model
	gone    bool  // there is no such model any more
	trouble error // the server does not answer; the watch comes back by itself
	err     error // the watch is over
}

// follow shows a model's progress on stderr until the goal is reached, and returns the model as last seen, nil when it
// was never seen. The error is nil when it serves; refused when a reason needs a person; timeout after limit (0: none);
// not_found when it was deleted; errInterrupted when the session was told to stop. Whatever ends the wait, the work
// goes on, and the messages say so.
func (s *session) follow(api API, g goal, limit time.Duration) (*wire.Model, error) {
	ctx, cancel := context.WithCancel(s.ctx)
	if limit > 0 {
		stop := time.AfterFunc(limit, cancel)
		defer stop.Stop()
	}
	events := make(chan event)
	go func() {
		defer close(events)
		watchModel(ctx, api, g.model, events)
	}()
	defer func() {
		cancel()
		for range events {
		}
	}()

	d := &display{out: s.stderr, name: g.model, began: s.now()}
	var tick <-chan time.Time
	if s.stderr.terminal() {
		t := time.NewTicker(time.Second)
		defer t.Stop()
		tick = t.C
	}
	var last *wire.Model
	lost, early := false, true
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		select {
		case <-ctx.Done():
			d.clear()
			return last, s.leftWaiting(g, last, limit)
		case <-tick:
			d.draw(s.now())
		case <-late.C:
			early = false
			if last == nil {
				continue
			}
			if over, err := g.reached(*last, early); over {
				d.clear()
				return last, err
			}
		case e, open := <-events:
			switch {
			case !open:
				d.clear()
				return last, s.leftWaiting(g, last, limit)
			case e.err != nil:
				d.clear()
				return last, e.err
			case e.gone:
				d.clear()
				return last, levelrail.Errorf(levelrail.ErrNotFound, "%s was deleted meanwhile", g.model).WithNext("levelrail models list")
			case e.trouble != nil:
				if !lost {
					d.say("levelrail: %s; waiting for the server to come back, %s goes on", plain(asError(e.trouble).Message), g.doing)
				}
				lost = true
			case e.model != nil:
				lost, last = false, e.model
				over, err := g.reached(*last, early)
				if !over {
					d.observe(g.shown(*last), s.now())
					continue
				}
				if err == nil && last.Condition.Ready {
					d.say("%s is ready after %s.", g.model, span(s.now().Sub(d.began)))
				} else if err == nil {
					d.say("%s is asleep; its first request starts it.", g.model)
				}
				d.clear()
				return last, err
			}
		}
	}
}

// leftWaiting is how a wait ends that reached nothing.
func (s *session) leftWaiting(g goal, last *wire.Model, limit time.Duration) error {
	if s.ctx.Err() != nil {
		s.note("levelrail: %s goes on; follow it with: levelrail models wait %s", g.doing, g.model)
		return errInterrupted
	}
	state := "nothing was heard of it"
	if last != nil {
		state = "it is at " + progressLine(last.Condition, &pace{})
	}
	return levelrail.Errorf(levelrail.ErrTimeout, "%s is not ready after %s: %s; %s goes on", g.model, span(limit), state, g.doing).
		WithNext("levelrail models wait %s", g.model)
}

// watchModel sends what a watch says of one model until ctx ends or the watch is refused. It comes back by itself when
// the server was away; a watch tells the whole state at its start, so nothing is missed.
func watchModel(ctx context.Context, api API, name string, events chan<- event) {
	send := func(e event) bool {
		select {
		case events <- e:
			return true
		case <-ctx.Done():
			return false
		}
	}
	pause := time.Second / 4
	for ctx.Err() == nil {
		seen := false
		err := api.Watch(ctx, client.WatchOptions{Kinds: []string{wire.WatchModel}, ID: name}, func(l wire.WatchLine) error {
			pause = time.Second / 4
			switch {
			case l.Type == wire.WatchPut && l.Kind == wire.WatchModel && l.ID == name:
				m := new(wire.Model)
				if err := json.Unmarshal(l.Object, m); err != nil {
					return levelrail.Errorf(levelrail.ErrInternal, "the server's word on %s cannot be read: %v", name, err).
						WithNext("compare the versions: levelrail version")
				}
				seen = true
				send(event{model: m})
			case l.Type == wire.WatchDelete && l.Kind == wire.WatchModel && l.ID == name, l.Type == wire.WatchSynced && !seen:
				send(event{gone: true})
			}
			return ctx.Err()
		})
		switch kind := levelrail.KindOf(err); {
		case ctx.Err() != nil:
			return
		case client.IsGone(err): // a watch without a token begins anew
		case kind == levelrail.ErrUnavailable, kind == levelrail.ErrTimeout, errors.Is(err, context.DeadlineExceeded):
			if !send(event{trouble: err}) {
				return
			}
		default:
			send(event{err: err})
			return
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause = min(2*pause, 5*time.Second)
	}
}

// waitFlags are the flags of commands that begin work and can follow it.
func waitFlags() []ucli.Flag {
	return []ucli.Flag{
		&ucli.BoolFlag{Name: "wait", Usage: "follow until the model is ready (on a terminal that is the default)"},
		&ucli.BoolFlag{Name: "no-wait", Usage: "return as soon as the server has taken it (elsewhere that is the default)"},
		timeoutFlag(),
	}
}

func timeoutFlag() ucli.Flag {
	return &ucli.StringFlag{Name: "timeout", Value: "1h", Usage: "how long to wait, such as 90s, 20m or 2h; 0 waits without end. The work goes on after it"}
}

// waiting reads the wait flags: whether to follow, and for how long.
func (s *session) waiting(c *ucli.Context) (follow bool, limit time.Duration, err error) {
	if given(c, "wait") && given(c, "no-wait") {
		return false, 0, usagef(helpOf(c), "--wait and --no-wait exclude each other")
	}
	if limit, err = parseSpan("timeout", c.String("timeout")); err != nil {
		return false, 0, err
	}
	switch {
	case given(c, "wait"):
		return c.Bool("wait"), limit, nil
	case given(c, "no-wait"):
		return !c.Bool("no-wait"), limit, nil
	}
	return s.stderr.terminal() && s.stdout.terminal() && !s.json || given(c, "timeout"), limit, nil
}
