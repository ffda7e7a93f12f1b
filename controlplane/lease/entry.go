package lease

import (
	"maps"
	"slices"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// The limits, in the order of amounts.
const (
	rpm = iota
	tpm
	tpd
	parallel
)

// amounts are numbers of each limit.
type amounts [4]int64

func amountsOf(a wire.Amounts) amounts { return amounts{a.RPM, a.TPM, a.TPD, a.MaxParallel} }

func (a amounts) wire() wire.Amounts {
	return wire.Amounts{RPM: a[rpm], TPM: a[tpm], TPD: a[tpd], MaxParallel: a[parallel]}
}

func limitsOf(l levelrail.KeyLimits) amounts { return amounts{l.RPM, l.TPM, l.TPD, l.MaxParallel} }

// wantKept is how long others leave room for a gateway that was refused.
const wantKept = 2 * time.Second

// entry is what is known of one key.
type entry struct {
	holds   map[string]*hold // by gateway
	ghosts  []ghost
	floor   map[int64]int64 // tokens by hour that were stored when the entry was made
	changed chan struct{}   // closed when a hold changes
}

// hold is one gateway's part.
type hold struct {
	seq   int64
	used  amounts
	held  amounts // that the gateway had when it said used
	lease amounts // that it may have: held, or what it was granted since, whichever is more
	frees amounts // milliseconds after at
	days  map[int64]int64
	want  bool
	at    time.Time
}

// ghost is what a gateway has used that is gone.
type ghost struct {
	owner string
	kept  bool      // the owner has it in its state directory, and will say it again if it comes back
	used  amounts   // of the minutes
	until time.Time // when the minutes are over
	days  map[int64]int64
}

func newEntry() *entry { return &entry{holds: map[string]*hold{}, changed: make(chan struct{})} }

func (e *entry) ring() {
	close(e.changed)
	e.changed = make(chan struct{})
}

// take enters a gateway's word, unless a newer one is known.
func (e *entry) take(gateway string, u wire.LeaseUse, now time.Time) *hold {
	h := e.holds[gateway]
	if h != nil && u.Seq <= h.seq {
		return nil
	}
	if h == nil {
		h = &hold{days: map[int64]int64{}}
		e.holds[gateway] = h
	}
	h.seq, h.used, h.held, h.frees, h.want, h.at = u.Seq, amountsOf(u.Used), amountsOf(u.Held), amountsOf(u.Frees), u.Want, now
	h.lease = h.held
	for _, d := range u.Days {
		h.days[d[0]] = max(h.days[d[0]], d[1]) // an hour that leaves the gateway's window keeps its sum here
	}
	e.again(gateway, h)
	e.ring()
	return h
}

// again takes off a ghost what its own gateway, started anew, says to have used.
func (e *entry) again(gateway string, h *hold) {
	for i := range e.ghosts {
		g := &e.ghosts[i]
		if g.owner != gateway {
			continue
		}
		g.owner = "" // once
		for l := range g.used {
			g.used[l] = max(0, g.used[l]-h.used[l])
		}
		for hour, n := range h.days {
			g.days[hour] = max(0, g.days[hour]-n)
		}
	}
}

// came forgets what a gateway that is back has kept by itself.
func (e *entry) came(gateway string) {
	e.ghosts = slices.DeleteFunc(e.ghosts, func(g ghost) bool { return g.kept && g.owner == gateway })
}

// bury makes a gateway's hold a ghost.
func (e *entry) bury(gateway string, word time.Time, kept bool) bool {
	h := e.holds[gateway]
	if h == nil {
		return false
	}
	delete(e.holds, gateway)
	used := h.used
	used[tpd], used[parallel] = 0, 0
	e.ghosts = append(e.ghosts, ghost{owner: gateway, kept: kept, used: used, until: word.Add(minuteKept), days: h.days})
	e.ring()
	return true
}

// sweep forgets what counts no more.
func (e *entry) sweep(now time.Time) {
	for id, h := range e.holds {
		if now.Sub(h.at) >= holdKept {
			delete(e.holds, id)
		}
	}
	e.ghosts = slices.DeleteFunc(e.ghosts, func(g ghost) bool {
		maps.DeleteFunc(g.days, func(hour, n int64) bool { return n == 0 || !inDay(hour, now) })
		return !now.Before(g.until) && len(g.days) == 0
	})
	for _, h := range e.holds {
		maps.DeleteFunc(h.days, func(hour, _ int64) bool { return !inDay(hour, now) })
	}
	maps.DeleteFunc(e.floor, func(hour, _ int64) bool { return !inDay(hour, now) })
}

// inDay tells whether any of an hour lies in the last day.
func inDay(hour int64, now time.Time) bool {
	return time.Unix((hour+1)*3600, 0).After(now.Add(-dayKept))
}

// gone is what counts of those who are gone.
func (e *entry) gone(now time.Time) (out amounts) {
	byHour := map[int64]int64{}
	for _, g := range e.ghosts {
		if now.Before(g.until) {
			out[rpm] += g.used[rpm]
			out[tpm] += g.used[tpm]
		}
		for hour, n := range g.days {
			byHour[hour] += n
		}
	}
	for hour, stored := range e.floor { // what was stored counts, if nobody says that it was his
		for _, h := range e.holds {
			stored -= h.days[hour]
		}
		byHour[hour] = max(byHour[hour], stored)
	}
	for hour, n := range byHour {
		if n > 0 && inDay(hour, now) {
			out[tpd] += n
		}
	}
	return out
}

// grant says what a gateway may use: what it does, and a part of what is free. While others were refused and nothing is
// free, nobody keeps more than an even part. A request that waits gets what is free.
func (e *entry) grant(gateway string, most amounts, members int, waits bool, now time.Time) amounts {
	h, gone := e.holds[gateway], e.gone(now)
	waiting, rank := int64(0), int64(0)
	for id, o := range e.holds {
		if id != gateway && o.want && now.Sub(o.at) < wantKept {
			waiting++
			if id < gateway {
				rank++
			}
		}
	}
	var out amounts
	for l := range most {
		if most[l] <= 0 {
			continue
		}
		others, used := gone[l], gone[l]+h.used[l]
		for id, o := range e.holds {
			if id != gateway {
				others += max(o.lease[l], o.used[l])
				used += o.used[l]
			}
		}
		free, target := max(0, most[l]-used), h.used[l]
		switch {
		case waiting > 0 && free > waiting:
			if h.want { // who asks for nothing keeps what he uses
				target += free / (waiting + 1)
			}
		case waiting > 0:
			part := most[l] / (waiting + 1)
			if rest := most[l] % (waiting + 1); (rank+now.Unix())%(waiting+1) < rest { // in turns
				part++
			}
			switch {
			case waits && free > 0:
				target = max(min(target+free, part), target+1)
			case h.want:
				target = min(target+free, part)
			case free == 0:
				target = min(target, part)
			}
		case members == 1:
			target += free
		default:
			target += (free + 1) / 2
		}
		out[l] = max(0, min(target, most[l]-others))
	}
	h.lease = out
	for l := range out {
		h.lease[l] = max(out[l], h.held[l]) // it holds what it held until it says that it does not
	}
	return out
}

// lacks are the limits of which a lease leaves no room for a request.
func (h *hold) lacks(lease, most amounts) (out [4]bool, some bool) {
	for l := range most {
		if most[l] > 0 && lease[l] <= h.used[l] {
			out[l], some = true, true
		}
	}
	return out, some
}

// idle tells whether a gateway may hold some of a limit that it does not use.
func (h *hold) idle(lacking [4]bool, now time.Time) bool {
	for l, lacks := range lacking {
		if lacks && h.lease[l] > h.used[l] {
			return true
		}
	}
	// Requests end at any moment, windows by the clock only.
	return lacking[parallel] && h.used[parallel] > 0 && now.Sub(h.at) > 50*time.Millisecond
}

// retry is in how many milliseconds at the earliest some of all limits that are lacking is free; 0: not known.
func (e *entry) retry(lacking [4]bool, now time.Time) (out int64) {
	for l, lacks := range lacking {
		if !lacks || l == parallel {
			continue
		}
		first := int64(0)
		sooner := func(ms int64) {
			if ms > 0 && (first == 0 || ms < first) {
				first = ms
			}
		}
		for _, h := range e.holds {
			if h.frees[l] > 0 {
				sooner(max(1, h.frees[l]-now.Sub(h.at).Milliseconds()))
			}
		}
		for _, g := range e.ghosts {
			if l != tpd && g.used[l] > 0 {
				sooner(g.until.Sub(now).Milliseconds())
			}
		}
		out = max(out, first)
	}
	return out
}
