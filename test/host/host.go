// Package hosttest boots a real Debian host with systemd as process 1, in namespaces of its own, in about half a second.
//
// It owns the life of such hosts: the overlay on a cached clean root, boot, reboot, power cut, and a way in for commands,
// files and connections. It promises that nothing stays behind: no process, mount, cgroup or directory, also when the
// test process is killed (the kernel ends the host; the next Boot clears its directory). Hosts may run side by side, each
// has its own network with nothing but a loopback.
//
// A host has no kernel modules, no udev, a read-only /sys and read-only kernel sysctls. CPU and memory limits of units
// work only where this machine gives cgroup v2 those controllers.
//
// Package fixtures makes the roots, engines and weights. Stand-ins for the services that a host would meet on the
// Internet are in test/engines.
package hosttest

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/levelrail/levelrail/test/fixtures"
)

//go:embed boot.sh
var bootScript string

// A Host is one booted system. Its methods may be called from several goroutines, except Reboot, PowerCut and Close.
type Host struct {
	Suite Suite
	Name  string

	cfg   config
	lower string
	binds []bind
	dir   string   // upper, work, root, lock
	lock  *os.File // held as long as this host may use dir
	group string   // name of its cgroup at the top of the hierarchy
	tb    testing.TB

	mu      sync.Mutex
	process *process1 // nil while the host is off
}

// process1 is the systemd of one boot.
type process1 struct {
	pid  int
	done chan struct{} // closed when it has ended and been waited for
	err  error         // how it ended, valid after done
}

// New boots a host for a test. It waits until the boot is complete and fails the test when a unit of the clean root
// failed. When the test ends, the host is ended too, after printing the journal of Levelrail's units if the test failed.
func New(t testing.TB, suite Suite, opts ...Option) *Host {
	t.Helper()
	opts = append([]Option{WithLog(t.Logf)}, opts...)
	h, err := boot(context.Background(), t, suite, opts)
	if err != nil {
		t.Fatalf("boot %s: %v", suite, err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			h.printJournal()
		}
		if err := h.Close(); err != nil {
			t.Errorf("end host %s: %v", h.Name, err)
		}
	})
	return h
}

// Boot boots a host outside a test. The methods that would fail a test panic with a *Failure here; those that return an
// error do not. The caller ends the host with Close.
func Boot(ctx context.Context, suite Suite, opts ...Option) (*Host, error) {
	opts = append([]Option{WithLog(func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, format+"\n", args...)
	})}, opts...)
	return boot(ctx, nil, suite, opts)
}

// A Failure is what methods without an error result panic with when the host was not made by New.
type Failure struct{ Message string }

func (f *Failure) Error() string { return f.Message }

func (h *Host) fatalf(format string, args ...any) {
	if h.tb != nil {
		h.tb.Helper()
		h.tb.Fatalf("host %s: "+format, append([]any{h.Name}, args...)...)
	}
	panic(&Failure{fmt.Sprintf("host %s: "+format, append([]any{h.Name}, args...)...)})
}

func boot(ctx context.Context, tb testing.TB, suite Suite, opts []Option) (*Host, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("a test host needs root for its namespaces and mounts: run as root (sudo make test-host)")
	}
	cfg := config{name: string(suite), timeout: time.Minute}
	for _, opt := range opts {
		opt(&cfg)
	}
	if _, err := fixtures.Get(ctx, fixtures.Host); err != nil {
		return nil, err
	}
	lower, err := fixtures.Get(ctx, suite.root())
	if err != nil {
		return nil, err
	}
	h := &Host{Suite: suite, Name: cfg.name, cfg: cfg, lower: lower, tb: tb, binds: cfg.binds}
	for _, p := range cfg.pieces {
		dir, err := fixtures.Get(ctx, p.piece)
		if err != nil {
			return nil, err
		}
		h.binds = append(h.binds, bind{filepath.Join(dir, p.sub), p.target})
	}
	if err := h.makeDir(); err != nil {
		return nil, err
	}
	if err := h.prepare(); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	failed, err := h.start(ctx)
	if err == nil && len(failed) > 0 {
		err = fmt.Errorf("the clean root boots with failed units: %s\n%s", strings.Join(failed, " "), h.unitStatus(failed))
	}
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

// prepare writes what makes the clean root this host.
func (h *Host) prepare() error {
	files := append([]file{
		{"/etc/machine-id", []byte(newMachineID() + "\n"), 0o444},
		{"/etc/hostname", []byte(h.Name + "\n"), 0o644},
		{"/etc/hosts", []byte("127.0.0.1 localhost " + h.Name + "\n::1 localhost ip6-localhost ip6-loopback\n"), 0o644},
		// As on a machine that has been up before: a boot makes up for nothing that a package forgot to do (sysusers, …).
		{"/etc/.updated", nil, 0o644},
		{"/var/.updated", nil, 0o644},
	}, h.cfg.files...)
	for _, f := range files {
		path := filepath.Join(h.dir, "upper", f.path)
		if err := h.mkdirLikeLower(filepath.Dir(f.path)); err != nil {
			return err
		}
		if err := os.WriteFile(path, f.content, f.mode); err != nil {
			return fmt.Errorf("put %s into the host: %w", f.path, err)
		}
		if err := os.Chmod(path, f.mode); err != nil { // whatever the umask
			return fmt.Errorf("put %s into the host: %w", f.path, err)
		}
	}
	for _, unit := range quietUnits {
		if err := h.mkdirLikeLower("/etc/systemd/system"); err != nil {
			return err
		}
		if err := os.Symlink("/dev/null", filepath.Join(h.dir, "upper/etc/systemd/system", unit)); err != nil {
			return fmt.Errorf("mask %s in the host: %w", unit, err)
		}
	}
	return nil
}

