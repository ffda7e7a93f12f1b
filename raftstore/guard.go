package raftstore

import (
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"sync"
	"time"
)

// faults is where a failure that the process must not outlive is told, once. After it nothing is applied any more.
type faults struct {
	once  sync.Once
	tell  func(error)
	faced chan struct{} // closed by the first
	err   error
}

func newFaults(tell func(error)) *faults { return &faults{tell: tell, faced: make(chan struct{})} }

func (f *faults) fatal(err error) {
	f.once.Do(func() {
		f.err = err
		close(f.faced)
		f.tell(err)
	})
}

// failed returns the first failure, nil while there is none.
func (f *faults) failed() error {
	select {
	case <-f.faced:
		return f.err
	default:
		return nil
	}
}

// reading runs fn, which reads a mapped file, and makes an error of the panic or fault with which bbolt and the memory map
// answer a broken page.
func reading(what string, fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s cannot be read, its pages are damaged: %v", what, p)
		}
	}()
	return fn()
}

// watchdog looks after operations on the disk and the state. A disk that hangs would otherwise keep a leader that cannot
// write: its heartbeats come from elsewhere.
type watchdog struct {
	limit  time.Duration
	faults *faults
	log    *slog.Logger

	mu      sync.Mutex
	next    uint64
	running map[uint64]*operation
	stop    chan struct{}
	done    chan struct{}
}

type operation struct {
	what  string
	since time.Time
	slow  bool // has been told
}

const slowOperation = time.Second

func newWatchdog(limit time.Duration, f *faults, log *slog.Logger) *watchdog {
	w := &watchdog{limit: limit, faults: f, log: log, running: map[uint64]*operation{}, stop: make(chan struct{}), done: make(chan struct{})}
	go w.run()
	return w
}

// watch notes that an operation begins; the function returned says that it has ended.
func (w *watchdog) watch(what string) (end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next++
	id := w.next
	w.running[id] = &operation{what: what, since: time.Now()}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.running, id)
	}
}

func (w *watchdog) run() {
	defer close(w.done)
	tick := time.NewTicker(min(slowOperation, w.limit) / 2)
	defer tick.Stop()
	for {
		select {
		case <-w.stop:
			return
		case <-tick.C:
			if what, took := w.look(); what != "" {
				stacks := make([]byte, 1<<20)
				stacks = stacks[:runtime.Stack(stacks, true)]
				w.log.Error("an operation of the store hangs", "operation", what, "since", took, "stacks", string(stacks))
				w.faults.fatal(fmt.Errorf("%s has not ended for %s: the disk hangs or is far too slow", what, took.Round(time.Millisecond)))
				return
			}
		}
	}
}

// look tells of slow operations once, and returns one that takes longer than the limit.
func (w *watchdog) look() (string, time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, op := range w.running {
		took := time.Since(op.since)
		if took > w.limit {
			return op.what, took
		}
		if took > slowOperation && !op.slow {
			op.slow = true
			w.log.Warn("an operation of the store is slow", "operation", op.what, "since", took.Round(time.Millisecond))
		}
	}
	return "", 0
}

func (w *watchdog) close() {
	close(w.stop)
	<-w.done
}
