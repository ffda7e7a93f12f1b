package raftstore

import (
	"errors"

	"github.com/levelrail/levelrail"
)

// NotLeaderError says that a write or a current read went to a server that does not lead. Nothing was written.
type NotLeaderError struct {
	LeaderID string // empty while none is known
	Leader   string // its address
}

func (e *NotLeaderError) Error() string {
	if e.LeaderID == "" {
		return "no server leads the cluster at the moment"
	}
	return "the server " + e.LeaderID + " leads the cluster, not this one"
}

// ErrTooOld says that a watch cannot go on from its token: the changes since are not kept any more, or the token is of
// another line of history. Watch again without a token.
var ErrTooOld = errors.New("the token of the watch is too old to go on from")

// ErrClosed says that the store is closed.
var ErrClosed = errors.New("the store is closed")

func unknownOutcome(why string) error {
	return levelrail.Errorf(levelrail.ErrTimeout, "it is not known whether the change was made: %s", why).
		WithNext("look whether it was made before repeating it, or repeat it with the same idempotency key")
}
