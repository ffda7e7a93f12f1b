package link

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

const (
	sayTime  = 5 * time.Second // for saying one thing
	sayAgain = 500 * time.Millisecond
	// What people ask comes one at a time; more at once is somebody's mistake and waits for the next watch.
	mostQuestions = 16
)

// seen tells the control plane how far the watch has come, because whoever revokes a key waits for it. Of several tokens
// that wait only the newest is said, which says all before it.
type seen struct {
	token     chan string // the newest that is not said; it holds one
	questions atomic.Int64
}

// upTo asks for a token to be said. It returns at once. It has one caller at a time.
func (s *seen) upTo(token string) {
	if token == "" {
		return
	}
	select {
	case <-s.token:
	default:
	}
	s.token <- token
}

// run says tokens until ctx ends. One that cannot be said is tried once more, unless a newer one has come; the synced line
// of the next watch says it in any case.
func (s *seen) run(ctx context.Context, o Options, id string) {
	for tried := false; ; {
		var token string
		select {
		case <-ctx.Done():
			return
		case token = <-s.token:
		}
		one, cancel := context.WithTimeout(ctx, sayTime)
		err := o.Source.Seen(one, wire.Seen{GatewayID: id, Token: token})
		cancel()
		switch {
		case err == nil:
			tried = false
			continue
		case ctx.Err() != nil:
			return
		}
		o.Log.Debug("the control plane cannot be told how far the watch has come", "error", err)
		if tried = !tried; !tried || levelrail.KindOf(err) == levelrail.ErrNotFound || levelrail.KindOf(err) == levelrail.ErrInvalid {
			tried = false
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(sayAgain):
		}
		select {
		case s.token <- token:
		default: // a newer one waits
		}
	}
}

// answer answers a question beside the watch, which goes on meanwhile.
func (l *Link) answer(ctx context.Context, id string, line wire.WatchLine) {
	if line.Type != wire.WatchPut || l.o.Answer == nil { // a question that is taken back needs no answer
		return
	}
	var q wire.Question
	if err := json.Unmarshal(line.Object, &q); err != nil || q.ID == "" {
		l.o.Log.Error("a question of the control plane's cannot be understood", "error", err, "next", "upgrade levelrail-gateway to the control plane's version")
		return
	}
	if l.seen.questions.Add(1) > mostQuestions {
		l.seen.questions.Add(-1)
		l.o.Log.Warn("too many questions at once; one is not answered", "ask", q.Ask)
		return
	}
	go func() {
		defer l.seen.questions.Add(-1)
		a := l.o.Answer(q)
		a.GatewayID = id
		for i := range a.Requests {
			a.Requests[i].GatewayID = id
		}
		for i := range a.Limits {
			a.Limits[i].GatewayID = id
		}
		one, cancel := context.WithTimeout(ctx, sayTime)
		defer cancel()
		if err := l.o.Source.Answer(one, q.ID, a); err != nil && levelrail.KindOf(err) != levelrail.ErrNotFound && ctx.Err() == nil {
			l.o.Log.Warn("a question of the control plane's cannot be answered", "ask", q.Ask, "error", err)
		}
	}()
}
