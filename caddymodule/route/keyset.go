package route

import (
	"encoding/binary"
	"hash/maphash"
	"slices"
)

// keySet is a persistent set of keys, found by hash and by id: two trees of 256 by 256 ways, whose leaves are short lists. A
// change copies one path of each (some 10 KiB) and shares the other 65,000, and a look-up follows four pointers whatever the
// size. A Go map would need a copy of everything, or a lock.
//
// A million keys are the one thing in the process that is large and stays, so they hold no pointers: a leaf's are one run of
// bytes (record.go), which the garbage collector takes as a whole, and of which a look-up reads a few lines that lie
// together. What keys share (which models, whose) stands once (scopes.go).
type keySet struct {
	keys tree[keyLeaf] // by the hash's first bytes
	ids  tree[idLeaf]  // by the first bytes of a hash of the id
	n    int
	edit *owner // set while the set is being changed
}

// owner marks the nodes that one edit has made itself, which it may therefore change in place. It has a size, so that
// every one has an address of its own.
type owner struct{ _ byte }

// tree is two levels of nodes over leaves.
type tree[Leaf any] struct{ root *node[node[Leaf]] }

type node[Next any] struct {
	owner *owner
	next  [256]*Next
}

// leaf is the one at a path, or nil.
func (t *tree[Leaf]) leaf(a, b byte) *Leaf {
	if t.root == nil || t.root.next[a] == nil {
		return nil
	}
	return t.root.next[a].next[b]
}

// own is the place of the leaf at a path, in nodes that the edit owns.
func (t *tree[Leaf]) own(a, b byte, edit *owner) **Leaf {
	return &ownNode(&ownNode(&t.root, edit).next[a], edit).next[b]
}

func ownNode[Next any](at **node[Next], edit *owner) *node[Next] {
	switch n := *at; {
	case n == nil:
		*at = &node[Next]{owner: edit}
	case n.owner != edit:
		c := *n
		c.owner = edit
		*at = &c
	}
	return *at
}

// keyLeaf is a short list of keys.
type keyLeaf struct {
	owner *owner
	list
	scopes
}

// find is the place of a key in the leaf, -1 without.
func (l *keyLeaf) find(h *Hash) int {
	if l == nil {
		return -1
	}
	want := tag(h)
	for i := range l.n {
		if l.tag(i) == want && string(l.record(i)[:restOfHash]) == string(h[32-restOfHash:]) {
			return i
		}
	}
	return -1
}

// idLeaf is a short list of ids.
type idLeaf struct {
	owner *owner
	list  []idAt
}

// idAt leads from an id to its key, which has the id itself to compare.
type idAt struct {
	id  uint64 // its hash
	key uint64 // the first eight bytes of the key's hash
}

var idSeed = maphash.MakeSeed()

func hashID(id string) uint64 { return maphash.String(idSeed, id) }

func head(h *Hash) uint64 { return binary.LittleEndian.Uint64(h[:8]) }

// get copies the key with that hash to k and tells whether there is one.
func (s *keySet) get(h *Hash, k *Key) bool {
	leaf := s.keys.leaf(h[0], h[1])
	i := leaf.find(h)
	if i < 0 {
		return false
	}
	leaf.read(i, h[0], h[1], k)
	return true
}

// byID copies the key with that id to k and tells whether there is one.
func (s *keySet) byID(id string, k *Key) bool {
	h := hashID(id)
	leaf := s.ids.leaf(byte(h>>56), byte(h>>48))
	if leaf == nil {
		return false
	}
	for _, e := range leaf.list {
		if e.id != h {
			continue
		}
		keys := s.keys.leaf(byte(e.key), byte(e.key>>8))
		if keys == nil {
			continue
		}
		for i := range keys.n {
			if keys.tag(i)&(1<<48-1) != e.key>>16 {
				continue
			}
			if keys.read(i, byte(e.key), byte(e.key>>8), k); k.ID == id {
				return true
			}
		}
	}
	return false
}

func (s *keySet) all(yield func(*Key) bool) {
	if s.keys.root == nil {
		return
	}
	for a, branch := range s.keys.root.next {
		if branch == nil {
			continue
		}
		for b, leaf := range branch.next {
			if leaf == nil {
				continue
			}
			for i := range leaf.n {
				k := new(Key)
				if leaf.read(i, byte(a), byte(b), k); !yield(k) {
					return
				}
			}
		}
	}
}

func (s *keySet) begin() keySet { return keySet{keys: s.keys, ids: s.ids, n: s.n, edit: new(owner)} }
func (s *keySet) end() keySet   { return keySet{keys: s.keys, ids: s.ids, n: s.n} }

// keyLeaf is the leaf of a hash, owned by this edit, with room for more.
func (s *keySet) keyLeaf(h *Hash) *keyLeaf {
	at := s.keys.own(h[0], h[1], s.edit)
	switch l := *at; {
	case l == nil:
		*at = &keyLeaf{owner: s.edit}
	case l.owner != s.edit:
		*at = &keyLeaf{owner: s.edit, list: l.list.clone(), scopes: l.scopes.clone()}
	}
	return *at
}

// idLeaf is the leaf of an id, owned by this edit.
func (s *keySet) idLeaf(h uint64) *idLeaf {
	at := s.ids.own(byte(h>>56), byte(h>>48), s.edit)
	switch l := *at; {
	case l == nil:
		*at = &idLeaf{owner: s.edit}
	case l.owner != s.edit:
		*at = &idLeaf{owner: s.edit, list: append(make([]idAt, 0, len(l.list)+1), l.list...)}
	}
	return *at
}

// put adds a key. What had its hash, or its id under another hash, goes.
func (s *keySet) put(k *Key) {
	var old Key
	if s.byID(k.ID, &old) && old.Hash != k.Hash {
		s.drop(old.Hash)
	}
	s.drop(k.Hash)
	leaf := s.keyLeaf(&k.Hash)
	var record [256]byte
	leaf.add(tag(&k.Hash), appendRecord(record[:0], k, leaf.place(k)))
	h := hashID(k.ID)
	ids := s.idLeaf(h)
	ids.list = append(ids.list, idAt{h, head(&k.Hash)})
	s.n++
}

func (s *keySet) drop(h Hash) {
	i := s.keys.leaf(h[0], h[1]).find(&h)
	if i < 0 {
		return
	}
	leaf := s.keyLeaf(&h)
	var k Key
	leaf.read(i, h[0], h[1], &k)
	id := hashID(k.ID)
	ids := s.idLeaf(id)
	if at := slices.Index(ids.list, idAt{id, head(&h)}); at >= 0 {
		ids.list = slices.Delete(ids.list, at, at+1)
	}
	leaf.remove(i)
	s.n--
}