// quietUnits are timers that would come in between: apt's holds its lock while a test installs packages.
var quietUnits = []string{"apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "fstrim.timer"}

// mkdirLikeLower makes dir and its parents in the upper directory, with the modes that the clean root gives them: in an
// overlay the upper directory's mode is the one seen.
func (h *Host) mkdirLikeLower(dir string) error {
	if dir == "/" || dir == "." {
		return nil
	}
	if err := h.mkdirLikeLower(filepath.Dir(dir)); err != nil {
		return err
	}
	mode := os.FileMode(0o755)
	var uid, gid int
	if info, err := os.Lstat(filepath.Join(h.lower, dir)); err == nil {
		if info.Mode()&os.ModeSymlink != 0 {
			return fmt.Errorf("put a file below %s: that is a symbolic link in the clean root; name its target", dir)
		}
		mode = info.Mode() & (os.ModePerm | os.ModeSetuid | os.ModeSetgid | os.ModeSticky)
		stat := info.Sys().(*syscall.Stat_t)
		uid, gid = int(stat.Uid), int(stat.Gid)
	}
	upper := filepath.Join(h.dir, "upper", dir)
	if err := os.Mkdir(upper, 0o755); errors.Is(err, os.ErrExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("make %s in the host: %w", dir, err)
	}
	return errors.Join(os.Chown(upper, uid, gid), os.Chmod(upper, mode))
}

// start boots on the host's directory and waits until systemd has finished, up to the boot timeout. It returns the units
// that failed.
func (h *Host) start(ctx context.Context) (failed []string, err error) {
	began := time.Now()
	log, err := os.OpenFile(filepath.Join(h.dir, "console"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	script := filepath.Join(h.dir, "boot.sh")
	if err := os.WriteFile(script, []byte(bootScript), 0o600); err != nil {
		return nil, err
	}
	args := []string{script, h.group, h.dir, h.lower, h.Name}
	for _, b := range h.binds {
		args = append(args, b.source, b.target)
	}
	cmd := exec.Command("bash", args...)
	cmd.Env = append(os.Environ(), "BOOT_SCRIPT="+script)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWNET,
		Setsid:     true,
		Pdeathsig:  syscall.SIGKILL, // the host does not outlive a killed test
	}
	p, err := startProcess1(cmd)
	if err != nil {
		return nil, fmt.Errorf("start the host's first process: %w", err)
	}
	h.mu.Lock()
	h.process = p
	h.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, h.cfg.timeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		state, _, _ := h.Exec(ctx, "systemctl is-system-running")
		state = strings.TrimSpace(state)
		if state == "running" || state == "degraded" {
			h.cfg.logf("host %s (%s) %s after %.2f s", h.Name, h.Suite, state, time.Since(began).Seconds())
			if state == "degraded" {
				failed = h.failedUnits(ctx)
			}
			return failed, nil
		}
		select {
		case <-p.done:
			return nil, fmt.Errorf("its first process ended at once: %v\n%s", p.err, h.console())
		case <-ctx.Done():
			jobs, _, _ := h.Exec(context.WithoutCancel(ctx), "systemctl list-jobs --no-pager 2>&1")
			return nil, fmt.Errorf("not up after %s (state %q): %w\n%s%s", h.cfg.timeout, state, ctx.Err(), jobs, h.console())
		case <-tick.C:
		}
	}
}

// startProcess1 starts cmd from a thread that lives as long as the process: the kernel sends Pdeathsig when the thread
// that made the process ends, not when the program does, and Go ends threads.
func startProcess1(cmd *exec.Cmd) (*process1, error) {
	p := &process1{done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if err == nil {
			p.pid = cmd.Process.Pid
		}
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	return p, <-started
}

// PID is the process id of the host's systemd as this machine sees it, 0 while the host is off.
func (h *Host) PID() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.process == nil {
		return 0
	}
	return h.process.pid
}

// console is what the boot script and systemd wrote outside the journal.
func (h *Host) console() string {
	data, _ := os.ReadFile(filepath.Join(h.dir, "console"))
	return string(data)
}

func (h *Host) failedUnits(ctx context.Context) []string {
	out, _, _ := h.Exec(ctx, "systemctl list-units --failed --plain --no-legend | cut -d' ' -f1")
	return strings.Fields(out)
}

func (h *Host) unitStatus(units []string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, _, _ := h.Exec(ctx, "systemctl status --no-pager --full -n 20 "+strings.Join(units, " ")+" 2>&1")
	return out
}
