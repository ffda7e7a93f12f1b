// Package command holds what can be written to the store: one kind of command a file, each with its own Apply, and the
// envelope in which a command lies in the log.
//
// A command carries every choice. Whoever proposes it reads the clock, mints ids, hashes keys, seals secrets and
// validates; Apply is arithmetic on the command and the state, reads no clock, no randomness and no map in its own order,
// and so comes to the same end on every server and at every replay. A refusal is a value, a *levelrail.Error, and leaves
// the state as it was.
//
// A kind's number, name and payload never change their meaning once released: a log written by an older release is
// applied by every newer one, and the files in testdata hold that. New fields are added; a field that a release does not
// know is passed over.
//
// Package raftstore brings commands to the log and their effects to the file, the audit and the watchers.
package command

import (
	"encoding/json"
	"fmt"

	"github.com/levelrail/levelrail"
)

// Command is one write. The commands of this package are plain structs, used by value.
type Command interface {
	// Kind is the command's name, such as model.deploy, as the audit shows it.
	Kind() string
	// Subject is the object that the command is about, for the audit.
	Subject() (levelrail.Kind, string)
	// Validate checks what can be checked without the state. The proposer calls it, and so does Apply's caller.
	Validate() error
	// Apply changes tx and returns a small answer, which is kept with the command's idempotency key (nil for none), or a
	// *levelrail.Error that says why nothing was done and what to do next.
	Apply(tx *Tx) (any, error)
}

// Routine is a Command that machines give every few seconds by themselves. It is not in the audit.
type Routine interface {
	Command
	Routine()
}

// By says on whose behalf a command is proposed.
type By struct {
	Principal levelrail.Principal
	Ability   levelrail.Ability // under which ability it was allowed
	// IdempotencyKey makes a retried write happen once: for a day, a second command of the same principal with the same
	// key is answered with the first one's result. Empty: no such promise.
	IdempotencyKey string
	// RequestHash is of what the caller was asked (a request's method, path and body), as the ids that were minted for it
	// differ at each try. Another hash under the same key is a conflict. Empty: the hash of the command itself.
	RequestHash string
}

// Result is what became of a command that was done.
type Result struct {
	Index    uint64          `json:"index"`          // the store's position of the command
	Replayed bool            `json:"-"`              // the key was known: this is the first command's result
	Body     json.RawMessage `json:"body,omitempty"` // the command's own answer, see each kind
}

// Decode reads the command's own answer into v.
func (r Result) Decode(v any) error {
	if len(r.Body) == 0 {
		return fmt.Errorf("the command's result has no body")
	}
	return json.Unmarshal(r.Body, v)
}

// Removes tells whether a command gives space back, so that it is taken even when the disk is nearly full.
func Removes(c Command) bool {
	switch c.(type) {
	case NodeRemove, ModelDelete, ModelRemove, ReplicaRemove, ReservationRemove, KeyRevoke, TokenRevoke, SecretRemove, WeightsRemove, PolicyRemove, UsagePrune:
		return true
	}
	return false
}

func invalid(format string, args ...any) *levelrail.Error {
	return levelrail.Errorf(levelrail.ErrInvalid, format, args...)
}

// required is an invalid error for the first pair of name and value whose value is empty.
func required(pairs ...string) error {
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			return invalid("the command has no %s", pairs[i])
		}
	}
	return nil
}
