package fetch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Delete removes a model's finished set, and those of its files that no other set shares. It returns what that frees, in
// bytes. A set that is not there is no error. The caller makes sure that no engine runs from it.
func (s Store) Delete(model string) (freed int64, err error) {
	m, err := ReadManifest(s.Set(model))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	// Renamed first: whoever looks sees all of it or nothing.
	gone := filepath.Join(s.Dir, "."+model+".gone")
	if err := os.RemoveAll(gone); err != nil {
		return 0, err
	}
	if err := os.Rename(s.Set(model), gone); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("delete the weights of %s: %w", model, err)
	}
	if err := os.RemoveAll(gone); err != nil {
		return 0, fmt.Errorf("delete the weights of %s: %w", model, err)
	}
	for _, f := range m.Files {
		if f.SHA256 == "" {
			continue
		}
		n, err := s.drop(f.SHA256)
		if err != nil {
			return freed, fmt.Errorf("delete the weights of %s: %w", model, err)
		}
		freed += n
	}
	return freed, syncDir(s.Dir)
}

// drop removes a file of the store that no set has, unless somebody is bringing it.
func (s Store) drop(sum string) (int64, error) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // one try
	unlock, err := s.lock(ctx, key(sum, ""), func() {})
	if err != nil {
		return 0, nil
	}
	defer unlock()
	info, err := os.Lstat(s.blob(sum))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Nlink > 1 {
		return 0, nil
	}
	return info.Size(), os.Remove(s.blob(sum))
}
