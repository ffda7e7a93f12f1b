package dense

// Table finds records by key. A look-up reads one line of an index, then the record: a Go map of as many would read several
// more, each of them cold. The zero Table is empty.
type Table[K comparable, T any] struct {
	records Lots[Record[K, T]]
	slots   []slot // a power of two of them, a quarter free at least
	n       int
}

// Record is what a Table has of a key. It stays where it is until it is removed, and is another key's afterwards.
type Record[K comparable, T any] struct {
	Key   K
	Value T

	hash, number uint32
}

// slot leads to a record, from where its hash says or the next that was free.
type slot struct {
	hash   uint32
	number uint32 // of the record, plus one; 0: free
}

// Len is how many records there are.
func (t *Table[K, T]) Len() int { return t.n }

// Find is a key's record, or nil. Hash is of the key, and the same each time.
func (t *Table[K, T]) Find(hash uint32, key *K) *Record[K, T] {
	if t.n == 0 {
		return nil
	}
	mask := uint32(len(t.slots) - 1)
	for at := hash & mask; t.slots[at].number != 0; at = (at + 1) & mask {
		if s := t.slots[at]; s.hash == hash {
			if r := t.records.At(s.number - 1); r.Key == *key {
				return r
			}
		}
	}
	return nil
}

// Make makes a record for a key that has none. Its Value is as a removed record's was left; a new one's is zero.
func (t *Table[K, T]) Make(hash uint32, key *K) *Record[K, T] {
	if t.n >= len(t.slots)/4*3 {
		t.grow()
	}
	r, number := t.records.Take()
	r.Key, r.hash, r.number = *key, hash, number
	t.place(slot{hash, number + 1})
	t.n++
	return r
}

func (t *Table[K, T]) place(s slot) {
	mask := uint32(len(t.slots) - 1)
	at := s.hash & mask
	for t.slots[at].number != 0 {
		at = (at + 1) & mask
	}
	t.slots[at] = s
}

func (t *Table[K, T]) grow() { t.resize(max(8, 2*len(t.slots))) }

func (t *Table[K, T]) resize(n int) {
	old := t.slots
	t.slots = make([]slot, n)
	for _, s := range old {
		if s.number != 0 {
			t.place(s)
		}
	}
}

// Reserve makes room for so many records.
func (t *Table[K, T]) Reserve(n int) {
	size := 8
	for size/4*3 < n {
		size *= 2
	}
	if size > len(t.slots) {
		t.resize(size)
	}
}

// Remove takes a record out.
func (t *Table[K, T]) Remove(r *Record[K, T]) {
	mask := uint32(len(t.slots) - 1)
	at := r.hash & mask
	for t.slots[at].number != r.number+1 {
		at = (at + 1) & mask
	}
	for next := (at + 1) & mask; t.slots[next].number != 0; next = (next + 1) & mask { // what stood aside moves up
		if home := t.slots[next].hash & mask; (next-home)&mask >= (next-at)&mask {
			t.slots[at] = t.slots[next]
			at = next
		}
	}
	t.slots[at] = slot{}
	t.records.Give(r.number)
	if t.n--; t.n == 0 {
		t.slots = nil
	}
}

// All yields every record, until it returns false.
func (t *Table[K, T]) All(yield func(*Record[K, T]) bool) {
	for _, s := range t.slots {
		if s.number != 0 && !yield(t.records.At(s.number-1)) {
			return
		}
	}
}

// Places are where records are or were, in the order in which they lie.
func (t *Table[K, T]) Places() [][]Record[K, T] { return t.records.All() }
