package raftstore

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/raftstore/command"
)

// KeysOf calls fn for each key that a model has or had, by name and id, until fn returns an error.
func KeysOf(tx *Tx, model string, fn func(levelrail.Key) error) error {
	return keysUnder(tx, model+"/", fn)
}

// KeysNamed calls fn for each key of a name that a model has or had, by id, until fn returns an error.
func KeysNamed(tx *Tx, model, name string, fn func(levelrail.Key) error) error {
	return keysUnder(tx, model+"/"+name+"/", func(k levelrail.Key) error {
		if k.Name != name {
			return nil
		}
		return fn(k)
	})
}

func keysUnder(tx *Tx, prefix string, fn func(levelrail.Key) error) error {
	return each(tx, command.BucketKeyByModel, prefix, func(e command.KeyEntry) error {
		k, there, err := Get[levelrail.Key](tx, e.ID)
		if err == nil && !there {
			err = &command.Corrupt{Bucket: levelrail.KindKey, ID: e.ID, Err: fmt.Errorf("it is found under %s, and it is not there", prefix)}
		}
		if err != nil {
			return err
		}
		return fn(k)
	})
}

// LiveKeys counts the keys that open a model at a time, and counts no further than most.
func LiveKeys(tx *Tx, model string, now time.Time, most int) (n int, err error) {
	enough := fmt.Errorf("enough")
	err = each(tx, command.BucketKeyByModel, model+"/", func(e command.KeyEntry) error {
		if e.Live(now) {
			n++
		}
		if n >= most {
			return enough
		}
		return nil
	})
	if err == enough {
		err = nil
	}
	return n, err
}

// ExpiredKeys calls fn with the id of each key that has expired by a time and was not revoked before, oldest first.
func ExpiredKeys(tx *Tx, now time.Time, fn func(id string) error) error {
	limit := command.ExpiryID(now)
	var err error
	tx.state.Each(command.BucketKeyByExpiry, "", func(at string, value []byte) bool {
		when, id, _ := strings.Cut(at, "/")
		if when > limit {
			return false
		}
		err = fn(id)
		return err == nil
	})
	return err
}

// KeyLastUsed is when gateways last said that a key was used, nil when they never did.
func KeyLastUsed(tx *Tx, id string) (*time.Time, error) {
	value := tx.state.Get(command.BucketKeyUsed, id)
	if value == nil {
		return nil, nil
	}
	at, _, err := command.DecodeValue[time.Time](command.BucketKeyUsed, id, value)
	if err != nil {
		return nil, fmt.Errorf("read when the key %s was used: %w", id, err)
	}
	return &at, nil
}

// UsageOf calls fn for each row of a model's usage from one hour up to another, both included, by hour and key. It reads
// no other model's rows.
func UsageOf(tx *Tx, model string, from, to time.Time, fn func(levelrail.Usage) error) error {
	var err error
	for hour := from.UTC().Truncate(time.Hour); err == nil && !hour.After(to); hour = hour.Add(time.Hour) {
		tx.state.Each(levelrail.KindUsage, hour.Format("2006010215")+"/", func(id string, value []byte) bool {
			if !strings.HasSuffix(id, "/"+model) {
				return true
			}
			var row levelrail.Usage
			if row, _, err = command.DecodeValue[levelrail.Usage](levelrail.KindUsage, id, value); err == nil {
				err = fn(row)
			}
			return err == nil
		})
	}
	return err
}

// UsageDropped is how many hourly sums gateways have had to drop since an hour, as they said.
func UsageDropped(tx *Tx, from time.Time) (n int64, err error) {
	first := from.UTC().Format("2006010215")
	tx.state.Each(command.BucketUsageDropped, "", func(id string, value []byte) bool {
		if id < first {
			return true
		}
		var some int64
		some, _, err = command.DecodeValue[int64](command.BucketUsageDropped, id, value)
		n += some
		return err == nil
	})
	return n, err
}

// OldestUsage is the hour of the oldest usage that is kept, the zero time when there is none.
func OldestUsage(tx *Tx) (time.Time, error) {
	var oldest time.Time
	for _, bucket := range []levelrail.Kind{levelrail.KindUsage, command.BucketUsageDropped} {
		id, _ := tx.state.first(bucket)
		if id == "" {
			continue
		}
		hour, _, _ := strings.Cut(id, "/")
		at, err := time.Parse("2006010215", hour)
		if err != nil {
			return time.Time{}, &command.Corrupt{Bucket: bucket, ID: id, Err: err}
		}
		if oldest.IsZero() || at.Before(oldest) {
			oldest = at
		}
	}
	return oldest, nil
}

// indexKeys makes what finds keys in a state that an earlier build wrote without it. It follows from the keys, so every
// server comes to the same.
func indexKeys(w stateWriter) error {
	if id, _ := w.first(command.BucketKeyByHash); id != "" {
		return nil
	}
	var entries []command.IndexEntry
	var indexes []uint64
	var err error
	w.Each(levelrail.KindKey, "", func(id string, value []byte) bool {
		var k levelrail.Key
		var index uint64
		if k, index, err = command.DecodeValue[levelrail.Key](levelrail.KindKey, id, value); err != nil {
			return false
		}
		for _, e := range command.KeyIndex(k) {
			entries, indexes = append(entries, e), append(indexes, index)
		}
		return true
	})
	if err != nil {
		return err
	}
	for i, e := range entries {
		text, err := json.Marshal(e.Object)
		if err != nil {
			return err
		}
		if err := w.put(e.Bucket, e.ID, command.EncodeValue(indexes[i], text)); err != nil {
			return err
		}
	}
	return nil
}
