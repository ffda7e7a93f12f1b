package rig

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Process is a running program. Stop it.
type Process struct {
	Log  string // the file of what it prints
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// Options say how to start a program.
type Options struct {
	CPU int      // the core it is bound to, with GOMAXPROCS=1; negative: none
	Log string   // the file for what it prints
	Env []string // beside the environment
}

// Start starts a program. It is killed when this one dies.
func Start(o Options, program string, args ...string) (*Process, error) {
	log, err := os.OpenFile(o.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600) // appending: the file may be cut short meanwhile
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), o.Env...)
	home := filepath.Dir(o.Log) // Caddy puts what it keeps below it
	cmd.Env = append(cmd.Env, "HOME="+home, "XDG_DATA_HOME="+home, "XDG_CONFIG_HOME="+home, "JOURNAL_STREAM=", "NOTIFY_SOCKET=")
	p := &Process{Log: o.Log, cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// A child has the affinity of the thread that made it, and its death signal comes when that thread ends: so the
		// thread is kept for it, and never used for anything else.
		runtime.LockOSThread()
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if o.CPU >= 0 {
			cmd.Env = append(cmd.Env, "GOMAXPROCS=1")
			if err := Pin(o.CPU); err != nil {
				started <- err
				return
			}
		}
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	return p, nil
}

// Pin binds the calling thread to a core.
func Pin(cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("bind to core %d: %w", cpu, err)
	}
	return nil
}

// CPUs are the cores that this process may use.
func CPUs() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, err
	}
	var out []int
	for i := range 1024 {
		if set.IsSet(i) {
			out = append(out, i)
		}
	}
	return out, nil
}

// PID is the process's id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Stop ends the process: SIGTERM, and SIGKILL when it has not ended in the time given. It returns how it ended.
func (p *Process) Stop(patience time.Duration) error {
	p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
		return p.err
	case <-time.After(patience):
	}
	p.cmd.Process.Kill()
	<-p.done
	return fmt.Errorf("%s had to be killed: it did not end within %s of SIGTERM", p.cmd.Path, patience)
}

// Tail is the end of what the process has printed.
func (p *Process) Tail() string {
	b, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	if most := 8 << 10; len(b) > most {
		b = b[len(b)-most:]
	}
	return string(b)
}

// CPU is how long the process has run on a core, all its threads together, by the scheduler's own count. Where that is not
// to be had it is utime and stime, which come in steps of 10 ms.
func (p *Process) CPU() (time.Duration, error) {
	dir := fmt.Sprintf("/proc/%d", p.PID())
	tasks, err := filepath.Glob(dir + "/task/*/schedstat")
	if err != nil || len(tasks) == 0 {
		return p.ticks()
	}
	var sum time.Duration
	for _, task := range tasks {
		b, err := os.ReadFile(task)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // a thread that has just ended
		}
		if err != nil {
			return 0, err
		}
		first, _, _ := strings.Cut(string(b), " ")
		n, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s says %q", task, b)
		}
		sum += time.Duration(n)
	}
	return sum, nil
}

func (p *Process) ticks() (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat says %q", p.PID(), b)
	}
	user, err1 := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond, errors.Join(err1, err2)
}

// RSS is how many bytes of memory the process has resident.
func (p *Process) RSS() (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.PID()))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(b))
	if len(fields) < 2 {
		return 0, fmt.Errorf("/proc/%d/statm says %q", p.PID(), b)
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}
