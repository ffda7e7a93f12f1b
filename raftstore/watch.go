package raftstore

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/levelrail/levelrail"
)

// EventType says what an Event is.
type EventType string

// The types of event.
const (
	EventReset  EventType = "reset"  // forget everything: all objects follow as put, and then synced
	EventPut    EventType = "put"    // the object is there, as Object says
	EventDelete EventType = "delete" // the object is gone
	EventSynced EventType = "synced" // everything that there is has been told
)

// Event is one line of a watch.
type Event struct {
	Type   EventType
	Kind   levelrail.Kind
	ID     string
	Index  uint64          // the command that made the change; for synced, of the state that was told
	Token  string          // where to go on from; empty while a new start is being told
	Object json.RawMessage // of a put: the object of package levelrail
}

// Subscription is one watch. It belongs to one goroutine.
type Subscription struct {
	store   *Store
	kinds   []levelrail.Kind
	want    map[levelrail.Kind]bool
	at      uint64 // everything up to here has been told or lies in pending
	told    string // the last token handed out
	anew    bool
	pending []Event
}

// Watch gives the changes of some kinds (none: all but usage and audit, which cannot be watched) after a token. Without a
// token it begins with reset, every object as put, and synced. A token that is not kept any more gives ErrTooOld. A
// subscription holds nothing that must be closed.
func (s *Store) Watch(ctx context.Context, after string, kinds ...levelrail.Kind) (*Subscription, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	sub := &Subscription{store: s, kinds: kinds, want: map[levelrail.Kind]bool{}, anew: after == "", told: after}
	if len(kinds) == 0 {
		sub.kinds = kindsWatched
	}
	for _, k := range sub.kinds {
		if !watched[k] {
			return nil, levelrail.Errorf(levelrail.ErrInvalid, "the kind %q cannot be watched", k)
		}
		sub.want[k] = true
	}
	if after == "" {
		return sub, nil
	}
	lineage, index, ok := strings.Cut(after, ".")
	n, err := strconv.ParseUint(index, 10, 64)
	if !ok || err != nil {
		return nil, levelrail.Errorf(levelrail.ErrInvalid, "%q is no token of a watch", after).WithNext("watch without a token")
	}
	if lineage != s.ids.Lineage || !s.ring.holds(n) {
		return nil, ErrTooOld
	}
	sub.at = n
	return sub, nil
}

func (s *Store) token(index uint64) string {
	return s.ids.Lineage + "." + strconv.FormatUint(index, 10)
}

// Token is where to go on from after the last event that Next returned. On a quiet watch it moves on by itself, so a
// reader that keeps it seldom has to begin anew. Empty while a new start is being told.
func (sub *Subscription) Token() string {
	if len(sub.pending) == 0 && !sub.anew {
		return sub.store.token(sub.at)
	}
	return sub.told
}

// Next returns the next event. It waits for one until ctx ends, whose error it returns, or the store is closed, which is
// ErrClosed. A reader that is too slow gets a reset and everything anew.
func (sub *Subscription) Next(ctx context.Context) (Event, error) {
	for len(sub.pending) == 0 {
		if sub.anew {
			if err := sub.begin(); err != nil {
				return Event{}, err
			}
			continue
		}
		found, upTo, moved, ok, err := sub.store.ring.after(sub.at, sub.want)
		if err != nil {
			return Event{}, err
		}
		if !ok {
			sub.anew, sub.told = true, ""
			continue
		}
		sub.take(found)
		sub.at = upTo
		if len(found) > 0 {
			break
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return Event{}, ctx.Err()
		}
	}
	if err := ctx.Err(); err != nil {
		return Event{}, err
	}
	e := sub.pending[0]
	sub.pending[0] = Event{}
	sub.pending = sub.pending[1:]
	sub.told = e.Token
	return e, nil
}

// begin tells everything that there is.
func (sub *Subscription) begin() error {
	return sub.store.View(func(tx *Tx) error {
		events := []Event{{Type: EventReset, Index: tx.Index()}}
		for _, kind := range sub.kinds {
			var err error
			tx.state.Each(kind, "", func(id string, value []byte) bool {
				var object json.RawMessage
				var index uint64
				if object, index, err = decodeRaw(kind, id, value); err == nil {
					events = append(events, Event{Type: EventPut, Kind: kind, ID: id, Index: index, Object: object})
				}
				return err == nil
			})
			if err != nil {
				return err
			}
		}
		sub.pending = append(events, Event{Type: EventSynced, Index: tx.Index(), Token: sub.store.token(tx.Index())})
		sub.at, sub.anew = tx.Index(), false
		return nil
	})
}

// take queues changes. A command may change several objects: only the last one's token is past the command, so that a
// reader which stops between them is told all of them again.
func (sub *Subscription) take(found []change) {
	token := sub.told
	for i, c := range found {
		if i+1 == len(found) || found[i+1].index != c.index {
			token = sub.store.token(c.index)
		}
		e := Event{Type: EventPut, Kind: c.kind, ID: c.id, Index: c.index, Token: token, Object: c.object}
		if c.object == nil {
			e.Type = EventDelete
		}
		sub.pending = append(sub.pending, e)
	}
}
