// Package beneath is how a process with more rights opens what lies in a directory that another user may write: with
// openat2, following no link at any step, and nothing outside the directory. Whoever owns such a directory can put a link in
// the place of any name in it, at any moment, so a look before the opening is worth nothing.
//
// The directory itself is the caller's: its own path is followed as it is, so that an operator may have moved it. What a
// process opens in a directory that only root writes needs none of this.
package beneath

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Open opens the file name, a relative path, in the directory dir. flags are those of open(2). A link anywhere in name, and
// a name that leads out of dir, are errors.
func Open(dir, name string, flags int, mode fs.FileMode) (*os.File, error) {
	d, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(d)
	path := filepath.Join(dir, name)
	fd, err := resolve(d, name, flags, mode)
	if errors.Is(err, unix.ENOSYS) {
		fd, err = walk(d, name, flags, mode)
	}
	switch {
	case errors.Is(err, unix.ELOOP):
		return nil, &fs.PathError{Op: "open", Path: path, Err: errors.New("there is a symbolic link in the way, and it is not followed")}
	case err != nil:
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// resolve has the kernel keep to the directory.
func resolve(dir int, name string, flags int, mode fs.FileMode) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	if flags&unix.O_CREAT != 0 {
		how.Mode = uint64(mode.Perm())
	}
	for {
		fd, err := unix.Openat2(dir, name, &how)
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) { // EAGAIN: something was renamed meanwhile
			return fd, err
		}
	}
}

// walk is resolve in single steps, for units with RestrictSUIDSGID=: a filter of system calls cannot read what openat2 is asked
// for, so systemd takes the call away.
func walk(dir int, name string, flags int, mode fs.FileMode) (int, error) {
	if !filepath.IsLocal(name) || filepath.Clean(name) != name || name == "." {
		return -1, unix.EXDEV
	}
	at := dir
	defer func() {
		if at != dir {
			unix.Close(at)
		}
	}()
	for {
		step, rest, more := strings.Cut(name, "/")
		stepFlags, stepMode := unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, uint32(0)
		if !more {
			stepFlags, stepMode = flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, uint32(mode.Perm())
		}
		fd, err := openat(at, step, stepFlags, stepMode)
		if err != nil {
			return -1, err
		}
		// O_PATH opens a link itself.
		var s unix.Stat_t
		if err = unix.Fstat(fd, &s); err == nil && s.Mode&unix.S_IFMT == unix.S_IFLNK {
			err = unix.ELOOP
		}
		if err != nil {
			unix.Close(fd)
			return -1, err
		}
		if !more {
			return fd, nil
		}
		if at != dir {
			unix.Close(at)
		}
		at, name = fd, rest
	}
}

func openat(dir int, name string, flags int, mode uint32) (int, error) {
	for {
		if fd, err := unix.Openat(dir, name, flags, mode); !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// Touch makes an empty file of that name in the directory, for its owner alone. What is there already, a link for one, stays
// as it is and is neither opened nor changed.
func Touch(dir, name string) error {
	f, err := Open(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// Dial connects to the Unix socket name in the directory. A link in its place would lead the caller, with all its rights, to a
// socket of somebody else.
func Dial(ctx context.Context, dir, name string) (net.Conn, error) {
	f, err := Open(dir, name, unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", "/proc/self/fd/"+strconv.Itoa(int(f.Fd())))
	var op *net.OpError
	if errors.As(err, &op) {
		op.Addr = &net.UnixAddr{Name: filepath.Join(dir, name), Net: "unix"}
	}
	return c, err
}

// Owner tells whose the directory is when it is neither root's nor this process's: this process, having more rights, must
// then leave alone what lies in it, or become that user. It returns false for a directory that is not there.
func Owner(dir string) (uid, gid int, other bool, err error) {
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, 0, false, nil
	}
	if err != nil {
		return 0, 0, false, fmt.Errorf("see whose directory it is: %w", err)
	}
	s := info.Sys().(*syscall.Stat_t)
	uid, gid = int(s.Uid), int(s.Gid)
	return uid, gid, uid != 0 && uid != os.Geteuid(), nil
}
