package raftstore

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/raftstore/command"
)

// Tx is a read of the state at one position. It is valid inside the function that was given it.
type Tx struct {
	state stateReader
	index uint64
}

// Index is the position of the last command that the read sees.
func (tx *Tx) Index() uint64 { return tx.index }

// View calls fn with the state as this server has it, which may be behind the leader's.
func (s *Store) View(fn func(tx *Tx) error) error {
	return s.state.view(func(r stateReader) error {
		m, err := readMeta(r)
		if err != nil {
			return err
		}
		return fn(&Tx{state: r, index: m.Applied})
	})
}

// ViewAt is View once this server has applied the command at an index (Result.Index): it sees one's own writes.
func (s *Store) ViewAt(ctx context.Context, index uint64, fn func(tx *Tx) error) error {
	if err := s.progress.wait(ctx, index); err != nil {
		return err
	}
	return s.View(fn)
}

// ViewCurrent is a View that sees every write that was acknowledged before it began. On a server that does not lead it
// returns a *NotLeaderError.
func (s *Store) ViewCurrent(ctx context.Context, fn func(tx *Tx) error) error {
	index, err := s.log.current(ctx)
	if err != nil {
		return err
	}
	return s.ViewAt(ctx, index, fn)
}

// Get returns the object of T's kind with an id, and whether there is one.
func Get[T levelrail.Object](tx *Tx, id string) (T, bool, error) {
	v, index, err := GetIndexed[T](tx, id)
	return v, index != 0, err
}

// GetIndexed is Get with the index of the command that wrote the object, 0 when there is none: what a command's IfIndex
// compares.
func GetIndexed[T levelrail.Object](tx *Tx, id string) (T, uint64, error) {
	var zero T
	value := tx.state.Get(zero.ObjectKind(), id)
	if value == nil {
		return zero, 0, nil
	}
	return command.DecodeValue[T](zero.ObjectKind(), id, value)
}

// List returns the objects of T's kind whose id begins with prefix, sorted by id; none is an empty list, not nil.
func List[T levelrail.Object](tx *Tx, prefix string) ([]T, error) {
	out := []T{}
	err := Each(tx, prefix, func(v T) error {
		out = append(out, v)
		return nil
	})
	return out, err
}

// Each calls fn for each object of T's kind whose id begins with prefix, sorted by id, until fn returns an error.
func Each[T levelrail.Object](tx *Tx, prefix string, fn func(T) error) error {
	var zero T
	return each(tx, zero.ObjectKind(), prefix, fn)
}

func each[T any](tx *Tx, bucket levelrail.Kind, prefix string, fn func(T) error) error {
	var err error
	tx.state.Each(bucket, prefix, func(id string, value []byte) bool {
		var v T
		if v, _, err = command.DecodeValue[T](bucket, id, value); err == nil {
			err = fn(v)
		}
		return err == nil
	})
	return err
}

// SettingsHistory returns the kept versions of a settings document, oldest first.
func SettingsHistory(tx *Tx, name string) ([]levelrail.SettingsDocument, error) {
	var out []levelrail.SettingsDocument
	err := each(tx, command.BucketSettingsHistory, name+"/", func(d levelrail.SettingsDocument) error {
		out = append(out, d)
		return nil
	})
	return out, err
}

// UsageSequence returns the number of the last batch of usage that was counted for a gateway, 0 for none.
func UsageSequence(tx *Tx, gatewayID string) (uint64, error) {
	value := tx.state.Get(command.BucketUsageSequence, gatewayID)
	if value == nil {
		return 0, nil
	}
	n, _, err := command.DecodeValue[uint64](command.BucketUsageSequence, gatewayID, value)
	if err != nil {
		return 0, fmt.Errorf("read the usage of the gateway %s: %w", gatewayID, err)
	}
	return n, nil
}

// decodeRaw copies the object out of a value.
func decodeRaw(bucket levelrail.Kind, id string, value []byte) (json.RawMessage, uint64, error) {
	return command.DecodeValue[json.RawMessage](bucket, id, value)
}
