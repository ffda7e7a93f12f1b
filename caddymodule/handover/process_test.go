package handover

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain lets the test's own program be a gateway and a helper.
func TestMain(m *testing.M) {
	settleTime = time.Second
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "serve":
			serve()
		case "broken":
			fmt.Fprintln(os.Stderr, "a configuration that is not valid")
			os.Exit(1)
		case "check":
			return
		}
		if os.Args[1] == "reload" {
			main, _ := strconv.Atoi(os.Getenv("MAINPID"))
			h := Helper{State: os.Getenv("STATE"), Main: main, Program: os.Args[0], Args: os.Args[2:3], Validate: os.Args[3:4]}
			if err := h.Reload(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			return
		}
	}
	os.Exit(m.Run())
}

// listen opens an address that others of this user may have open too.
func listen(addr string) (net.Listener, error) {
	c := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
	}}
	c.SetMultipathTCP(false)
	return c.Listen(context.Background(), "tcp", addr)
}

// serve is a gateway: to each connection it says its process id, then what it hears.
func serve() {
	p, err := Begin(os.Getenv("STATE"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	left, stopped := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(left, LeaveSignal)
	signal.Notify(stopped, syscall.SIGTERM)
	l, err := listen(os.Getenv("ADDR"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				fmt.Fprintln(c, os.Getpid())
				io.Copy(c, c)
			}()
		}
	}()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := p.Replaceable(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if p.Replaces() {
		if err := p.TakeOver(log); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	fmt.Println("serving", Directory(os.Getenv("STATE")))
	select {
	case <-left:
	case <-stopped:
		p.Stopping()
		os.Exit(0)
	}
	most, _ := time.ParseDuration(os.Getenv("MOST"))
	p.Leave(most, l.Close, stopped, log)
	os.Exit(0)
}

// rig is a service without a systemd.
type rig struct {
	t      *testing.T
	state  string
	addr   string
	notify string
	said   chan string
	env    []string
}

func newRig(t *testing.T, env ...string) *rig {
	l, err := listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	r := &rig{t: t, state: t.TempDir(), addr: addr, notify: filepath.Join(t.TempDir(), "notify"), said: make(chan string, 10)}
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: r.notify, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	go func() {
		for buf, oob := make([]byte, 4096), make([]byte, 4096); ; {
			n, m, _, _, err := c.ReadMsgUnix(buf, oob)
			if err != nil {
				return
			}
			if rights, err := unix.ParseSocketControlMessage(oob[:m]); err == nil {
				for _, r := range rights {
					fds, _ := unix.ParseUnixRights(&r)
					for _, fd := range fds {
						unix.Close(fd)
					}
				}
			}
			r.said <- string(buf[:n])
		}
	}()
	r.env = append(os.Environ(), append([]string{"STATE=" + r.state, "ADDR=" + addr, "NOTIFY_SOCKET=" + r.notify, "MOST=1m"}, env...)...)
	return r
}

// command is this program as something else. What it says on stderr is shown.
func (r *rig) command(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = r.env
	cmd.Stderr = r.t.Output()
	return cmd
}

// first starts the service. The returned channel is closed when it has ended.
func (r *rig) first() (cmd *exec.Cmd, ended chan struct{}) {
	r.t.Helper()
	cmd = r.command("serve")
	cmd.Env = append(cmd.Env, "WATCHDOG_USEC=30000000")
	out, err := cmd.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "serving "+r.state+"\n" {
		r.t.Fatalf("the first says %q, %v", line, err)
	}
	ended = make(chan struct{})
	go func() { cmd.Wait(); close(ended) }()
	r.t.Cleanup(func() { cmd.Process.Kill(); <-ended })
	return cmd, ended
}

// reload is what systemd does, and what its helper says.
func (r *rig) reload(main int, serve, check string) (string, error) {
	cmd := r.command("reload", serve, check)
	cmd.Env = append(cmd.Env, "MAINPID="+strconv.Itoa(main))
	f, err := os.Create(filepath.Join(r.t.TempDir(), "said")) // no pipe: the new process holds on to it
	if err != nil {
		return "", err
	}
	defer f.Close()
	cmd.Stdout, cmd.Stderr = f, f
	err = cmd.Run()
	out, _ := os.ReadFile(f.Name())
	return string(out), err
}

// ask opens a connection and returns it with the process that answers.
func (r *rig) ask() (net.Conn, int, error) {
	c, err := net.DialTimeout("tcp", r.addr, 5*time.Second)
	if err != nil {
		return nil, 0, err
	}
	c.SetReadDeadline(time.Now().Add(20 * time.Second))
	line, err := bufio.NewReader(io.LimitReader(c, 32)).ReadString('\n')
	if err != nil {
		c.Close()
		return nil, 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	return c, pid, err
}

func echo(c net.Conn, text string) error {
	if _, err := io.WriteString(c, text); err != nil {
		return err
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != text {
		return fmt.Errorf("%q, %v", got, err)
	}
	return nil
}

// end kills a process that is no child of this one, and waits until it has ended.
func end(t *testing.T, pid int) {
	unix.Kill(pid, unix.SIGKILL)
	gone(t, pid)
}

// gone waits until a process has ended.
func gone(t *testing.T, pid int) {
	t.Helper()
	for until := time.Now().Add(10 * time.Second); unix.Kill(pid, 0) == nil; {
		if b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); strings.Contains(string(b), ") Z ") {
			return // nobody waits for it here
		}
		if time.Now().After(until) {
			t.Errorf("process %d does not end", pid)
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// TestHandover: a new process takes the place of the old one. Nobody who connects meanwhile is refused, from then on each
// connection is the new one's, and one that was open before lives on and is all that the old process waits for.
func TestHandover(t *testing.T) {
	r := newRig(t, "X_SETTING=1")
	old, ended := r.first()
	kept, pid, err := r.ask()
	if err != nil || pid != old.Process.Pid {
		t.Fatalf("process %d answers, %v", pid, err)
	}
	defer kept.Close()

	var stop atomic.Bool
	var asked, newer atomic.Int64
	done := make(chan error, 1)
	t.Cleanup(func() { stop.Store(true) })
	go func() { // one after another, as fast as it goes
		var failed error
		for !stop.Load() && failed == nil {
			c, pid, err := r.ask()
			if failed = err; err == nil {
				c.Close()
				asked.Add(1)
				if pid != old.Process.Pid {
					newer.Add(1)
				}
			}
		}
		done <- failed
	}()

	r.env = append(r.env, "X_SETTING=2") // a reason to replace it
	out, err := r.reload(old.Process.Pid, "serve", "check")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	said := <-r.said
	after, ok := strings.CutPrefix(strings.SplitN(said, "\n", 2)[0], "MAINPID=")
	next, _ := strconv.Atoi(after)
	if !ok || !strings.Contains(said, "WATCHDOG_USEC=30000000") {
		t.Fatalf("systemd was told %q", said)
	}
	t.Cleanup(func() { end(t, next) })
	for range 200 {
		c, pid, err := r.ask()
		if err != nil || pid != next {
			t.Fatalf("after the handover process %d answers, %v; want %d", pid, err, next)
		}
		c.Close()
	}
	if err := echo(kept, "while the old one leaves"); err != nil {
		t.Error(err)
	}
	select { // its listeners are closed by then
	case <-ended:
		t.Error("the old process has ended, with a connection open")
	case <-time.After(settleTime + time.Second):
	}
	if err := echo(kept, "when the old one has left"); err != nil {
		t.Error(err)
	}
	kept.Close()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the old process does not end after its last connection")
	}
	stop.Store(true)
	if err := <-done; err != nil {
		t.Errorf("of %d that connected meanwhile the last was refused: %v", asked.Load(), err)
	}
	if newer.Load() == 0 {
		t.Error("nobody has met the new process")
	}
	t.Logf("%d connections meanwhile, %d of them to the new process", asked.Load(), newer.Load())

	// The same environment and program: nothing is replaced, and the process is asked to read its configuration anew.
	if out, err := r.reload(next, "serve", "broken"); err == nil || !strings.Contains(out, "not valid") {
		t.Errorf("a configuration that is not valid: %v %s", err, out)
	}
	if _, pid, err := r.ask(); err != nil || pid != next {
		t.Errorf("after that process %d answers, %v", pid, err)
	}
}

// TestHandoverThatFails: a new process that cannot serve changes nothing, and the helper says so.
func TestHandoverThatFails(t *testing.T) {
	r := newRig(t)
	old, _ := r.first()
	if err := Force(r.state); err != nil {
		t.Fatal(err)
	}
	out, err := r.reload(old.Process.Pid, "broken", "check")
	if err == nil || !strings.Contains(out, "serves on") || !strings.Contains(out, "a configuration that is not valid") {
		t.Errorf("the helper says %q, %v", out, err)
	}
	for range 20 {
		if c, pid, err := r.ask(); err != nil || pid != old.Process.Pid {
			t.Fatalf("process %d answers, %v", pid, err)
		} else {
			c.Close()
		}
	}
	if len(r.said) != 0 {
		t.Errorf("systemd was told %q", <-r.said)
	}
}

// TestLeaveInTime: a connection that stays open is cut when its time is over, and the process ends.
func TestLeaveInTime(t *testing.T) {
	r := newRig(t, "MOST=1s")
	old, ended := r.first()
	kept, _, err := r.ask()
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	old.Process.Signal(LeaveSignal)
	kept.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := kept.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection was not cut: %v", err)
	}
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the process does not end")
	}
}

// TestStop: when the service is stopped, a process that leaves has the time of a stop, although its successor has ended.
func TestStop(t *testing.T) {
	r := newRig(t)
	old, ended := r.first()
	kept, _, err := r.ask()
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	if err := Force(r.state); err != nil {
		t.Fatal(err)
	}
	if out, err := r.reload(old.Process.Pid, "serve", "check"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	next, _ := strconv.Atoi(strings.TrimPrefix(strings.SplitN(<-r.said, "\n", 2)[0], "MAINPID="))
	unix.Kill(next, unix.SIGTERM)
	gone(t, next)
	old.Process.Signal(syscall.SIGTERM)
	select {
	case <-ended:
		t.Error("the old process has ended with a connection open")
	case <-time.After(settleTime + 500*time.Millisecond):
	}
	if err := echo(kept, "while all stops"); err != nil {
		t.Error(err)
	}
	kept.Close()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the old process does not end")
	}
}

// TestSuccessorDies: where the new process is gone, the old one is in the way of the next start and ends when it is told to
// stop, whatever is open.
func TestSuccessorDies(t *testing.T) {
	r := newRig(t)
	old, ended := r.first()
	kept, _, err := r.ask()
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	if err := Force(r.state); err != nil {
		t.Fatal(err)
	}
	if out, err := r.reload(old.Process.Pid, "serve", "check"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	next, _ := strconv.Atoi(strings.TrimPrefix(strings.SplitN(<-r.said, "\n", 2)[0], "MAINPID="))
	if err := echo(kept, "while it leaves"); err != nil {
		t.Error(err)
	}
	end(t, next)
	old.Process.Signal(syscall.SIGTERM)
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the old process does not end")
	}
}
