package listener

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"
)

// TestOpenLater: a port that another program has is served as soon as that program is gone, by the same listener, and what
// it waits for is told once.
func TestOpenLater(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	addr := other.Addr()
	var mu sync.Mutex
	var told []error
	opened := make(chan struct{})
	l := Open(addr, func(ctx context.Context) (net.Listener, error) {
		return new(net.ListenConfig).Listen(ctx, "tcp", addr.String())
	}, func(err error) {
		mu.Lock()
		defer mu.Unlock()
		if told = append(told, err); err == nil {
			close(opened)
		}
	})
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "served") })}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	if l.Addr().String() != addr.String() {
		t.Errorf("it is at %s", l.Addr())
	}
	other.Close()
	select {
	case <-opened:
	case <-time.After(20 * time.Second):
		t.Fatal("not open after 20 s")
	}
	resp, err := http.Get("http://" + addr.String())
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); string(b) != "served" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	if mu.Lock(); len(told) != 2 || told[0] == nil || told[1] != nil {
		t.Errorf("told %v", told)
	}
	mu.Unlock()
	s.Close()
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("ended with %v", err)
	}
}

// TestOpenNever: closing ends the attempts and whoever waits for a connection.
func TestOpenNever(t *testing.T) {
	addr := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 7421}
	var ctx context.Context
	l := Open(addr, func(c context.Context) (net.Listener, error) { ctx = c; return nil, errors.New("no") }, func(error) {})
	if ctx.Err() != nil {
		t.Error("the first attempt has no time")
	}
	accepted := make(chan error, 1)
	go func() { _, err := l.Accept(); accepted <- err }()
	l.Close()
	select {
	case err := <-accepted:
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept ended with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("Accept goes on")
	}
}
