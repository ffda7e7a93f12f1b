package listener

import (
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// Budget bounds the connections of one http.Server: its ConnState is the server's. What is above a bound is closed as it
// comes, so a peer that has used up its part waits for nobody and makes nobody wait.
type Budget struct {
	Total   int                   // connections at a time; 0: no bound
	PerPeer int                   // of one peer; 0: no bound
	Peer    func(net.Conn) string // who is at the other end; empty: counted in Total alone
	// Refused is told of a connection that was closed, at most once in reportEvery: closed is how many there were since.
	Refused func(peer string, open, closed int)

	mu     sync.Mutex
	conns  map[net.Conn]string
	peers  map[string]int
	closed int
	told   time.Time
}

// reportEvery is the shortest time between two reports of refused connections.
const reportEvery = 10 * time.Second

// ConnState counts a connection of an http.Server from its begin to its end, or closes it.
func (b *Budget) ConnState(c net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		if peer, open, closed, ok := b.take(c); !ok {
			c.Close()
			if closed > 0 && b.Refused != nil {
				b.Refused(peer, open, closed)
			}
		}
	case http.StateClosed, http.StateHijacked:
		b.give(c)
	}
}

// take counts a connection. When that would be too many it counts none, and closed is not 0 when that has to be reported.
func (b *Budget) take(c net.Conn) (peer string, open, closed int, ok bool) {
	if b.Peer != nil {
		peer = b.Peer(c)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conns == nil {
		b.conns, b.peers = map[net.Conn]string{}, map[string]int{}
	}
	if b.PerPeer > 0 && peer != "" && b.peers[peer] >= b.PerPeer || b.Total > 0 && len(b.conns) >= b.Total {
		b.closed++
		if now := time.Now(); now.Sub(b.told) >= reportEvery {
			closed, b.closed, b.told = b.closed, 0, now
		}
		return peer, b.peers[peer], closed, false
	}
	b.conns[c] = peer
	if peer != "" {
		b.peers[peer]++
	}
	return peer, 0, 0, true
}

func (b *Budget) give(c net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	peer, counted := b.conns[c]
	if !counted {
		return
	}
	delete(b.conns, c)
	if peer == "" {
		return
	}
	if b.peers[peer]--; b.peers[peer] == 0 {
		delete(b.peers, peer)
	}
}

// Address is the address of a network connection's other end as peers are counted: an IPv4 address, or the /64 of an IPv6
// address, of which one host has all. It is empty for anything else.
func Address(c net.Conn) string {
	a, err := netip.ParseAddrPort(c.RemoteAddr().String())
	if err != nil {
		return ""
	}
	return prefixOf(a.Addr()).String()
}

// prefixOf is the part of an address that stands for one host.
func prefixOf(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := 32
	if a.Is6() {
		bits = 64
	}
	p, err := a.Prefix(bits)
	if err != nil { // the zero address: all that have none are one
		return netip.Prefix{}
	}
	return p
}
