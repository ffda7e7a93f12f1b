package route

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// Hash is the SHA-256 of a key's text, which is how keys are stored and found.
type Hash [32]byte

// Key is what the gateway knows of one key. It never changes once it is in a Table.
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
	if w.ExpiresAt != nil {
		k.Expires = *w.ExpiresAt
	}
	return k, nil
}

// keySet is a persistent set of keys: two levels of 256 ways by the hash's first two bytes, then a short list. A change
// copies one node of each level (4 KiB) and shares the other 65,000, and a look-up follows four pointers whatever the
// size. A Go map would need a copy of everything, or a lock.
type keySet struct {
	root *keyRoot
	n    int
	edit *owner // set while the set is being changed
}

// owner marks the nodes that one edit has made itself, which it may therefore change in place. It has a size, so that
// every one has an address of its own.
type owner struct{ _ byte }

type keyRoot struct {
	owner *owner
	next  [256]*keyBranch
}

type keyBranch struct {
	owner *owner
	next  [256]*keyBucket
}

type keyBucket struct {
	owner *owner
	list  []keyEntry
}

// keyEntry has eight bytes of the hash beside the pointer, so that a look-up touches one key and not the whole list's.
type keyEntry struct {
	tag uint64
	key *Key
}

func tag(h *Hash) uint64 { return binary.LittleEndian.Uint64(h[2:10]) }

func (s *keySet) get(h Hash) *Key {
	if s.root == nil {
		return nil
	}
	branch := s.root.next[h[0]]
	if branch == nil {
		return nil
	}
	bucket := branch.next[h[1]]
	if bucket == nil {
		return nil
	}
	want := tag(&h)
	for i := range bucket.list {
		if e := &bucket.list[i]; e.tag == want && e.key.Hash == h {
			return e.key
		}
	}
	return nil
}

func (s *keySet) all(yield func(*Key) bool) {
	if s.root == nil {
		return
	}
	for _, branch := range s.root.next {
		if branch == nil {
			continue
		}
		for _, bucket := range branch.next {
			if bucket == nil {
				continue
			}
			for _, e := range bucket.list {
				if !yield(e.key) {
					return
				}
			}
		}
	}
}

func (s *keySet) begin() keySet { return keySet{root: s.root, n: s.n, edit: new(owner)} }
func (s *keySet) end() keySet   { return keySet{root: s.root, n: s.n} }

// bucket returns the list of h, on a path that this edit owns.
func (s *keySet) bucket(h *Hash) *keyBucket {
	switch {
	case s.root == nil:
		s.root = &keyRoot{owner: s.edit}
	case s.root.owner != s.edit:
		c := *s.root
		c.owner = s.edit
		s.root = &c
	}
	branch := &s.root.next[h[0]]
	switch {
	case *branch == nil:
		*branch = &keyBranch{owner: s.edit}
	case (*branch).owner != s.edit:
		c := **branch
		c.owner = s.edit
		*branch = &c
	}
	bucket := &(*branch).next[h[1]]
	switch {
	case *bucket == nil:
		*bucket = &keyBucket{owner: s.edit}
	case (*bucket).owner != s.edit:
		*bucket = &keyBucket{owner: s.edit, list: append(make([]keyEntry, 0, len((*bucket).list)+1), (*bucket).list...)}
	}
	return *bucket
}

func (s *keySet) put(k *Key) {
	b, want := s.bucket(&k.Hash), tag(&k.Hash)
	for i := range b.list {
		if b.list[i].tag == want && b.list[i].key.Hash == k.Hash {
			b.list[i].key = k
			return
		}
	}
	b.list = append(b.list, keyEntry{want, k})
	s.n++
}

func (s *keySet) drop(h Hash) {
	if s.get(h) == nil {
		return
	}
	b, want := s.bucket(&h), tag(&h)
	for i := range b.list {
		if b.list[i].tag == want && b.list[i].key.Hash == h {
			last := len(b.list) - 1
			b.list[i], b.list[last] = b.list[last], keyEntry{}
			b.list = b.list[:last]
			s.n--
			return
		}
	}
}
