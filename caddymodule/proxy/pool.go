package proxy

import (
	"sync"
	"time"
)

// place is where an engine is reached. Connections are kept by it, whatever the replica there is called: one that has moved
// gets no connection to where it was.
type place struct{ network, address string }

// pool keeps the connections that no call uses. The newest goes first, so that what a burst has left over grows old and is
// closed. The zero pool keeps nothing.
type pool struct {
	life time.Duration // how long a connection is kept
	most int           // of one place

	mu     sync.Mutex
	places map[place]*shelf
	timer  *time.Timer // made once; runs only while places has something
}

// shelf is one place's connections in the order in which they came.
type shelf struct {
	newest, oldest *conn
	n              int
}

// take returns a connection to a place, or nil. Its engine may have closed it meanwhile.
func (p *pool) take(at place) *conn {
	now := time.Now()
	p.mu.Lock()
	s := p.places[at]
	if s == nil || s.n == 0 {
		p.mu.Unlock()
		return nil
	}
	c := s.newest
	if now.Sub(c.since) >= p.life { // and so are all before it: the timer is late
		s.newest, s.oldest, s.n = nil, nil, 0
		p.mu.Unlock()
		closeAll(c)
		return nil
	}
	if s.newest = c.older; s.newest == nil {
		s.oldest = nil
	} else {
		s.newest.newer = nil
	}
	s.n--
	p.mu.Unlock()
	c.older = nil
	return c
}

// put keeps a connection, or closes it when there are enough.
func (p *pool) put(c *conn) {
	c.since = time.Now()
	p.mu.Lock()
	s := p.places[c.place]
	if s == nil {
		if p.places == nil {
			p.places = map[place]*shelf{}
		}
		s = new(shelf)
		if p.places[c.place] = s; len(p.places) == 1 {
			p.wake(p.life)
		}
	}
	if s.n >= p.most {
		p.mu.Unlock()
		c.Close()
		return
	}
	if c.older = s.newest; c.older == nil {
		s.oldest = c
	} else {
		c.older.newer = c
	}
	s.newest = c
	s.n++
	p.mu.Unlock()
}

func (p *pool) wake(after time.Duration) {
	if p.timer == nil {
		p.timer = time.AfterFunc(after, p.sweep)
	} else {
		p.timer.Reset(after)
	}
}

// sweep closes what has been kept long enough and forgets places that have nothing.
func (p *pool) sweep() {
	now := time.Now()
	var old *conn // the last of those to close, chained by older
	p.mu.Lock()
	next := p.life
	for at, s := range p.places {
		for c := s.oldest; c != nil; c = s.oldest {
			if left := p.life - now.Sub(c.since); left > 0 {
				next = min(next, left)
				break
			}
			if s.oldest = c.newer; s.oldest == nil {
				s.newest = nil
			} else {
				s.oldest.older = nil
			}
			s.n--
			c.newer, c.older = nil, old
			old = c
		}
		if s.n == 0 {
			delete(p.places, at)
		}
	}
	if len(p.places) > 0 {
		p.wake(max(next, p.life/16)) // connections that end one after the other are closed a few at a time
	}
	p.mu.Unlock()
	closeAll(old)
}

// clear closes all connections that are kept.
func (p *pool) clear() {
	p.mu.Lock()
	places := p.places
	p.places = nil
	if p.timer != nil {
		p.timer.Stop()
	}
	p.mu.Unlock()
	for _, s := range places {
		closeAll(s.newest)
	}
}

func closeAll(newest *conn) {
	for c := newest; c != nil; c = c.older {
		c.Close()
	}
}
