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
	"strconv"
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
	gateway  string
	sequence uint64 // the last number given out
	batches  []batch
	open     [shardCount]*ledger // nil: empty
	lost     int64
}

// batch is a wire.UsageBatch as it is kept and sent.
type batch struct {
	sequence uint64
	rows     int
	text     json.RawMessage
}

// usage is what the file holds.
type usage struct {
	GatewayID string            `json:"gateway_id"`
	Sequence  uint64            `json:"sequence"`
	Batches   []json.RawMessage `json:"batches"`
	Open      []row             `json:"open"`
	Lost      int64             `json:"lost"`
}

// load reads the file. Without one, or without a directory, the state is empty.
func load(dir, id string) (*unsent, error) {
	if dir == "" {
		return &unsent{gateway: id}, nil
	}
	b, err := os.ReadFile(filepath.Join(dir, usageFile))
	if errors.Is(err, fs.ErrNotExist) {
		return &unsent{gateway: id}, nil
	}
	if err != nil {
		return &unsent{gateway: id}, err
	}
	u, err := read(b)
	if err != nil {
		// The numbers that were given out are not known any more, so this gateway's are not to be continued.
		aside := filepath.Join(dir, usageFile+".broken")
		return &unsent{gateway: levelrail.NewID("gw")}, errors.Join(fmt.Errorf("read %s (moved to %s): %w", usageFile, aside, err), os.Rename(filepath.Join(dir, usageFile), aside))
	}
	return u, nil
}

func read(text []byte) (*unsent, error) {
	var f usage
	if err := json.Unmarshal(text, &f); err != nil {
		return nil, err
	}
	u := &unsent{gateway: f.GatewayID, sequence: f.Sequence, lost: f.Lost}
	for _, text := range f.Batches {
		var b wire.UsageBatch
		if err := json.Unmarshal(text, &b); err != nil {
			return nil, err
		}
		u.batches = append(u.batches, batch{b.Sequence, len(b.Rows), text})
	}
	for _, r := range f.Open {
		u.opened(r.KeyID).put(r)
	}
	return u, nil
}

// save writes the file and returns once it is on disk.
func (u *unsent) save(dir string) error {
	if dir == "" {
		return nil
	}
	return durable.Replace(dir, usageFile, u.write)
}

// write writes a usage, piece by piece.
func (u *unsent) write(w io.Writer) error {
	b := durable.AppendText([]byte(`{"gateway_id":`), u.gateway)
	b = strconv.AppendUint(append(b, `,"sequence":`...), u.sequence, 10)
	b = strconv.AppendInt(append(b, `,"lost":`...), u.lost, 10)
	b = append(b, `,"batches":[`...)
	for i := range u.batches {
		if i > 0 {
			b = append(b, ",\n"...)
		}
		b = append(b, u.batches[i].text...)
		if _, err := w.Write(b); err != nil {
			return err
		}
		b = b[:0]
	}
	b = append(b, `],"open":[`...)
	for i, e := range entries(u.open[:]) {
		if i > 0 {
			b = append(b, ",\n"...)
		}
		if b = appendRow(b, &e); e.sum.used != 0 {
			b = appendTime(append(b, `,"used":`...), time.Unix(0, e.sum.used))
		}
		b = append(b, '}')
		if _, err := w.Write(b); err != nil {
			return err
		}
		b = b[:0]
	}
	_, err := w.Write(append(b, "]}\n"...))
	return err
}

// rows is how many rows are held.
func (u *unsent) rows() int64 {
	n := int64(u.unnumbered())
	for i := range u.batches {
		n += int64(u.batches[i].rows)
	}
	return n
}

// unnumbered is how many of them have no number.
func (u *unsent) unnumbered() (n int) {
	for _, l := range u.open {
		n += l.len()
	}
	return n
}

// opened is the ledger of a key's open sums.
func (u *unsent) opened(key string) *ledger {
	at := &u.open[shardOf(key)]
	if *at == nil {
		*at = new(ledger)
	}
	return *at
}

// add puts what was counted to the open sums and returns how many rows found theirs there already.
func (u *unsent) add(t *taken) (joined int64) {
	for i := range t.ledgers {
		if u.open[i].len() == 0 {
			u.open[i] = t.ledgers[i]
		} else {
			joined += u.open[i].merge(t.ledgers[i])
		}
	}
	u.lost += t.lost
	return joined
}

// number makes batches of the open sums, of at most that many rows each.
func (u *unsent) number(most int) {
	for rows := range slices.Chunk(entries(u.open[:]), max(most, 1)) {
		u.sequence++
		u.batches = append(u.batches, batch{u.sequence, len(rows), appendBatch(make([]byte, 0, len(rows)*rowRoom), u.gateway, u.sequence, rows, u.lost)})
		u.lost = 0
	}
	u.open = [shardCount]*ledger{}
}

// rowRoom is about how long a row is with the use of its key.
const rowRoom = 480

// accepted forgets what the control plane has. It returns how many rows that were. A control plane that has come further
// than this gateway's numbers knows an earlier life of it whose state is lost; the batches here are new to it and get
// numbers that follow its own.
func (u *unsent) accepted(sequence uint64) (rows int64, err error) {
	if sequence > u.sequence {
		u.sequence = sequence
		for i := range u.batches {
			b := &u.batches[i]
			u.sequence++
			if b.text, err = renumbered(b.text, u.sequence); err != nil {
				return 0, err
			}
			b.sequence = u.sequence
		}
		return 0, nil
	}
	for len(u.batches) > 0 && u.batches[0].sequence <= sequence {
		rows += int64(u.batches[0].rows)
		u.batches = u.batches[1:]
	}
	return rows, nil
}
