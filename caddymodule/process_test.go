package caddymodule

import (
	"bufio"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
)

// TestMain lets the test's own program be the gateway, for what only a process of its own can show.
func TestMain(m *testing.M) {
	if os.Getenv("LEVELRAIL_TEST_AS_GATEWAY") != "" {
		caddycmd.Main()
		return
	}
	os.Exit(m.Run())
}

// TestProcess: as a service the gateway says READY once it serves and WATCHDOG as often as it is asked to; a signal reloads
// without cutting a stream, and a broken file leaves the old configuration; SIGTERM ends it within the grace period, cuts
// what is still open, tells the engine, and leaves the table on disk.
func TestProcess(t *testing.T) {
	h := prepareHost(t, "grace_period 2s", "grace_period 500ms")
	config := filepath.Join(h.dir, "Caddyfile")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(h.caddyfile())
	said := newNotify(t, filepath.Join(h.dir, "notify.sock"))
	cmd := exec.Command(os.Args[0], "run", "--config", config, "--adapter", "levelrail")
	cmd.Env = append(os.Environ(), "LEVELRAIL_TEST_AS_GATEWAY=1", "NOTIFY_SOCKET="+said.path, "WATCHDOG_USEC=200000", "HOME="+h.dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer cmd.Process.Kill()

	h.eventually("READY", func() bool { return said.count("READY=1") == 1 })
	h.settled()
	h.eventually("the watchdog is fed again and again", func() bool { return said.count("WATCHDOG=1") >= 5 })

	s := newScript()
	h.engine.on(s.serve)
	resp, err := httpClient.Do(h.request("POST", chatPath, streamBody))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	r := bufio.NewReader(resp.Body)
	say := func(what string) {
		t.Helper()
		s.pieces <- what + "\n"
		if line, err := r.ReadString('\n'); err != nil || line != what+"\n" {
			t.Fatalf("%s: %q %v", what, line, err)
		}
	}
	say(": before")
	cmd.Process.Signal(syscall.SIGUSR1)
	h.eventually("the reload is over", func() bool { return said.count("READY=1") == 2 })
	say(": after a reload")
	write("nonsense {")
	cmd.Process.Signal(syscall.SIGUSR1)
	h.eventually("the broken file is refused", func() bool {
		return strings.Contains(h.log(), "reload") && strings.Contains(h.log(), `"level":"error"`)
	})
	say(": after a broken file")
	if resp, _ := h.do("GET", "/v1/models", ""); resp.StatusCode != 200 {
		t.Errorf("after a broken file: %d", resp.StatusCode)
	}

	began := time.Now()
	cmd.Process.Signal(syscall.SIGTERM)
	h.eventually("STOPPING", func() bool { return said.count("STOPPING=1") == 1 })
	say(": while it drains")
	if _, err := io.ReadAll(r); err == nil {
		t.Error("the stream that was cut ended cleanly")
	}
	h.engine.leftWithin(t, time.Second)
	select {
	case err := <-ended:
		if took := time.Since(began); err != nil || took > 5*time.Second {
			t.Errorf("ended with %v after %s", err, took)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the process did not end")
	}
	if b, err := os.ReadFile(h.tableFile()); err != nil || !strings.Contains(string(b), `"end"`) {
		t.Errorf("the table on disk: %v", err)
	}
}

// TestValidate: checking a configuration neither connects nor writes.
func TestValidate(t *testing.T) {
	h := prepareHost(t)
	config := filepath.Join(h.dir, "Caddyfile")
	for text, ok := range map[string]bool{h.caddyfile(): true, strings.Replace(h.caddyfile(), "levelrail {", "levelrail {\n\t\tnonsense 1", 1): false} {
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0], "validate", "--config", config, "--adapter", "levelrail")
		cmd.Env = append(os.Environ(), "LEVELRAIL_TEST_AS_GATEWAY=1", "HOME="+h.dir)
		if out, err := cmd.CombinedOutput(); (err == nil) != ok || !ok && !strings.Contains(string(out), "nonsense") {
			t.Errorf("valid %v: %v %s", ok, err, out)
		}
	}
	if w := h.cp.watched(); len(w) != 0 {
		t.Errorf("validate connected: %q", w)
	}
	if _, err := os.Stat(filepath.Join(h.dir, "state")); err == nil {
		t.Error("validate made the state directory")
	}
}

// notify is systemd's side of sd_notify.
type notify struct {
	path string
	mu   sync.Mutex
	said []string
}

func newNotify(t *testing.T, path string) *notify {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	n := &notify{path: path}
	go func() {
		buf := make([]byte, 4096)
		for {
			size, err := conn.Read(buf)
			if err != nil {
				return
			}
			n.mu.Lock()
			n.said = append(n.said, strings.Split(strings.TrimSpace(string(buf[:size])), "\n")...)
			n.mu.Unlock()
		}
	}()
	return n
}

func (n *notify) count(what string) (c int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.said {
		if s == what {
			c++
		}
	}
	return c
}
