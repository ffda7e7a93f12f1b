package controlplane

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/controlplane/httpapi"
)

const usage = `levelrail-server is Levelrail's control plane. It is a system service: systemctl status levelrail-server

Usage:
  levelrail-server [run]       serve until told to stop
  levelrail-server restore …   put a backup in the place of the store; restore --help
  levelrail-server begin-anew  begin a new cluster where the store is gone; what is left of the old one is set aside
  levelrail-server rotate-master-key, rotate-authority
                               replace a key of this server; rotate-master-key --help
  levelrail-server version     print the version
  levelrail-server settings    print every setting with its default, as the reference page
  levelrail-server openapi     print the OpenAPI document of the API

Settings are environment variables, set in /etc/default/levelrail-server. See levelrail-server(8).
`

// Main is the program: it reads the command line and returns the exit status.
func Main() int { return run(os.Args[1:], os.Getenv, os.Stdin, os.Stdout, os.Stderr) }

func run(args []string, getenv func(string) string, stdin io.Reader, stdout, stderr io.Writer) int {
	command := "run"
	if len(args) > 0 {
		command = args[0]
	}
	if command == "restore" {
		return restoreCommand(args[1:], getenv, stdin, stdout, stderr)
	}
	if command == "rotate-master-key" || command == "rotate-authority" {
		return rotateMain(command, args[1:], getenv, stdout, stderr)
	}
	if len(args) > 1 {
		fmt.Fprintf(stderr, "levelrail-server: %s takes no arguments\n\n%s", command, usage)
		return 2
	}
	switch command {
	case "run":
		return serve(getenv, stderr)
	case "begin-anew":
		return beginAnew(getenv, stdout, stderr)
	case "version", "--version":
		fmt.Fprintln(stdout, "levelrail-server", levelrail.Version)
	case "settings":
		fmt.Fprint(stdout, SettingsReference())
	case "openapi":
		text, err := httpapi.OpenAPI()
		if err != nil {
			fmt.Fprintln(stderr, "levelrail-server:", err)
			return 1
		}
		stdout.Write(text)
	case "help", "-h", "--help":
		fmt.Fprint(stdout, usage)
	default:
		fmt.Fprintf(stderr, "levelrail-server: there is no command %q\n\n%s", command, usage)
		return 2
	}
	return 0
}

func serve(getenv func(string) string, stderr io.Writer) int {
	// Nothing that this process makes is for others, unless it says so.
	syscall.Umask(0o077)
	log := logger(getenv, stderr)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	s, err := New(Config{Getenv: getenv, Log: log})
	if err == nil {
		err = s.Run(ctx)
	}
	if err != nil {
		log.Error("the server ends", "error", err)
		notify("STATUS=" + firstLine(err.Error()))
		return 1
	}
	return 0
}

// logger writes text lines. The journal has the time already.
func logger(getenv func(string) string, w io.Writer) *slog.Logger {
	o := &slog.HandlerOptions{}
	if s, err := LoadSettings(getenv, nil); err == nil && s.Debug { // New tells of an error
		o.Level = slog.LevelDebug
	}
	if getenv("JOURNAL_STREAM") != "" {
		o.ReplaceAttr = func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}
	}
	return slog.New(slog.NewTextHandler(w, o))
}

func firstLine(s string) string {
	for i, r := range s {
		if r == '\n' {
			return s[:i]
		}
	}
	return s
}
