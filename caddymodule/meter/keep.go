package meter

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/caddymodule/durable"
	"github.com/levelrail/levelrail/client/wire"
)

// usageFile is the one file of the state directory that holds what is not accepted yet. It is replaced as a whole, so a
// crash leaves the old state or the new one: no count is in two places, or in none.
const usageFile = "usage.json"

// unsent is everything that the control plane has not accepted. Batches have a number and never change again, since any of
// them may have been sent. Open sums have none yet: as long as batches wait, sums go on adding up there, so that an outage
// of days costs no more than a row for each hour, key and model.
type unsent struct {
	GatewayID string            `json:"gateway_id"`
	Sequence  uint64            `json:"sequence"` // the last number given out
	Batches   []wire.UsageBatch `json:"batches,omitempty"`
	Open      []*row            `json:"open,omitempty"`
	Lost      int64             `json:"lost,omitempty"`

	at map[rowKey]*row // those of Open; nil until something is added to them
}

// load reads the file. Without one, or without a directory, the state is empty.
func load(dir, id string) (*unsent, error) {
	empty := &unsent{GatewayID: id}
	if dir == "" {
		return empty, nil
	}
	b, err := os.ReadFile(filepath.Join(dir, usageFile))
	if errors.Is(err, fs.ErrNotExist) {
		return empty, nil
	}
	if err != nil {
		return empty, err
	}
	u := new(unsent)
	if err := json.Unmarshal(b, u); err != nil {
		// The numbers that were given out are not known any more, so this gateway's are not to be continued.
		aside := filepath.Join(dir, usageFile+".broken")
		return &unsent{GatewayID: levelrail.NewID("gw")}, errors.Join(fmt.Errorf("read %s (moved to %s): %w", usageFile, aside, err), os.Rename(filepath.Join(dir, usageFile), aside))
	}
	return u, nil
}

// save writes the file and returns once it is on disk.
func (u *unsent) save(dir string) error {
	if dir == "" {
		return nil
	}
	return durable.Replace(dir, usageFile, func(w io.Writer) error { return json.NewEncoder(w).Encode(u) })
}

// rows is how many rows are held.
func (u *unsent) rows() int64 {
	n := int64(len(u.Open))
	for _, b := range u.Batches {
		n += int64(len(b.Rows))
	}
	return n
}

// add puts what was counted to the open sums and returns how many rows found theirs there already.
func (u *unsent) add(t taken) (joined int64) {
	if len(u.Open) == 0 { // what was taken at once is in it once
		u.Open, u.at = t.rows, nil
		u.Lost += t.lost
		return 0
	}
	if u.at == nil {
		u.at = make(map[rowKey]*row, len(u.Open))
		for _, r := range u.Open {
			u.at[keyOf(r.Usage)] = r
		}
	}
	for _, r := range t.rows {
		sum := u.at[keyOf(r.Usage)]
		if sum == nil {
			u.at[keyOf(r.Usage)] = r
			u.Open = append(u.Open, r)
			continue
		}
		merge(&sum.Usage, r.Usage)
		sum.Owner, sum.Tags = r.Owner, r.Tags // as of the newest request
		sum.use(r.Used)
		joined++
	}
	u.Lost += t.lost
	return joined
}

// use notes a use, unless a later one is known.
func (r *row) use(at time.Time) {
	if at.After(r.Used) {
		r.Used = at
	}
}

// number makes batches of the open sums, of at most that many rows each.
func (u *unsent) number(most int) {
	slices.SortFunc(u.Open, func(a, b *row) int {
		if c := a.Hour.Compare(b.Hour); c != 0 {
			return c
		}
		if c := strings.Compare(a.KeyID, b.KeyID); c != 0 {
			return c
		}
		return strings.Compare(a.Model, b.Model)
	})
	for rows := range slices.Chunk(u.Open, max(most, 1)) {
		u.Sequence++
		b := wire.UsageBatch{GatewayID: u.GatewayID, Sequence: u.Sequence, Rows: make([]levelrail.Usage, len(rows)), Dropped: u.Lost}
		u.Lost = 0
		for i, r := range rows {
			b.Rows[i] = r.Usage
			if r.Used.IsZero() || b.LastUsed[r.KeyID].After(r.Used) {
				continue
			}
			if b.LastUsed == nil {
				b.LastUsed = make(map[string]time.Time, len(rows))
			}
			b.LastUsed[r.KeyID] = r.Used
		}
		u.Batches = append(u.Batches, b)
	}
	u.Open, u.at = nil, nil
}

// accepted forgets what the control plane has. It returns how many rows that were. A control plane that has come further
// than this gateway's numbers knows an earlier life of it whose state is lost; the batches here are new to it and get
// numbers that follow its own.
func (u *unsent) accepted(sequence uint64) (rows int64) {
	if sequence > u.Sequence {
		u.Sequence = sequence
		for i := range u.Batches {
			u.Sequence++
			u.Batches[i].Sequence = u.Sequence
		}
		return 0
	}
	for len(u.Batches) > 0 && u.Batches[0].Sequence <= sequence {
		rows += int64(len(u.Batches[0].Rows))
		u.Batches = u.Batches[1:]
	}
	return rows
}

func keyOf(r levelrail.Usage) rowKey { return rowKey{r.Hour.Unix() / 3600, r.KeyID, r.Model} }
