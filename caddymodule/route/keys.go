package route

import (
	"encoding/hex"
	"fmt"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/caddymodule/dense"
	"github.com/levelrail/levelrail/client/wire"
)

// Hash is the SHA-256 of a key's text, which is how keys are stored and found.
type Hash [32]byte

// Key is what the gateway knows of one key: a copy, made when it is looked up, whose strings and lists are the table's own
// and never change.
type Key struct {
	ID         string
	Name       string
	Prefix     string // the first 8 characters, the only part of the key that may be shown
	Hash       Hash
	Models     []string            // the models that it opens; the API gives exactly one for now
	AllowPaths []string            // empty: every path that the model serves
	AllowNames []string            // empty: every served name of its models
	Limits     levelrail.KeyLimits //
	Expires    time.Time           // zero: never
	Owner      levelrail.Owner     //
	Tags       []string            //
}

// Live tells whether the key has not expired at the time given. Revoked keys are not in a Table at all.
func (k *Key) Live(now time.Time) bool { return k.Expires.IsZero() || now.Before(k.Expires) }

// Wire is the key as the control plane sent it.
func (k *Key) Wire() wire.RouteKey {
	w := wire.RouteKey{ID: k.ID, Name: k.Name, SHA256: hex.EncodeToString(k.Hash[:]), Prefix: k.Prefix, Models: k.Models, AllowPaths: k.AllowPaths,
		AllowModels: k.AllowNames, Limits: k.Limits, Owner: k.Owner, Tags: k.Tags}
	if !k.Expires.IsZero() {
		w.ExpiresAt = &k.Expires
	}
	return w
}

func newKey(w wire.RouteKey) (*Key, error) {
	k := &Key{ID: w.ID, Name: w.Name, Prefix: w.Prefix, Models: w.Models, AllowPaths: w.AllowPaths, AllowNames: w.AllowModels,
		Limits: w.Limits, Owner: w.Owner, Tags: w.Tags}
	hash, err := hex.DecodeString(w.SHA256)
	if err != nil || copy(k.Hash[:], hash) != len(k.Hash) || len(hash) != len(k.Hash) {
		return nil, fmt.Errorf("key %s: its hash is not 64 hexadecimal digits", w.ID)
	}
	if len(w.ID) > dense.MaxID {
		return nil, fmt.Errorf("key %s: its id is longer than %d bytes", w.ID, dense.MaxID)
	}
	if w.ExpiresAt != nil {
		k.Expires = *w.ExpiresAt
	}
	return k, nil
}
