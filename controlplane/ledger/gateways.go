package ledger

import (
	"sync"
	"time"

	"github.com/levelrail/levelrail/client/wire"
)

// Gateway is a gateway that is connected.
type Gateway struct {
	ID          string
	URL         string // base address, empty when it did not say
	Public      bool   // it serves the public site as well
	Version     string
	ConnectedAt time.Time
}

type connection struct {
	Gateway
	streams int    // a reconnecting gateway may hold two for a moment
	seen    uint64 // how far it says to have come in the store's changes
}

// Connect records that a gateway follows this server, and returns what ends that. What it had seen when it came back is
// seen.
func (l *Ledger) Connect(g Gateway, seen uint64) (disconnect func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c, ok := l.gateways[g.ID]
	if !ok {
		c = &connection{}
		l.gateways[g.ID] = c
	}
	g.ConnectedAt = time.Now().UTC()
	c.Gateway = g
	c.streams++
	c.seen = max(c.seen, seen)
	l.tellLocked()
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if c.streams--; c.streams == 0 {
			delete(l.gateways, g.ID)
		}
		l.tellLocked()
	})
}

// Seen records how far a gateway says to have come in the store's changes. The word of one that is not connected is not
// kept: when it comes, it is told everything that it may have missed.
func (l *Ledger) Seen(gateway string, index uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c, ok := l.gateways[gateway]; ok && index > c.seen {
		c.seen = index
		close(l.sawMore)
		l.sawMore = make(chan struct{})
	}
}

// SawMore returns a channel that is closed when a gateway says next that it has come further. Take it before HasSeen.
func (l *Ledger) SawMore() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sawMore
}

// HasSeen tells whether a connected gateway has come as far as an index of the store.
func (l *Ledger) HasSeen(gateway string, index uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	c, ok := l.gateways[gateway]
	return ok && c.seen >= index
}

// Activity takes a gateway's word of which models were used. It wakes nobody who waits for changes: models are used all
// the time.
func (l *Ledger) Activity(a wire.Activity) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for _, m := range a.Models {
		at := now
		if m.InFlight <= 0 && m.IdleSeconds > 0 {
			at = now.Add(-time.Duration(min(m.IdleSeconds, int64(longestIdle/time.Second))) * time.Second)
		}
		if at.After(l.used[m.Model]) {
			l.used[m.Model] = at
		}
	}
}

// longestIdle keeps a word of a gateway from overflowing.
const longestIdle = 10 * 365 * 24 * time.Hour

// LastActive is when a model was last used through any gateway, as far as this server has heard since it started; false
// when it has heard nothing.
func (l *Ledger) LastActive(model string) (time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, ok := l.used[model]
	return at, ok
}

// ForgetModel drops what was heard of a model that is gone.
func (l *Ledger) ForgetModel(model string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.used, model)
}
