// Package cli is the command line `levelrail`: it asks the server through package client and shows the answers.
//
// It owns the words of the commands, how answers look on a terminal and in a pipe, the progress that --wait shows, the
// exit codes and the texts that lead a newcomer to the next step. It promises: the answer goes to stdout and talk to
// stderr; with --json stdout is exactly one JSON document, be it the answer or the error (a followed log is one document
// a line); no colour without a terminal; a closed pipe ends it quietly; Ctrl-C ends the waiting and never the work. It
// decides nothing about models: what is allowed, and why a model is not ready, comes from the server's answers.
//
// One file holds one command and has one test, a script of commands and output in testdata. The tree of commands is the
// source of the help texts, of docs/reference/cli.md, of the man pages and of the completion scripts.
package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	ucli "github.com/urfave/cli/v2"

	"github.com/levelrail/levelrail"
)

// Env is everything that a run of the command line touches. Only Args, Stdout and Stderr are needed.
type Env struct {
	Args   []string // without the program's name
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	Getenv func(string) string // nil: nothing is set
	Now    func() time.Time    // nil: time.Now
	// Connect returns the road to the server; nil: Dial, by the environment's LEVELRAIL_ variables.
	Connect func(getenv func(string) string) (API, error)
}

// Main runs the command line with the process's own arguments and streams, and returns its exit code.
func Main() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	return Run(ctx, Env{Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv})
}

// Run runs one command and returns its exit code. When ctx ends, the command stops waiting and the code is 130.
func Run(ctx context.Context, env Env) int {
	if env.Getenv == nil {
		env.Getenv = func(string) string { return "" }
	}
	if env.Now == nil {
		env.Now = time.Now
	}
	if env.Connect == nil {
		env.Connect = Dial
	}
	s := newSession(ctx, env)
	return s.end(s.run(env.Args))
}

// run finds the command that the words name and runs it.
func (s *session) run(args []string) error {
	if len(args) > 0 && args[0] == completeWord {
		return s.complete(args[1:])
	}
	p, err := parse(tree(), args)
	s.json = p.json
	if err != nil { // a line that cannot be read to its end may still say how its error is wanted
		s.json = s.json || slices.Contains(args, "--json") || slices.Contains(args, "-json")
		return err
	}
	if p.help || p.verb == nil {
		return s.help(p)
	}
	app := &ucli.App{
		Name: "levelrail", Writer: s.stdout, ErrWriter: s.stderr,
		HideHelp: true, HideVersion: true, DisableSliceFlagSeparator: true,
		Commands:       commands(tree(), s),
		OnUsageError:   onUsageError,
		ExitErrHandler: func(*ucli.Context, error) {},
	}
	return app.RunContext(s.ctx, append([]string{"levelrail"}, p.words...))
}

// commands turns nouns and verbs into what urfave/cli runs.
func commands(n noun, s *session) []*ucli.Command {
	var out []*ucli.Command
	for _, v := range n.verbs {
		out = append(out, &ucli.Command{
			Name: v.name, Usage: v.usage, Flags: v.allFlags(), HideHelp: true, OnUsageError: onUsageError,
			Action: func(c *ucli.Context) error { return v.run(s, c) },
		})
	}
	for _, sub := range n.nouns {
		out = append(out, &ucli.Command{Name: sub.name, Usage: sub.usage, HideHelp: true, OnUsageError: onUsageError, Subcommands: commands(sub, s)})
	}
	return out
}

// onUsageError makes a flag's value that cannot be read a usage error.
func onUsageError(c *ucli.Context, err error, _ bool) error {
	return usagef(helpOf(c), "%s", flagError(err))
}

// errInterrupted ends a command that was told to stop; the code is 130.
var errInterrupted = errors.New("interrupted")

// Exit codes; docs/reference/cli.md explains them.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitRefused     = 4
	exitUnavailable = 5
	exitTimeout     = 6
	exitInterrupted = 130 // 128 + SIGINT, as shells have it
	exitPipe        = 141 // 128 + SIGPIPE: who read us has gone
)

// exitCode is the exit code of an error.
func exitCode(err error) int {
	var usage *usageError
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &usage):
		return exitUsage
	case errors.Is(err, errInterrupted):
		return exitInterrupted
	case errors.Is(err, syscall.EPIPE), errors.Is(err, io.ErrClosedPipe):
		return exitPipe
	}
	switch levelrail.KindOf(err) {
	case levelrail.ErrNotFound:
		return exitNotFound
	case levelrail.ErrInvalid, levelrail.ErrForbidden, levelrail.ErrConflict, levelrail.ErrRefused:
		return exitRefused
	case levelrail.ErrUnavailable:
		return exitUnavailable
	case levelrail.ErrTimeout:
		return exitTimeout
	}
	return exitFailed
}
