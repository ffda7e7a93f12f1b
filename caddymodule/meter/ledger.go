package meter

import (
	"hash/maphash"
	"slices"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/caddymodule/dense"
)

// ledger is a set of sums. With very many keys nearly every request has a sum of its own, so neither they nor what finds
// them holds pointers. What few have, and many share, stands once. The zero ledger is empty.
type ledger struct {
	rows   dense.Table[rowKey, sum]
	models []string
	owners []owner
}

// rowKey is what sums are kept by. model is a place in the ledger's list.
type rowKey struct {
	key   dense.ID
	hour  int32 // Unix hours
	model uint32
}

// sum is a row while it is counted.
type sum struct {
	levelrail.Counts
	used  int64  // when its key was last used for it, in Unix nanoseconds; 0: only refused
	owner uint32 // a place in the ledger's list
}

// owner is to whom a sum belongs.
type owner struct {
	levelrail.Owner
	tags []string
}

func (o *owner) is(p *owner) bool { return o.Owner == p.Owner && slices.Equal(o.tags, p.tags) }

// row is a sum outside of a ledger.
type row struct {
	levelrail.Usage
	Used time.Time `json:"used,omitzero"`
}

// next is an empty ledger with room for half as much: intervals are alike.
func (l *ledger) next() *ledger {
	n := new(ledger)
	if l.len() >= 16 {
		n.rows.Reserve(l.len() / 2)
	}
	return n
}

func (l *ledger) len() int {
	if l == nil {
		return 0
	}
	return l.rows.Len()
}

// place is by what a sum is kept here.
func (l *ledger) place(key, model string, hour int64) rowKey {
	i := slices.Index(l.models, model) // a gateway's models are few
	if i < 0 {
		i = len(l.models)
		l.models = append(l.models, model)
	}
	return rowKey{dense.NewID(key), int32(hour), uint32(i)}
}

func (k *rowKey) hash() uint32 {
	return uint32(maphash.Bytes(seed, k.key.Text())) ^ uint32(k.hour)*2654435761 ^ k.model*40503
}

// find is the sum at a place, or nil.
func (l *ledger) find(at *rowKey) *sum {
	if r := l.rows.Find(at.hash(), at); r != nil {
		return &r.Value
	}
	return nil
}

// make makes the sum at a place where there is none.
func (l *ledger) make(at *rowKey) *sum { return &l.rows.Make(at.hash(), at).Value }

// belongs notes to whom a sum belongs, as of the newest request.
func (l *ledger) belongs(s *sum, to owner) {
	if int(s.owner) < len(l.owners) && l.owners[s.owner].is(&to) {
		return
	}
	i := slices.IndexFunc(l.owners[max(0, len(l.owners)-8):], func(o owner) bool { return o.is(&to) })
	if i < 0 {
		i = len(l.owners)
		l.owners = append(l.owners, to)
	} else {
		i += max(0, len(l.owners)-8)
	}
	s.owner = uint32(i)
}

// row is the sum at a place as it is written.
func (l *ledger) row(at *rowKey, s *sum) row {
	o := &l.owners[s.owner]
	r := row{Usage: levelrail.Usage{Hour: time.Unix(int64(at.hour)*3600, 0).UTC(), KeyID: at.key.String(), Model: l.models[at.model], Counts: s.Counts, Owner: o.Owner, Tags: o.tags}}
	if s.used != 0 {
		r.Used = time.Unix(0, s.used).UTC()
	}
	return r
}

// put adds a row and tells whether there was a sum for it already.
func (l *ledger) put(r row) (joined bool) {
	at := l.place(r.KeyID, r.Model, r.Hour.Unix()/3600)
	s := l.find(&at)
	if joined = s != nil; !joined {
		s = l.make(&at)
	}
	s.Add(r.Counts)
	if !r.Used.IsZero() {
		s.used = max(s.used, r.Used.UnixNano())
	}
	l.belongs(s, owner{r.Owner, r.Tags})
	return joined
}

// merge adds another ledger's sums and returns how many found theirs here already.
func (l *ledger) merge(o *ledger) (joined int64) {
	o.rows.All(func(r *dense.Record[rowKey, sum]) bool {
		if l.put(o.row(&r.Key, &r.Value)) {
			joined++
		}
		return true
	})
	return joined
}
