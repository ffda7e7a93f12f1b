package raftstore

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/raftstore/command"
)

// idemRecord is what the state remembers of a command that came with an idempotency key.
type idemRecord struct {
	Hash   string           `json:"hash"` // of the request
	At     time.Time        `json:"at"`   // log time
	Result command.Result   `json:"result"`
	Refuse *levelrail.Error `json:"refused,omitempty"`
}

func idemID(by command.By) string { return by.Principal.String() + " " + by.IdempotencyKey }

// readIdem finds the command that had the same principal and key within the day before.
func readIdem(r stateReader, by command.By, now time.Time) (idemRecord, bool, error) {
	var rec idemRecord
	value := r.Get(bucketIdem, idemID(by))
	if value == nil {
		return rec, false, nil
	}
	if err := json.Unmarshal(value, &rec); err != nil {
		return rec, false, &command.Corrupt{Bucket: bucketIdem, ID: idemID(by), Err: err}
	}
	return rec, now.Sub(rec.At) < idemKeptFor, nil
}

// answer is what a repeat gets: what the first command got, or a conflict when it asks for something else.
func (rec idemRecord) answer(env command.Envelope, index uint64) outcome {
	if rec.Hash != env.By.RequestHash {
		return outcome{result: command.Result{Index: index}, refuse: levelrail.Errorf(levelrail.ErrConflict,
			"the idempotency key %q was used for another request at index %d", env.By.IdempotencyKey, rec.Result.Index).
			WithNext("use a new key for a new request")}
	}
	out := outcome{result: rec.Result, refuse: rec.Refuse}
	out.result.Replayed = true
	return out
}

func writeIdem(w stateWriter, at *meta, by command.By, index uint64, out outcome) error {
	id := idemID(by)
	text, err := json.Marshal(idemRecord{Hash: by.RequestHash, At: at.LogTime, Result: out.result, Refuse: out.refuse})
	if err != nil {
		return err
	}
	if w.Get(bucketIdem, id) == nil {
		at.Idems++
	}
	order, err := json.Marshal(idemOrder{ID: id, At: at.LogTime})
	if err != nil {
		return err
	}
	if err := w.put(bucketIdem, id, text); err != nil {
		return fmt.Errorf("write the idempotency key: %w", err)
	}
	if err := w.put(bucketIdemOrder, fmt.Sprintf("%020d", index), order); err != nil {
		return fmt.Errorf("write the idempotency key: %w", err)
	}
	return shortenIdem(w, at)
}

type idemOrder struct {
	ID string    `json:"id"`
	At time.Time `json:"at"`
}

// shortenIdem forgets keys that are a day old, and the oldest above the number kept.
func shortenIdem(w stateWriter, at *meta) error {
	for {
		oldest, value := w.first(bucketIdemOrder)
		if oldest == "" {
			return nil
		}
		var o idemOrder
		if err := json.Unmarshal(value, &o); err != nil {
			return &command.Corrupt{Bucket: bucketIdemOrder, ID: oldest, Err: err}
		}
		if at.Idems <= idemKept && at.LogTime.Sub(o.At) < idemKeptFor {
			return nil
		}
		if err := w.remove(bucketIdemOrder, oldest); err != nil {
			return fmt.Errorf("forget an idempotency key: %w", err)
		}
		// The key may have been used again since: the later use has its own place in the order.
		var rec idemRecord
		if text := w.Get(bucketIdem, o.ID); text != nil {
			if err := json.Unmarshal(text, &rec); err != nil {
				return &command.Corrupt{Bucket: bucketIdem, ID: o.ID, Err: err}
			}
			if rec.Result.Index != 0 && fmt.Sprintf("%020d", rec.Result.Index) != oldest {
				continue
			}
			if err := w.remove(bucketIdem, o.ID); err != nil {
				return fmt.Errorf("forget an idempotency key: %w", err)
			}
			at.Idems--
		}
	}
}
