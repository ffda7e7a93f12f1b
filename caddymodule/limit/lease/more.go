package lease

import (
	"context"
	"time"

	"github.com/levelrail/levelrail/client/wire"
)

// Asks tells whether the control plane can be asked for more, or a request has to wait for its first word.
func (s *Sharer) Asks() bool {
	t := s.o.Keys.Terms()
	return !t.Alone && !t.Away
}

// More waits until a request that found its key's part used up may try again, for as long as Patience since it began to
// wait. False: there is no more.
func (s *Sharer) More(ctx context.Context, key string, since time.Time) bool {
	left := Patience - s.o.Now().Sub(since)
	if left <= 0 {
		return false
	}
	s.mu.Lock()
	var done <-chan struct{}
	var a *asking
	switch {
	case s.away || s.contact && s.share.Alone: // since a moment ago
		s.mu.Unlock()
		return true
	case !s.contact || s.lost != nil:
		done = s.news
	case s.share.Book == "" || s.o.Now().Sub(s.refused[key]) < notAgain:
		s.mu.Unlock()
		return false
	default:
		if a = s.asking[key]; a == nil {
			a = &asking{done: make(chan struct{})}
			s.asking[key] = a
			go s.ask(key, s.share, a)
		}
		done = a.done
	}
	s.mu.Unlock()
	freed := s.o.Keys.Freed(key)
	if !s.o.Keys.Short(key, s.o.Now()) { // since a moment ago
		return true
	}
	late := time.NewTimer(left)
	defer late.Stop()
	select {
	case <-done:
		return a == nil || a.again
	case <-freed:
		return true
	case <-late.C:
	case <-ctx.Done():
	}
	return false
}

// ask asks once, for whoever waits. A client that leaves does not end it: others may wait for the same.
func (s *Sharer) ask(key string, share wire.Share, a *asking) {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	w := s.o.Keys.Ask(key, s.o.Now())
	u := use(w)
	u.Wait = true
	out, err := s.o.ControlPlane.Leases(ctx, wire.LeaseReport{GatewayID: s.o.GatewayID(), Boot: s.boot, Book: share.Book, Epoch: share.Epoch, Keys: []wire.LeaseUse{u}})
	s.o.Keys.Asked(key)
	refused := err != nil
	if err != nil {
		s.o.Keys.Untold(key)
	} else {
		s.take(share, out)
		// When a newer word is on its way, or is answered already, it is worth while to look again.
		refused = !s.o.Keys.Newer(key, w.Seq) && s.o.Keys.Short(key, s.o.Now())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if delete(s.asking, key); refused {
		s.refused[key] = s.o.Now()
	}
	a.again = !refused
	close(a.done)
}
