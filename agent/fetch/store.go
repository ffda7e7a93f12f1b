package fetch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/levelrail/levelrail/hub"
)

// Store is a node's store of weights.
type Store struct {
	Dir string // /var/lib/levelrail/weights
}

func (s Store) blobs() string             { return filepath.Join(s.Dir, ".blobs") }
func (s Store) blob(sum string) string    { return filepath.Join(s.blobs(), "sha256-"+sum) }
func (s Store) staging(m string) string   { return filepath.Join(s.Dir, "."+m+".new") }
func (s Store) partial(key string) string { return filepath.Join(s.blobs(), key+hub.PartialSuffix) }

// Set is the directory of a model's finished weights.
func (s Store) Set(model string) string { return filepath.Join(s.Dir, model) }

// key names a file's partial and its lock: by checksum where the source says one, else by where it comes from.
func key(sum, from string) string {
	if sum != "" {
		return "sha256-" + sum
	}
	h := sha256.Sum256([]byte(from))
	return "from-" + hex.EncodeToString(h[:])
}

// prepare makes the directories of the store.
func (s Store) prepare() error {
	if err := os.MkdirAll(s.blobs(), 0o755); err != nil {
		return fmt.Errorf("prepare the store of weights: %w", err)
	}
	return nil
}

// lock waits until nobody else brings the file and returns the way to let go. The kernel holds the lock for the process,
// so that of a killed one is free at once. waiting is called every now and then until then.
func (s Store) lock(ctx context.Context, key string, waiting func()) (unlock func(), err error) {
	path := filepath.Join(s.blobs(), key+".lock")
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return nil, fmt.Errorf("lock %s: %w", key, err)
		}
		switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
		case err == nil && sameFile(f, path):
			return func() {
				os.Remove(path) // while it is held, so nobody can hold a file that is no longer there without noticing
				f.Close()
			}, nil
		case err == nil: // the holder before us took the file away
			f.Close()
			continue
		case errors.Is(err, unix.EINTR):
			f.Close()
			continue
		case !errors.Is(err, unix.EWOULDBLOCK):
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", key, err)
		}
		f.Close()
		waiting()
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func sameFile(f *os.File, path string) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Stat(path)
	return err == nil && os.SameFile(a, b)
}

// has tells whether the store holds a file of this checksum and size; a size below 0 is not known.
func (s Store) has(sum string, bytes int64) bool {
	info, err := os.Stat(s.blob(sum))
	return err == nil && info.Mode().IsRegular() && (bytes < 0 || info.Size() == bytes)
}

// begin returns an empty directory in which a set is put together.
func (s Store) begin(model string) (string, error) {
	dir := s.staging(model)
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	return dir, os.MkdirAll(dir, 0o755)
}

// link puts a file of the store into a set that is put together.
func (s Store) link(sum, dir, path string) error {
	to, err := place(dir, path)
	if err != nil {
		return err
	}
	err = os.Link(s.blob(sum), to)
	if errors.Is(err, fs.ErrExist) {
		if err := os.Remove(to); err != nil {
			return err
		}
		err = os.Link(s.blob(sum), to)
	}
	return err
}

// finish writes the manifest and puts the set in its place, in one step: whoever looks sees the old set or the new one.
// An engine that runs from the old set keeps its files open until it is restarted.
func (s Store) finish(model string, m Manifest) error {
	dir, set := s.staging(model), s.Set(model)
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	if err := WriteFile(filepath.Join(dir, ManifestName), append(b, '\n'), 0o644); err != nil {
		return err
	}
	err = unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, set, unix.RENAME_EXCHANGE)
	switch {
	case errors.Is(err, unix.ENOENT): // there was none
		err = os.Rename(dir, set)
	case errors.Is(err, unix.EINVAL): // a file system that cannot exchange
		if err = os.RemoveAll(set); err == nil {
			err = os.Rename(dir, set)
		}
	}
	if err != nil {
		return fmt.Errorf("put the weights of %s in place: %w", model, err)
	}
	if err := syncDir(s.Dir); err != nil {
		return err
	}
	return os.RemoveAll(dir) // what was the old set
}

// Abandon removes what an unfinished fetch of the model left: its stage, and the set being put together.
func (s Store) Abandon(model string) error {
	return errors.Join(sweep(s.Stage(model)), os.RemoveAll(s.staging(model)))
}

// Sets lists the models that have a finished set, with their manifests.
func (s Store) Sets() (map[string]Manifest, error) {
	entries, err := os.ReadDir(s.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the weights: %w", err)
	}
	sets := map[string]Manifest{}
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			if m, err := ReadManifest(s.Set(e.Name())); err == nil {
				sets[e.Name()] = m
			}
		}
	}
	return sets, nil
}

// copyTo copies until the end or until ctx is done.
func copyTo(ctx context.Context, w io.Writer, r io.Reader, progress func(done int64)) (int64, error) {
	buf := make([]byte, 1<<20)
	var done int64
	for {
		if err := ctx.Err(); err != nil {
			return done, err
		}
		n, err := r.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return done, err
			}
			done += int64(n)
			if progress != nil {
				progress(done)
			}
		}
		if err == io.EOF {
			return done, nil
		}
		if err != nil {
			return done, err
		}
	}
}

// WriteFile writes a file so that a reader sees the old text or the new one, also after a power cut.
func WriteFile(path string, b []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".levelrail-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(b)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
