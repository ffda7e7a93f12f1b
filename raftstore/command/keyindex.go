package command

import (
	"fmt"
	"time"

	"github.com/levelrail/levelrail"
)

// The buckets by which keys are found, so that nothing has to read every key: a cluster may have a million. They follow
// from the keys alone and are written with them.
const (
	BucketKeyByModel  levelrail.Kind = "key_by_model"  // MODEL/NAME/KEY → KeyEntry, for each model that the key opens
	BucketKeyByHash   levelrail.Kind = "key_by_hash"   // SHA-256 of the text → the key's id
	BucketKeyByExpiry levelrail.Kind = "key_by_expiry" // TIME/KEY → the key's id, while it is not revoked
	BucketKeyUsed     levelrail.Kind = "key_used"      // KEY → when it was last used
)

// KeyEntry is as much of a key as tells whether it opens anything.
type KeyEntry struct {
	ID        string     `json:"id"`
	Revoked   bool       `json:"revoked,omitempty"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
}

// Live tells whether the key opens anything at the time given.
func (e KeyEntry) Live(now time.Time) bool {
	return !e.Revoked && (e.ExpiresAt == nil || now.Before(*e.ExpiresAt))
}

// IndexEntry is one record of the buckets by which keys are found.
type IndexEntry struct {
	Bucket levelrail.Kind
	ID     string
	Object any
}

// KeyIndex lists the records that a key has in those buckets. When a key was last used does not follow from it.
func KeyIndex(k levelrail.Key) []IndexEntry {
	out := []IndexEntry{{BucketKeyByHash, k.SHA256, k.ID}}
	for _, m := range k.Models {
		out = append(out, IndexEntry{BucketKeyByModel, m + "/" + k.Name + "/" + k.ID, KeyEntry{ID: k.ID, Revoked: k.RevokedAt != nil, ExpiresAt: k.ExpiresAt}})
	}
	if k.ExpiresAt != nil && k.RevokedAt == nil {
		out = append(out, IndexEntry{BucketKeyByExpiry, ExpiryID(*k.ExpiresAt) + "/" + k.ID, k.ID})
	}
	return out
}

// ExpiryID is a time as the ids of BucketKeyByExpiry begin: the later, the greater.
func ExpiryID(at time.Time) string { return at.UTC().Format("20060102150405.000000000") }

// putKey writes a key and what finds it.
func putKey(t *Tx, k levelrail.Key) {
	stays := map[slot]bool{}
	for _, e := range KeyIndex(k) {
		stays[slot{e.Bucket, e.ID}] = true
	}
	if old, there := get[levelrail.Key](t, k.ID); there {
		for _, e := range KeyIndex(old) {
			if !stays[slot{e.Bucket, e.ID}] {
				drop(t, e.Bucket, e.ID)
			}
		}
	}
	put(t, k)
	for _, e := range KeyIndex(k) {
		t.setObject(e.Bucket, e.ID, e.Object)
	}
}

func dropKey(t *Tx, k levelrail.Key) {
	for _, e := range KeyIndex(k) {
		drop(t, e.Bucket, e.ID)
	}
	drop(t, BucketKeyUsed, k.ID)
	drop(t, levelrail.KindKey, k.ID)
}

// keysOf returns the keys of a model, or those of one name, by name and id.
func keysOf(t *Tx, model, name string) []levelrail.Key {
	prefix := model + "/"
	if name != "" {
		prefix += name + "/"
	}
	var out []levelrail.Key
	for _, id := range ids(t, BucketKeyByModel, prefix) {
		e, _, err := DecodeValue[KeyEntry](BucketKeyByModel, id, t.raw(BucketKeyByModel, id))
		if err != nil {
			panic(err)
		}
		k, there := get[levelrail.Key](t, e.ID)
		if !there {
			panic(&Corrupt{Bucket: BucketKeyByModel, ID: id, Err: fmt.Errorf("there is no key %s", e.ID)})
		}
		if name == "" || k.Name == name {
			out = append(out, k)
		}
	}
	return out
}

// used notes when a key was used last. What is older than what is known changes nothing, and no clock of a gateway runs
// ahead of the log's.
func used(t *Tx, key string, at time.Time) {
	if t.raw(levelrail.KindKey, key) == nil {
		return
	}
	at = at.UTC().Truncate(time.Second)
	if at.After(t.now) {
		at = t.now
	}
	if value := t.raw(BucketKeyUsed, key); value != nil {
		last, _, err := DecodeValue[time.Time](BucketKeyUsed, key, value)
		if err != nil {
			panic(err)
		}
		if !at.After(last) {
			return
		}
	}
	t.setObject(BucketKeyUsed, key, at)
}
