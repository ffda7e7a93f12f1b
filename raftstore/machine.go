package raftstore

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/raftstore/command"
)

const (
	auditKept   = 10_000         // records
	idemKept    = 10_000         // idempotency keys
	idemKeptFor = 24 * time.Hour // of log time
)

// entry is one entry of the log that the state takes note of.
type entry struct {
	index, term uint64
	data        []byte // nil: no command, only the position
}

// outcome is what became of a command: a result or a refusal, the same on every server.
type outcome struct {
	result command.Result
	refuse *levelrail.Error
}

// machine turns entries of the log into changes of the state, its audit and the watchers' ring.
type machine struct {
	cluster  string
	state    state
	ring     *ring
	progress *progress
	log      *slog.Logger
	skip     map[uint64]bool // entries that an operator has taken out, on every server
}

// apply applies entries in one commit and answers each. An error is no refusal: the state could not be read or written, or
// the log holds what this release does not understand. The process must stop then, and goes on from the same entry later.
func (m *machine) apply(entries []entry) (outcomes []outcome, err error) {
	w, err := m.state.begin()
	if err != nil {
		return nil, fmt.Errorf("open the state: %w", err)
	}
	defer w.rollback()
	defer func() {
		if p := recover(); p != nil {
			c, ok := p.(*command.Corrupt)
			if !ok {
				panic(p)
			}
			outcomes, err = nil, c
		}
	}()
	at, err := readMeta(w)
	if err != nil {
		return nil, err
	}
	at.Cluster = m.cluster
	outcomes = make([]outcome, len(entries))
	var published []change
	for i, e := range entries {
		at.Applied, at.Term = e.index, e.term
		if e.data == nil || m.skip[e.index] {
			continue
		}
		out, changes, err := m.one(w, &at, e)
		if err != nil {
			return nil, fmt.Errorf("apply entry %d of term %d: %w", e.index, e.term, err)
		}
		outcomes[i] = out
		published = append(published, changes...)
	}
	if err := writeMeta(w, at); err != nil {
		return nil, fmt.Errorf("write the state: %w", err)
	}
	if err := w.commit(); err != nil {
		return nil, fmt.Errorf("write the state: %w", err)
	}
	m.ring.publish(published, at.Applied)
	m.progress.set(at.Applied)
	return outcomes, nil
}

// one applies one command: answers a repeat, runs the handler, writes its changes, the audit and the idempotency record.
func (m *machine) one(w stateWriter, at *meta, e entry) (out outcome, published []change, err error) {
	env, err := command.Open(e.data)
	if err != nil {
		return out, nil, err
	}
	if env.ClusterID != m.cluster {
		return out, nil, fmt.Errorf("the command is of the cluster %s, and this server belongs to %s: two clusters have been joined, restore this server from its own", env.ClusterID, m.cluster)
	}
	out.result.Index = e.index
	if env.Command == nil {
		return out, nil, nil
	}
	if env.At.After(at.LogTime) {
		at.LogTime = env.At
	}
	if env.By.IdempotencyKey != "" {
		prev, known, err := readIdem(w, env.By, at.LogTime)
		if err != nil {
			return out, nil, err
		}
		if known {
			return prev.answer(env, e.index), nil, nil
		}
	}

	tx := command.NewTx(w, e.index, at.LogTime, env.By, m.cluster)
	body, refuse, err := m.run(tx, env.Command, e.index)
	if err != nil {
		return out, nil, err
	}
	out.refuse = refuse
	if refuse == nil {
		if out.result.Body, err = encodeBody(body); err != nil {
			return out, nil, err
		}
		if published, err = writeChanges(w, tx.Changes(), e.index); err != nil {
			return out, nil, err
		}
	}
	if err := writeAudit(w, at, env, e.index, refuse); err != nil {
		return out, nil, err
	}
	if env.By.IdempotencyKey != "" {
		err = writeIdem(w, at, env.By, e.index, out)
	}
	return out, published, err
}

// run calls the command's own code. A panic of it is a refusal like any other, with one sentence that is the same on every
// server; a state that cannot be read is an error.
func (m *machine) run(tx *command.Tx, c command.Command, index uint64) (body any, refuse *levelrail.Error, err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case *command.Corrupt:
			err = p
		default:
			m.log.Error("a command panicked and was refused", "command", c.Kind(), "index", index, "panic", p, "stack", string(debug.Stack()))
			refuse = levelrail.Errorf(levelrail.ErrInternal, "the command %s cannot be applied: it met a fault in this release", c.Kind()).
				WithNext("report it with the server's journal")
		}
	}()
	failed := c.Validate()
	if failed == nil {
		body, failed = c.Apply(tx)
	}
	return body, refusal(failed), nil
}

// refusal makes any error of a command one that has a kind.
func refusal(err error) *levelrail.Error {
	switch e := err.(type) {
	case nil:
		return nil
	case *levelrail.Error:
		return e
	default:
		return levelrail.Errorf(levelrail.ErrInternal, "%v", err)
	}
}

func encodeBody(body any) (json.RawMessage, error) {
	if body == nil {
		return nil, nil
	}
	return json.Marshal(body)
}

func writeChanges(w stateWriter, changes []command.Change, index uint64) ([]change, error) {
	var published []change
	for _, c := range changes {
		err := error(nil)
		if c.Value == nil {
			err = w.remove(c.Bucket, c.ID)
		} else {
			err = w.put(c.Bucket, c.ID, c.Value)
		}
		if err != nil {
			return nil, fmt.Errorf("write %s %s: %w", c.Bucket, c.ID, err)
		}
		if watched[c.Bucket] {
			published = append(published, change{index: index, kind: c.Bucket, id: c.ID, object: bytes.Clone(c.Object)})
		}
	}
	return published, nil
}

// writeAudit records who did what, and lets the oldest record go when there are enough. What machines say every few
// seconds by themselves is left out, unless it is refused: it would push out what people did.
func writeAudit(w stateWriter, at *meta, env command.Envelope, index uint64, refuse *levelrail.Error) error {
	if _, often := env.Command.(command.Routine); often && refuse == nil {
		return nil
	}
	a := levelrail.Audit{Index: index, At: env.At, Principal: env.By.Principal, Ability: env.By.Ability, Command: env.Command.Kind()}
	a.Kind, a.ID = env.Command.Subject()
	if refuse != nil {
		a.Refused = string(refuse.Kind)
	}
	text, err := json.Marshal(a)
	if err != nil {
		return err
	}
	if err := w.put(levelrail.KindAudit, a.ObjectID(), command.EncodeValue(index, text)); err != nil {
		return fmt.Errorf("write the audit: %w", err)
	}
	if at.Audits++; at.Audits > auditKept {
		oldest, _ := w.first(levelrail.KindAudit)
		if err := w.remove(levelrail.KindAudit, oldest); err != nil {
			return fmt.Errorf("shorten the audit: %w", err)
		}
		at.Audits--
	}
	return nil
}
