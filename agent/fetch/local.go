package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/levelrail/levelrail"
)

// Dirs are the directories below which a file of the node may be named as a model.
type Dirs []string

// Whoever may deploy a model names a file, and the agent, which is root, reads it for them. So:
//
//   - the path lies below one of the allowed directories, and no part of it below that directory is a symbolic link;
//   - what counts is the open file, not the name: its kind, size and beginning are those of the descriptor that is copied;
//   - it is looked at before it is opened for reading, since opening a pipe or a device does something;
//   - it begins as a GGUF file does, before anything of it is copied;
//   - where not every user of the machine could look, all that is wrong is told in the same words.
//
// opened is a file of the node that may be taken.
type opened struct {
	*os.File
	Local
}

// ggufMagic is how a GGUF file begins.
const ggufMagic = "GGUF"

// fileRetry is how soon a file of the node is looked for again: looking is cheap.
const fileRetry = levelrail.Duration(10 * time.Second)

func (d Dirs) String() string { return strings.Join(d, ", ") }

// Open opens a file of the node for copying.
func (d Dirs) Open(path string) (opened, error) {
	at, err := d.find(path)
	if err != nil {
		return opened{}, err
	}
	defer unix.Close(at.fd)
	// The same file, whatever its name leads to by now.
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", at.fd))
	if err != nil {
		return opened{}, at.refuse("cannot be read: "+plainError(err), "check the file and the disk that it is on")
	}
	o := opened{f, Local{Path: path, Bytes: at.st.Size, Modified: time.Unix(at.st.Mtim.Unix())}}
	if at.st.Mode&unix.S_IROTH == 0 {
		at.open = false // what is in it is not for everybody
	}
	if string(pread(f, len(ggufMagic))) != ggufMagic {
		f.Close()
		return opened{}, at.refuse("does not begin as a GGUF file does", "name a GGUF file; other formats are converted first (convert_hf_to_gguf.py of llama.cpp)")
	}
	return o, nil
}

// Stat is the file as it is now, without reading it; ok is false when it could not be taken.
func (d Dirs) Stat(path string) (l Local, ok bool) {
	at, err := d.find(path)
	if err != nil {
		return Local{}, false
	}
	defer unix.Close(at.fd)
	return Local{Path: path, Bytes: at.st.Size, Modified: time.Unix(at.st.Mtim.Unix())}, true
}

// found is where the way to a file ends.
type found struct {
	path string
	fd   int  // O_PATH
	open bool // every user of the machine could have come here
	st   unix.Stat_t
}

// refuse says what is wrong where everybody may know, else the one sentence that stands for all of it.
func (at found) refuse(what, next string) error {
	if !at.open {
		what = "cannot be taken: it is not there, or a symbolic link, or no GGUF file. The way there is closed to other users of the machine, so no more is told"
		next = "look at it as root: namei -l " + shellWord(at.path)
	}
	return &Failure{Reason: levelrail.DownloadFailed, Message: at.path + " on this node " + what, Next: next, RetryAfter: fileRetry}
}

// find walks to a file, one name after the other, and opens nothing on the way but directories.
func (d Dirs) find(path string) (found, error) {
	at := found{path: path, fd: -1, open: true}
	allowed := ""
	for _, dir := range d {
		if dir == "/" || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/") {
			allowed = max(allowed, strings.TrimSuffix(dir, "/")+"/") // of two the inner one, which is the longer
		}
	}
	if allowed == "" || !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return at, &Failure{Reason: levelrail.DownloadFailed, RetryAfter: fileRetry,
			Message: fmt.Sprintf("%s is not below a directory that models are taken from on this node (%s)", path, d),
			Next:    "move the file below one of them, or add its directory to APP_MODEL_IMPORT_DIRS in /etc/default/levelrail-agent and restart levelrail-agent"}
	}
	fd, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return at, fmt.Errorf("open /: %w", err)
	}
	names := strings.Split(strings.TrimPrefix(path, "/"), "/")
	walked := "/"
	for i, name := range names {
		walked += name
		flags := unix.O_PATH | unix.O_CLOEXEC
		if !strings.HasPrefix(allowed, walked+"/") { // the allowed directory itself may be a link: root has listed it
			flags |= unix.O_NOFOLLOW
		}
		next, err := unix.Openat(fd, name, flags, 0)
		unix.Close(fd)
		switch {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
			return at, at.refuse("is not there", "copy it there; it is found by itself")
		case err != nil:
			return at, at.refuse("cannot be looked at: "+plainError(err), "check the directory and the disk that it is on")
		}
		fd = next
		if err := unix.Fstat(fd, &at.st); err != nil {
			unix.Close(fd)
			return at, fmt.Errorf("look at %s: %w", walked, err)
		}
		last := i == len(names)-1
		switch kind := at.st.Mode & unix.S_IFMT; {
		case kind == unix.S_IFLNK:
			unix.Close(fd)
			return at, at.refuse("is reached over the symbolic link "+walked+", and links are not followed", "name the file itself: readlink -f "+shellWord(path)+" prints where it lies")
		case !last && kind != unix.S_IFDIR:
			unix.Close(fd)
			return at, at.refuse("is not there", "copy it there; it is found by itself")
		case last && kind != unix.S_IFREG:
			unix.Close(fd)
			return at, at.refuse("is not a file", "name the model's file itself, with levelrail models update --model")
		}
		if !last && at.st.Mode&unix.S_IXOTH == 0 {
			at.open = false
		}
		walked += "/"
	}
	at.fd = fd
	return at, nil
}

// plainError is an error without the path, which may be one of /proc.
func plainError(err error) string {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err.Error()
	}
	return err.Error()
}

