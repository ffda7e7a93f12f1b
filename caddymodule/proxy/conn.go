package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Sizes of the buffer that a connection reads into while a call uses it; one that is kept has none. An event is small, and
// a thousand open streams each hold one.
const (
	smallBuffer = 4 << 10
	plainBuffer = 32 << 10  // for an answer of unknown length that fills the small one
	largeBuffer = 128 << 10 // for one that says it is larger than the plain one
)

var (
	smallBuffers = sync.Pool{New: func() any { return new([smallBuffer]byte) }}
	plainBuffers = sync.Pool{New: func() any { return new([plainBuffer]byte) }}
	largeBuffers = sync.Pool{New: func() any { return new([largeBuffer]byte) }}
)

func newBuffer(size int) []byte {
	switch size {
	case smallBuffer:
		return smallBuffers.Get().(*[smallBuffer]byte)[:]
	case plainBuffer:
		return plainBuffers.Get().(*[plainBuffer]byte)[:]
	case largeBuffer:
		return largeBuffers.Get().(*[largeBuffer]byte)[:]
	}
	return make([]byte, size)
}

func freeBuffer(b []byte) {
	switch len(b) {
	case smallBuffer:
		smallBuffers.Put((*[smallBuffer]byte)(b))
	case plainBuffer:
		plainBuffers.Put((*[plainBuffer]byte)(b))
	case largeBuffer:
		largeBuffers.Put((*[largeBuffer]byte)(b))
	}
}

// conn is a connection to an engine. One call at a time uses it.
type conn struct {
	net.Conn
	raw   syscall.RawConn
	place place
	used  bool      // another call has used it before
	due   time.Time // when reading gives up, as last set; zero: never

	b    []byte // what is read into; nil while the connection is kept
	r, w int    // b[r:w] has come from the engine and not been looked at
	full bool   // the last read left no room

	abort func() // closes the connection, for whoever waits for the client to leave

	// What the two functions below work on. They are made once, and run where the socket may be used without waiting.
	turn, poll func(fd uintptr) bool
	out        [][]byte // what is to be written
	outs       [2][]byte
	sent, all  int   // how much of it was, and how much there is
	stale      bool  // the engine has closed the connection, or has spoken without being asked
	err        error // what the system said
	one        [1]byte

	since        time.Time // in the pool: when it came
	older, newer *conn     // in the pool: its neighbours
}

// dial connects to an engine. Only the two kinds of sockets are taken that the rest of this package knows about.
func dial(ctx context.Context, at place, timeout time.Duration) (*conn, error) {
	if at.network != "unix" && at.network != "tcp" {
		return nil, fmt.Errorf("an engine cannot be reached by %q, only by unix or tcp", at.network)
	}
	d := net.Dialer{Timeout: timeout, KeepAlive: 15 * time.Second}
	nc, err := d.DialContext(ctx, at.network, at.address)
	if err != nil {
		return nil, err
	}
	s, ok := nc.(syscall.Conn)
	if !ok {
		nc.Close()
		return nil, fmt.Errorf("a connection to %s is a %T, which is no socket", at.address, nc)
	}
	raw, err := s.SyscallConn()
	if err != nil {
		nc.Close()
		return nil, err
	}
	c := &conn{Conn: nc, raw: raw, place: at}
	c.abort = func() { nc.Close() }
	c.turn, c.poll = c.offerAndRead, c.pollFrom
	return c, nil
}

// ask writes as much of a request as the socket takes without waiting. Of a connection that was used before it first makes
// sure that the engine is still there and silent: stale, it was not, and has been sent nothing. When everything was taken,
// it waits for the first bytes of the answer, as fill does, until the connection is due.
//
// Waiting begins, for the poller, before that look. So a silent socket need not be asked in vain for an answer that cannot
// be there yet: once it is, the poller has said so. On a new connection an engine may have spoken before.
func (c *conn) ask(head, body []byte) (sent int, stale bool, err error) {
	c.outs[0], c.outs[1] = head, body
	if c.out = c.outs[:]; len(body) == 0 {
		c.out = c.outs[:1]
	}
	c.sent, c.all, c.stale, c.err = 0, len(head)+len(body), false, nil
	if err = c.raw.Read(c.turn); err == nil {
		err = c.err
	}
	c.out, c.outs = nil, [2][]byte{}
	return c.sent, c.stale, err
}

// offerAndRead is ask, each time that the socket may have become ready.
func (c *conn) offerAndRead(fd uintptr) (done bool) {
	var n int
	if c.sent < c.all {
		if c.used {
			_, _, err := syscall.Recvfrom(int(fd), c.one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
			if c.stale = err != syscall.EAGAIN; c.stale {
				return true
			}
		}
		for {
			if len(c.out) == 1 {
				n, c.err = syscall.Write(int(fd), c.out[0])
			} else {
				n, c.err = unix.Writev(int(fd), c.out)
			}
			if c.err != syscall.EINTR {
				break
			}
		}
		if c.err == syscall.EAGAIN {
			c.err = nil
		}
		if c.sent = max(n, 0); c.sent < c.all {
			return true
		}
		if c.used {
			return false // nothing was there when waiting had begun
		}
	}
	for {
		if n, c.err = syscall.Read(int(fd), c.b); c.err != syscall.EINTR {
			break
		}
	}
	switch {
	case c.err == syscall.EAGAIN:
		c.err = nil
		return false
	case c.err == nil && n == 0:
		c.err = io.EOF
	}
	c.r, c.w = 0, max(n, 0)
	c.full = c.w == len(c.b)
	return true
}

// top reads what has already come into the room that is left, without waiting. What goes wrong shows when reading goes on.
func (c *conn) top() {
	if c.w < len(c.b) {
		c.raw.Read(c.poll)
	}
}

func (c *conn) pollFrom(fd uintptr) bool {
	if n, err := syscall.Read(int(fd), c.b[c.w:]); err == nil && n > 0 {
		c.w += n
	}
	return true
}

// errFull says that what has been read fills the buffer.
var errFull = errors.New("the buffer is full")

// fill waits until there is more from the engine. io.EOF says that there will be none.
func (c *conn) fill() error {
	switch {
	case c.r == c.w:
		c.r, c.w = 0, 0
	case c.r > 0:
		c.w = copy(c.b, c.b[c.r:c.w])
		c.r = 0
	case c.w == len(c.b):
		return errFull
	}
	n, err := c.Read(c.b[c.w:])
	c.w += n
	c.full = c.w == len(c.b)
	switch {
	case n > 0:
		return nil
	case err == nil:
		return io.ErrNoProgress
	}
	return err
}

// grow moves what has been read into a buffer of another size, which has to be large enough for it.
func (c *conn) grow(size int) {
	b := newBuffer(size)
	c.w = copy(b, c.b[c.r:c.w])
	c.r = 0
	freeBuffer(c.b)
	c.b = b
}

// within gives the engine until limit from now, and up to a sixteenth more, to say something; 0 is for ever. To set the
// deadline anew for every event would cost more than to read it.
func (c *conn) within(limit time.Duration) {
	if limit <= 0 {
		if !c.due.IsZero() {
			c.due = time.Time{}
			c.SetReadDeadline(c.due)
		}
		return
	}
	now := time.Now()
	if left := c.due.Sub(now); left < limit || left > limit+limit/16 {
		c.due = now.Add(limit + limit/16)
		c.SetReadDeadline(c.due)
	}
}
