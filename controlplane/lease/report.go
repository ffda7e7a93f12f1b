package lease

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/levelrail/levelrail/client/wire"
)

// Report takes a gateway's word and answers what it may use. A key about which a newer word is known, and one that does
// not exist, is not in the answer, and nothing is for who does not follow, or follows another book. A word that waits is
// held until there is room, others have said that there is none, or a moment has passed.
func (b *Book) Report(ctx context.Context, r wire.LeaseReport) (wire.Leases, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := wire.Leases{Book: b.id, Keys: []wire.Lease{}}
	now := b.o.Clock()
	m := b.members[r.GatewayID]
	if m == nil || m.boot != r.Boot || r.Book != b.id || m.left {
		return out, nil
	}
	m.word, m.silent = now, false
	b.settle(now)
	switch {
	case r.Leaving:
		return out, b.leave(m, r, now)
	case m.alone:
		return b.learn(out, r, now)
	}
	var taken []*word
	for _, u := range r.Keys {
		limits, known, err := b.o.Limits(u.KeyID)
		if err != nil {
			return out, fmt.Errorf("read the limits of the key %s: %w", u.KeyID, err)
		}
		if !known {
			continue
		}
		most := limitsOf(limits)
		e, err := b.entry(u.KeyID, most, now)
		if err != nil {
			return out, err
		}
		if h := e.take(m.id, u, now); h != nil {
			taken = append(taken, &word{e: e, h: h, u: u, most: most})
			if _, open := m.lines[u.KeyID]; open {
				delete(m.lines, u.KeyID)
				m.ring()
			}
		}
	}
	if r.Complete && r.Epoch == m.epoch && !m.complete {
		m.complete = true
		b.ready()
	}
	for _, w := range taken {
		w.decide(b, m.id, now)
	}
	for _, w := range taken {
		if w.u.Wait && w.short {
			b.wait(ctx, w, m.id)
			break // a gateway waits for one key at a time in a word of its own
		}
	}
	for _, w := range taken {
		if w.e.holds[m.id] != w.h || w.h.seq != w.u.Seq {
			continue // meanwhile it said more, or was given up
		}
		w.h.want = w.h.want && w.short
		out.Keys = append(out.Keys, wire.Lease{KeyID: w.u.KeyID, Seq: w.u.Seq, May: w.may.wire(), RetryMS: w.retry})
	}
	return out, nil
}

// word is one key of a report.
type word struct {
	e     *entry
	h     *hold
	u     wire.LeaseUse
	most  amounts
	may   amounts
	lacks [4]bool
	short bool
	retry int64
}

// decide grants, if it is time to.
func (w *word) decide(b *Book, gateway string, now time.Time) {
	w.h.lease = w.h.held
	if w.may = w.h.held; b.grants() {
		w.may = w.e.grant(gateway, w.most, len(b.present()), w.u.Wait, now)
	}
	w.lacks, w.short = w.h.lacks(w.may, w.most)
	w.retry = 0
	if w.short {
		w.retry = w.e.retry(w.lacks, now)
	}
}

// wait calls back what others do not use, and decides again whenever one of them has said what it uses.
func (b *Book) wait(ctx context.Context, w *word, gateway string) {
	late := time.NewTimer(waitMost)
	defer late.Stop()
	for w.short {
		changed, asked := w.e.changed, !b.grants()
		if asked {
			changed = b.readied
		} else {
			now := b.o.Clock()
			for id, o := range w.e.holds {
				if m := b.members[id]; m != nil && id != gateway && o.idle(w.lacks, now) {
					m.recall(w.u.KeyID)
					asked = true
				}
			}
		}
		if !asked {
			return
		}
		b.mu.Unlock()
		over := false
		select {
		case <-changed:
		case <-late.C:
			over = true
		case <-ctx.Done():
			over = true
		}
		b.mu.Lock()
		if w.e.holds[gateway] != w.h || w.h.seq != w.u.Seq {
			return
		}
		if w.decide(b, gateway, b.o.Clock()); over {
			return
		}
	}
}

// entry is a key's, made when it is not there. What was stored of its day tells what gateways have used that are not here.
func (b *Book) entry(key string, most amounts, now time.Time) (*entry, error) {
	if e := b.keys[key]; e != nil {
		return e, nil
	}
	e := newEntry()
	if most[tpd] > 0 {
		var err error
		if e.floor, err = b.o.Tokens(key, now.Add(-dayKept)); err != nil {
			return nil, fmt.Errorf("read what the key %s has used today: %w", key, err)
		}
	}
	b.keys[key] = e
	return e, nil
}

// leave takes the last word of a gateway that ends.
func (b *Book) leave(m *member, r wire.LeaseReport, now time.Time) error {
	for _, u := range r.Keys {
		e := b.keys[u.KeyID]
		if e == nil {
			e = newEntry()
			b.keys[u.KeyID] = e
		}
		e.take(m.id, u, now)
	}
	if r.Complete { // several words may be needed to say it all
		m.left, m.word = true, now
		b.bury(m, now)
		b.settle(now)
		b.ready()
	}
	return nil
}

// learn tells a gateway that is alone what a key has used of its day through whichever gateway.
func (b *Book) learn(out wire.Leases, r wire.LeaseReport, now time.Time) (wire.Leases, error) {
	for _, u := range r.Keys {
		limits, known, err := b.o.Limits(u.KeyID)
		if err != nil {
			return out, fmt.Errorf("read the limits of the key %s: %w", u.KeyID, err)
		}
		if !known {
			continue
		}
		total, err := b.o.Tokens(u.KeyID, now.Add(-dayKept))
		if err != nil {
			return out, fmt.Errorf("read what the key %s has used today: %w", u.KeyID, err)
		}
		l := wire.Lease{KeyID: u.KeyID, Seq: u.Seq, May: limitsOf(limits).wire()}
		if e := b.keys[u.KeyID]; e != nil {
			sums := map[int64]int64{}
			for _, d := range u.Days {
				sums[d[0]] += d[1]
			}
			for _, g := range e.ghosts {
				for hour, n := range g.days {
					sums[hour] += n
				}
			}
			for hour, n := range sums {
				total[hour] = max(total[hour], n)
			}
			delete(b.keys, u.KeyID) // the gateway counts it with its own from now on
		}
		for _, hour := range slices.Sorted(maps.Keys(total)) {
			if inDay(hour, now) && total[hour] > 0 {
				l.Days = append(l.Days, [2]int64{hour, total[hour]})
			}
		}
		out.Keys = append(out.Keys, l)
	}
	return out, nil
}

// Gone is what gateways have used of a key that are gone, and counts.
func (b *Book) Gone(key string) wire.Amounts {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.keys[key]; e != nil {
		return e.gone(b.o.Clock()).wire()
	}
	return wire.Amounts{}
}
