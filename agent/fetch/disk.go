package fetch

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/engine"
	"github.com/levelrail/levelrail/hub"
)

// hashing is SHA-256 that ends in hex.
type hashing struct{ hash.Hash }

func newHash() hashing        { return hashing{sha256.New()} }
func (h hashing) hex() string { return hex.EncodeToString(h.Sum(nil)) }
func isFull(err error) bool   { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// size is a number of bytes for people.
func size(bytes int64) string {
	for _, u := range []struct {
		name string
		of   float64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if v := float64(bytes) / u.of; v >= 1 {
			return fmt.Sprintf("%.1f %s", v, u.name)
		}
	}
	return fmt.Sprintf("%d bytes", bytes)
}

// Space is the room on a file system, in bytes.
type Space struct{ Total, Free int64 }

// FreeSpace tells the room on the file system that holds path, as far as root may use it without the reserve.
func FreeSpace(path string) (Space, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return Space{}, fmt.Errorf("read the free space of %s: %w", path, err)
	}
	return Space{Total: int64(st.Blocks) * st.Bsize, Free: int64(st.Bavail) * st.Bsize}, nil
}

// Margin is what a fetch leaves free for the rest of the machine: 1 GiB, or a twentieth of a small file system.
func (d Space) Margin() int64 { return min(1<<30, d.Total/20) }

// room refuses to begin what would not fit beside dir.
func room(dir string, bytes int64) error {
	d, err := FreeSpace(dir)
	if err != nil {
		return err
	}
	if bytes <= 0 || d.Free >= bytes+d.Margin() {
		return nil
	}
	return &Failure{Reason: levelrail.InsufficientDisk,
		Message: fmt.Sprintf("the weights need %s more on the disk of %s, and it has %s free, of which %s stay free for the rest of the machine", size(bytes), storeOf(dir), size(d.Free), size(d.Margin())),
		Next:    "make room there, for example by removing models that are not used; the download then begins by itself"}
}

// storeOf names the store, also where a stage in it was meant.
func storeOf(dir string) string {
	if parent := filepath.Dir(dir); filepath.Base(parent) == stagesDir {
		return filepath.Dir(parent)
	}
	return dir
}

// hasSize tells whether some file of the store has this size.
func (s Store) hasSize(bytes int64) bool {
	entries, err := os.ReadDir(s.blobs())
	if err != nil {
		return false
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "sha256-") && !strings.Contains(e.Name(), ".") {
			if info, err := e.Info(); err == nil && info.Size() == bytes {
				return true
			}
		}
	}
	return false
}

// AsFailure turns any error of a fetch into what the model's condition says.
func AsFailure(err error) *Failure {
	var f *Failure
	var imported *engine.ImportError
	var fromHub *hub.Error
	var told *levelrail.Error
	switch {
	case errors.As(err, &f):
		return f
	case isFull(err):
		return &Failure{Reason: levelrail.InsufficientDisk, Message: "the disk ran full while the weights were fetched: " + err.Error(), Next: "make room on the disk of the weights; the fetch then goes on by itself"}
	case errors.As(err, &imported):
		return &Failure{Reason: imported.Why, Message: imported.Message, Next: imported.Next}
	case errors.As(err, &fromHub):
		next := fromHub.NextStep()
		if next == "" {
			next = "it is tried again by itself"
		}
		return &Failure{Reason: fromHub.Reason(), Message: fromHub.Message, Next: next, RetryAfter: levelrail.Duration(fromHub.After)}
	case errors.As(err, &told):
		return &Failure{Reason: levelrail.DownloadFailed, Message: told.Message, Next: told.Next}
	}
	return &Failure{Reason: levelrail.DownloadFailed, Message: err.Error(), Next: "it is tried again by itself; journalctl -u 'levelrail-fetch-*' has the details"}
}
