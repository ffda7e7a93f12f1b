package hosttest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain lets TestKilledTestLeavesNothing run this binary as a test that is killed.
func TestMain(m *testing.M) {
	if suite := os.Getenv("HOSTTEST_VICTIM"); suite != "" {
		h, err := Boot(context.Background(), Suite(suite))
		if err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		fmt.Println(h.PID(), h.dir)
		select {}
	}
	os.Exit(m.Run())
}

// TestHost: each Debian boots completely, and a host is what a machine is: it has its own network, runs units with dynamic
// users and credentials, and keeps its disk and journal over a reboot and a power cut.
func TestHost(t *testing.T) {
	for _, suite := range Suites {
		t.Run(string(suite), func(t *testing.T) {
			t.Parallel()
			h := New(t, suite, WithName("unit-"+string(suite)), WithFile("/etc/levelrail/keep", "kept\n", 0o640))
			t.Log(strings.TrimSpace(h.Run("head -1 /etc/issue; systemctl --version | head -1")))
			if state := strings.TrimSpace(h.Run("systemctl is-system-running")); state != "running" {
				t.Errorf("state %q", state)
			}
			if got := strings.TrimSpace(h.Run("hostname; stat -c %a:%U /etc/levelrail/keep; cat /etc/levelrail/keep")); got != "unit-"+string(suite)+"\n640:root\nkept" {
				t.Errorf("host name, mode and content: %q", got)
			}

			out := h.Run(`
mkdir -p /etc/levelrail && printf secret >/etc/levelrail/cred
systemd-run --quiet --wait --pipe -p DynamicUser=yes -p StateDirectory=probe -p LoadCredential=token:/etc/levelrail/cred \
  sh -c 'id -u; cat $CREDENTIALS_DIRECTORY/token; touch $STATE_DIRECTORY/mine && echo " state"'`)
			var uid int
			var rest string
			if _, err := fmt.Sscanf(out, "%d\n%s state", &uid, &rest); err != nil || uid < 61184 || rest != "secret" {
				t.Errorf("a unit with DynamicUser and LoadCredential printed %q", out)
			}

			id := h.Run("cat /etc/machine-id")
			h.Run("echo one >/var/lib/one; logger -t mark before-reboot")
			h.Reboot()
			if got := h.Run("cat /var/lib/one /etc/machine-id"); got != "one\n"+id {
				t.Errorf("after a reboot: %q, want one and machine id %q", got, id)
			}
			if j := h.Journal("-b", "-1", "-t", "mark"); !strings.Contains(j, "before-reboot") {
				t.Errorf("the journal of the boot before: %q", j)
			}
			h.Run("echo two >/var/lib/two; sync /var/lib/two; systemd-run --quiet --unit=forever sleep infinity")
			h.PowerCut()
			if _, _, err := h.Exec(t.Context(), "true"); err == nil {
				t.Error("a command ran in a host without power")
			}
			h.PowerOn()
			if got := h.Run("cat /var/lib/two"); got != "two\n" {
				t.Errorf("after a power cut: %q", got)
			}
			if u, err := h.Show(t.Context(), "forever.service"); err != nil || u.LoadState != "not-found" {
				t.Errorf("a transient unit after a power cut: %+v, %v", u, err)
			}
		})
	}
}

// TestNetworkIsTheHosts: connections and listeners made through the host are in its network and no other.
func TestNetworkIsTheHosts(t *testing.T) {
	h := New(t, Bookworm)
	l, err := h.Listen("tcp", "127.0.0.1:8099")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "from the test\n") })}
	go server.Serve(l)
	defer server.Close()
	if got := h.Run("curl -sS http://127.0.0.1:8099/"); got != "from the test\n" {
		t.Errorf("curl in the host got %q", got)
	}
	resp, err := h.HTTPClient().Get("http://localhost:8099/")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if c, err := net.Dial("tcp", "127.0.0.1:8099"); err == nil {
		c.Close()
		t.Error("the port is open on this machine too")
	}
	if _, err := h.Dial("tcp", "example.org:80"); err == nil || !strings.Contains(err.Error(), "no name server") {
		t.Errorf("a name was looked up: %v", err)
	}
	if _, err := h.Dial("tcp", "127.0.0.1:1"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a closed port: %v", err)
	}

	h.Run(`systemd-run --quiet --unit=echo -p StandardInput=null \
  systemd-socket-activate -l /run/echo.sock --inetd -a printf 'HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nunix\n'`)
	h.Eventually("the socket", 10*time.Second, func() error {
		resp, err := h.UnixClient("/run/echo.sock").Get("http://host/")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if body, err := io.ReadAll(resp.Body); string(body) != "unix\n" {
			return fmt.Errorf("%q %v", body, err)
		}
		return nil
	})
}

