package hosttest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Reboot shuts the host down cleanly and boots it again on the same disk. It fails the test when the host does not come
// back; units that fail at the new boot are logged, since a test may mean them to.
func (h *Host) Reboot() {
	if h.tb != nil {
		h.tb.Helper()
	}
	if err := h.PowerOff(); err != nil {
		h.fatalf("%v", err)
	}
	h.PowerOn()
}

// PowerOff shuts the host down cleanly and waits for its end, a minute and a half at most: systemd's own patience with a
// unit that does not stop.
func (h *Host) PowerOff() error {
	h.mu.Lock()
	p := h.process
	h.mu.Unlock()
	if p == nil {
		return errors.New("shut down: the host is off already")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Second)
	defer cancel()
	began := time.Now()
	_, errText, err := h.Exec(ctx, "systemctl poweroff")
	// The command may lose its connection, or its life, when the host is quick.
	select {
	case <-p.done:
	case <-ctx.Done():
		jobs, _, _ := h.Exec(context.Background(), "systemctl list-jobs --no-pager")
		return fmt.Errorf("the host did not shut down (systemctl poweroff: %v %s); jobs left:\n%s", err, errText, jobs)
	}
	h.setOff()
	h.cfg.logf("host %s shut down after %.2f s", h.Name, time.Since(began).Seconds())
	return nil
}

// PowerOn boots a host that is off, on the disk it had.
func (h *Host) PowerOn() {
	if h.tb != nil {
		h.tb.Helper()
	}
	if h.PID() != 0 {
		h.fatalf("boot: it is on already")
	}
	failed, err := h.start(context.Background())
	if err != nil {
		h.fatalf("boot again: %v", err)
	}
	if len(failed) > 0 {
		h.cfg.logf("host %s: failed units after this boot: %s", h.Name, strings.Join(failed, " "))
	}
}

// PowerCut ends the host as a pulled plug would: every process is gone at once and nothing is told. What programs had
// written stays, synced or not, since the kernel below lives on; PowerOn boots again.
func (h *Host) PowerCut() {
	h.mu.Lock()
	p := h.process
	h.mu.Unlock()
	if p == nil {
		return
	}
	syscall.Kill(p.pid, syscall.SIGKILL)
	<-p.done
	h.setOff()
}

func (h *Host) setOff() {
	h.mu.Lock()
	h.process = nil
	h.mu.Unlock()
}

// Close ends the host and deletes its disk. LEVELRAIL_TEST_KEEP=1 keeps the disk and says where it is.
func (h *Host) Close() error {
	h.PowerCut()
	if h.dir == "" {
		return nil
	}
	err := removeCgroup(h.dir, h.group)
	if os.Getenv("LEVELRAIL_TEST_KEEP") != "" {
		h.cfg.logf("host %s: its disk is kept in %s", h.Name, h.dir)
	} else {
		err = errors.Join(err, os.RemoveAll(h.dir))
	}
	h.lock.Close()
	h.dir = ""
	return err
}

func hostsDir() string {
	cache := os.Getenv("LEVELRAIL_TEST_CACHE")
	if cache == "" {
		cache = "/var/cache/levelrail-test"
	}
	return filepath.Join(cache, "hosts")
}

// makeDir makes the host's directory, locked for as long as this process holds it, and clears those whose process is gone.
func (h *Host) makeDir() error {
	base := hostsDir()
	if err := os.MkdirAll(base, 0o755); err != nil {
		return err
	}
	gate, err := lockFile(filepath.Join(base, ".lock"), syscall.LOCK_EX)
	if err != nil {
		return err
	}
	defer gate.Close()
	sweep(base)
	// Not below /tmp: it may be a tmpfs that is too small, and overlayfs wants a real file system for its upper layer.
	dir, err := os.MkdirTemp(base, string(h.Suite)+"-")
	if err != nil {
		return err
	}
	h.dir, h.group = dir, "levelrail-test-"+filepath.Base(dir)
	if h.lock, err = lockFile(filepath.Join(dir, "lock"), syscall.LOCK_EX); err != nil {
		return err
	}
	for _, sub := range []string{"upper", "work", "root", "cgroup"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			return err
		}
	}
	return os.Chmod(dir, 0o755)
}

// sweep deletes the directories of hosts whose test was killed: their locks are free.
func sweep(base string) {
	entries, _ := os.ReadDir(base)
	for _, e := range entries {
		dir := filepath.Join(base, e.Name())
		if !e.IsDir() {
			continue
		}
		lock, err := lockFile(filepath.Join(dir, "lock"), syscall.LOCK_EX|syscall.LOCK_NB)
		if err != nil {
			continue
		}
		if os.MkdirAll(filepath.Join(dir, "cgroup"), 0o755) == nil && removeCgroup(dir, "levelrail-test-"+e.Name()) == nil {
			os.RemoveAll(dir)
		}
		lock.Close()
	}
}

func lockFile(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), how)
		if err != syscall.EINTR {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// removeCgroup deletes the host's cgroups. The hierarchy is mounted for this in a namespace of its own, since not every
// machine shows it in the same place. The last processes may still be on their way out, so it tries for a few seconds.
func removeCgroup(dir, group string) error {
	script := `mount -t cgroup2 cgroup2 "$1/cgroup" || exit 1
for i in $(seq 100); do
  [ -d "$1/cgroup/$2" ] || exit 0
  find "$1/cgroup/$2" -depth -type d -exec rmdir {} + 2>/dev/null
  [ -d "$1/cgroup/$2" ] || exit 0
  sleep 0.05
done
echo "cgroup $2 still has processes: $(find "$1/cgroup/$2" -name cgroup.procs -exec cat {} + | tr '\n' ' ')"
exit 1`
	out, err := exec.Command("unshare", "--mount", "--propagation", "private", "--", "bash", "-c", script, "sweep", dir, group).CombinedOutput()
	if err != nil {
		return fmt.Errorf("delete the host's cgroup: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

func newMachineID() string {
	var id [16]byte
	rand.Read(id[:])
	return hex.EncodeToString(id[:])
}
