// Package keep brings what keys have used of their limits to the disk and back, so that restarting the gateway gives
// nobody a fresh allowance.
//
// The one file in the state directory is replaced as a whole. It is written at the end, and before that whenever something
// has changed, each time Every after the write before: a gateway that is killed forgets at most what was admitted and spent
// in that time (or in two hundred times as long as it takes to go through the keys, where that is more). What counts is caddymodule/limit.
package keep

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
	"strconv"
	"sync"
	"time"

	"github.com/levelrail/levelrail/caddymodule/durable"
	"github.com/levelrail/levelrail/caddymodule/limit"
)

// Every is the pause between two writes.
const Every = 2 * time.Second

// retryPause is the pause after a write that failed.
const retryPause = 30 * time.Second

const (
	file   = "limits.jsonl"
	format = 1
)

// Options say what is kept where. Directory may be empty: then nothing is kept.
type Options struct {
	Keys      *limit.Keys
	Directory string
	Log       *slog.Logger
	Now       func() time.Time
	Shares    Shares // may be nil
}

// Shares is who else was known to serve, which the next process needs when the control plane cannot be reached.
type Shares interface {
	Last() (gateways int, alone bool)
	Kept(gateways int, alone bool)
}

// Keeper keeps the counts of one limit.Keys.
type Keeper struct {
	o Options

	mu      sync.Mutex
	written int64         // limit.Keys.Changes as of the last write
	took    time.Duration // to go through the keys in it, the disk's own time left out
	failing bool
}

// New returns a keeper that has done nothing.
func New(o Options) *Keeper { return &Keeper{o: o} }

// line is one line of the file: a head, then keys, then an end that tells that nothing is missing.
type line struct {
	Head *head       `json:"head,omitempty"`
	Key  *limit.Kept `json:"key,omitempty"`
	End  *end        `json:"end,omitempty"`
}

type head struct {
	Format  int       `json:"format"`
	SavedAt time.Time `json:"saved_at"`
	// Of how many gateways was known, and whether this one counted by itself. 0: it was not known.
	Gateways int  `json:"gateways,omitempty"`
	Alone    bool `json:"alone,omitempty"`
}

type end struct {
	Keys int `json:"keys"`
}

// Load restores what an earlier process has kept. It only reads. A file that is not there is no error; one that cannot be
// understood is told, and counts as far as it could be read.
func (k *Keeper) Load() {
	if k.o.Directory == "" {
		return
	}
	err := k.load()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		k.o.Log.Error("what keys have used of their limits cannot be read whole; the rest begins anew", "error", err)
	}
	k.written = k.o.Keys.Changes()
}

func (k *Keeper) load() error {
	f, err := os.Open(filepath.Join(k.o.Directory, file))
	if err != nil {
		return err
	}
	defer f.Close()
	now, keys := k.o.Now(), 0
	var saved time.Time
	for d := json.NewDecoder(bufio.NewReaderSize(f, 1<<16)); ; {
		var l line
		if err := d.Decode(&l); errors.Is(err, io.EOF) {
			return fmt.Errorf("read %s: %w", f.Name(), io.ErrUnexpectedEOF)
		} else if err != nil {
			return fmt.Errorf("read %s: %w", f.Name(), err)
		}
		switch {
		case l.Head != nil:
			if l.Head.Format != format {
				return fmt.Errorf("%s has format %d, this gateway reads %d", f.Name(), l.Head.Format, format)
			}
			saved = l.Head.SavedAt
			if k.o.Shares != nil && l.Head.Gateways > 0 {
				k.o.Shares.Kept(l.Head.Gateways, l.Head.Alone)
			}
		case l.Key != nil:
			k.o.Keys.Restore(*l.Key, saved, now)
			keys++
		case l.End != nil:
			if l.End.Keys != keys {
				return fmt.Errorf("%s has %d keys, and says %d", f.Name(), keys, l.End.Keys)
			}
			return nil
		}
	}
}

// Run writes what changes until ctx ends, and once more then.
func (k *Keeper) Run(ctx context.Context) {
	if err := durable.Sweep(k.o.Directory, file); err != nil {
		k.o.Log.Warn("an unfinished file cannot be removed", "error", err)
	}
	pause := Every
	for {
		select {
		case <-ctx.Done():
			k.Save()
			return
		case <-time.After(pause):
		}
		if pause = Every; !k.Save() {
			pause = retryPause
		}
		k.mu.Lock()
		pause = max(pause, 200*k.took) // very many keys take long to go through: a two-hundredth of the time at most
		k.mu.Unlock()
	}
}

// Save writes now if something has changed since the last write, and tells whether the file has all of it.
func (k *Keeper) Save() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	changes := k.o.Keys.Changes()
	if k.o.Directory == "" || changes == k.written {
		return true
	}
	if err := k.write(); err != nil {
		if !k.failing {
			k.o.Log.Error("what keys use of their limits cannot be kept; a restart would forget it", "directory", k.o.Directory, "error", err)
		}
		k.failing = true
		return false
	}
	k.written, k.failing = changes, false
	return true
}

func (k *Keeper) write() error {
	return durable.Replace(k.o.Directory, file, func(w io.Writer) (err error) {
		var b []byte // one line, before it is written
		write := func() bool {
			if err == nil {
				_, err = w.Write(b)
			}
			b = b[:0]
			return err == nil
		}
		put := func(l line) {
			text, failed := json.Marshal(l)
			b, err = append(append(b, text...), '\n'), errors.Join(err, failed)
			write()
		}
		now, keys := k.o.Now(), 0
		first := head{Format: format, SavedAt: now.UTC()}
		if k.o.Shares != nil {
			first.Gateways, first.Alone = k.o.Shares.Last()
		}
		put(line{Head: &first})
		defer func(began time.Time) { k.took = time.Since(began) }(time.Now())
		k.o.Keys.Keep(now, func(kept limit.Kept) bool {
			keys++
			b = appendKey(b, &kept)
			return write()
		})
		put(line{End: &end{keys}})
		return err
	})
}

// appendKey appends the line of a key as encoding/json writes it, which takes a tenth of the time when there are very many.
func appendKey(b []byte, k *limit.Kept) []byte {
	b = durable.AppendText(append(b, `{"key":{"id":`...), k.ID)
	for _, w := range [...]struct {
		name  string
		pairs [][2]int64
	}{{`,"rpm":[`, k.RPM}, {`,"tpm":[`, k.TPM}, {`,"tpd":[`, k.TPD}, {`,"tpd_others":[`, k.TPDOthers}} {
		if len(w.pairs) == 0 {
			continue
		}
		b = append(b, w.name...)
		for i, p := range w.pairs {
			if i > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendInt(append(b, '['), p[0], 10)
			b = append(strconv.AppendInt(append(b, ','), p[1], 10), ']')
		}
		b = append(b, ']')
	}
	return append(b, "}}\n"...)
}
