package listener

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

// peers gives each connection to a server a name, in turn.
type peers struct{ name atomic.Pointer[string] }

func (p *peers) of(net.Conn) string { return *p.name.Load() }
func (p *peers) are(name string)    { p.name.Store(&name) }

// TestBudget: one peer gets its part and no more, others are served meanwhile, nobody gets more than there is, and what is
// closed is free again.
func TestBudget(t *testing.T) {
	var who peers
	who.are("a")
	var closed atomic.Int64
	b := &Budget{Total: 5, PerPeer: 3, Peer: who.of, Refused: func(peer string, open, n int) { closed.Add(int64(n)) }}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}))
	s.Config.ConnState = b.ConnState
	s.Start()
	defer s.Close()
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(10 * time.Second))
		return c
	}
	served := func(c net.Conn) bool {
		t.Helper()
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		n, _ := c.Read(make([]byte, 1024))
		return n > 0
	}
	var of []net.Conn
	for range 3 {
		of = append(of, dial())
		if !served(of[len(of)-1]) {
			t.Fatal("a connection within the bound is not served")
		}
	}
	if served(dial()) {
		t.Error("one peer has more than its part")
	}
	if closed.Load() != 1 {
		t.Errorf("%d connections were reported", closed.Load())
	}
	who.are("b")
	for range 2 {
		if !served(dial()) {
			t.Error("another peer is not served")
		}
	}
	who.are("c")
	if served(dial()) {
		t.Error("there are more than all together may be")
	}
	of[0].Close()
	for deadline := time.Now().Add(10 * time.Second); !served(dial()); {
		if time.Now().After(deadline) {
			t.Fatal("what was closed is not free again")
		}
	}
}

// TestPeers: an IPv6 host is counted by its /64, and one address in two forms once.
func TestPeers(t *testing.T) {
	for _, c := range []struct{ address, peer string }{
		{"192.0.2.7:1234", "192.0.2.7/32"},
		{"[::ffff:192.0.2.7]:1234", "192.0.2.7/32"},
		{"[2001:db8:1:2:3:4:5:6]:1", "2001:db8:1:2::/64"},
		{"[2001:db8:1:2:ffff::1]:2", "2001:db8:1:2::/64"},
		{"[fe80::1%eth0]:2", "fe80::/64"},
		{"@", ""},
	} {
		if got := Address(addressed(c.address)); got != c.peer {
			t.Errorf("%s is counted as %q", c.address, got)
		}
	}
}

type text string

func (t text) Network() string { return "tcp" }
func (t text) String() string  { return string(t) }

func addressed(s string) net.Conn { return fake{at: text(s)} }

type fake struct {
	net.Conn
	at net.Addr
}

func (f fake) RemoteAddr() net.Addr { return f.at }
