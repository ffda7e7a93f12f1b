// Package restore puts a backup, or a copy of a server's files, in the place of a server's store while no server runs. The
// restored history is a new one (raftstore gives it a new lineage), by which agents and gateways know that everything has
// to be read anew.
//
// It promises that nothing is replaced before the whole restored store was opened, its secrets were held against the master
// key and the operator has agreed; that what is replaced is set aside and not deleted; and that the report names every key
// and model that comes back to life or vanishes, as far as this host knows what was in force. Reading and writing the
// store's files is raftstore's, the command line is package controlplane's.
package restore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/controlplane/seal"
	"github.com/levelrail/levelrail/controlplane/stored"
	"github.com/levelrail/levelrail/raftstore"
	"github.com/levelrail/levelrail/raftstore/command"
)

// Options say what is restored, and where.
type Options struct {
	Source    string // a backup file, or a directory: a copy of a server's state directory or of its store
	StateDir  string // of the server
	MasterKey string // the text of the master key; empty: that of the state directory, or of the source
	Known     Known  // what was in force on this host
	// RevokeReturned revokes the keys that would open models again although the gateway no longer knew them.
	RevokeReturned bool
	Clock          func() time.Time
	// Confirm is asked with the whole report before anything is replaced. Its error ends the restore.
	Confirm func(Report) error
}

// KeyRef names a key for people.
type KeyRef struct {
	ID     string   `json:"id"`
	Name   string   `json:"name"`
	Prefix string   `json:"prefix"`
	Models []string `json:"models"`
}

// Report is what a restore does.
type Report struct {
	ClusterID   string    `json:"cluster_id"`
	TakenAt     time.Time `json:"taken_at"`
	Index       uint64    `json:"index"`
	Lineage     string    `json:"lineage"` // the new one
	Replaces    string    `json:"replaces_cluster,omitempty"`
	MasterKeyID string    `json:"master_key_id"`
	Models      int       `json:"models"`
	Keys        int       `json:"keys"`   // that open something
	Tokens      int       `json:"tokens"` // that are good
	Nodes       int       `json:"nodes"`
	UsageRows   int       `json:"usage_rows"`

	KnownFrom      []string `json:"known_from"`                // what the four lists below were compared with
	ReturnedKeys   []KeyRef `json:"returned_keys,omitempty"`   // open again, and were not in force
	GoneKeys       []KeyRef `json:"gone_keys,omitempty"`       // were in force, and are not in the backup
	ReturnedModels []string `json:"returned_models,omitempty"` // in the backup, and this host has no unit of them
	GoneModels     []string `json:"gone_models,omitempty"`     // have a unit on this host, and are not in the backup
	Revoked        bool     `json:"returned_keys_revoked"`
	SetAside       []string `json:"set_aside,omitempty"` // what was replaced, under its new name
}

// The names below a state directory.
const (
	storeDir   = "store"
	keyFile    = "master.key"
	restoring  = "store.restoring"
	scratchDir = "restore.scratch"
)

// Run restores. Without an error the server can be started.
func Run(ctx context.Context, o Options) (Report, error) {
	release, err := hold(o.StateDir)
	if err != nil {
		return Report{}, err
	}
	defer release()
	target := filepath.Join(o.StateDir, restoring)
	scratch := filepath.Join(o.StateDir, scratchDir)
	for _, left := range []string{target, scratch} { // of a restore that was broken off
		if err := os.RemoveAll(left); err != nil {
			return Report{}, fmt.Errorf("remove what an earlier restore left: %w", err)
		}
	}
	defer os.RemoveAll(scratch)
	defer os.RemoveAll(target) // a rename has taken it away when all went well

	replaced, err := raftstore.Identify(filepath.Join(o.StateDir, storeDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Report{}, fmt.Errorf("read whose store is replaced: %w", err)
	}
	backup, err := openSource(ctx, o.Source, scratch)
	if err != nil {
		return Report{}, err
	}
	defer backup.Close()
	header, err := raftstore.RestoreBackup(target, backup, replaced.Clusters()...)
	if err != nil {
		return Report{}, err
	}
	r := Report{ClusterID: header.ClusterID, TakenAt: header.TakenAt, Index: header.Index, KnownFrom: o.Known.From}
	if replaced.ClusterID != "" && replaced.ClusterID != header.ClusterID {
		r.Replaces = replaced.ClusterID
	}
	key, newKeyFile, err := masterKey(o, target)
	if err != nil {
		return r, err
	}
	if err := examine(ctx, o, target, key, &r); err != nil {
		return r, err
	}
	if err := o.Confirm(r); err != nil {
		return r, err
	}
	if o.RevokeReturned && len(r.ReturnedKeys) > 0 {
		if err := revoke(ctx, target, r.ReturnedKeys); err != nil {
			return r, err
		}
		r.Revoked = true
	}
	return r, swap(o, target, key, newKeyFile, &r)
}

// hold keeps servers away from the store that is there.
func hold(stateDir string) (release func(), err error) {
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state directory: %w", err)
	}
	dir := filepath.Join(stateDir, storeDir)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return func() {}, nil
	}
	lock, err := raftstore.Hold(dir)
	if err != nil {
		return nil, err
	}
	return func() { lock.Close() }, nil
}

