package caddymodule

import (
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"go.uber.org/zap"
)

var watchdog sync.Once

// startWatchdog tells systemd, twice in each of its intervals, that this process still runs goroutines and timers. Caddy
// says READY, RELOADING and STOPPING itself and knows no watchdog. It goes on until the process ends, since draining may
// take longer than an interval. Without WatchdogSec= it does nothing.
func startWatchdog(log *zap.Logger) {
	watchdog.Do(func() {
		every, err := daemon.SdWatchdogEnabled(false)
		if err != nil {
			log.Warn("systemd's watchdog cannot be served", zap.Error(err))
			return
		}
		if every <= 0 {
			return
		}
		go func() {
			for range time.Tick(every / 2) {
				daemon.SdNotify(false, daemon.SdNotifyWatchdog) // one lost is made good by the next
			}
		}()
	})
}
