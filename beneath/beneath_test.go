package beneath

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLinksAreNotFollowed: whatever is planted in a directory, nothing outside it is opened, made, cut short or connected to.
func TestLinksAreNotFollowed(t *testing.T) {
	outside, dir := t.TempDir(), t.TempDir()
	victim := filepath.Join(outside, "victim")
	if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(outside, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for name, to := range map[string]string{"file": victim, "dangling": filepath.Join(outside, "new"), "sub": outside, "socket": filepath.Join(outside, "s"), "within": "real"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "real"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(d)
	for _, name := range []string{"file", "dangling", "sub/victim", "within", "../" + filepath.Base(outside) + "/victim", "sub/../real", victim, ".."} {
		for _, flags := range []int{os.O_RDONLY, os.O_WRONLY | os.O_TRUNC, os.O_RDWR | os.O_CREATE, unix.O_PATH} {
			for how, open := range map[string]func(int, string, int, fs.FileMode) (int, error){"at once": resolve, "step by step": walk} {
				if fd, err := open(d, name, flags, 0o600); err == nil {
					unix.Close(fd)
					t.Errorf("%s was opened %s with %#x", name, how, flags)
				}
			}
		}
		for _, flags := range []int{os.O_RDONLY, os.O_WRONLY | os.O_TRUNC} {
			if f, err := Open(dir, name, flags, 0o600); err == nil {
				t.Errorf("%s was opened with %#x: %s", name, flags, f.Name())
			} else if !strings.Contains(err.Error(), filepath.Join(dir, name)) {
				t.Errorf("the error does not name the file: %v", err)
			}
		}
	}
	for _, name := range []string{"file", "dangling", "fresh", "fresh"} {
		if err := Touch(dir, name); err != nil {
			t.Errorf("touch %s: %v", name, err)
		}
	}
	if err := Touch(dir, "sub/new"); err == nil {
		t.Error("a file was made behind a link")
	}
	if c, err := Dial(t.Context(), dir, "socket"); err == nil {
		c.Close()
		t.Error("a link led to a socket outside")
	}
	if b, err := os.ReadFile(victim); err != nil || string(b) != "precious" {
		t.Errorf("the file outside holds %q, %v", b, err)
	}
	if names, _ := filepath.Glob(filepath.Join(outside, "new")); len(names) != 0 {
		t.Errorf("there is %v", names)
	}
	if info, err := os.Lstat(filepath.Join(dir, "fresh")); err != nil || info.Mode() != 0o600 {
		t.Errorf("the new file: %v, %v", info, err)
	}
}

// TestDial: a socket that is one is connected to, and an error names it.
func TestDial(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "chat"), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "chat/s")})
	if err != nil {
		t.Fatal(err)
	}
	c, err := Dial(t.Context(), dir, "chat/s")
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	l.SetUnlinkOnClose(false)
	l.Close()
	if _, err := Dial(t.Context(), dir, "chat/s"); !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), filepath.Join(dir, "chat/s")) {
		t.Errorf("nobody listens: %v", err)
	}
	if _, err := Dial(t.Context(), dir, "chat/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no socket: %v", err)
	}
}

// TestSteps: where the kernel cannot be asked at once, the same files are opened step by step.
func TestSteps(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "a/b"), 0o755); err != nil {
		t.Fatal(err)
	}
	d, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(d)
	for _, step := range []struct {
		name  string
		flags int
		fails error
	}{{"a/b/c", os.O_RDONLY, unix.ENOENT}, {"a/b/c", os.O_CREATE | os.O_EXCL | os.O_WRONLY, nil}, {"a/b/c", os.O_CREATE | os.O_EXCL | os.O_WRONLY, unix.EEXIST}, {"a/b/c", os.O_RDONLY, nil},
		{"a/b/c/d", os.O_RDONLY, unix.ENOTDIR}, {"a", unix.O_PATH, nil}} {
		fd, err := walk(d, step.name, step.flags, 0o640)
		if !errors.Is(err, step.fails) {
			t.Errorf("%s with %#x: %v", step.name, step.flags, err)
		}
		if err == nil {
			unix.Close(fd)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "a/b/c")); err != nil || info.Mode().Perm()&^0o640 != 0 {
		t.Errorf("%v, %v", info, err)
	}
}