// openSource gives the backup to read. Of a copy of a server's files one is made first, on a scratch copy.
func openSource(ctx context.Context, source, scratch string) (io.ReadCloser, error) {
	info, err := os.Stat(source)
	if err != nil {
		return nil, levelrail.Errorf(levelrail.ErrNotFound, "the backup %s cannot be read: %v", source, err).WithNext("name a file of levelrail backups create")
	}
	if !info.IsDir() {
		f, err := os.Open(source)
		if err != nil {
			return nil, levelrail.Errorf(levelrail.ErrInvalid, "the backup %s cannot be read: %v", source, err).WithNext("run the command as root")
		}
		return f, nil
	}
	dir := source
	if _, err := os.Stat(filepath.Join(source, storeDir, raftstore.IdentityFile)); err == nil {
		dir = filepath.Join(source, storeDir)
	}
	if _, err := os.Stat(filepath.Join(dir, raftstore.IdentityFile)); err != nil {
		return nil, levelrail.Errorf(levelrail.ErrInvalid, "%s holds no store of a server: there is no %s in it", source, raftstore.IdentityFile).
			WithNext("name a file of levelrail backups create, or a copy of /var/lib/levelrail/server")
	}
	if err := copyTree(dir, scratch); err != nil {
		return nil, fmt.Errorf("copy %s: %w", dir, err)
	}
	return backUp(ctx, scratch)
}

