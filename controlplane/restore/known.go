package restore

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/levelrail/levelrail/beneath"
	"github.com/levelrail/levelrail/client/wire"
)

// Known is what was in force on this host before the restore: the keys of the gateway's table, and the models that have
// units. A nil list is not known.
type Known struct {
	Keys   map[string]KeyRef `json:"keys"` // that opened something, by id
	Models []string          `json:"models"`
	From   []string          `json:"from"` // sentences for people: what is known, or why it is not
}

// Find reads what this host knows. Both directories may be missing. It is called as root, and the gateway's directory is
// the gateway's: no link in it is followed.
func Find(gatewayDir, unitDir string, now time.Time) Known {
	var k Known
	if err := k.readTable(gatewayDir, now); err != nil {
		k.Keys = nil
		k.From = append(k.From, fmt.Sprintf("no table of a gateway on this host (%v): which keys were made or revoked since the backup is not known here", err))
	}
	if err := k.readUnits(unitDir); err != nil {
		k.Models = nil
		k.From = append(k.From, fmt.Sprintf("no units of models on this host (%v): which models were deployed or deleted since the backup is not known here", err))
	}
	return k
}

// tableLine is what is read of a line of the gateway's table (package caddymodule/link writes it).
type tableLine struct {
	Head *struct {
		SavedAt time.Time `json:"saved_at"`
	} `json:"head"`
	Key *wire.RouteKey `json:"key"`
	End *struct {
		Keys int `json:"keys"`
	} `json:"end"`
}

func (k *Known) readTable(dir string, now time.Time) error {
	f, err := openNoLinks(dir, "table.jsonl")
	if err != nil {
		return err
	}
	defer f.Close()
	k.Keys = map[string]KeyRef{}
	saved, all := time.Time{}, 0
	for d := json.NewDecoder(bufio.NewReader(f)); ; {
		var line tableLine
		if err := d.Decode(&line); errors.Is(err, io.EOF) {
			return errors.New("the table is cut off")
		} else if err != nil {
			return fmt.Errorf("the table cannot be read: %w", err)
		}
		switch {
		case line.Head != nil:
			saved = line.Head.SavedAt
		case line.Key != nil:
			all++
			if line.Key.ExpiresAt == nil || now.Before(*line.Key.ExpiresAt) {
				k.Keys[line.Key.ID] = KeyRef{line.Key.ID, line.Key.Name, line.Key.Prefix, line.Key.Models}
			}
		case line.End != nil:
			if all != line.End.Keys {
				return errors.New("the table does not match its own count")
			}
			k.From = append(k.From, fmt.Sprintf("the table of this host's gateway, as of %s: %d keys", saved.UTC().Format(time.RFC3339), len(k.Keys)))
			return nil
		}
	}
}

// The marks of unit files that package systemd writes.
const (
	markHash  = "X-Levelrail-Hash="
	markModel = "X-Levelrail-Model="
)

func (k *Known) readUnits(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "levelrail-model-*.service"))
	if err != nil {
		return err
	}
	if _, err := os.Stat(dir); err != nil {
		return err
	}
	k.Models = []string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		model, ours := "", false
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSpace(line)
			ours = ours || strings.HasPrefix(line, markHash)
			if m, ok := strings.CutPrefix(line, markModel); ok {
				model = m
			}
		}
		if ours && model != "" && !slices.Contains(k.Models, model) {
			k.Models = append(k.Models, model)
		}
	}
	slices.Sort(k.Models)
	k.From = append(k.From, fmt.Sprintf("the units in %s: %d models", dir, len(k.Models)))
	return nil
}

// openNoLinks opens a regular file of a directory that another user may write.
func openNoLinks(dir, name string) (*os.File, error) {
	f, err := beneath.Open(dir, name, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		f.Close()
		return nil, &fs.PathError{Op: "open", Path: filepath.Join(dir, name), Err: errors.Join(errors.New("not a regular file"), err)}
	}
	return f, nil
}

var errNotADirectory = syscall.ENOTDIR

// Stage copies a backup file, or the regular files and directories of a copy of a server's files, to a new place.
func Stage(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return copyTree(from, to)
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// copyTree copies the regular files and directories of a store. Anything else in it is left out.
func copyTree(from, to string) error {
	root, err := os.OpenRoot(from)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir():
			return os.MkdirAll(filepath.Join(to, name), 0o700)
		case !e.Type().IsRegular() || e.Name() == "state.db" || e.Name() == "lock": // the state is rebuilt from the log
			return nil
		}
		in, err := root.Open(name)
		if err != nil {
			return err
		}
		defer in.Close()
		out, err := os.OpenFile(filepath.Join(to, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, in)
		return errors.Join(err, out.Close())
	})
}
