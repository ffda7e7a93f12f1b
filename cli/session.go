package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	ucli "github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// session is one run of a command: its streams, and how it speaks on them.
type session struct {
	ctx    context.Context
	stdin  io.Reader
	stdout *output
	stderr *output
	getenv func(string) string
	now    func() time.Time
	json   bool
	dial   func(getenv func(string) string) (API, error)
}

// output is a stream that knows whether it is a terminal, remembers its first error and counts what went out.
type output struct {
	w     io.Writer
	fd    int // of a terminal, -1 otherwise
	color bool
	wrote bool
	err   error
}

// Write passes on until the first error, then nothing more: who has left does not come back.
func (o *output) Write(b []byte) (int, error) {
	if o.err != nil {
		return 0, o.err
	}
	o.wrote = o.wrote || len(b) > 0
	n, err := o.w.Write(b)
	o.err = err
	return n, err
}

func (o *output) terminal() bool { return o.fd >= 0 }

// width is the terminal's columns, 80 when it does not say.
func (o *output) width() int {
	if ws, err := unix.IoctlGetWinsize(o.fd, unix.TIOCGWINSZ); err == nil && ws.Col > 0 {
		return int(ws.Col)
	}
	return 80
}

func newOutput(w io.Writer, getenv func(string) string) *output {
	o := &output{w: w, fd: -1}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) && getenv("TERM") != "dumb" {
		o.fd, o.color = int(f.Fd()), getenv("NO_COLOR") == ""
	}
	return o
}

func newSession(ctx context.Context, env Env) *session {
	return &session{
		ctx: ctx, stdin: env.Stdin, getenv: env.Getenv, now: env.Now, dial: env.Connect,
		stdout: newOutput(env.Stdout, env.Getenv), stderr: newOutput(env.Stderr, env.Getenv),
	}
}

// api is the road to the server.
func (s *session) api() (API, error) { return s.dial(s.getenv) }

// say writes a line of the answer.
func (s *session) say(format string, args ...any) { fmt.Fprintf(s.stdout, format+"\n", args...) }

// note writes a line of talk.
func (s *session) note(format string, args ...any) { fmt.Fprintf(s.stderr, format+"\n", args...) }

// document writes the answer of --json.
func (s *session) document(v any) error {
	enc := oneDocument(s.stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// oneDocument writes JSON as it reads best: & and < stay what they are.
func oneDocument(w io.Writer) *json.Encoder {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc
}

// items is how a list stands in JSON: never null.
func items[T any](list []T) wire.List[T] {
	if list == nil {
		list = []T{}
	}
	return wire.List[T]{Items: list}
}

// end tells of an error and returns the exit code. With --json the error is a document too: on stdout with the sentence
// for people on stderr, or, when stdout has its one document already, as the last line of stderr.
func (s *session) end(err error) int {
	if err == nil {
		err = s.stdout.err
	}
	if errors.Is(err, context.Canceled) && s.ctx.Err() != nil {
		err = errInterrupted
	}
	code := exitCode(err)
	if err == nil || code == exitInterrupted || code == exitPipe {
		return code
	}
	e := asError(err)
	if s.json && s.stdout.wrote {
		oneDocument(s.stderr).Encode(wire.ErrorBody{Error: e})
		return code
	}
	if s.json {
		s.document(wire.ErrorBody{Error: e})
	}
	s.note("levelrail: %s", plain(e.Message))
	if e.Next != "" {
		s.note("try: %s", plain(e.Next))
	}
	return code
}

// asError is an error as a kind, a sentence and a next step. What outer layers said stays in front of the sentence.
func asError(err error) levelrail.Error {
	var usage *usageError
	if errors.As(err, &usage) {
		return levelrail.Error{Kind: levelrail.ErrInvalid, Message: usage.message, Next: usage.help}
	}
	var e *levelrail.Error
	if !errors.As(err, &e) {
		return levelrail.Error{Kind: levelrail.ErrInternal, Message: err.Error()}
	}
	out := *e
	if before, ok := strings.CutSuffix(err.Error(), e.Error()); ok {
		out.Message = before + e.Message
	}
	return out
}

// given tells whether a flag stands on the command line.
func given(c *ucli.Context, name string) bool { return c.IsSet(name) }

// arg is the i-th argument, "" when there is none.
func arg(c *ucli.Context, i int) string { return c.Args().Get(i) }
