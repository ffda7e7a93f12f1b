package raftstore

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/levelrail/levelrail"
)

// IdentityFile is the file by which a directory is known as a store.
const IdentityFile = fileID

// The files of a store's directory, beside snapshots/.
const (
	fileID    = "id.json"
	fileLog   = "raft.db"
	fileState = "state.db"
	fileLock  = "lock"
)

// identity says which server, cluster and line of history a directory holds: the content of id.json.
type identity struct {
	ServerID  string `json:"server_id"`  // srv_…, made with the directory, never a host name
	ClusterID string `json:"cluster_id"` // clu_…, made with the cluster
	Lineage   string `json:"lineage"`    // of the history: a restored backup begins a new one
	// Bootstrapped says that the first configuration is in the log. Before that, nothing in the directory counts.
	Bootstrapped bool `json:"bootstrapped"`
	// Replaced are clusters that this one took the place of on its server, by a restored backup. Their agents and gateways
	// are this cluster's.
	Replaced []string `json:"replaced_clusters,omitempty"`
}

// Identity says whose store a directory holds.
type Identity struct {
	ServerID, ClusterID, Lineage string
	Replaced                     []string // clusters that this one took the place of
}

// Clusters is the cluster and those that it took the place of.
func (i Identity) Clusters() []string {
	if i.ClusterID == "" {
		return i.Replaced
	}
	return append([]string{i.ClusterID}, i.Replaced...)
}

// Identify reads whose store a directory holds, without opening it. Without one the error is fs.ErrNotExist.
func Identify(dir string) (Identity, error) {
	text, err := os.ReadFile(filepath.Join(dir, fileID))
	if err != nil {
		return Identity{}, err
	}
	var id identity
	if err := json.Unmarshal(text, &id); err != nil {
		return Identity{}, fmt.Errorf("read the store's identity %s: %w", filepath.Join(dir, fileID), err)
	}
	return Identity{id.ServerID, id.ClusterID, id.Lineage, id.Replaced}, nil
}

// Hold keeps every process from opening the store in a directory until the file is closed. It fails with conflict when one
// has it open.
func Hold(dir string) (*os.File, error) { return takeDirectory(dir) }

func newIdentity() identity {
	return identity{ServerID: levelrail.NewID("srv"), ClusterID: levelrail.NewID("clu"), Lineage: newLineage()}
}

func newLineage() string {
	var b [8]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// takeDirectory makes the directory when it is not there, locks it for this process, and removes what a crash left of
// files under way. The lock lasts until the file is closed.
func takeDirectory(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the store's directory: %w", err)
	}
	// raft's snapshot files are readable by all, so the directory must not be.
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, fmt.Errorf("close the store's directory to others: %w", err)
	}
	path := filepath.Join(dir, fileLock)
	lock, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the store's directory: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, levelrail.Errorf(levelrail.ErrConflict, "the store in %s is in use by another process", dir).
				WithNext("stop the other levelrail-server, or find it with: fuser %s", path)
		}
		return nil, fmt.Errorf("lock the store's directory %s: %w", dir, err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*.tmp"))
	if err != nil {
		return nil, err
	}
	for _, name := range left {
		if err := os.Remove(name); err != nil {
			lock.Close()
			return nil, fmt.Errorf("remove an unfinished file: %w", err)
		}
	}
	return lock, nil
}

// loadIdentity reads who the directory is, or makes it somebody when it holds nothing. A directory whose files do not
// belong together is refused: raft would start on what is left, and acknowledge writes into another history.
func loadIdentity(dir string) (identity, error) {
	var id identity
	logThere, snapshots, err := truth(dir)
	if err != nil {
		return id, err
	}
	text, err := os.ReadFile(filepath.Join(dir, fileID))
	if errors.Is(err, os.ErrNotExist) {
		if logThere || snapshots {
			return id, levelrail.Errorf(levelrail.ErrRefused, "the store in %s has a log or snapshots, but no %s that says whose they are", dir, fileID).
				WithNext("bring back %s, or set the directory aside and restore a backup", fileID)
		}
		id = newIdentity()
		return id, id.save(dir)
	}
	if err != nil {
		return id, fmt.Errorf("read the store's identity: %w", err)
	}
	if err := json.Unmarshal(text, &id); err != nil {
		return id, fmt.Errorf("read the store's identity %s: %w", filepath.Join(dir, fileID), err)
	}
	if id.ServerID == "" || id.ClusterID == "" || id.Lineage == "" {
		return id, fmt.Errorf("the store's identity %s is not complete", filepath.Join(dir, fileID))
	}
	if id.Bootstrapped && !logThere {
		return id, levelrail.Errorf(levelrail.ErrRefused, "the store in %s belongs to the server %s, but its log %s is gone", dir, id.ServerID, fileLog).
			WithNext("bring back the log, or set the directory aside and restore a backup")
	}
	if !id.Bootstrapped && snapshots {
		return id, levelrail.Errorf(levelrail.ErrRefused, "the store in %s has snapshots from before it was begun", dir).WithNext("set the directory aside")
	}
	return id, nil
}

// truth tells which of the files that count are there.
func truth(dir string) (log, snapshots bool, err error) {
	if _, err = os.Stat(filepath.Join(dir, fileLog)); err == nil {
		log = true
	} else if !errors.Is(err, os.ErrNotExist) {
		return false, false, fmt.Errorf("look for the log: %w", err)
	}
	names, err := os.ReadDir(filepath.Join(dir, snapshotsDir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, false, fmt.Errorf("look for snapshots: %w", err)
	}
	for _, n := range names {
		snapshots = snapshots || n.IsDir() && !strings.HasSuffix(n.Name(), ".tmp")
	}
	return log, snapshots, nil
}

// save writes the identity so that after a crash the old or the new one is there.
func (id identity) save(dir string) error {
	text, err := json.MarshalIndent(id, "", "  ")
	if err != nil {
		return err
	}
	if err := writeDurably(filepath.Join(dir, fileID), append(text, '\n')); err != nil {
		return fmt.Errorf("write the store's identity: %w", err)
	}
	return nil
}

func writeDurably(path string, content []byte) error {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return err
}
