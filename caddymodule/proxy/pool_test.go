package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// idle is a pool's state: how many places it knows, and whether its timer runs.
func idle(p *pool) (places int, awake bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer != nil {
		if awake = p.timer.Stop(); awake {
			p.timer.Reset(0)
		}
	}
	return len(p.places), awake
}

// TestIdleConnections: a kept connection is closed when its time has come; then nothing is left of its place, and no timer
// runs.
func TestIdleConnections(t *testing.T) {
	networks(t, func(t *testing.T, network string) {
		e := NewEngines()
		e.pool.life = 100 * time.Millisecond
		var closed atomic.Int64
		var engines []*engine
		for range 3 {
			engines = append(engines, newEngine(t, network, func(c net.Conn, _ int64) {
				answers("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")(c, 0)
				closed.Add(1)
			}))
		}
		for round := range int64(2) {
			began := time.Now()
			for _, s := range engines {
				mustRead(t, e, call(t, "{}", s.target))
			}
			eventually(t, "the connections are closed", func() bool { return closed.Load() == 3*(round+1) })
			if took := time.Since(began); took < e.pool.life {
				t.Errorf("closed after %s", took)
			}
			eventually(t, "nothing is left", func() bool { n, awake := idle(&e.pool); return n == 0 && !awake })
		}
	})
}

// TestOldConnections: a connection that is too old is not used, even when the timer that closes it is late.
func TestOldConnections(t *testing.T) {
	e := NewEngines()
	s := newEngine(t, "unix", answers("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))
	mustRead(t, e, call(t, "{}", s.target))
	mustRead(t, e, call(t, "{}", s.target))
	if s.accepted.Load() != 1 {
		t.Fatalf("%d connections", s.accepted.Load())
	}
	e.pool.mu.Lock()
	for _, shelf := range e.pool.places {
		shelf.newest.since = time.Now().Add(-idleTime)
	}
	e.pool.mu.Unlock()
	mustRead(t, e, call(t, "{}", s.target))
	if s.accepted.Load() != 2 || kept(e) != 1 {
		t.Errorf("%d connections, %d kept", s.accepted.Load(), kept(e))
	}
}

// TestCloseIdle: what no call uses is closed, what one uses is not.
func TestCloseIdle(t *testing.T) {
	e := NewEngines()
	ended := make(chan int64, 10)
	more := make(chan struct{})
	s := newEngine(t, "unix", func(c net.Conn, n int64) {
		r := bufio.NewReader(c)
		for {
			req, body := request(r)
			if req == nil {
				ended <- n
				return
			}
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
			if body == "slow" {
				<-more
			}
			io.WriteString(c, "ok")
		}
	})
	a, err := e.Do(t.Context(), call(t, "slow", s.target)) // connection 1
	if err != nil {
		t.Fatal(err)
	}
	mustRead(t, e, call(t, "{}", s.target)) // connection 2
	e.CloseIdle()
	if n := <-ended; n != 2 {
		t.Errorf("connection %d was closed", n)
	}
	if places, awake := idle(&e.pool); places != 0 || awake {
		t.Errorf("%d places, timer %v", places, awake)
	}
	close(more)
	if b, err := readAll(a); string(b) != "ok" {
		t.Errorf("%q %v", b, err)
	}
	a.Close()
	if kept(e) != 1 {
		t.Errorf("%d kept", kept(e))
	}
	e.CloseIdle()
	e.CloseIdle()
	if n := <-ended; n != 1 {
		t.Errorf("connection %d was closed", n)
	}
}

// TestPoolOrder: the newest connection goes first, no more are kept than may be, and a place's are nobody else's.
func TestPoolOrder(t *testing.T) {
	p := &pool{life: time.Hour, most: 3}
	defer p.clear()
	ends := map[*conn]net.Conn{}
	add := func(at place) *conn {
		here, there := net.Pipe()
		c := &conn{Conn: here, place: at}
		ends[c] = there
		p.put(c)
		return c
	}
	closed := func(c *conn) bool {
		ends[c].SetReadDeadline(time.Now().Add(-time.Second))
		_, err := ends[c].Read(make([]byte, 1))
		return err == io.EOF
	}
	here, there := place{"unix", "/a"}, place{"tcp", "/a"}
	a, b, c, d, other := add(here), add(here), add(here), add(here), add(there)
	if !closed(d) || closed(a) || closed(b) || closed(c) || closed(other) {
		t.Error("not the one too many was closed")
	}
	for i, want := range []*conn{c, b, a, nil, nil} {
		if got := p.take(here); got != want {
			t.Errorf("%d: not the newest", i)
		}
	}
	p.put(b)
	p.put(a)
	if p.take(here) != a || p.take(place{"unix", "/b"}) != nil || p.take(there) != other || p.take(there) != nil {
		t.Error("not the newest of its place")
	}
	// The oldest go first when their time has come.
	p.put(a)
	b.since = time.Now().Add(-2 * time.Hour)
	p.sweep()
	if !closed(b) || closed(a) || p.take(here) != a || p.take(here) != nil {
		t.Error("not the oldest was closed")
	}
}

// TestPoolInUse: connections that come and go while the timer sweeps are each used by one at a time, and none is lost.
func TestPoolInUse(t *testing.T) {
	p := &pool{life: 2 * time.Millisecond, most: 8}
	var made, closed atomic.Int64
	var all sync.WaitGroup
	for worker := range 8 {
		all.Go(func() {
			for i := range 500 {
				at := place{"unix", fmt.Sprint((worker + i) % 5)}
				c := p.take(at)
				if c == nil {
					made.Add(1)
					c = &conn{Conn: &counted{closed: &closed}, place: at}
				}
				if c.place != at || c.used {
					t.Errorf("of %v, used %v", c.place, c.used)
				}
				c.used = true // nobody else may see it so
				c.used = false
				p.put(c)
			}
		})
	}
	all.Wait()
	eventually(t, "all are closed", func() bool { return made.Load() == closed.Load() })
	eventually(t, "nothing is left", func() bool { n, awake := idle(p); return n == 0 && !awake })
}

type counted struct {
	net.Conn
	closed *atomic.Int64
}

func (c *counted) Close() error { c.closed.Add(1); return nil }
