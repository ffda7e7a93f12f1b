package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail/caddymodule/meter"
)

// TestHeaderTimeout: an engine that does not take the request, does not begin to answer, or does so too slowly, has failed
// by the header timeout; and then its connection ends.
func TestHeaderTimeout(t *testing.T) {
	t.Parallel()
	networks(t, func(t *testing.T, network string) {
		for name, c := range map[string]struct {
			size  int
			serve func(c net.Conn)
		}{
			"takes nothing":                   {16 << 20, func(c net.Conn) {}},
			"says nothing":                    {2, func(c net.Conn) { request(bufio.NewReader(c)) }},
			"says nothing after a large body": {8 << 20, func(c net.Conn) { request(bufio.NewReader(c)) }},
			"says half":                       {2, func(c net.Conn) { io.WriteString(c, "HTTP/1.1 200 OK\r\n") }},
			"trickles": {2, func(c net.Conn) {
				tick := time.NewTicker(50 * time.Millisecond)
				defer tick.Stop()
				for i := 0; ; i++ {
					if _, err := fmt.Fprintf(c, "%.1s", "HTTP/1.1 200 OK\r\nX: "+strings.Repeat("x", 4000)[i:]); err != nil {
						return
					}
					<-tick.C
				}
			}},
			"interim answers": {2, func(c net.Conn) {
				tick := time.NewTicker(200 * time.Millisecond)
				defer tick.Stop()
				for {
					if _, err := io.WriteString(c, "HTTP/1.1 102 Processing\r\n\r\n"); err != nil {
						return
					}
					<-tick.C
				}
			}},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				left := make(chan struct{})
				s := newEngine(t, network, func(conn net.Conn, _ int64) {
					c.serve(conn)
					if c.size > 8<<20 {
						<-left // one that reads would take more
						return
					}
					io.Copy(io.Discard, conn)
					close(left)
				})
				cl := call(t, strings.Repeat("x", c.size), s.target)
				cl.Limits.HeaderTimeout, cl.Limits.IdleTimeout = 1, 30
				began := time.Now()
				fails(t, NewEngines(), t.Context(), cl, meter.HeaderTimeout)
				if took := time.Since(began); took < 900*time.Millisecond || took > 5*time.Second {
					t.Errorf("after %s", took)
				}
				if c.size > 8<<20 {
					close(left)
				}
				<-left
				eventually(t, "the body is let go", func() bool { return cl.Body.uses.Load() == 1 })
			})
		}
	})
}

// TestSlowWriting: the header timeout begins when the request has been written, however long the engine took to read it.
func TestSlowWriting(t *testing.T) {
	t.Parallel()
	networks(t, func(t *testing.T, network string) {
		const pieces, piece = 6, 4 << 20
		s := newEngine(t, network, func(c net.Conn, _ int64) {
			if tcp, ok := c.(*net.TCPConn); ok {
				tcp.SetReadBuffer(64 << 10) // or the system would take most of it at once
			}
			tick := time.NewTicker(600 * time.Millisecond) // 3.6 s in all
			defer tick.Stop()
			for range pieces {
				<-tick.C
				if _, err := io.CopyN(io.Discard, c, piece); err != nil {
					return
				}
			}
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			io.Copy(io.Discard, c)
		})
		c := call(t, strings.Repeat("x", pieces*piece), s.target)
		c.Limits.HeaderTimeout = 3
		if _, body := mustRead(t, NewEngines(), c); body != "ok" {
			t.Errorf("%q", body)
		}
	})
}

// TestClientLeaves: in every phase of a call a client who leaves ends it at once, closes the engine's connection, and is
// told apart from everything else.
func TestClientLeaves(t *testing.T) {
	why := errors.New("gone")
	networks(t, func(t *testing.T, network string) {
		for name, c := range map[string]struct {
			size int
			says string
		}{
			"while the request is written":  {16 << 20, ""},
			"before the answer":             {2, ""},
			"in the head":                   {2, "HTTP/1.1 200 OK\r\nX: "},
			"after the head":                {2, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"},
			"in the body":                   {2, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab"},
			"in a body that ends by itself": {2, "HTTP/1.1 200 OK\r\n\r\nab"},
			"between chunks":                {2, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n"},
			"before the last line":          {2, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n"},
		} {
			said, left := make(chan struct{}), make(chan struct{})
			s := newEngine(t, network, func(conn net.Conn, _ int64) {
				r := bufio.NewReader(conn)
				if c.size < 1<<20 {
					request(r)
				} else {
					r.ReadByte()
				}
				io.WriteString(conn, c.says)
				close(said)
				if c.size > 1<<20 {
					<-left
					return
				}
				r.ReadByte()
				close(left)
			})
			ctx, leave := context.WithCancelCause(t.Context())
			go func() {
				<-said
				leave(why)
			}()
			cl := call(t, strings.Repeat("x", c.size), s.target)
			f := fails(t, NewEngines(), ctx, cl, meter.ClientGone)
			if !errors.Is(f, why) {
				t.Errorf("%s: the cause is %v", name, f)
			}
			if c.size > 1<<20 {
				close(left)
			}
			<-left
			eventually(t, "the body is let go", func() bool { return cl.Body.uses.Load() == 1 })
			if f := fails(t, NewEngines(), ctx, call(t, "{}", s.target), meter.ClientGone); !errors.Is(f, why) || s.accepted.Load() != 1 {
				t.Errorf("%s: a client that has left before: %v", name, f)
			}
		}
	})
}

// TestGap: an engine's silence in its answer is bounded; what it says in time, however slowly in all, is not.
func TestGap(t *testing.T) {
	t.Parallel()
	networks(t, func(t *testing.T, network string) {
		stop := make(chan struct{})
		s := newEngine(t, network, func(c net.Conn, _ int64) {
			r := bufio.NewReader(c)
			request(r)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
			tick := time.NewTicker(300 * time.Millisecond)
			defer tick.Stop()
			for range 5 {
				<-tick.C
				io.WriteString(c, "1\r\na\r\n")
			}
			r.ReadByte()
			close(stop)
		})
		c := call(t, "{}", s.target)
		c.Limits.HeaderTimeout, c.Limits.IdleTimeout = 30, 1
		began := time.Now()
		a, err := NewEngines().Do(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		body, err := readAll(a)
		a.Close()
		f := new(Failure)
		if !errors.As(err, &f) || f.End != meter.GapTimeout || string(body) != "aaaaa" {
			t.Errorf("%q %v", body, err)
		}
		if took := time.Since(began); took < 2400*time.Millisecond || took > 6*time.Second {
			t.Errorf("after %s", took)
		}
		<-stop
	})
}

// TestNoTimeouts: without limits a call waits, also on a connection that had one before.
func TestNoTimeouts(t *testing.T) {
	t.Parallel()
	networks(t, func(t *testing.T, network string) {
		e := NewEngines()
		s := newEngine(t, network, func(c net.Conn, _ int64) {
			for r := bufio.NewReader(c); ; {
				req, body := request(r)
				if req == nil {
					return
				}
				io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n")
				if body == "slow" {
					<-time.After(1500 * time.Millisecond)
				}
				io.WriteString(c, body)
			}
		})
		limited, free := call(t, "fast", s.target), call(t, "slow", s.target)
		limited.Limits.HeaderTimeout, limited.Limits.IdleTimeout = 1, 1
		mustRead(t, e, limited)
		if _, body := mustRead(t, e, free); body != "slow" || s.accepted.Load() != 1 {
			t.Errorf("%q on connection %d", body, s.accepted.Load())
		}
	})
}