// TestCommandsAndFiles: exit statuses, signals, output, a clean environment, and files seen as the host sees them.
func TestCommandsAndFiles(t *testing.T) {
	t.Setenv("LEAK", "this must not be seen in a host")
	source := filepath.Join(t.TempDir(), "source")
	os.WriteFile(source, []byte("bound\n"), 0o644)
	h := New(t, Trixie, WithBind(source, "/srv/data/bound"))

	stdout, stderr, err := h.Exec(t.Context(), "echo out; echo err >&2; pwd; exit 7")
	exit, ok := errors.AsType[*ExitError](err)
	if stdout != "out\n/\n" || stderr != "err\n" || !ok || exit.Status != 7 {
		t.Errorf("Exec: %q, %q, %v", stdout, stderr, err)
	}
	if env := h.Run("env"); strings.Contains(env, "LEAK") || !strings.Contains(env, "HOME=/root") {
		t.Errorf("environment:\n%s", env)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, _, err := h.Exec(ctx, "exec -a endless sleep 1000"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a command past its time: %v", err)
	}
	if out := h.Run("pgrep -f ^endless || true"); out != "" {
		t.Errorf("it still runs: %s", out)
	}

	p := h.Start("bash", "-c", "trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.05; done")
	lines := bufio.NewReader(p.Stdout)
	if line, _ := lines.ReadString('\n'); line != "ready\n" {
		t.Fatalf("first line %q", line)
	}
	if err := p.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if line, _ := lines.ReadString('\n'); line != "caught\n" || p.Wait() != 5 {
		t.Errorf("after SIGINT: %q, status %d", line, p.Wait())
	}
	p = h.Start("cat")
	io.WriteString(p.Stdin, "through\n")
	p.Stdin.Close()
	if out, _ := io.ReadAll(p.Stdout); string(out) != "through\n" || p.Wait() != 0 {
		t.Errorf("cat: %q", out)
	}
	p = h.Start("sleep", "1000")
	p.Kill()
	if got := p.Wait(); got != 137 {
		t.Errorf("a killed program has status %d", got)
	}

	if err := h.WriteFile("/srv/file", []byte("in\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.Run("ln -s /srv/file /etc/link")
	if got, err := h.ReadFile("/etc/link"); err != nil || string(got) != "in\n" {
		t.Errorf("through an absolute link: %q, %v", got, err)
	}
	if got := h.Run("stat -c %a /srv/file; cat /srv/data/bound"); got != "600\nbound\n" {
		t.Errorf("mode and bound file: %q", got)
	}
	if _, _, err := h.Exec(t.Context(), "echo no >/srv/data/bound"); err == nil {
		t.Error("a bound file could be written")
	}
	if _, err := h.ReadFile("/srv/nothing"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	if got, err := os.ReadFile(h.Path("/srv/file")); err != nil || string(got) != "in\n" {
		t.Errorf("Path: %q, %v", got, err)
	}
}

// TestUnits: WaitActive waits for slow units, and says at once why a unit failed.
func TestUnits(t *testing.T) {
	h, err := Boot(t.Context(), Forky, WithLog(t.Logf))
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	h.Run(`systemd-run --quiet --no-block --unit=slow -p Type=exec -p ExecStartPre='sleep 0.5' sleep infinity
systemd-run --quiet --unit=bad -p Restart=no sh -c 'echo no such thing as luck; exit 3' || true`)
	before := h.WaitActive("slow.service")
	if before.MainPID == 0 || before.SubState != "running" {
		t.Errorf("slow.service: %+v", before)
	}
	h.Kill9(before.MainPID)
	h.Eventually("the end of slow.service", 5*time.Second, func() error {
		u, err := h.Show(t.Context(), "slow.service")
		if err == nil && (u.ActiveState != "failed" || u.Result != "signal" || u.ExecMainState != 9) {
			err = fmt.Errorf("%s %s %d", u.ActiveState, u.Result, u.ExecMainState)
		}
		return err
	})
	began := time.Now()
	failure := failureOf(func() { h.WaitActive("bad.service") })
	if failure == nil || !strings.Contains(failure.Message, "no such thing as luck") || time.Since(began) > 10*time.Second {
		t.Errorf("a failed unit, after %s: %v", time.Since(began), failure)
	}
	if failure := failureOf(func() { h.Run("echo seen; false; echo not seen") }); failure == nil ||
		!strings.Contains(failure.Message, "stdout:\nseen\n\n") && !strings.Contains(failure.Message, "stdout:\nseen\nstderr") {
		t.Errorf("a failed script: %v", failure)
	}
}

func failureOf(f func()) (failure *Failure) {
	defer func() { failure, _ = recover().(*Failure) }()
	f()
	return nil
}

// TestInstallDebs: packages from this machine are installed by apt without a network, and a failing one shows apt's words.
func TestInstallDebs(t *testing.T) {
	h, err := Boot(t.Context(), Bookworm, WithLog(t.Logf))
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	good := buildDeb(t, h, "probe", "systemd", "echo probe is set up")
	bad := buildDeb(t, h, "broken", "probe", "echo this cannot be; exit 1")
	if out := h.InstallDebs(good); !strings.Contains(out, "probe is set up") {
		t.Errorf("apt printed:\n%s", out)
	}
	if got := h.Run("cat /usr/share/probe; dpkg-query -W -f '${Status}' probe"); got != "probe\ninstall ok installed" {
		t.Errorf("after the installation: %q", got)
	}
	if f := failureOf(func() { h.InstallDebs(bad) }); f == nil || !strings.Contains(f.Message, "this cannot be") {
		t.Errorf("a package whose script fails: %v", f)
	}
	h.Apt("remove", "broken", "probe")
	if _, err := h.ReadFile("/usr/share/probe"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after the removal: %v", err)
	}
}

// buildDeb builds a package in the host and brings it out.
func buildDeb(t *testing.T, h *Host, name, depends, postinst string) string {
	h.Run(fmt.Sprintf(`
rm -rf /tmp/b && mkdir -p /tmp/b/DEBIAN /tmp/b/usr/share
echo %[1]s >/tmp/b/usr/share/%[1]s
printf 'Package: %[1]s\nVersion: 1\nArchitecture: all\nMaintainer: test <test@localhost>\nDescription: test\nDepends: %[2]s\n' >/tmp/b/DEBIAN/control
printf '#!/bin/sh\n%[3]s\n' >/tmp/b/DEBIAN/postinst
chmod 755 /tmp/b/DEBIAN/postinst
dpkg-deb --build /tmp/b /tmp/%[1]s.deb`, name, depends, postinst))
	data, err := h.ReadFile("/tmp/" + name + ".deb")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), name+".deb")
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestHostsAreApart: two hosts side by side share no ports, units, processes or cgroups.
func TestHostsAreApart(t *testing.T) {
	a, b := New(t, Bookworm, WithName("a")), New(t, Bookworm, WithName("b"))
	for _, h := range []*Host{a, b} {
		h.Run("systemd-run --quiet --unit=same systemd-socket-activate -l 127.0.0.1:80 --inetd -a echo " + h.Name)
	}
	for _, h := range []*Host{a, b} {
		h.WaitActive("same.service")
		h.Eventually("an answer on port 80", 5*time.Second, func() error {
			c, err := h.Dial("tcp", "127.0.0.1:80")
			if err != nil {
				return err
			}
			defer c.Close()
			if line, err := bufio.NewReader(c).ReadString('\n'); line != h.Name+"\n" {
				return fmt.Errorf("%q %v", line, err)
			}
			return nil
		})
	}
	a.Run("systemctl stop same.service")
	if u := b.WaitActive("same.service"); u.MainPID == 0 {
		t.Errorf("b's unit: %+v", u)
	}
	if a.Run("cat /etc/machine-id") == b.Run("cat /etc/machine-id") {
		t.Error("both have one machine id")
	}
}

// TestCloseLeavesNothing: no process, mount, cgroup or directory stays after Close.
func TestCloseLeavesNothing(t *testing.T) {
	h, err := Boot(t.Context(), Trixie, WithLog(t.Logf))
	if err != nil {
		t.Fatal(err)
	}
	h.Run("systemd-run --quiet --unit=forever -p DynamicUser=yes sleep infinity")
	dir, group, pid := h.dir, h.group, h.PID()
	p := h.Start("sleep", "infinity")
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	if got := p.Wait(); got == 0 {
		t.Errorf("a program in the host ended with status %d", got)
	}
	if err := h.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
	checkGone(t, pid, dir, group)
}

// TestKilledTestLeavesNothing: kill -9 of a test program ends its host at once, and the next boot clears its disk.
func TestKilledTestLeavesNothing(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "HOSTTEST_VICTIM="+string(Bookworm))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	var dir string
	line, _ := bufio.NewReader(out).ReadString('\n')
	if _, err := fmt.Sscan(line, &pid, &dir); err != nil {
		cmd.Process.Kill()
		t.Fatalf("the victim said %q", line)
	}
	cmd.Process.Kill()
	cmd.Wait()
	deadline := time.Now().Add(5 * time.Second)
	for processExists(pid) && time.Now().Before(deadline) {
		<-time.After(10 * time.Millisecond)
	}
	New(t, Bookworm) // sweeps
	checkGone(t, pid, dir, "levelrail-test-"+filepath.Base(dir))
}

func processExists(pid int) bool {
	_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
	return err == nil
}

func checkGone(t *testing.T, pid int, dir, group string) {
	t.Helper()
	if processExists(pid) {
		t.Errorf("process %d is still there", pid)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there: %v", dir, err)
	}
	// Every mount namespace of this machine, not only ours.
	tables, _ := filepath.Glob("/proc/[0-9]*/mountinfo")
	for _, table := range tables {
		if data, err := os.ReadFile(table); err == nil && strings.Contains(string(data), dir) {
			t.Errorf("%s still mounts %s", table, dir)
		}
	}
	mount := t.TempDir()
	script := `mount -t cgroup2 cgroup2 "$1" && ls "$1"`
	out, err := exec.Command("unshare", "--mount", "--propagation", "private", "--", "bash", "-c", script, "ls", mount).CombinedOutput()
	if err != nil || strings.Contains(string(out), group) {
		t.Errorf("cgroups at the top: %v\n%s", err, out)
	}
}
