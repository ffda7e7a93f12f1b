package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/engine"
)

// Take checks what the ended fetch of an order left in its stage, moves it into the store and puts the model's set in
// place. The process that brought the files is not trusted, and it must have ended: systemd has then ended all that it
// started, and nobody can write what is checked here. Which files belong to the set is chosen anew; each is a regular file
// with one name, and has the checksum under which other models may find it. What is wrong is removed from the stage, and
// the error is a *Failure.
func (s Store) Take(ctx context.Context, o Spec, tell func(levelrail.Progress)) error {
	o.Stage = s.Stage(o.Model)
	err := s.take(ctx, o, tell)
	if err == nil {
		return sweep(o.Stage)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if plan, planErr := o.plan(); planErr == nil && plan.From == engine.FromEngine { // which of its files to blame, nobody can tell
		return errors.Join(said(err), sweep(o.Stage))
	}
	// The fetch is no longer finished: the next run goes on with what is left.
	return errors.Join(said(err), ignoreMissing(os.Remove(filepath.Join(o.Stage, resultName))), ignoreMissing(os.Remove(filepath.Join(o.Stage, StateName))))
}

// said is what people are told of files that could not be taken. Their names are the fetch's own, and end in a terminal.
func said(err error) *Failure {
	f := *AsFailure(err)
	f.Message, f.Next = printable(f.Message, 2000), printable(f.Next, 1000)
	return &f
}

func (s Store) take(ctx context.Context, o Spec, tell func(levelrail.Progress)) error {
	plan, err := o.plan()
	if err != nil {
		return err
	}
	res, err := readResult(o.Stage)
	if err != nil {
		return fmt.Errorf("take the fetched weights into the store: %w", err)
	}
	if res.Key != o.Key {
		return errors.New("take the fetched weights into the store: they are of another order")
	}
	dir, err := s.begin(o.Model)
	if err != nil {
		return err
	}
	m := o.manifest(plan)
	switch plan.From {
	case engine.FromHub:
		err = s.takeHub(ctx, o, plan, res, dir, &m, tell)
	case engine.FromEngine:
		err = s.takeEngine(ctx, o, dir, &m, tell)
	default:
		err = fmt.Errorf("weights from %q are no work for a fetch", plan.From)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	if err := s.keepIdentity(o, plan); err != nil {
		return err
	}
	return s.finish(o.Model, m)
}

func (o Spec) manifest(plan engine.WeightsPlan) Manifest {
	return Manifest{Engine: o.Engine, Source: o.Spec.Source, From: plan.From, Asked: o.Spec.SourceCommit, SHA256: o.Spec.SHA256,
		FetchedAt: time.Now().UTC().Truncate(time.Second)}
}

var commitName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)

func (s Store) takeHub(ctx context.Context, o Spec, plan engine.WeightsPlan, res result, dir string, m *Manifest, tell func(levelrail.Progress)) error {
	if !commitName.MatchString(res.Commit) {
		return fmt.Errorf("take the fetched weights into the store: %.80q is no commit", res.Commit)
	}
	for _, f := range res.Listing {
		if f.Bytes < 0 || f.SHA256 != "" && !hexSum.MatchString(f.SHA256) {
			return fmt.Errorf("take the fetched weights into the store: the listing of the repository has %.200q with %d bytes and the checksum %.80q", f.Path, f.Bytes, f.SHA256)
		}
	}
	chosen, err := plan.Choose(res.Listing)
	if err != nil {
		return err
	}
	var total, done int64
	for _, f := range chosen {
		total += f.Bytes
	}
	for _, f := range chosen {
		sum := f.SHA256
		if sum == "" || !s.has(sum, f.Bytes) {
			path := staged(o.Stage, plan, res.Commit, f)
			sum, err = s.move(ctx, o.Stage, strings.TrimPrefix(path, o.Stage+"/"), f.SHA256, f.Bytes, func(n int64) {
				tell(levelrail.Progress{Phase: "verifying", DoneBytes: done + n, TotalBytes: &total, File: f.Path})
			})
			if err != nil {
				return err
			}
		}
		if err := s.link(sum, dir, f.Path); err != nil {
			return err
		}
		m.Files = append(m.Files, levelrail.WeightsFile{Path: f.Path, SHA256: sum, Bytes: f.Bytes, Role: f.Role})
		done += f.Bytes
	}
	m.Listing, m.Commit = res.Listing, res.Commit
	return nil
}

// takeEngine takes the store that an engine's import made: content files that something names, each of the checksum that
// its name says, and the small files that name them.
func (s Store) takeEngine(ctx context.Context, o Spec, dir string, m *Manifest, tell func(levelrail.Progress)) error {
	made := filepath.Join(o.Stage, engineDir)
	root, err := os.OpenRoot(made)
	if err != nil {
		return fmt.Errorf("read the store that the engine made: %w", err)
	}
	defer root.Close()
	named := map[string]bool{}
	var content []string
	var others []levelrail.WeightsFile
	small := int64(0)
	err = walk(root, func(path string, e fs.DirEntry) error {
		switch {
		case e.IsDir() || !e.Type().IsRegular(): // a link is nobody's weights, and stays behind
			return nil
		case filepath.Dir(path) == "blobs":
			if contentName.MatchString(e.Name()) {
				content = append(content, path)
			}
			return nil
		}
		b, err := readStaged(made, path, min(mostManifest, mostSmall-small))
		if err != nil {
			return err
		}
		small += int64(len(b))
		for _, ref := range contentRef.FindAllString(string(b), -1) {
			named[strings.Replace(ref, ":", "-", 1)] = true
		}
		h := newHash()
		h.Write(b)
		to, err := place(dir, path)
		if err != nil {
			return err
		}
		others = append(others, levelrail.WeightsFile{Path: path, SHA256: h.hex(), Bytes: int64(len(b)), Role: levelrail.RoleManifest})
		return WriteFile(to, b, 0o644)
	})
	if err != nil {
		return fmt.Errorf("read the store that the engine made: %w", err)
	}
	slices.Sort(content)
	slices.SortFunc(others, func(a, b levelrail.WeightsFile) int { return strings.Compare(a.Path, b.Path) })
	largest := -1
	for _, path := range content {
		base := filepath.Base(path)
		if !named[base] {
			continue
		}
		sum := strings.TrimPrefix(base, "sha256-")
		info, err := root.Lstat(path)
		if err != nil {
			return err
		}
		if total := info.Size(); !s.has(sum, total) {
			if _, err := s.move(ctx, made, path, sum, total, func(n int64) {
				tell(levelrail.Progress{Phase: "verifying", DoneBytes: n, TotalBytes: &total})
			}); err != nil {
				return err
			}
		}
		if err := s.link(sum, dir, path); err != nil {
			return err
		}
		m.Files = append(m.Files, levelrail.WeightsFile{Path: path, SHA256: sum, Bytes: info.Size(), Role: levelrail.RoleConfig})
		if i := len(m.Files) - 1; largest < 0 || m.Files[i].Bytes > m.Files[largest].Bytes {
			largest = i
		}
	}
	if largest < 0 {
		return errors.New("read the store that the engine made: it holds no model")
	}
	m.Files[largest].Role = levelrail.RoleModel
	m.Files = append(m.Files, others...)
	m.Names, m.Tag = o.Names, o.tag()
	if o.Local != nil {
		m.Locals = []Local{*o.Local}
	}
	return nil
}

func (o Spec) tag() string {
	plan, err := o.plan()
	if err != nil {
		return ""
	}
	return plan.Tag
}

var hexSum = regexp.MustCompile(`^[0-9a-f]{64}$`)

// move takes a file of a stage into the store and returns its checksum. want is what it has to be; empty, whatever it is.
func (s Store) move(ctx context.Context, stage, name, want string, bytes int64, progress func(done int64)) (string, error) {
	wrong := func(what string) error {
		err := &Failure{Reason: levelrail.DownloadFailed, Message: fmt.Sprintf("a fetched file (%s) %s; it was removed", filepath.Base(name), what), Next: "it is fetched again by itself"}
		root, rootErr := os.OpenRoot(stage)
		if rootErr != nil {
			return errors.Join(err, rootErr)
		}
		defer root.Close()
		return errors.Join(err, removeStaged(root, name))
	}
	f, info, err := openStaged(stage, name)
	if err != nil {
		return "", wrong("cannot be taken into the store: " + plainError(err))
	}
	defer f.Close()
	if info.Size() != bytes {
		return "", wrong(fmt.Sprintf("has %d bytes instead of %d", info.Size(), bytes))
	}
	if n, err := links(f); err != nil || n != 1 {
		return "", errors.Join(err, wrong("has several names"))
	}
	// From here on it is root's, so that nobody can open it for writing any more; who had it open has ended.
	if err := errors.Join(own(f), f.Chmod(0o644)); err != nil {
		return "", fmt.Errorf("take a fetched file into the store: %w", err)
	}
	h := newHash()
	if _, err := copyTo(ctx, h, f, progress); err != nil {
		return "", fmt.Errorf("check a fetched file: %w", err)
	}
	got := h.hex()
	if want != "" && got != want {
		return "", wrong("is not what its source names: its checksum is another")
	}
	if err := f.Sync(); err != nil {
		return "", err
	}
	return got, s.keepOpen(f, got, bytes)
}

// own makes a file this process's user's.
func own(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	if int(st.Uid) == os.Geteuid() && int(st.Gid) == os.Getegid() {
		return nil
	}
	return f.Chown(os.Geteuid(), os.Getegid())
}

// keepOpen gives an open, verified file its name in the store: this file, whatever its name leads to by now.
func (s Store) keepOpen(f *os.File, sum string, bytes int64) error {
	from, to := fmt.Sprintf("/proc/self/fd/%d", f.Fd()), s.blob(sum)
	err := unix.Linkat(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.AT_SYMLINK_FOLLOW)
	if errors.Is(err, unix.EEXIST) {
		if s.has(sum, bytes) { // another fetch brought the same, and sets are linked to it
			return nil
		}
		tmp := to + ".new" // what stands there was cut short
		if err = ignoreMissing(os.Remove(tmp)); err == nil {
			if err = unix.Linkat(unix.AT_FDCWD, from, unix.AT_FDCWD, tmp, unix.AT_SYMLINK_FOLLOW); err == nil {
				err = os.Rename(tmp, to)
			}
		}
	}
	if err != nil {
		return fmt.Errorf("keep a file in the store of weights: %w", err)
	}
	return syncDir(s.blobs())
}

// place makes the directories for a file of a set and returns its path. A name that leads out of the set, hides there, or
// cannot be printed is refused.
func place(dir, path string) (string, error) {
	bad := !filepath.IsLocal(path) || strings.HasPrefix(filepath.Base(path), ".levelrail") || !utf8.ValidString(path) || strings.ContainsFunc(path, unicode.IsControl)
	if bad {
		return "", fmt.Errorf("the file name %.120q does not stay in the set's directory", path)
	}
	to := filepath.Join(dir, path)
	return to, os.MkdirAll(filepath.Dir(to), 0o755)
}

// pread reads the first bytes of a file, as many as there are.
func pread(r io.ReaderAt, n int) []byte {
	b := make([]byte, n)
	got, err := r.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil
	}
	return b[:got]
}
