package cli

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain lets the test's own program be levelrail, so that signals, pipes and terminals are met as in life.
func TestMain(m *testing.M) {
	if os.Getenv("LEVELRAIL_TEST_RUN") != "" {
		os.Exit(Main())
	}
	os.Exit(m.Run())
}

// program is the environment under which the test's own program is levelrail.
func program(t *testing.T) []string {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{"PATH=" + os.Getenv("PATH"), "TERM=xterm", "LEVELRAIL_TEST_RUN=1", "LEVELRAIL_TEST_PROGRAM=" + self}
}

func levelrailCommand(t *testing.T, f *fake, args ...string) *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(program(t), "LEVELRAIL_SOCKET="+f.socket)
	return cmd
}

// terminal is a pseudo-terminal of 100 columns and what was written to it.
type terminal struct {
	t      *testing.T
	master *os.File
	slave  *os.File
	mu     sync.Mutex
	out    bytes.Buffer
}

func newTerminal(t *testing.T) *terminal {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	fd := int(master.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetUint32(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 100}); err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	p := &terminal{t: t, master: master, slave: slave}
	t.Cleanup(func() { slave.Close(); master.Close() })
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			p.mu.Lock()
			p.out.Write(buf[:n])
			p.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return p
}

// start runs a command on the terminal.
func (p *terminal) start(cmd *exec.Cmd) {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = p.slave, p.slave, p.slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
}

func (p *terminal) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// await returns once the terminal shows a text.
func (p *terminal) await(want string) {
	p.t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if strings.Contains(p.text(), want) {
			return
		}
	}
	p.t.Fatalf("the terminal never showed %q, but\n%q", want, p.text())
}

func (p *terminal) typeIn(keys string) {
	if _, err := io.WriteString(p.master, keys); err != nil {
		p.t.Fatal(err)
	}
}

func codeOf(t *testing.T, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	exit, ok := err.(*exec.ExitError)
	if !ok {
		t.Fatal(err)
	}
	return exit.ExitCode()
}

func (f *fake) do(t *testing.T, command ...string) {
	(&script{t: t, fake: f}).fakeCommand(command)
}

// TestTerminalFollow: on a terminal deploy follows by itself, with a bar on one line and colours, and ends when the model serves.
func TestTerminalFollow(t *testing.T) {
	f, p := newFake(t), newTerminal(t)
	cmd := levelrailCommand(t, f, "models", "deploy", "--name", "chat", "--engine", "ollama", "--model", "llama3.1:8b")
	p.start(cmd)
	p.await("chat  Pending")
	f.do(t, "step", "chat", "downloading 536870912/1073741824")
	p.await("chat  Downloading [====================>                   ] 50%  512.0 MiB/1.0 GiB")
	f.do(t, "step", "chat", "Loading")
	p.await("\rchat  Loading  ")
	f.do(t, "step", "chat", "ready")
	p.await("chat is ready after")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if _, bar, _ := strings.Cut(p.text(), "chat  Pending"); strings.Count(bar, "\n") != 1 {
		t.Errorf("the bar takes more than its line: %q", bar)
	}

	list := levelrailCommand(t, f, "models", "list")
	p.start(list)
	p.await("\x1b[32mready\x1b[0m")
	list.Wait()
	plain := levelrailCommand(t, f, "models", "get", "chat")
	plain.Env = append(plain.Env, "NO_COLOR=1")
	before := len(p.text())
	p.start(plain)
	p.await("Logs: levelrail")
	plain.Wait()
	if after := p.text()[before:]; strings.Contains(after, "\x1b") {
		t.Errorf("colours in spite of NO_COLOR: %q", after)
	}
}

// TestTerminalInterrupt: Ctrl-C ends the following, says how to take it up again, and leaves the deployment alone.
func TestTerminalInterrupt(t *testing.T) {
	f, p := newFake(t), newTerminal(t)
	cmd := levelrailCommand(t, f, "models", "deploy", "--name", "chat", "--engine", "ollama", "--model", "llama3.1:8b")
	p.start(cmd)
	p.await("chat  Pending")
	p.typeIn("\x03")
	p.await("follow it with: levelrail models wait chat")
	if code := codeOf(t, cmd.Wait()); code != 130 {
		t.Errorf("exit code %d", code)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.models["chat"] == nil {
		t.Error("the deployment is gone")
	}
}

// TestTerminalDelete: what cannot be undone asks, takes anything but yes for no, and no answer for none.
func TestTerminalDelete(t *testing.T) {
	f, p := newFake(t), newTerminal(t)
	f.do(t, "model", "chat", "ready")
	for _, tc := range []struct {
		keys string
		code int
		says string
	}{{"\n", 4, "nothing was deleted"}, {"n\n", 4, "nothing was deleted"}, {"\x04", 4, "nothing was deleted"}, {"\x03", 130, "^C"}, {"y\n", 0, "is being deleted"}} {
		before := len(p.text())
		cmd := levelrailCommand(t, f, "models", "delete", "chat")
		p.start(cmd)
		for end := time.Now().Add(20 * time.Second); !strings.Contains(p.text()[before:], "[y/N] ") && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		}
		p.typeIn(tc.keys)
		if code := codeOf(t, cmd.Wait()); code != tc.code {
			t.Errorf("%q: exit code %d, want %d", tc.keys, code, tc.code)
		}
		p.await(tc.says)
	}
	f.mu.Lock()
	gone := f.models["chat"] == nil
	f.mu.Unlock()
	if !gone {
		t.Error("it is still there")
	}

	f.do(t, "model", "keyed", "ready")
	before := len(p.text())
	cmd := levelrailCommand(t, f, "models", "keys", "revoke", "keyed", "key_0002")
	p.start(cmd)
	p.await("Revoke the key key_0002 of keyed?")
	p.typeIn("n\n")
	if code := codeOf(t, cmd.Wait()); code != 4 || strings.Contains(p.text()[before:], "is revoked") {
		t.Errorf("exit code %d\n%s", code, p.text()[before:])
	}
}

