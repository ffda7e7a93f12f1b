package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/agent/fetch"
	"github.com/levelrail/levelrail/agent/gpu"
	"github.com/levelrail/levelrail/agent/journal"
	"github.com/levelrail/levelrail/agent/sdbus"
	"github.com/levelrail/levelrail/client"
)

const usage = `levelrail-agent looks after the engines, weights and GPUs of one machine.

Usage:
  levelrail-agent [run]        run the agent (systemctl start levelrail-agent)
  levelrail-agent fetch FILE   bring the weights that FILE describes; the agent starts this in a unit of its own
  levelrail-agent leave        forget the cluster that this node belongs to; the next one that it meets becomes its own
  levelrail-agent settings     list the settings of /etc/default/levelrail-agent as Markdown
  levelrail-agent version      print the version
`

// Main is the command levelrail-agent. It returns the exit status: 0 done, 1 failed, 2 for a command that it does not know.
func Main(args []string, stdout, stderr io.Writer) int {
	command := "run"
	if len(args) > 0 {
		command, args = args[0], args[1:]
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	slog.SetDefault(slog.New(slog.NewTextHandler(stderr, logOptions())))
	fail := func(err error) int {
		if err == nil || errors.Is(err, context.Canceled) && ctx.Err() != nil {
			return 0
		}
		fmt.Fprintln(stderr, "levelrail-agent:", err)
		return 1
	}
	switch {
	case command == "run" && len(args) == 0:
		return fail(run(ctx))
	case command == "fetch" && len(args) == 1:
		return fail(fetch.Main(ctx, args[0]))
	case command == "leave" && len(args) == 0:
		return fail(leave(DefaultPaths.State, stdout))
	case command == "settings" && len(args) == 0:
		fmt.Fprint(stdout, Reference())
	case command == "version" && len(args) == 0, command == "--version":
		fmt.Fprintln(stdout, "levelrail-agent", levelrail.Version)
	case command == "help", command == "-h", command == "--help":
		fmt.Fprint(stdout, usage)
	default:
		fmt.Fprint(stderr, usage)
		return 2
	}
	return 0
}

// logOptions leaves the time to the journal where the journal reads.
func logOptions() *slog.HandlerOptions {
	if os.Getenv("JOURNAL_STREAM") == "" {
		return nil
	}
	return &slog.HandlerOptions{ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}
}

// run runs the agent of this machine.
func run(ctx context.Context) error {
	var settings Settings
	if err := levelrail.LoadSettings(&settings, EnvironmentFile, os.Getenv, nil); err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the agent's own program: %w", err)
	}
	// After an upgrade under a running agent the kernel adds this; the new program lies under the old name.
	program = strings.TrimSuffix(program, " (deleted)")
	paths := DefaultPaths
	for _, dir := range []string{paths.Run, filepath.Join(paths.State, "applied")} { // systemd makes them; by hand they may be missing
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	server, err := client.New(client.Options{Socket: settings.Socket, UserAgent: "levelrail-agent/" + levelrail.Version})
	if err != nil {
		return err
	}
	defer server.Close()
	units := sdbus.New()
	defer units.Close()
	config := Config{
		Settings: settings, Paths: paths, Units: units, Journal: journal.Reader{}, GPUs: &gpu.Reader{}, ControlPlane: server,
		Program: program, Host: ReadHost("/etc/os-release"),
		Notify: func(state string) {
			if _, err := daemon.SdNotify(false, state); err != nil {
				slog.Warn("cannot tell the service manager", "error", err)
			}
		},
	}
	if interval, err := daemon.SdWatchdogEnabled(false); err != nil {
		return fmt.Errorf("read the watchdog's interval: %w", err)
	} else if interval > 0 {
		config.Watchdog = interval / 2
	}
	a, err := New(config)
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

// Reference is the page docs/reference/settings-agent.md.
func Reference() string {
	var b strings.Builder
	b.WriteString("# Settings of levelrail-agent\n\nSet in `" + EnvironmentFile + "`, then `systemctl restart levelrail-agent`: running engines are not touched. " +
		"This page is made by `levelrail-agent settings`.\n\n| name | default | meaning |\n|---|---|---|\n")
	for _, s := range levelrail.Settings(Settings{}) {
		value := "empty"
		if s.Default != "" {
			value = "`" + s.Default + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", s.Name, value, s.Doc)
	}
	return b.String()
}
