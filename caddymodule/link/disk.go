package link

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/caddymodule/durable"
	"github.com/levelrail/levelrail/caddymodule/route"
	"github.com/levelrail/levelrail/client/wire"

	"golang.org/x/sys/unix"
)

// The files of the state directory. The table holds the engines' keys and is for the gateway's user only.
const (
	tableFile = "table.jsonl"
	idFile    = "gateway-id"
)

// tableFormat is the version of the table file; one of another version is not read.
const tableFormat = 1

// diskLine is one line of the table file: a head, then routes and keys, then an end that tells that nothing is missing.
type diskLine struct {
	Head  *diskHead      `json:"head,omitempty"`
	Route *wire.Route    `json:"route,omitempty"`
	Key   *wire.RouteKey `json:"key,omitempty"`
	End   *diskEnd       `json:"end,omitempty"`
}

type diskHead struct {
	Format  int       `json:"format"`
	Cluster string    `json:"cluster_id,omitempty"`
	Token   string    `json:"token"`
	SavedAt time.Time `json:"saved_at"`
}

type diskEnd struct {
	Models int `json:"models"`
	Keys   int `json:"keys"`
}

// load reads the table file. Without one it returns nil and no error.
func load(dir string, log *slog.Logger) (*state, error) {
	f, err := os.Open(filepath.Join(dir, tableFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s := &state{log: log}
	edit := new(route.Table).Edit()
	models, keys := 0, 0
	for d := json.NewDecoder(bufio.NewReaderSize(f, 1<<20)); ; {
		var line diskLine
		if err := d.Decode(&line); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, fmt.Errorf("read %s: %w", f.Name(), err)
		}
		switch {
		case line.Head != nil:
			if line.Head.Format != tableFormat {
				return nil, fmt.Errorf("%s has format %d, this gateway reads %d", f.Name(), line.Head.Format, tableFormat)
			}
			s.cluster, s.token, s.savedAt = line.Head.Cluster, line.Head.Token, line.Head.SavedAt
		case line.Route != nil:
			models++
			if err := edit.PutModel(*line.Route); err != nil {
				log.Error("a kept route cannot be used; the model is not served here", "model", line.Route.Model, "error", err)
			}
		case line.Key != nil:
			keys++
			if _, err := edit.PutKey(*line.Key); err != nil {
				return nil, fmt.Errorf("read %s: %w", f.Name(), err)
			}
		case line.End != nil:
			if line.End.Models != models || line.End.Keys != keys {
				return nil, fmt.Errorf("%s has %d models and %d keys, and says %d and %d", f.Name(), models, keys, line.End.Models, line.End.Keys)
			}
			s.table = edit.Table()
			return s, nil
		}
	}
}

// HeardFile says by its time when the table was last known to be the control plane's. A table that does not change is not
// written anew.
const HeardFile = "table-heard"

// mark keeps that the table was the control plane's at a time.
func mark(dir string, at time.Time) error {
	path := filepath.Join(dir, HeardFile)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Chtimes(path, at, at)
}

// heard is the time that mark kept; zero: none.
func heard(dir string) time.Time {
	info, err := os.Lstat(filepath.Join(dir, HeardFile))
	if err != nil || !info.Mode().IsRegular() {
		return time.Time{}
	}
	return info.ModTime()
}

// freshest is the later of two times, neither of them in the future: a clock that was set back meanwhile makes no table younger
// than what it was when it was written, as far as that can be known.
func freshest(saved, heard, now time.Time) time.Time {
	at := saved
	if heard.After(at) {
		at = heard
	}
	if at.After(now) {
		return now
	}
	return at
}

// write puts a table on disk so that a crash leaves either the old file or the new one.
func write(dir string, t *route.Table, cluster, token string, now time.Time) error {
	return durable.Replace(dir, tableFile, func(w io.Writer) (err error) {
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		put := func(line diskLine) {
			if err == nil {
				err = enc.Encode(line)
			}
		}
		put(diskLine{Head: &diskHead{Format: tableFormat, Cluster: cluster, Token: token, SavedAt: now.UTC()}})
		for _, m := range t.Models() {
			r := m.Wire()
			put(diskLine{Route: &r})
		}
		t.Keys(func(k *route.Key) bool {
			w := k.Wire()
			put(diskLine{Key: &w})
			return err == nil
		})
		models, keys := t.Len()
		put(diskLine{End: &diskEnd{models, keys}})
		return err
	})
}

// gatewayID is the id kept in the state directory, made at the first start. Without a directory, or when it cannot be
// written, every start has another one.
func gatewayID(dir string, log *slog.Logger) string {
	id := levelrail.NewID("gw")
	if dir == "" {
		return id
	}
	path := filepath.Join(dir, idFile)
	if b, err := os.ReadFile(path); err == nil && strings.HasPrefix(string(b), "gw_") {
		return strings.TrimSpace(string(b))
	}
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = os.WriteFile(path, []byte(id+"\n"), 0o600)
	}
	if err != nil {
		log.Warn("the gateway's id cannot be kept; the next start will have another", "error", err)
	}
	return id
}

// saver writes tables to disk, one after another and not each: a table that is replaced while another is written is
// skipped, and writing takes at most a twentieth of the time.
type saver struct {
	dir string
	log *slog.Logger

	mu      sync.Mutex
	table   *route.Table // the newest that is not on disk; nil: none
	cluster string
	token   string
	wake    chan struct{}
}

// Pauses between two writes: the least, and the one after a failure.
const (
	leastPause = 250 * time.Millisecond
	retryPause = 30 * time.Second
)

func newSaver(dir string, log *slog.Logger) *saver {
	return &saver{dir: dir, log: log, wake: make(chan struct{}, 1)}
}

// wish asks for a table to be kept. It returns at once.
func (s *saver) wish(t *route.Table, cluster, token string) {
	if s.dir == "" {
		return
	}
	s.mu.Lock()
	s.table, s.cluster, s.token = t, cluster, token
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// run writes until ctx ends, and once more then if something is left.
func (s *saver) run(ctx context.Context) {
	if err := durable.Sweep(s.dir, tableFile); err != nil {
		s.log.Warn("an unfinished file cannot be removed", "error", err)
	}
	pause := leastPause
	for {
		select {
		case <-ctx.Done():
			s.flush()
			return
		case <-s.wake:
		}
		select { // what comes in this time is written with it
		case <-ctx.Done():
			s.flush()
			return
		case <-time.After(pause):
		}
		pause = s.flush()
	}
}

// flush writes what is wished for and returns how long to leave the disk alone then. What could not be written is wished
// for again.
func (s *saver) flush() time.Duration {
	s.mu.Lock()
	t, cluster, token := s.table, s.cluster, s.token
	s.table = nil
	s.mu.Unlock()
	if t == nil {
		return leastPause
	}
	began := time.Now()
	if err := write(s.dir, t, cluster, token, began); err != nil {
		s.log.Error("routes and keys cannot be kept; a restart without the control plane will not know the newest", "directory", s.dir, "error", err)
		s.mu.Lock()
		if s.table != nil { // a newer one has come meanwhile
			t, cluster, token = s.table, s.cluster, s.token
		}
		s.mu.Unlock()
		s.wish(t, cluster, token)
		return retryPause
	}
	return max(leastPause, 20*time.Since(began))
}

// Leave forgets the cluster that a gateway belongs to, with its routes and keys. The gateway must not run. It tells whether
// there was anything to forget.
func Leave(dir string) (bool, error) {
	err := os.Remove(filepath.Join(dir, tableFile))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
