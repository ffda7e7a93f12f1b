// Package dense keeps very many small records so that the garbage collector need not look at them.
//
// Where each of a million keys has a record of its own, following the records' pointers costs a gateway more than everything
// it does with them. The records here hold none, and lie side by side in lots, of which each is one object to collect. Who
// may touch them when is their owner's business.
package dense

import (
	"reflect"
	"slices"
	"sync/atomic"
)

// MaxID is how many bytes an ID holds.
const MaxID = 47

// ID is a short text without a pointer, good as a map's key.
type ID struct {
	len  uint8
	text [MaxID]byte
}

// NewID is the ID of a text. What is beyond MaxID bytes is cut off: the table of routes takes no key with a longer id.
func NewID(text string) (id ID) {
	id.len = uint8(copy(id.text[:], text))
	return id
}

func (id *ID) String() string { return string(id.Text()) }

// Text is the id's own bytes.
func (id *ID) Text() []byte { return id.text[:id.len] }

// lotSize is how many records are allocated at a time.
const lotSize = 16

// Lots are numbered records. The zero Lots have none. A record keeps its number and its place until it is given back. At may
// be called by whoever has a record, also while others take and give; those do it one after another.
type Lots[T any] struct {
	lots atomic.Pointer[[]*lot[T]] // nil: all of it was given back
	gone []uint32                  // the numbers of those
	free []uint32                  // records
}

type lot[T any] struct {
	taken   int
	records [lotSize]T
}

// Take returns a record that nobody has, and its number. It is as it was given back; a new one is zero.
func (l *Lots[T]) Take() (*T, uint32) {
	if len(l.free) == 0 {
		l.grow()
	}
	n := l.free[len(l.free)-1]
	l.free = l.free[:len(l.free)-1]
	l.all()[n/lotSize].taken++
	return l.At(n), n
}

func (l *Lots[T]) all() []*lot[T] {
	if all := l.lots.Load(); all != nil {
		return *all
	}
	return nil
}

func (l *Lots[T]) grow() {
	all := l.all()
	at := uint32(len(all))
	if last := len(l.gone) - 1; last >= 0 {
		at, l.gone = l.gone[last], l.gone[:last]
		all[at] = new(lot[T])
	} else {
		all = append(all, new(lot[T]))
		l.lots.Store(&all)
	}
	for i := uint32(lotSize); i > 0; i-- {
		l.free = append(l.free, at*lotSize+i-1)
	}
}

// At is the record with a number that Take has returned.
func (l *Lots[T]) At(n uint32) *T { return &(*l.lots.Load())[n/lotSize].records[n%lotSize] }

// Give gives a record back. Whoever still has its address sees it until someone else takes it. A lot of which nothing is
// taken any more goes.
func (l *Lots[T]) Give(n uint32) {
	at := n / lotSize
	if l.all()[at].taken--; l.all()[at].taken > 0 {
		l.free = append(l.free, n)
		return
	}
	l.all()[at] = nil
	l.gone = append(l.gone, at)
	l.free = slices.DeleteFunc(l.free, func(n uint32) bool { return n/lotSize == at })
}

// All are the lots there are, in the order of their places: what is taken of them, and what is not.
func (l *Lots[T]) All() (all [][]T) {
	for _, lot := range l.all() {
		if lot != nil {
			all = append(all, lot.records[:])
		}
	}
	return all
}

// Len is how many records are taken.
func (l *Lots[T]) Len() int { return (len(l.all())-len(l.gone))*lotSize - len(l.free) }

// Pointers tells whether values of a type hold something that the garbage collector follows. What is kept in Lots should not.
func Pointers(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Array:
		return t.Len() > 0 && Pointers(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if Pointers(t.Field(i).Type) {
				return true
			}
		}
		return false
	}
	return t.Kind() > reflect.Complex128 // those come first
}
