package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/levelrail/levelrail/caddymodule/meter"
	"github.com/levelrail/levelrail/client/wire"
)

func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "lr") // short: a socket's path has 107 bytes at most
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

func serve(t *testing.T, socket string, h http.HandlerFunc) *http.Server {
	t.Helper()
	os.Remove(socket)
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return s
}

func call(t *testing.T, body string, targets ...wire.RouteTarget) Call {
	t.Helper()
	b, err := ReadBody(strings.NewReader(body), 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	return Call{Method: "POST", Path: "/v1/chat/completions", Header: http.Header{}, Type: "application/json", Body: b, Targets: targets, Limits: wire.Limits{DialTimeoutSeconds: 1}}
}

func at(socket string) wire.RouteTarget {
	return wire.RouteTarget{ID: filepath.Base(filepath.Dir(socket)), Network: "unix", Address: socket}
}

// readAll reads an answer's body as Send does.
func readAll(a *Answer) (all []byte, err error) {
	for {
		p, err := a.body.buffered(a.conn)
		all = append(all, p...)
		if err == nil {
			err = a.wait()
		}
		if err == io.EOF {
			return all, nil
		}
		if f, ok := err.(*Failure); ok {
			return all, f
		}
		if err != nil {
			return all, a.failed(err)
		}
	}
}

// TestStaleConnections: kept connections of an engine that was restarted cost no request an error, and no request is sent
// twice.
func TestStaleConnections(t *testing.T) {
	e := NewEngines()
	socket := socketPath(t)
	var served atomic.Int64
	handler := func(w http.ResponseWriter, r *http.Request) { served.Add(1); io.Copy(w, r.Body) }
	large := strings.Repeat("x", 100<<10)
	for round := range 20 {
		s := serve(t, socket, handler)
		const n = 8
		done := make(chan error, n)
		for range n { // several at once leave several connections
			c := call(t, large, at(socket))
			go func() {
				a, err := e.Do(context.Background(), c)
				if err == nil {
					_, err = readAll(a)
					a.Close()
				}
				c.Body.Release()
				done <- err
			}()
		}
		for range n {
			if err := <-done; err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
		}
		if got := served.Swap(0); got != n {
			t.Fatalf("round %d: the engine served %d requests, want %d", round, got, n)
		}
		s.Close()
	}
}

// TestTargets: a target that cannot be connected to is passed over; one that took the request is not.
func TestTargets(t *testing.T) {
	e := NewEngines()
	dead, drops, works := socketPath(t), socketPath(t), socketPath(t)
	serve(t, drops, func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) })
	serve(t, works, func(w http.ResponseWriter, r *http.Request) {})
	a, err := e.Do(t.Context(), call(t, "{}", at(dead), at(works)))
	if err != nil || a.StatusCode != 200 || a.Target.Address != works {
		t.Fatalf("%v", err)
	}
	a.Close()
	for name, c := range map[string]struct {
		targets []wire.RouteTarget
		end     meter.End
	}{
		"all dead":       {[]wire.RouteTarget{at(dead), at(dead)}, meter.DialFailed},
		"none":           {nil, meter.DialFailed},
		"took it":        {[]wire.RouteTarget{at(drops), at(works)}, meter.EngineGone},
		"not a network":  {[]wire.RouteTarget{{Network: "carrier-pigeon", Address: "x"}}, meter.DialFailed},
		"dead then took": {[]wire.RouteTarget{at(dead), at(drops), at(works)}, meter.EngineGone},
	} {
		_, err := e.Do(t.Context(), call(t, "{}", c.targets...))
		var f *Failure
		if !errors.As(err, &f) || f.End != c.end {
			t.Errorf("%s: %v, want %s", name, err, c.end)
		}
	}
}

// TestMovedTarget: a replica that has moved to another socket gets no request on a connection to the old one.
func TestMovedTarget(t *testing.T) {
	e := NewEngines()
	first, second := socketPath(t), socketPath(t)
	for _, s := range []string{first, second} {
		serve(t, s, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, s) })
	}
	for _, s := range []string{first, second, first} {
		target := at(s)
		target.ID = "chat"
		a, err := e.Do(t.Context(), call(t, "{}", target))
		if err != nil {
			t.Fatal(err)
		}
		if b, _ := readAll(a); string(b) != s {
			t.Errorf("a request to %s came to %s", s, b)
		}
		a.Close()
	}
}

// TestFullBacklog: an engine that takes no more connections is one that cannot be reached, soon, and not one that died.
func TestFullBacklog(t *testing.T) {
	socket := socketPath(t)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var held []net.Conn
	defer func() {
		for _, c := range held {
			c.Close()
		}
	}()
	for len(held) < 20000 { // as many as the listener, which accepts none, keeps waiting
		c, err := net.Dial("unix", socket)
		if errors.Is(err, syscall.EAGAIN) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
	}
	began := time.Now()
	c := call(t, "{}", at(socket))
	c.Limits.HeaderTimeout = 10
	_, err = NewEngines().Do(t.Context(), c)
	var f *Failure
	if !errors.As(err, &f) || f.End != meter.DialFailed || time.Since(began) > 5*time.Second {
		t.Errorf("%v after %s", err, time.Since(began))
	}
}
