package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levelrail/levelrail/caddymodule/meter"
	"github.com/levelrail/levelrail/client/wire"
)

// engine is a server that does on each connection what a test says.
type engine struct {
	target   wire.RouteTarget
	accepted atomic.Int64
}

func newEngine(t *testing.T, network string, serve func(c net.Conn, n int64)) *engine {
	t.Helper()
	address := "127.0.0.1:0"
	if network == "unix" {
		address = socketPath(t)
	}
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{target: wire.RouteTarget{ID: "e", Network: network, Address: l.Addr().String()}}
	var running sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n := e.accepted.Add(1)
			mu.Lock()
			open[c] = true
			mu.Unlock()
			running.Go(func() {
				defer c.Close()
				serve(c, n)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for c := range open {
			c.Close()
		}
		mu.Unlock()
		ended := make(chan struct{})
		go func() {
			running.Wait()
			close(ended)
		}()
		select {
		case <-ended:
		case <-time.After(10 * time.Second): // it waits for a test that has failed
			t.Error("an engine does not end")
		}
	})
	return e
}

// request reads a whole request; nil: the connection has ended.
func request(r *bufio.Reader) (*http.Request, string) {
	req, err := http.ReadRequest(r)
	if err != nil {
		return nil, ""
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, ""
	}
	return req, string(body)
}

// answers serves every request with the same bytes.
func answers(raw string) func(net.Conn, int64) {
	return func(c net.Conn, _ int64) {
		for r := bufio.NewReader(c); ; {
			if req, _ := request(r); req == nil {
				return
			}
			io.WriteString(c, raw)
		}
	}
}

// networks runs a test over both kinds of sockets.
func networks(t *testing.T, f func(t *testing.T, network string)) {
	for _, n := range []string{"unix", "tcp"} {
		t.Run(n, func(t *testing.T) { f(t, n) })
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
		time.Sleep(time.Millisecond) // a poll's pause: the condition is asked anew
	}
}

// fails makes a call that must fail in a certain way.
func fails(t *testing.T, e *Engines, ctx context.Context, c Call, end meter.End) *Failure {
	t.Helper()
	a, err := e.Do(ctx, c)
	if err == nil {
		_, err = readAll(a)
		a.Close()
	}
	f := new(Failure)
	if !errors.As(err, &f) || f.End != end {
		t.Fatalf("the call ended with %v, want %s", err, end)
	}
	return f
}