// TestClosedPipe: a reader that leaves ends the program without a word.
func TestClosedPipe(t *testing.T) {
	f := newFake(t)
	f.do(t, "model", "chat", "ready")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	cmd := levelrailCommand(t, f, "models", "list")
	var talk bytes.Buffer
	cmd.Stdout, cmd.Stderr = w, &talk
	err = cmd.Run()
	w.Close()
	exit, ok := err.(*exec.ExitError)
	if !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGPIPE || talk.Len() > 0 {
		t.Errorf("ended with %v, saying %q", err, talk.String())
	}
}

// TestFullDisk: an answer that cannot be written is an error and not a success.
func TestFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	cmd := levelrailCommand(t, newFake(t), "status")
	var talk bytes.Buffer
	cmd.Stdout, cmd.Stderr = full, &talk
	if code := codeOf(t, cmd.Run()); code != 1 || !strings.Contains(talk.String(), "no space left") {
		t.Errorf("exit code %d, saying %q", code, talk.String())
	}
}

// TestNoPermission: who may not open the socket is told to join the group.
func TestNoPermission(t *testing.T) {
	f := newFake(t)
	if err := os.Chmod(f.socket, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := levelrailCommand(t, f, "models", "list", "--json")
	if os.Geteuid() == 0 {
		// The test's program lies where only root may go.
		self, err := os.ReadFile(cmd.Path)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
			os.Chmod(d, 0o755)
		}
		os.Chmod(filepath.Dir(f.socket), 0o755)
		cmd.Path = filepath.Join(dir, "levelrail")
		if err := os.WriteFile(cmd.Path, self, 0o755); err != nil {
			t.Fatal(err)
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		cmd.Dir = "/"
	} else if err := os.Chmod(f.socket, 0); err != nil {
		t.Fatal(err)
	}
	var answer, talk bytes.Buffer
	cmd.Stdout, cmd.Stderr = &answer, &talk
	code := codeOf(t, cmd.Run())
	if code != 4 || !strings.Contains(talk.String(), "sudo usermod -aG levelrail $USER") || jsonPath(answer.Bytes(), ".error.kind") != "forbidden" {
		t.Errorf("exit code %d\n%s\n%s", code, answer.String(), talk.String())
	}
}

// TestElsewhere: over TLS the server's authority has to be known, the token comes from a file, and neither is shown.
func TestElsewhere(t *testing.T) {
	f := newFake(t)
	tls := httptest.NewUnstartedServer(f.server.Config.Handler)
	tls.Config.ErrorLog = log.New(io.Discard, "", 0) // a client that does not trust it is what is tested
	tls.StartTLS()
	defer tls.Close()
	dir := t.TempDir()
	token, ca := filepath.Join(dir, "token"), filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(token, []byte("lrt-marker\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: tls.Certificate().Raw}), 0o644); err != nil {
		t.Fatal(err)
	}
	run := func(env ...string) (int, string) {
		cmd := levelrailCommand(t, f, "status")
		cmd.Env = append(program(t), env...)
		out, err := cmd.CombinedOutput()
		return codeOf(t, err), string(out)
	}
	if code, out := run("LEVELRAIL_URL="+tls.URL, "LEVELRAIL_TOKEN_FILE="+token, "LEVELRAIL_CA_FILE="+ca); code != 0 || !strings.Contains(out, "Gateways") {
		t.Errorf("with the CA file: exit code %d\n%s", code, out)
	}
	code, out := run("LEVELRAIL_URL="+tls.URL, "LEVELRAIL_TOKEN_FILE="+token)
	if code != 5 || !strings.Contains(out, "unknown authority") || !strings.Contains(out, "LEVELRAIL_CA_FILE") || strings.Contains(out, "marker") {
		t.Errorf("without it: exit code %d\n%s", code, out)
	}
}
