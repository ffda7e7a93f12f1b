package controlplane

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client"
	"github.com/levelrail/levelrail/client/wire"
)

// TestMain is the server's program when a test starts it as one.
func TestMain(m *testing.M) {
	if os.Getenv("LEVELRAIL_TEST_SERVER") != "" {
		if os.Getenv("LISTEN_FDS") != "" {
			os.Setenv("LISTEN_PID", strconv.Itoa(os.Getpid()))
		}
		if os.Getenv("WATCHDOG_USEC") != "" {
			os.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
		}
		os.Exit(run([]string{"run"}, os.Getenv, os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// process is the server as a process of its own, started as systemd would: with its sockets handed over by name, told
// where to notify, and watched.
type process struct {
	cmd    *exec.Cmd
	notify *net.UnixConn
	log    *safeBuffer
}

func startProcess(t *testing.T, state string, sockets map[string]*net.UnixListener) *process {
	t.Helper()
	path := filepath.Join(shortDir(t), "notify")
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { notify.Close() })
	p := &process{notify: notify, log: &safeBuffer{}, cmd: exec.Command(os.Args[0])}
	var names []string
	for name, l := range sockets {
		f, err := l.File()
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		names = append(names, name)
		p.cmd.ExtraFiles = append(p.cmd.ExtraFiles, f)
	}
	p.cmd.Env = append(os.Environ(), "LEVELRAIL_TEST_SERVER=1", "STATE_DIRECTORY="+state, "LEVELRAIL_RUNTIME_DIR="+filepath.Join(state, "unused"), "LEVELRAIL_LISTEN=127.0.0.1:0",
		"LISTEN_FDS="+strconv.Itoa(len(names)), "LISTEN_FDNAMES="+strings.Join(names, ":"), "NOTIFY_SOCKET="+path, "WATCHDOG_USEC=200000")
	p.cmd.Stderr = p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.cmd.Process.Kill(); p.cmd.Wait() })
	return p
}

// told waits until the process has told systemd something.
func (p *process) told(t *testing.T, what string) {
	t.Helper()
	p.notify.SetReadDeadline(time.Now().Add(10 * time.Second))
	buf := make([]byte, 4096)
	for {
		n, err := p.notify.Read(buf)
		if err != nil {
			t.Fatalf("%s was not told: %v\n%s", what, err, p.log)
		}
		if strings.Contains(string(buf[:n]), what) {
			return
		}
	}
}

// TestProcess: a server under systemd takes the sockets that it is given, says that it is ready, alive and stopping, and
// leaves the sockets to systemd. What it acknowledged is there after kill -9, and callers of the sockets wait for the next
// server instead of being refused.
func TestProcess(t *testing.T) {
	dir := shortDir(t)
	state := filepath.Join(dir, "state")
	sockets := map[string]*net.UnixListener{}
	for _, name := range []string{"agent", "api", "gateway"} {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, name+".sock"), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		sockets[name] = l
	}
	people, err := client.New(client.Options{Socket: filepath.Join(dir, "api.sock")})
	if err != nil {
		t.Fatal(err)
	}
	defer people.Close()
	p := startProcess(t, state, sockets)
	p.told(t, "READY=1")
	p.told(t, "WATCHDOG=1")
	if _, err := os.Stat(filepath.Join(state, "unused")); err == nil {
		t.Error("it made sockets of its own")
	}
	if info, err := os.Stat(filepath.Join(state, "master.key")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the master key is %v, %v", info, err)
	}
	made, err := people.Deploy(t.Context(), wire.Deploy{Name: "chat", Engine: "llamacpp", Model: smol})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.cmd.Wait()

	waiting := make(chan error, 1)
	go func() { // asked while no server runs
		keys, err := people.Keys(t.Context(), "chat")
		if err == nil && (len(keys) != 1 || keys[0].ID != made.Key.ID) {
			err = levelrail.Errorf(levelrail.ErrInternal, "the keys are %+v", keys)
		}
		waiting <- err
	}()
	p = startProcess(t, state, sockets)
	p.told(t, "READY=1")
	if err := <-waiting; err != nil {
		t.Errorf("after kill -9: %v", err)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.told(t, "STOPPING=1")
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("it ended with %v\n%s", err, p.log)
	}
	if _, err := os.Stat(filepath.Join(dir, "api.sock")); err != nil {
		t.Errorf("systemd's socket is gone: %v", err)
	}
}
