package raftstore

import (
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"
)

// fsm is raft's side of the machine.
type fsm struct {
	machine  *machine
	state    *boltState
	faults   *faults
	watchdog *watchdog
	closing  chan struct{} // closed when the store is
	restored error         // why the last snapshot could not be restored; raft itself does not say
}

// ApplyBatch applies committed entries in one commit. When it cannot, it does not return to raft before the store is
// closed: raft would take the entries for applied.
func (f *fsm) ApplyBatch(logs []*raft.Log) []any {
	responses := make([]any, len(logs))
	entries := make([]entry, len(logs))
	for i, l := range logs {
		entries[i] = entry{index: l.Index, term: l.Term}
		if l.Type == raft.LogCommand {
			entries[i].data = l.Data
			if l.Data == nil {
				entries[i].data = []byte{}
			}
		}
	}
	err := f.faults.failed()
	var outcomes []outcome
	if err == nil {
		end := f.watchdog.watch("applying commands to the state")
		outcomes, err = f.machine.apply(entries)
		end()
	}
	if err != nil {
		f.faults.fatal(err)
		<-f.closing
		for i := range responses {
			responses[i] = err
		}
		return responses
	}
	for i, o := range outcomes {
		responses[i] = o
	}
	return responses
}

// Apply is for a raft that does not batch.
func (f *fsm) Apply(l *raft.Log) any { return f.ApplyBatch([]*raft.Log{l})[0] }

// Snapshot takes the state as of the last commit.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	if err := f.faults.failed(); err != nil {
		return nil, err
	}
	tx, end, err := f.state.open()
	if err != nil {
		return nil, fmt.Errorf("take a snapshot of the state: %w", err)
	}
	return &fsmSnapshot{tx: tx, end: end}, nil
}

type fsmSnapshot struct {
	tx  *bbolt.Tx
	end func()
}

func (s *fsmSnapshot) Persist(sink raft.SnapshotSink) error {
	err := reading("the state", func() error {
		_, err := s.tx.WriteTo(sink)
		return err
	})
	if err != nil {
		return errors.Join(fmt.Errorf("write the snapshot: %w", err), sink.Cancel())
	}
	return sink.Close()
}

func (s *fsmSnapshot) Release() { s.end() }

// Restore puts a snapshot in place of the state. raft has checked its checksum.
func (f *fsm) Restore(r io.ReadCloser) error {
	defer r.Close()
	f.restored = f.restore(r)
	return f.restored
}

func (f *fsm) restore(r io.Reader) error {
	defer f.watchdog.watch("restoring a snapshot")()
	if err := f.state.replace(r); err != nil {
		return fmt.Errorf("restore the snapshot: %w", err)
	}
	if err := f.index(); err != nil {
		return fmt.Errorf("restore the snapshot: %w", err)
	}
	return f.state.view(func(s stateReader) error {
		m, err := readMeta(s)
		if err != nil {
			return fmt.Errorf("restore the snapshot: %w", err)
		}
		if m.Cluster != "" && m.Cluster != f.machine.cluster {
			return fmt.Errorf("the snapshot is of the cluster %s, and this server belongs to %s", m.Cluster, f.machine.cluster)
		}
		f.machine.ring.restart(m.Applied)
		f.machine.progress.set(m.Applied)
		return nil
	})
}

// index makes what a snapshot of an earlier build lacks.
func (f *fsm) index() error {
	w, err := f.state.begin()
	if err != nil {
		return err
	}
	defer w.rollback()
	if err := indexKeys(w); err != nil {
		return err
	}
	return w.commit()
}