// backUp makes a backup of a scratch copy.
func backUp(ctx context.Context, dir string) (io.ReadCloser, error) {
	store, err := open(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer store.Close(ctx)
	f, err := os.OpenFile(filepath.Join(dir, "backup"), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := store.Backup(ctx, f); err != nil {
		f.Close()
		return nil, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// open opens a store that nobody else has.
func open(ctx context.Context, dir string) (*raftstore.Store, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	return raftstore.Open(ctx, raftstore.Config{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
}

// masterKey finds the key that opens the backup's secrets. With fromElsewhere it is not that of the state directory, and
// has to become it.
func masterKey(o Options, target string) (key seal.MasterKey, fromElsewhere bool, err error) {
	if o.MasterKey != "" {
		key, err = seal.ParseMasterKey(o.MasterKey)
		return key, true, err
	}
	for _, file := range []string{filepath.Join(o.Source, keyFile), filepath.Join(o.StateDir, keyFile)} {
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNotADirectory) {
			continue
		}
		if err != nil {
			return key, false, fmt.Errorf("read the master key: %w", err)
		}
		key, err = seal.ParseMasterKey(string(text))
		return key, filepath.Dir(file) != o.StateDir, err
	}
	return key, false, levelrail.Errorf(levelrail.ErrRefused, "there is no master key to open the backup's secrets with").
		WithNext("give the copy that was kept apart: --master-key-file FILE")
}

// examine opens the restored store, holds the master key against it and compares it with what is known.
func examine(ctx context.Context, o Options, target string, key seal.MasterKey, r *Report) error {
	store, err := open(ctx, target)
	if err != nil {
		return fmt.Errorf("open the restored store: %w", err)
	}
	defer store.Close(ctx)
	d, err := stored.New(store).Read()
	if err != nil {
		return err
	}
	r.Lineage, r.MasterKeyID = store.Status().Lineage, key.ID()
	if check, there := d.Secrets[seal.CheckPath]; there {
		sealer, err := seal.New(r.ClusterID, key)
		if err != nil {
			return err
		}
		if err := sealer.Check(check); err != nil {
			return levelrail.Errorf(levelrail.ErrRefused, "the master key %s does not open this backup, whose secrets are sealed under %s; nothing was changed", key.ID(), check.KeyID).
				WithNext("give the master key %s, of which a copy was to be kept apart from the backup: --master-key-file FILE", check.KeyID)
		}
	}
	now := o.Clock()
	r.Models, r.Nodes = len(d.Models), len(d.Nodes)
	for _, t := range d.Tokens {
		if t.RevokedAt == nil && (t.ExpiresAt == nil || now.Before(*t.ExpiresAt)) {
			r.Tokens++
		}
	}
	restored := map[string]KeyRef{}
	err = store.View(func(tx *raftstore.Tx) error {
		if err := raftstore.Each(tx, "", func(k levelrail.Key) error {
			if k.Live(now) {
				restored[k.ID] = KeyRef{k.ID, k.Name, k.Prefix, k.Models}
			}
			return nil
		}); err != nil {
			return err
		}
		return raftstore.Each(tx, "", func(levelrail.Usage) error { r.UsageRows++; return nil })
	})
	if err != nil {
		return err
	}
	r.Keys = len(restored)
	models := map[string]bool{}
	for _, m := range d.Models {
		models[m.Name] = true
	}
	o.Known.compare(r, restored, models)
	return nil
}

// revoke closes keys in the restored store, for good.
func revoke(ctx context.Context, target string, keys []KeyRef) error {
	store, err := open(ctx, target)
	if err != nil {
		return err
	}
	defer store.Close(ctx)
	by := command.By{Principal: levelrail.Principal{Kind: "server", ID: store.Status().ServerID, Name: "restore"}, Ability: levelrail.AbilityRoot}
	for _, k := range keys {
		if _, err := store.Propose(ctx, by, command.KeyRevoke{ID: k.ID}); err != nil {
			return fmt.Errorf("revoke the key %s in the restored store: %w", k.ID, err)
		}
	}
	return nil
}

// swap puts the restored store in its place. What was there is set aside.
func swap(o Options, target string, key seal.MasterKey, newKey bool, r *Report) error {
	suffix := ".before-restore-" + o.Clock().UTC().Format("20060102T150405Z")
	aside := func(name string) error {
		path := filepath.Join(o.StateDir, name)
		err := os.Rename(path, path+suffix)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			r.SetAside = append(r.SetAside, path+suffix)
		}
		return err
	}
	if newKey {
		path := filepath.Join(o.StateDir, keyFile)
		there, err := os.ReadFile(path)
		if is, parseErr := seal.ParseMasterKey(string(there)); err != nil || parseErr != nil || is.ID() != key.ID() {
			if err := aside(keyFile); err != nil {
				return fmt.Errorf("set the master key of before aside: %w", err)
			}
			if err := seal.WriteKeyFile(path, key.Text()); err != nil {
				return fmt.Errorf("keep the master key: %w", err)
			}
		}
	}
	if err := aside(storeDir); err != nil {
		return fmt.Errorf("set the store of before aside: %w", err)
	}
	if err := os.Rename(target, filepath.Join(o.StateDir, storeDir)); err != nil {
		return fmt.Errorf("put the restored store in its place: %w", err)
	}
	dir, err := os.Open(o.StateDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// compare fills the lists of a report.
func (k Known) compare(r *Report, restored map[string]KeyRef, models map[string]bool) {
	if k.Keys != nil {
		for id, ref := range restored {
			if _, known := k.Keys[id]; !known {
				r.ReturnedKeys = append(r.ReturnedKeys, ref)
			}
		}
		for id, ref := range k.Keys {
			if _, there := restored[id]; !there {
				r.GoneKeys = append(r.GoneKeys, ref)
			}
		}
	}
	if k.Models != nil {
		for _, m := range k.Models {
			if !models[m] {
				r.GoneModels = append(r.GoneModels, m)
			}
		}
		for m := range models {
			if !slices.Contains(k.Models, m) {
				r.ReturnedModels = append(r.ReturnedModels, m)
			}
		}
	}
	byID := func(a, b KeyRef) int {
		return cmp.Or(slices.Compare(a.Models, b.Models), cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	}
	slices.SortFunc(r.ReturnedKeys, byID)
	slices.SortFunc(r.GoneKeys, byID)
	slices.Sort(r.ReturnedModels)
	slices.Sort(r.GoneModels)
}
