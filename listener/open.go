package listener

import (
	"context"
	"net"
	"sync"
	"time"
)

// retryEvery is how often an address is tried that could not be opened.
const retryEvery = time.Second

// Open opens a listener, and when that fails returns one that goes on trying until it is closed. So an address that is not
// on this machine yet, or a port that another program still has, keeps one site waiting and not all of them. changed is told
// the error of the first attempt, then of each that fails in another way, and nil when the listener is open; it is not
// called when the first attempt succeeds. addr is what the listener says of itself until then.
func Open(addr net.Addr, open func(context.Context) (net.Listener, error), changed func(error)) net.Listener {
	l, err := open(context.Background())
	if err == nil {
		return l
	}
	changed(err)
	ctx, cancel := context.WithCancel(context.Background())
	w := &waiting{addr: addr, opened: make(chan struct{}), ctx: ctx, cancel: cancel}
	go w.try(open, changed, err.Error())
	return w
}

// waiting is a listener that is not open yet, and the open one after that.
type waiting struct {
	addr   net.Addr
	opened chan struct{} // closed when real is set
	ctx    context.Context
	cancel context.CancelFunc

	mu   sync.Mutex
	real net.Listener
}

func (w *waiting) try(open func(context.Context) (net.Listener, error), changed func(error), said string) {
	tick := time.NewTicker(retryEvery)
	defer tick.Stop()
	for {
		select {
		case <-w.ctx.Done():
			return
		case <-tick.C:
		}
		l, err := open(w.ctx)
		if err == nil {
			if w.set(l) {
				changed(nil)
			} else {
				l.Close()
			}
			return
		}
		if text := err.Error(); text != said && w.ctx.Err() == nil {
			said = text
			changed(err)
		}
	}
}

func (w *waiting) set(l net.Listener) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx.Err() != nil {
		return false
	}
	w.real = l
	close(w.opened)
	return true
}

// Accept waits until the listener is open, then for a connection.
func (w *waiting) Accept() (net.Conn, error) {
	select {
	case <-w.opened:
		return w.real.Accept()
	case <-w.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Close ends the attempts, or the open listener.
func (w *waiting) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cancel()
	if w.real != nil {
		return w.real.Close()
	}
	return nil
}

func (w *waiting) Addr() net.Addr {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.real != nil {
		return w.real.Addr()
	}
	return w.addr
}
