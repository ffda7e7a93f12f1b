package command

import (
	"slices"
	"time"

	"github.com/levelrail/levelrail"
)

// KeyCreate makes a further key. Only its hash is in the command.
type KeyCreate struct {
	Key levelrail.Key `json:"key"`
}

func (KeyCreate) Kind() string                        { return "key.create" }
func (c KeyCreate) Subject() (levelrail.Kind, string) { return levelrail.KindKey, c.Key.ID }
func (c KeyCreate) Validate() error                   { return checkKey(c.Key) }

func (c KeyCreate) Apply(t *Tx) (any, error) { return nil, putNewKey(t, c.Key, "") }

// KeyRevoke closes a key for good. Repeating it does nothing.
type KeyRevoke struct {
	ID string `json:"id"`
}

func (KeyRevoke) Kind() string                        { return "key.revoke" }
func (c KeyRevoke) Subject() (levelrail.Kind, string) { return levelrail.KindKey, c.ID }
func (c KeyRevoke) Validate() error                   { return required("key id", c.ID) }

func (c KeyRevoke) Apply(t *Tx) (any, error) {
	k, there := get[levelrail.Key](t, c.ID)
	if !there {
		return nil, noKey(c.ID)
	}
	if k.RevokedAt == nil {
		at := t.now
		k.RevokedAt, k.Stamp = &at, t.stamp(k.Stamp, true)
		putKey(t, k)
	}
	return nil, nil
}

// KeyRotate makes a key of the same name in place of the one that it names in Replaces, which opens until RetireAt;
// without a time it is revoked at once.
type KeyRotate struct {
	Key      levelrail.Key `json:"key"`
	RetireAt *time.Time    `json:"retire_at,omitempty"`
}

func (KeyRotate) Kind() string                        { return "key.rotate" }
func (c KeyRotate) Subject() (levelrail.Kind, string) { return levelrail.KindKey, c.Key.ID }

func (c KeyRotate) Validate() error {
	if err := required("key to replace", c.Key.Replaces); err != nil {
		return err
	}
	return checkKey(c.Key)
}

func (c KeyRotate) Apply(t *Tx) (any, error) {
	old, there := get[levelrail.Key](t, c.Key.Replaces)
	if !there {
		return nil, noKey(c.Key.Replaces)
	}
	if !old.Live(t.now) {
		return nil, levelrail.Errorf(levelrail.ErrRefused, "the key %s is revoked or expired already", old.ID).WithNext("levelrail models keys create")
	}
	if c.Key.Name != old.Name {
		return nil, invalid("the key %s is named %s, and so is what takes its place, not %s", old.ID, old.Name, c.Key.Name)
	}
	for _, m := range old.Models {
		for _, other := range keysOf(t, m, old.Name) {
			if other.Replaces == old.ID {
				return nil, levelrail.Errorf(levelrail.ErrRefused, "the key %s has been replaced already, by %s", old.ID, other.ID).
					WithNext("levelrail models keys rotate %s %s", m, other.ID)
			}
		}
	}
	if err := putNewKey(t, c.Key, old.ID); err != nil {
		return nil, err
	}
	if at := t.now; c.RetireAt == nil || !c.RetireAt.After(at) {
		old.RevokedAt = &at
	} else if old.ExpiresAt == nil || c.RetireAt.Before(*old.ExpiresAt) {
		until := c.RetireAt.UTC()
		old.ExpiresAt = &until
	}
	old.Stamp = t.stamp(old.Stamp, true)
	putKey(t, old)
	return nil, nil
}

func noKey(id string) error {
	return levelrail.Errorf(levelrail.ErrNotFound, "there is no key %s", id).WithNext("levelrail models keys list NAME")
}

func checkKey(k levelrail.Key) error {
	if err := required("key id", k.ID, "key name", k.Name, "key hash", k.SHA256); err != nil {
		return err
	}
	if !isHash(k.SHA256) {
		return invalid("the hash of the key %s is not the hex of a SHA-256", k.ID)
	}
	if len(k.Models) == 0 {
		return invalid("the key %s opens no model", k.ID)
	}
	return nil
}

// putNewKey writes a key whose id, hash and, among the live keys of each of its models, name are new. The key that it
// replaces may have the same name.
func putNewKey(t *Tx, k levelrail.Key, replaces string) error {
	for _, m := range k.Models {
		if _, err := standing(t, m); err != nil {
			return err
		}
	}
	taken := k.ID
	if t.raw(levelrail.KindKey, k.ID) == nil {
		taken = keyByHash(t, k.SHA256)
	}
	if taken != "" {
		return levelrail.Errorf(levelrail.ErrConflict, "the key %s is there already", taken)
	}
	for _, m := range k.Models {
		others := keysOf(t, m, k.Name)
		for _, other := range others {
			if other.ID == replaces || !other.Live(t.now) || retiring(other, others) {
				continue
			}
			return levelrail.Errorf(levelrail.ErrConflict, "the model %s has a key named %s already", m, k.Name).
				WithNext("choose another name, or levelrail models keys revoke %s %s", m, other.ID)
		}
	}
	k.RevokedAt, k.Owner, k.Stamp = nil, orDefault(k.Owner), t.stamp(levelrail.Stamp{}, false)
	putKey(t, k)
	return nil
}

// retiring tells whether another key, which then has the same name, has been made in this one's place.
func retiring(k levelrail.Key, sameName []levelrail.Key) bool {
	return slices.ContainsFunc(sameName, func(other levelrail.Key) bool { return other.Replaces == k.ID })
}

// keyByHash is the id of the key with that hash, "" for none.
func keyByHash(t *Tx, hash string) string {
	value := t.raw(BucketKeyByHash, hash)
	if value == nil {
		return ""
	}
	id, _, err := DecodeValue[string](BucketKeyByHash, hash, value)
	if err != nil {
		panic(err)
	}
	return id
}

func isHash(s string) bool {
	if len(s) != 64 {
		return false
	}
	for _, c := range s {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