func mustRead(t *testing.T, e *Engines, c Call) (*Answer, string) {
	t.Helper()
	a, err := e.Do(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	b, err := readAll(a)
	if err != nil {
		t.Fatal(err)
	}
	a.Close()
	return a, string(b)
}

// TestByteByByte: an answer that comes a byte at a time over a socket is the same answer.
func TestByteByByte(t *testing.T) {
	networks(t, func(t *testing.T, network string) {
		for _, g := range good {
			if len(g.raw) > 1000 || g.method != "POST" {
				continue
			}
			e := NewEngines()
			s := newEngine(t, network, func(c net.Conn, _ int64) {
				if req, _ := request(bufio.NewReader(c)); req == nil {
					return
				}
				for i := range len(g.raw) {
					if _, err := c.Write([]byte(g.raw[i : i+1])); err != nil {
						return
					}
				}
			})
			a, body := mustRead(t, e, call(t, "{}", s.target))
			if a.StatusCode != g.status || body != g.body {
				t.Errorf("%s: %d %q", g.name, a.StatusCode, body)
			}
		}
	})
}

// TestMalformedAnswers: what is malformed fails as the engine's doing, and its connection is not used again.
func TestMalformedAnswers(t *testing.T) {
	networks(t, func(t *testing.T, network string) {
		for _, b := range bad {
			e := NewEngines()
			s := newEngine(t, network, func(c net.Conn, n int64) {
				if req, _ := request(bufio.NewReader(c)); req == nil {
					return
				}
				if n > 1 {
					io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
				} else {
					io.WriteString(c, b.raw)
				}
			})
			c := call(t, "{}", s.target)
			fails(t, e, t.Context(), c, meter.EngineGone)
			if _, body := mustRead(t, e, c); body != "ok" || s.accepted.Load() != 2 {
				t.Errorf("%s: then %q on connection %d", b.name, body, s.accepted.Load())
			}
		}
	})
}

// TestClosedOnTheHeels: an engine that closes after a stream without having said so, and throws away what comes then, as
// llama.cpp does, loses no request.
func TestClosedOnTheHeels(t *testing.T) {
	networks(t, func(t *testing.T, network string) {
		s := newEngine(t, network, func(c net.Conn, n int64) {
			r := bufio.NewReader(c)
			request(r)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: x\n\n\r\n0\r\n\r\n")
			request(r)
		})
		e := NewEngines()
		for range 3 {
			if a, body := mustRead(t, e, call(t, "{}", s.target)); a.StatusCode != 200 || body != "data: x\n\n" {
				t.Errorf("%d %q", a.StatusCode, body)
			}
		}
	})
}

// TestKeepAlive: a connection serves the next call exactly when the answer left it clean.
func TestKeepAlive(t *testing.T) {
	networks(t, func(t *testing.T, network string) {
		for _, g := range good {
			if g.method != "POST" && g.method != "HEAD" {
				continue
			}
			e := NewEngines()
			s := newEngine(t, network, func(c net.Conn, n int64) {
				for r := bufio.NewReader(c); ; {
					if req, _ := request(r); req == nil {
						return
					}
					io.WriteString(c, g.raw)
					if !g.keeps {
						return
					}
				}
			})
			c := call(t, "{}", s.target)
			c.Method = g.method
			for range 3 {
				if a, body := mustRead(t, e, c); a.StatusCode != g.status || body != g.body {
					t.Errorf("%s: %d %q", g.name, a.StatusCode, body)
				}
			}
			if want := map[bool]int64{true: 1, false: 3}[g.keeps]; s.accepted.Load() != want {
				t.Errorf("%s: %d connections for 3 calls, want %d", g.name, s.accepted.Load(), want)
			}
		}
		t.Run("an answer that was not read", func(t *testing.T) {
			e := NewEngines()
			s := newEngine(t, network, answers("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n01234"))
			for range 3 {
				a, err := e.Do(t.Context(), call(t, "{}", s.target))
				if err != nil {
					t.Fatal(err)
				}
				a.Close()
				a.Close() // once more is nothing
			}
			if s.accepted.Load() != 3 {
				t.Errorf("%d connections", s.accepted.Load())
			}
		})
		t.Run("more than the answer", func(t *testing.T) {
			e := NewEngines()
			s := newEngine(t, network, answers("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"))
			for range 3 {
				if _, body := mustRead(t, e, call(t, "{}", s.target)); body != "ok" {
					t.Fatalf("%q", body)
				}
			}
			if s.accepted.Load() != 3 {
				t.Errorf("%d connections", s.accepted.Load())
			}
		})
	})
}

// TestUnasked: what an engine says on a kept connection without being asked is no answer to the next request, and neither
// is its end.
func TestUnasked(t *testing.T) {
	networks(t, func(t *testing.T, network string) {
		for name, more := range map[string]string{"speaks": "HTTP/1.1 408 Request Timeout\r\nContent-Length: 4\r\n\r\nevil", "speaks and closes": "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n", "closes": ""} {
			e := NewEngines()
			var served atomic.Int64
			said := make(chan struct{}, 10)
			next := make(chan struct{})
			s := newEngine(t, network, func(c net.Conn, _ int64) {
				req, _ := request(bufio.NewReader(c))
				if req == nil {
					return
				}
				served.Add(1)
				io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
				<-next
				io.WriteString(c, more)
				if name == "speaks" {
					said <- struct{}{}
					io.Copy(io.Discard, c)
					return
				}
				c.Close()
				said <- struct{}{}
			})
			for range 3 {
				if _, body := mustRead(t, e, call(t, "{}", s.target)); body != "ok" {
					t.Fatalf("%s: %q", name, body)
				}
				next <- struct{}{}
				<-said
			}
			if served.Load() != 3 || s.accepted.Load() != 3 {
				t.Errorf("%s: %d requests on %d connections", name, served.Load(), s.accepted.Load())
			}
			close(next)
		}
	})
}

// TestNeverTwice: a request of which an engine has seen anything is not sent a second time, on a kept connection either.
func TestNeverTwice(t *testing.T) {
	networks(t, func(t *testing.T, network string) {
		e := NewEngines()
		var served atomic.Int64
		s := newEngine(t, network, func(c net.Conn, _ int64) {
			r := bufio.NewReader(c)
			if req, _ := request(r); req == nil {
				return
			}
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			if req, _ := request(r); req != nil {
				served.Add(1) // and ends without an answer
			}
		})
		for i := range int64(5) {
			mustRead(t, e, call(t, "{}", s.target))
			fails(t, e, t.Context(), call(t, strings.Repeat("x", int(i)*20000), s.target, s.target), meter.EngineGone)
			if served.Load() != i+1 {
				t.Fatalf("the engine was sent %d requests, want %d", served.Load(), i+1)
			}
		}
	})
}

// TestEarlyAnswer: an engine that answers before it has read a large body, and reads no more, is heard, whether it then
// waits or closes; the connection is not used again and the body's memory is given back.
func TestEarlyAnswer(t *testing.T) {
	const refusal = "HTTP/1.1 413 Content Too Large\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{\"e\":413}"
	networks(t, func(t *testing.T, network string) {
		for _, size := range []int{100, 300 << 10, 4 << 20} {
			for _, reads := range []int{0, 100, 200 << 10} {
				for _, then := range []string{"waits", "ends", "slams"} {
					e, done := NewEngines(), make(chan struct{})
					s := newEngine(t, network, func(c net.Conn, n int64) {
						if _, err := io.CopyN(io.Discard, c, int64(min(reads, size))); err != nil {
							return
						}
						io.WriteString(c, refusal)
						switch then {
						case "ends":
							c.(interface{ CloseWrite() error }).CloseWrite()
						case "slams":
							return
						}
						<-done
					})
					c := call(t, strings.Repeat("x", size), s.target)
					c.Limits.HeaderTimeout = 20
					began := time.Now()
					a, body := mustRead(t, e, c)
					if a.StatusCode != 413 || body != `{"e":413}` || time.Since(began) > 10*time.Second {
						t.Errorf("%d bytes, reads %d, %s: %d %s after %s", size, reads, then, a.StatusCode, body, time.Since(began))
					}
					eventually(t, "the body is let go", func() bool { return c.Body.uses.Load() == 1 })
					c.Body.Release()
					if n := kept(e); n > 0 && size > 1<<20 && network == "unix" { // TCP may hold all of it on its way
						t.Errorf("%d bytes, reads %d, %s: the connection is kept", size, reads, then)
					}
					close(done)
				}
			}
		}
	})
}

// kept is how many connections are kept.
func kept(e *Engines) (n int) {
	e.pool.mu.Lock()
	defer e.pool.mu.Unlock()
	for _, s := range e.pool.places {
		n += s.n
	}
	return n
}

// TestLargeBodies: a body that the socket does not take at once comes whole, and the connection serves on.
func TestLargeBodies(t *testing.T) {
	networks(t, func(t *testing.T, network string) {
		e := NewEngines()
		s := newEngine(t, network, func(c net.Conn, _ int64) {
			for r := bufio.NewReaderSize(c, 100); ; { // reads little at a time
				req, body := request(r)
				if req == nil {
					return
				}
				fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			}
		})
		for _, size := range []int{0, 1, 4000, 4 << 10, 100 << 10, 1 << 20, 5 << 20} {
			want := strings.Repeat("0123456789abcdef", size/16+1)[:size]
			c := call(t, want, s.target)
			if _, body := mustRead(t, e, c); body != want {
				t.Errorf("%d bytes came back as %d", size, len(body))
			}
			c.Body.Release()
		}
		if n := s.accepted.Load(); n > 4 { // after a large one it is chance whether its writer is seen to be done
			t.Errorf("%d connections", n)
		}
	})
}

// TestManyAtOnce: under load from all sides, with clients that leave at any time, everybody gets the answer to what he asked.
func TestManyAtOnce(t *testing.T) {
	networks(t, func(t *testing.T, network string) {
		e := NewEngines()
		s := newEngine(t, network, func(c net.Conn, n int64) {
			for r := bufio.NewReader(c); ; {
				req, body := request(r)
				if req == nil {
					return
				}
				if n%3 == 0 {
					fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body)
				} else {
					fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
				}
			}
		})
		var all sync.WaitGroup
		for worker := range 16 {
			all.Go(func() {
				for i := range 25 {
					ctx, leave := context.WithCancel(t.Context())
					c := call(t, strings.Repeat(fmt.Sprintf("%d-%d;", worker, i), 1+(worker*i*137)%30000), s.target)
					if i%5 == 4 {
						go leave()
					}
					a, err := e.Do(ctx, c)
					if err == nil {
						var body []byte
						if body, err = readAll(a); err == nil && string(body) != string(c.Body.Bytes()) {
							t.Errorf("worker %d got %.40q for %.40q", worker, body, c.Body.Bytes())
						}
						a.Close()
					}
					c.Body.Release()
					if f := new(Failure); err != nil && (i%5 != 4 || !errors.As(err, &f) || f.End != meter.ClientGone) {
						t.Errorf("worker %d: %v", worker, err)
					}
					leave()
				}
			})
		}
		all.Wait()
	})
}
