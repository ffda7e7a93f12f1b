package controlplane

import (
	"context"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// notify tells systemd lines such as READY=1. Without systemd it does nothing.
func notify(lines ...string) {
	daemon.SdNotify(false, strings.Join(lines, "\n")) // nobody listens outside systemd
}

// extendStart asks systemd for more time to start, until the context ends: a long log is read back at the disk's pace.
func extendStart(ctx context.Context) {
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			notify("EXTEND_TIMEOUT_USEC=30000000", "STATUS=reading the store")
		case <-ctx.Done():
			return
		}
	}
}

// watchdog tells systemd that the server lives, at half of the time that it allows, for as long as alive says so.
func watchdog(ctx context.Context, alive func() bool) {
	every, err := daemon.SdWatchdogEnabled(false)
	if err != nil || every == 0 {
		return
	}
	tick := time.NewTicker(every / 2)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if alive() {
				notify("WATCHDOG=1")
			}
		case <-ctx.Done():
			return
		}
	}
}
