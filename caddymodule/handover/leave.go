package handover

import (
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// settleTime is how long a predecessor goes on as before. What was on its way to it arrives, and a client that keeps its
// connection hears with its next answer that it is to open another one. Without it, requests that come while the listeners
// close would be dropped. The package's tests have less time.
var settleTime = 5 * time.Second

// DrainTime is how long answers may go on after a handover.
const DrainTime = 10 * time.Minute

const (
	cutTime = time.Second // that connections that are cut have to be counted
	look    = 100 * time.Millisecond
)

var leaving atomic.Bool

// Leaving tells whether this process answers what it has begun only: each answer asks its client for a new connection.
func Leaving() bool { return leaving.Load() }

// Leave ends what this process does, after its successor has taken over: it returns when the last connection is closed, or
// was cut after the time that answers have. stop closes the listeners and lets answers go on. stopped is sent to when the
// service is being stopped; what is open then has the time that a stop gives, but where the successor has died it is in
// the way of the next start and is cut.
func (p *Process) Leave(most time.Duration, stop func() error, stopped <-chan os.Signal, log *slog.Logger) {
	leaving.Store(true)
	os.Unsetenv("NOTIFY_SOCKET") // systemd listens to the successor, and complains of others
	began, served := time.Now(), ports()
	log.Info("another process has taken over; this one answers what it has begun", "connections", len(connections(served)), "at_most", most.String())
	tick := time.NewTicker(look)
	defer tick.Stop()
	closed, stops := false, false
	for {
		select {
		case <-tick.C:
		case <-stopped:
			stops = true
		}
		if stops && leaderDied(p.slot.base) {
			most = 0
		}
		age := time.Since(began)
		if !closed && (age >= min(settleTime, most)) {
			closed = true
			if err := stop(); err != nil {
				log.Error("the listeners are not closed in order", "error", err)
			}
		}
		if closed && len(connections(served)) == 0 {
			log.Info("all that was begun is answered", "after", time.Since(began).Round(time.Second).String())
			return
		}
		if age >= most {
			break
		}
	}
	open := connections(served)
	log.Warn("answers that still go on are cut", "connections", len(open), "after", time.Since(began).Round(time.Second).String())
	for _, s := range open {
		unix.Shutdown(s.fd, unix.SHUT_RDWR) // what serves it sees that its client is gone, ends and is counted
	}
	for until := time.Now().Add(cutTime); len(held(served)) > 0 && time.Now().Before(until); {
		<-tick.C
	}
}
