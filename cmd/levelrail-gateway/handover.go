package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/caddyserver/certmagic"
	"go.uber.org/zap/exp/zapslog"

	"github.com/levelrail/levelrail/caddymodule/handover"
)

const (
	defaultState = "/var/lib/levelrail/gateway"
	drainSetting = "LEVELRAIL_DRAIN_TIME"
)

// joinHandovers makes this process one that takes the place of another and can be replaced, if it is a service with a
// state directory. Run by hand it is a Caddy like any other.
func joinHandovers() error {
	state := stateDirectory()
	if state == "" {
		return nil
	}
	drain := handover.DrainTime
	if text := os.Getenv(drainSetting); text != "" {
		var err error
		if drain, err = caddy.ParseDuration(text); err != nil || drain < 0 {
			return fmt.Errorf("%s=%q is not a time; write it like 10m or 1h", drainSetting, text)
		}
	}
	process, err := handover.Begin(state)
	if err != nil {
		return err
	}
	left, stopped := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(left, handover.LeaveSignal)
	signal.Notify(stopped, syscall.SIGTERM)
	go func() {
		waitServing()
		log := slog.New(zapslog.NewHandler(caddy.Log().Named("levelrail.handover").Core()))
		if err := process.Replaceable(); err != nil {
			log.Error("this process cannot be replaced while it answers", "error", err)
		}
		if process.Replaces() {
			if err := process.TakeOver(log); err != nil {
				log.Error("this gateway is not wanted and ends", "error", err)
				syscall.Kill(os.Getpid(), syscall.SIGTERM)
				return
			}
		}
		select {
		case <-left:
		case <-stopped: // Caddy ends the process
			if err := process.Stopping(); err != nil {
				log.Error("processes that still answer take this stop for a failure", "error", err)
			}
			return
		}
		process.Leave(drain, closeListeners, stopped, log)
		end()
	}()
	return nil
}

// stateDirectory is the one that systemd has made, or "".
func stateDirectory() string {
	dir, _, _ := strings.Cut(os.Getenv("STATE_DIRECTORY"), ":")
	return dir
}

// waitServing returns once Caddy has begun to serve its configuration, of which it tells nobody in the process. One that
// it cannot serve ends the process.
func waitServing() {
	for tick := time.Tick(5 * time.Millisecond); caddy.ActiveContext().Context == nil; {
		<-tick
	}
}

// closeListeners is what a reload does to the servers of the old configuration: they take no connection any more, those
// that wait for a request are closed, and answers go on. All else of the configuration stays, such as the link to the
// control plane.
func closeListeners() error {
	app, err := caddy.ActiveContext().AppIfConfigured("http")
	if errors.Is(err, caddy.ErrNotConfigured) {
		return nil
	} else if err != nil {
		return err
	}
	return app.(caddy.App).Stop()
}

// end is the end of a process that was replaced. Caddy's own would tell systemd that the service stops.
func end() {
	code := caddy.ExitCodeSuccess
	if err := caddy.Stop(); err != nil {
		caddy.Log().Error("the end is not in order: " + err.Error())
		code = caddy.ExitCodeFailedQuit
	}
	certmagic.CleanUpOwnLocks(context.Background(), caddy.Log())
	os.Exit(code)
}

// replaceCommand is `levelrail-gateway replace`.
func replaceCommand() caddycmd.Command {
	return caddycmd.Command{Name: "replace", Short: "Puts a new process in the place of the running gateway, without cutting a stream or refusing a connection",
		Long: "Starts a new gateway, waits until it serves, and lets the running one answer what it has begun. " +
			"It is what systemctl reload does by itself when the program or its environment has changed; this does it in any case.",
		Func: func(caddycmd.Flags) (int, error) {
			main, _ := strconv.Atoi(os.Getenv("MAINPID"))
			replace := byHand
			if main > 1 && stateDirectory() != "" {
				replace = func() error { return reload(main) }
			}
			if err := replace(); err != nil {
				// Not as an error of Caddy's, which would be a line of JSON.
				fmt.Fprintln(os.Stderr, "levelrail-gateway:", err)
				os.Exit(caddy.ExitCodeFailedStartup)
			}
			return caddy.ExitCodeSuccess, nil
		}}
}

// reload is what systemd runs, as a part of the service, to reload it.
func reload(main int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	h := handover.Helper{State: stateDirectory(), Main: main, Program: self, Args: []string{"run"}, Validate: []string{"validate"}}
	if err := h.Reload(); err != nil {
		return fmt.Errorf("%w\nnext: mend it, then systemctl reload levelrail-gateway", err)
	}
	return nil
}

// byHand asks systemd for it, which runs this program again as part of the service.
func byHand() error {
	if err := handover.Force(defaultState); err != nil {
		return fmt.Errorf("%w; run it as root on a machine with a gateway", err)
	}
	if out, err := exec.Command("systemctl", "reload", "levelrail-gateway.service").CombinedOutput(); err != nil {
		return fmt.Errorf("systemctl reload levelrail-gateway: %w: %s\nnext: journalctl -u levelrail-gateway", err, strings.TrimSpace(string(out)))
	}
	fmt.Println("a new process serves; the one before answers what it has begun")
	return nil
}
