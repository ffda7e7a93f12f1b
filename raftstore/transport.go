package raftstore

import (
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/levelrail/levelrail"
)

// alone is the stream of a server that has no others: it listens nowhere and reaches nobody. Its address is the server's
// id, so that it is unlike any other server's.
type alone struct {
	id     string
	once   sync.Once
	closed chan struct{}
}

func newAlone(id string) *alone { return &alone{id: id, closed: make(chan struct{})} }

func (a *alone) Accept() (net.Conn, error) {
	<-a.closed
	return nil, net.ErrClosed
}

func (a *alone) Close() error {
	a.once.Do(func() { close(a.closed) })
	return nil
}

func (a *alone) Addr() net.Addr  { return a }
func (a *alone) Network() string { return "none" }
func (a *alone) String() string  { return a.id }

func (a *alone) Dial(address raft.ServerAddress, _ time.Duration) (net.Conn, error) {
	return nil, levelrail.Errorf(levelrail.ErrUnavailable, "the server %s cannot be reached: this server has no port for other servers", address)
}
