package hosttest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Path returns a path of this machine that leads to path in the running host. A symbolic link with an absolute target on
// the way is followed in this machine, not in the host: ReadFile, WriteFile and Exec do better. It changes with a reboot.
func (h *Host) Path(path string) string {
	return filepath.Join("/proc", strconv.Itoa(h.PID()), "root", path)
}

// open opens a file as the host sees it, symbolic links included.
func (h *Host) open(path string, flags int, mode fs.FileMode) (*os.File, error) {
	if h.PID() == 0 {
		return nil, errors.New("the host is off")
	}
	root, err := unix.Open(h.Path("/"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the host's root: %w", err)
	}
	defer unix.Close(root)
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: unix.RESOLVE_IN_ROOT}
	if flags&unix.O_CREAT != 0 {
		how.Mode = uint64(mode.Perm())
	}
	for {
		fd, err := unix.Openat2(root, path, &how)
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		if err != nil {
			return nil, &fs.PathError{Op: "open in host " + h.Name, Path: path, Err: err}
		}
		return os.NewFile(uintptr(fd), path), nil
	}
}

// ReadFile reads a file of the running host.
func (h *Host) ReadFile(path string) ([]byte, error) {
	f, err := h.open(path, unix.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// WriteFile writes a file of the running host, owned by root. Its directory must exist; a file that is there keeps its
// owner and gets the mode.
func (h *Host) WriteFile(path string, content []byte, mode fs.FileMode) error {
	f, err := h.open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Chmod(mode), f.Close())
}

// CopyIn copies a file of this machine into the running host.
func (h *Host) CopyIn(source, target string, mode fs.FileMode) error {
	in, err := os.Open(source)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := h.open(target, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Chmod(mode), out.Close())
}
