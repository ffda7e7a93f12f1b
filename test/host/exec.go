package hosttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// An ExitError is a command in the host that ended with a status other than 0.
type ExitError struct {
	Status int    // exit status; 128 and the number for a signal
	Stderr string // what it said
}

func (e *ExitError) Error() string {
	return fmt.Sprintf("exit status %d: %s", e.Status, strings.TrimSpace(e.Stderr))
}

// environment of every command in a host: nothing of the test's own leaks in.
var environment = []string{
	"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	"HOME=/root", "USER=root", "LOGNAME=root", "SHELL=/bin/bash", "LANG=C.UTF-8", "TERM=dumb",
}

// command prepares argv to run inside the host, in a process group of its own.
func (h *Host) command(ctx context.Context, argv ...string) (*exec.Cmd, error) {
	pid := h.PID()
	if pid == 0 {
		return nil, errors.New("the host is off")
	}
	args := append([]string{"-t", strconv.Itoa(pid), "-m", "-u", "-i", "-n", "-p", "-C", "--"}, argv...)
	cmd := exec.CommandContext(ctx, "nsenter", args...)
	cmd.Env = environment
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 2 * time.Second
	return cmd, nil
}

// Exec runs a bash script in the host as root, with a clean environment and / as its directory. A status other than 0 is
// an *ExitError. It returns when the script has ended and its output is closed, so send the output of what it leaves in
// the background elsewhere.
func (h *Host) Exec(ctx context.Context, script string) (stdout, stderr string, err error) {
	return h.ExecInput(ctx, nil, script)
}

// ExecInput is Exec with something to read on standard input.
func (h *Host) ExecInput(ctx context.Context, stdin io.Reader, script string) (stdout, stderr string, err error) {
	cmd, err := h.command(ctx, "bash", "-c", "cd /\n"+script)
	if err != nil {
		return "", "", err
	}
	var out, errOut bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &errOut
	err = cmd.Run()
	if ctx.Err() != nil {
		err = fmt.Errorf("stopped: %w", ctx.Err())
	} else if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = &ExitError{status(exit.ProcessState), errOut.String()}
	}
	return out.String(), errOut.String(), err
}

// status gives a process's end as a shell would.
func status(state *os.ProcessState) int {
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return state.ExitCode()
}

// Run runs a bash script in the host and returns what it printed on standard output. The script stops at its first
// failing command, which fails the test with everything it printed. It may take two minutes.
func (h *Host) Run(script string) string {
	if h.tb != nil {
		h.tb.Helper()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	stdout, stderr, err := h.Exec(ctx, "set -euo pipefail\n"+script)
	if err != nil {
		h.fatalf("%s\nfailed: %v\nstdout:\n%s\nstderr:\n%s", script, err, stdout, stderr)
	}
	return stdout
}

// A Process is a program running in a host in the background.
type Process struct {
	Stdin          io.WriteCloser
	Stdout, Stderr io.Reader // read them, or the program may block on a full pipe

	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended and been waited for
}

// Start starts a program in the host. It ends with the host at the latest; use Wait or Kill before.
func (h *Host) Start(argv ...string) *Process {
	if h.tb != nil {
		h.tb.Helper()
	}
	p, err := h.spawn(argv)
	if err != nil {
		h.fatalf("start %s: %v", strings.Join(argv, " "), err)
	}
	return p
}

func (h *Host) spawn(argv []string) (*Process, error) {
	cmd, err := h.command(context.Background(), argv...)
	if err != nil {
		return nil, err
	}
	p := &Process{cmd: cmd, done: make(chan struct{})}
	if p.Stdin, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	// Pipes of our own: those of exec.Cmd are closed by Wait, which would lose what has not been read yet.
	outRead, outWrite, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	errRead, errWrite, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = outWrite, errWrite
	p.Stdout, p.Stderr = outRead, errRead
	err = cmd.Start()
	outWrite.Close()
	errWrite.Close()
	if err != nil {
		return nil, err
	}
	go func() {
		cmd.Wait() // its status is asked for by Wait below
		close(p.done)
	}()
	return p, nil
}

// Wait waits for the program's end and returns its exit status, 128 and the number for a signal.
func (p *Process) Wait() int {
	<-p.done
	return status(p.cmd.ProcessState)
}

// Signal sends a signal to the program itself.
func (p *Process) Signal(sig syscall.Signal) error {
	pid, err := p.inner()
	if err != nil {
		return err
	}
	return syscall.Kill(pid, sig)
}

// Kill ends the program and what it started in its process group. Wait still reports its status.
func (p *Process) Kill() { syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) }

// inner finds the program, which is the only child of nsenter: entering a process namespace takes a fork.
func (p *Process) inner() (int, error) {
	parent := strconv.Itoa(p.cmd.Process.Pid)
	deadline := time.Now().Add(5 * time.Second)
	for time.Now().Before(deadline) {
		stats, _ := filepath.Glob("/proc/[0-9]*/stat")
		for _, stat := range stats {
			data, err := os.ReadFile(stat)
			if err != nil {
				continue // it ended meanwhile
			}
			// "PID (NAME) STATE PPID …"; the name may hold anything, also brackets.
			fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
			if len(fields) > 1 && fields[1] == parent {
				return strconv.Atoi(filepath.Base(filepath.Dir(stat)))
			}
		}
		select {
		case <-p.done:
			return 0, errors.New("the program has ended")
		case <-time.After(5 * time.Millisecond):
		}
	}
	return 0, errors.New("the program did not start within 5 s")
}
