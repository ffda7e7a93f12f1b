package handover

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/levelrail/levelrail/beneath"
)

// startTime is how long a successor has until it serves. It is shorter than what systemd gives a reload.
const startTime = 45 * time.Second

// forceFile in the state directory asks the next reload for a successor whatever has changed.
const forceFile = ".replace"

// Force makes the next reload start a successor. Root does this, in the directory of the gateway's user.
func Force(state string) error { return beneath.Touch(state, forceFile) }

// Helper is what systemd runs to reload the gateway.
type Helper struct {
	State    string   // the service's state directory
	Main     int      // the service's main process
	Program  string   // the program to run, this one
	Args     []string // its arguments
	Validate []string // arguments that make the program check its configuration
}

// Reload makes the running gateway what it would be if it was started now. One that runs the same program in the same
// environment reads its configuration anew; otherwise a successor takes its place. An error leaves the running one as
// it was.
func (h Helper) Reload() error {
	main := strconv.Itoa(h.Main)
	environ, err := environOf(main)
	if err != nil {
		return fmt.Errorf("read what the running gateway was started with: %w", err)
	}
	forced := os.Remove(filepath.Join(h.State, forceFile)) == nil
	same := bytes.Equal([]byte(strings.Join(lasting(environ), "\x00")), []byte(strings.Join(lasting(os.Environ()), "\x00")))
	if same && !forced {
		if same, err = sameFile("/proc/"+main+"/exe", h.Program); err != nil {
			return fmt.Errorf("compare the running program with %s: %w", h.Program, err)
		}
	}
	if !same || forced {
		return h.replace(value(environ, "WATCHDOG_USEC"))
	}
	// The signal's effect is not waited for, so that a wrong configuration is told here and not only in the journal.
	if out, err := exec.Command(h.Program, h.Validate...).CombinedOutput(); err != nil {
		return fmt.Errorf("the configuration is not valid, so the running gateway keeps the one it has: %w\n%s", err, tail(out))
	}
	return unix.Kill(h.Main, unix.SIGUSR1)
}

// tail is the end of a program's output.
func tail(out []byte) []byte {
	if len(out) > 2000 {
		out = out[len(out)-2000:]
	}
	return bytes.TrimSpace(out)
}

// replace starts a successor and makes it the main process.
func (h Helper) replace(watchdog string) error {
	if _, ok := slotOf(h.State, h.Main); !ok {
		return fmt.Errorf("the running gateway, process %d, cannot be replaced while it answers; systemctl restart levelrail-gateway ends it first, with what is open then", h.Main)
	}
	readyR, readyW, err := os.Pipe()
	if err != nil {
		return err
	}
	defer readyR.Close()
	goR, goW, err := os.Pipe()
	if err != nil {
		return err
	}
	defer goW.Close() // without a byte in it this ends the successor
	pid, err := h.start(readyW, goR, watchdog)
	readyW.Close()
	goR.Close()
	if err != nil {
		return err
	}
	fail := func(why string) error {
		return fmt.Errorf("the new gateway, process %d, %s; the one before serves on as it was", pid, why)
	}
	readyR.SetReadDeadline(time.Now().Add(startTime))
	switch _, err := io.ReadFull(readyR, make([]byte, 1)); {
	case errors.Is(err, os.ErrDeadlineExceeded):
		unix.Kill(pid, unix.SIGKILL)
		return fail("did not serve within " + startTime.String() + " and was ended")
	case err != nil:
		return fail("ended before it served; its last words are above this line in the journal")
	}
	if err := tellMain(pid, watchdog); err != nil {
		return fail("could not be made the service's main process: " + err.Error())
	}
	if main := mainProcess(); main != 0 && main != pid {
		return fail(fmt.Sprintf("was not made the service's main process, which is %d; the unit needs NotifyAccess=exec and ExecReload=%s replace", main, h.Program))
	}
	if _, err := goW.Write([]byte{1}); err != nil {
		return fail("ended when it was to take over")
	}
	readyR.SetReadDeadline(time.Now().Add(startTime))
	io.Copy(io.Discard, readyR) // until it has taken over
	return nil
}

// mainProcess is the service's main process as systemd has it, or 0 where it cannot be asked, such as without D-Bus.
func mainProcess() int {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return 0
	}
	unit := filepath.Base(strings.TrimSpace(string(b)))
	if !strings.HasSuffix(unit, ".service") {
		return 0
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "systemctl", "show", "--property=MainPID", "--value", unit)
	cmd.Env = lasting(os.Environ()) // without NOTIFY_SOCKET, over which a systemctl that fails would tell systemd so
	out, err := cmd.Output()
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(out)))
	return pid
}

// start runs the successor as a child of process 1, as it would be if systemd had started it: a shell begins it and ends.
// It returns the successor's process id.
func (h Helper) start(ready, start *os.File, watchdog string) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", append([]string{"-c", `"$@" >&2 & echo $!`, "sh", h.Program}, h.Args...)...)
	cmd.Env = append(lasting(os.Environ()), envReplaces+"="+strconv.Itoa(h.Main), envNotify+"="+os.Getenv("NOTIFY_SOCKET"))
	for _, name := range []string{"INVOCATION_ID", "MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE"} {
		if v, ok := os.LookupEnv(name); ok {
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	if watchdog != "" {
		cmd.Env = append(cmd.Env, "WATCHDOG_USEC="+watchdog)
	}
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{ready, start}
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", h.Program, err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil || pid < 2 {
		return 0, fmt.Errorf("start %s: the shell named no process: %q", h.Program, out)
	}
	return pid, nil
}

// sameFile tells whether two files have the same content. A running program's file is there also after it was replaced.
func sameFile(a, b string) (bool, error) {
	fa, err := os.Open(a)
	if err != nil {
		return false, err
	}
	defer fa.Close()
	fb, err := os.Open(b)
	if err != nil {
		return false, err
	}
	defer fb.Close()
	ia, err := fa.Stat()
	if err != nil {
		return false, err
	}
	ib, err := fb.Stat()
	if err != nil {
		return false, err
	}
	if os.SameFile(ia, ib) {
		return true, nil
	}
	if ia.Size() != ib.Size() {
		return false, nil
	}
	bufA, bufB := make([]byte, 1<<18), make([]byte, 1<<18)
	for {
		n, err := io.ReadFull(fa, bufA)
		m, errB := io.ReadFull(fb, bufB)
		if n != m || !bytes.Equal(bufA[:n], bufB[:m]) {
			return false, nil
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return true, nil
		}
		if err := errors.Join(err, errB); err != nil && !errors.Is(err, fs.ErrClosed) {
			return false, err
		}
	}
}
