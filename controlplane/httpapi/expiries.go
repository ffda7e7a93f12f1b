package httpapi

import (
	"container/heap"
	"time"
)

// expiries are the times at which keys end. Asking which have ended costs no more than those, however many keys there are.
type expiries struct {
	at   map[string]time.Time // of the keys that end at all
	next queue                // earliest first; an entry that is not in at as it is here is out of date
}

type expiry struct {
	id string
	at time.Time
}

func newExpiries() *expiries { return &expiries{at: map[string]time.Time{}} }

// set notes when a key ends; nil: never, or the key is gone.
func (e *expiries) set(id string, at *time.Time) {
	if at == nil {
		delete(e.at, id)
		return
	}
	e.at[id] = *at
	heap.Push(&e.next, expiry{id, *at})
}

// due takes out the keys that have ended, earliest first.
func (e *expiries) due(now time.Time) []string {
	var out []string
	for len(e.next) > 0 && !now.Before(e.next[0].at) {
		x := heap.Pop(&e.next).(expiry)
		if at, ok := e.at[x.id]; ok && at.Equal(x.at) {
			delete(e.at, x.id)
			out = append(out, x.id)
		}
	}
	return out
}

// queue is a heap by time, for container/heap.
type queue []expiry

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].at.Before(q[j].at) }
func (q queue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)        { *q = append(*q, x.(expiry)) }
func (q *queue) Pop() any {
	old := *q
	x := old[len(old)-1]
	*q = old[:len(old)-1]
	return x
}
