package agent

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/levelrail/levelrail/agent/fetch"
)

// writeFile is fetch.WriteFile, which also makes the directory, for the agent alone, when it is not there.
func writeFile(path string, b []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return fetch.WriteFile(path, b, mode)
}

// remove removes files that may be gone already.
func remove(paths ...string) error {
	var all error
	for _, p := range paths {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			all = errors.Join(all, err)
		}
	}
	return all
}