// shellWord is a path for a command line that a person copies.
func shellWord(p string) string {
	for _, r := range p {
		if r <= ' ' || strings.ContainsRune(`'"\$&;|<>*?()[]{}!#~`+"`", r) {
			return "'" + strings.ReplaceAll(p, "'", `'\''`) + "'"
		}
	}
	return p
}

// Import copies files of the node into the store and puts the model's set in place. Their owner may change or remove them
// later, so the store never shares a file with them. The error is a *Failure, or ctx's.
func (s Store) Import(ctx context.Context, o Spec, dirs Dirs, tell func(levelrail.Progress)) error {
	if err := s.importFiles(ctx, o, dirs, tell); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return AsFailure(err)
	}
	return nil
}

func (s Store) importFiles(ctx context.Context, o Spec, dirs Dirs, tell func(levelrail.Progress)) error {
	plan, err := o.plan()
	if err != nil {
		return err
	}
	if err := s.prepare(); err != nil {
		return err
	}
	var total, done int64
	for _, f := range plan.Files { // all are looked at before the first is copied
		file, err := dirs.Open(f.Path)
		if err != nil {
			return err
		}
		file.Close()
		total += file.Bytes
	}
	dir, err := s.begin(o.Model)
	if err != nil {
		return err
	}
	m := o.manifest(plan)
	for i, f := range plan.Files {
		want := ""
		if i == 0 {
			want = o.Spec.SHA256
		}
		local, sum, err := s.copyIn(ctx, dirs, f.Path, want, func(p levelrail.Progress, _ int64) {
			p.DoneBytes += done
			p.TotalBytes = &total
			tell(p)
		})
		if err != nil {
			return errors.Join(err, os.RemoveAll(dir))
		}
		base := filepath.Base(f.Path)
		if err := s.link(sum, dir, base); err != nil {
			return errors.Join(err, os.RemoveAll(dir))
		}
		m.Files = append(m.Files, levelrail.WeightsFile{Path: base, SHA256: sum, Bytes: local.Bytes, Role: f.Role})
		m.Locals = append(m.Locals, local)
		done += local.Bytes
	}
	return s.finish(o.Model, m)
}

// copyIn brings one file of the node into the store and returns its checksum. tell gets the size of the file as well.
func (s Store) copyIn(ctx context.Context, dirs Dirs, path, want string, tell func(p levelrail.Progress, total int64)) (Local, string, error) {
	src, err := dirs.Open(path)
	if err != nil {
		return Local{}, "", err
	}
	defer src.Close()
	l := src.Local
	told := func(phase string) func(int64) {
		return func(n int64) {
			tell(levelrail.Progress{Phase: phase, DoneBytes: n, File: filepath.Base(path)}, l.Bytes)
		}
	}
	fail := func(what, next string) error {
		return &Failure{Reason: levelrail.DownloadFailed, Message: path + " " + what, Next: next, RetryAfter: fileRetry}
	}
	// Its checksum is not told: it is that of a file which is not taken.
	wrong := func() error {
		return fail("does not have the expected checksum "+want, "put the right file there, or give its checksum (sha256sum prints it) with levelrail models update")
	}
	k := key("", "file:"+path)
	unlock, err := s.lock(ctx, k, func() { told("copying")(0) })
	if err != nil {
		return l, "", err
	}
	defer unlock()
	read := func(err error) error { // what failed while copying
		if errors.Is(err, context.Canceled) || isFull(err) {
			return err
		}
		return fail("cannot be copied: "+plainError(err), "check the file and the disk that it is on")
	}
	// A file of the same size in the store may be this one: reading it costs less than storing it twice.
	if want == "" && s.hasSize(l.Bytes) || want != "" && s.has(want, l.Bytes) {
		h := newHash()
		if _, err := copyTo(ctx, h, src, told("verifying")); err != nil {
			return l, "", read(err)
		}
		if want != "" && h.hex() != want {
			return l, "", wrong()
		}
		if s.has(h.hex(), l.Bytes) {
			return l, h.hex(), nil
		}
		if _, err := src.Seek(0, io.SeekStart); err != nil {
			return l, "", read(err)
		}
	}
	if err := room(s.Dir, l.Bytes); err != nil {
		return l, "", err
	}
	partial := s.partial(k)
	defer os.Remove(partial)
	dst, err := os.OpenFile(partial, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return l, "", fmt.Errorf("copy into the store of weights: %w", err)
	}
	defer dst.Close()
	got, err := clone(ctx, dst, src.File, told("copying"))
	if err != nil {
		return l, "", read(err)
	}
	info, err := src.Stat()
	switch {
	case err != nil:
		return l, "", read(err)
	case info.Size() != l.Bytes || !info.ModTime().Equal(l.Modified):
		return l, "", fail("was changed while it was copied", "it is copied again by itself once it is finished")
	case want != "" && got != want:
		return l, "", wrong()
	case string(pread(dst, len(ggufMagic))) != ggufMagic:
		return l, "", fail("was changed while it was copied", "it is copied again by itself once it is finished")
	}
	if err := errors.Join(dst.Chmod(0o644), dst.Sync()); err != nil {
		return l, "", err
	}
	return l, got, s.keepOpen(dst, got, l.Bytes)
}

// clone copies an open file and returns the checksum of the copy. Where the file system can share blocks it costs no space.
func clone(ctx context.Context, dst, src *os.File, progress func(done int64)) (string, error) {
	h := newHash()
	if unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())) == nil {
		_, err := copyTo(ctx, h, dst, progress)
		return h.hex(), err
	}
	_, err := copyTo(ctx, io.MultiWriter(dst, h), src, progress)
	return h.hex(), err
}
