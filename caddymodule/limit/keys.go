package limit

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/caddymodule/dense"
)

// Names of limits, as clients of the API read them.
const (
	RPM         = "rpm"
	TPM         = "tpm"
	TPD         = "tpd"
	MaxParallel = "max_parallel"
)

// Keys counts what keys with limits use. Make it with NewKeys.
type Keys struct {
	keys    table
	base    time.Time
	changes atomic.Int64 // grows with what is worth keeping

	terms   atomic.Pointer[Terms] // nil: alone
	seq     atomic.Int64          // of words about keys
	rounds  atomic.Int64          // in which everything is told
	ringing sync.Mutex
	rung    []string
	rings   chan struct{}
}

// NewKeys returns Keys that have counted nothing. now is the clock's reading; later ones are compared with it, so that a
// clock that is set anew neither frees nor locks anybody.
func NewKeys(now time.Time) *Keys {
	return &Keys{base: now, rings: make(chan struct{}, 1)}
}

func (k *Keys) nanos(now time.Time) int64 { return k.base.UnixNano() + int64(now.Sub(k.base)) }

// Key counts one key's use. The zero Key is that of a key without limits.
type Key struct {
	all *Keys
	c   *counter
}

// state is what is counted of a key, but for windows of more than one step.
type state struct {
	one      [4]count // the only step of each window
	inFlight int64
	refused  [4]int64
	shares
}

// The places in refused, and of windows.
const (
	byRPM = iota
	byTPM
	byTPD
	byParallel // slots have no window
	foreign    = byParallel
)

// windows are what of a key's use has times, and what is rare.
type windows struct {
	requests window        // of a minute
	tokens   window        // of a minute
	daily    window        // tokens of a day
	foreign  window        // tokens of a day that other gateways have counted; they count while this one is alone
	freed    chan struct{} // closed when a slot comes free, if somebody waits
}

func (w *windows) each() [4]*window {
	return [4]*window{byRPM: &w.requests, byTPM: &w.tokens, byTPD: &w.daily, foreign: &w.foreign}
}

// unpack makes windows of at most one step each.
func (w *windows) unpack(one *[4]count) {
	w.requests.span, w.tokens.span, w.daily.span, w.foreign.span, w.freed = minute, minute, day, day, nil
	for i, win := range w.each() {
		win.first[0], win.more, win.sum = one[i], nil, one[i].n
	}
}

// pack tells whether that is all, and puts the steps into one then.
func (w *windows) pack(one *[4]count) bool {
	for _, win := range w.each() {
		if win.more != nil {
			return false
		}
	}
	if w.freed != nil {
		return false
	}
	for i, win := range w.each() {
		one[i] = win.first[0]
	}
	return true
}

// locked is a counter that nobody else uses until done.
type locked struct {
	all *Keys
	*counter
	*windows
}

// lock locks a key's counter, which it makes when there is none.
func (k *Keys) lock(key string) locked {
	id := dense.NewID(key)
	for {
		if c := k.keys.findOr(&id); k.holds(c, &id) {
			return locked{k, c, k.keys.windows(c)}
		}
	}
}

// known is lock where there is a counter.
func (k *Keys) known(key string) (locked, bool) {
	id := dense.NewID(key)
	for {
		c := k.keys.find(&id)
		if c == nil {
			return locked{}, false
		}
		if k.holds(c, &id) {
			return locked{k, c, k.keys.windows(c)}, true
		}
	}
}

// holds locks a counter that was found under an id, unless it is that key's no more.
func (k *Keys) holds(c *counter, id *dense.ID) bool {
	c.mu.Lock()
	if !c.live || c.id != *id {
		c.mu.Unlock()
		return false
	}
	return true
}

// open is lock for who has come in: the counter is the key's until he leaves.
func (k Key) open() locked {
	k.c.mu.Lock()
	return locked{k.all, k.c, k.all.keys.windows(k.c)}
}

// done keeps what was counted.
func (c locked) done() {
	c.all.keys.keep(c.counter, c.windows)
	c.mu.Unlock()
}

// Enter takes a slot of the model's gate, of which there are most, and one of the key's, or neither. Leave is called once
// on the Key returned, and nothing after it.
func (k *Keys) Enter(id string, l levelrail.KeyLimits, gate *Gate, most int64, now time.Time) (Key, bool) {
	if l.RPM <= 0 && l.TPM <= 0 && l.TPD <= 0 && l.MaxParallel <= 0 {
		return Key{}, take(gate, most, now)
	}
	at := k.nanos(now)
	c := k.lock(id)
	defer c.done()
	c.limits, c.touched = l, at
	if c.adopt(k.Terms(), at); c.alone && l.TPD > 0 && !c.learned && at >= c.learn {
		c.learn = at + int64(time.Second)
		c.ring()
	}
	if l.MaxParallel > 0 && c.inFlight >= c.bound(byParallel, l.MaxParallel) {
		if c.inFlight >= l.MaxParallel || !c.all.asks() {
			c.refused[byParallel] = now.UnixNano()
		}
		return Key{}, false
	}
	if !take(gate, most, now) {
		return Key{}, false
	}
	c.inFlight++
	c.changed = true
	c.lower(byParallel, l.MaxParallel, c.inFlight, at)
	return Key{k, c.counter}, true
}

// asks tells whether who is refused for his part may ask for more, and says afterwards that he was refused.
func (k *Keys) asks() bool {
	t := k.Terms()
	return !t.Alone && !t.Away
}

func take(gate *Gate, most int64, now time.Time) bool {
	if gate.Take(most) {
		return true
	}
	gate.Refuse(now)
	return false
}

// Leave gives the key's slot back.
func (k Key) Leave() {
	if k.c == nil {
		return
	}
	c := k.open()
	defer c.done()
	c.inFlight--
	c.changed = true
	if c.freed != nil {
		close(c.freed)
		c.freed = nil
	}
}

// Charge counts a request if every limit has room for one, and nothing otherwise. A limit on tokens has room while less
// than it has been spent: what a request will cost is known at its end only. ticket is for TakeBack. wait is how long the
// refusal holds at least, if the key does nothing meanwhile.
func (k Key) Charge(l levelrail.KeyLimits, now time.Time) (ticket int64, wait time.Duration, ok bool) {
	if k.c == nil {
		return 0, 0, true
	}
	at := k.all.nanos(now)
	c := k.open()
	defer c.done()
	ok, c.limits = true, l
	c.adopt(c.all.Terms(), at)
	for i, limit := range c.limited(l) {
		if limit.most <= 0 {
			continue
		}
		used, may := limit.total(at), c.bound(i, limit.most)
		if i == byTPD && c.alone {
			used += c.foreign.total(at)
		}
		if used < may {
			continue
		}
		if i == byTPD {
			limit.window = c.day(at)
		}
		ok = false
		if used >= limit.most || !c.all.asks() {
			c.refused[i] = now.UnixNano()
		}
		if wait = max(wait, limit.until(at, may)); may < limit.most {
			wait = max(wait, time.Duration(c.retry-at))
		}
	}
	if ok && l.RPM > 0 {
		ticket = c.requests.add(at, 1)
		c.changed = true
		c.lower(byRPM, l.RPM, c.requests.total(at), at)
		c.all.changes.Add(1)
	}
	return ticket, wait, ok
}

type limited struct {
	*window
	most int64
}

// limited are in the order of refused.
func (c locked) limited(l levelrail.KeyLimits) [3]limited {
	return [3]limited{byRPM: {&c.requests, l.RPM}, byTPM: {&c.tokens, l.TPM}, byTPD: {&c.daily, l.TPD}}
}

// TakeBack uncounts a request that has not reached an engine.
func (k Key) TakeBack(ticket int64) {
	if k.c == nil {
		return
	}
	c := k.open()
	defer c.done()
	c.requests.takeBack(ticket, 1)
	c.changed = true
	c.all.changes.Add(1)
}

// Spend counts tokens at the time of the answer's end.
func (k Key) Spend(l levelrail.KeyLimits, tokens int64, now time.Time) {
	if k.c == nil || tokens <= 0 || l.TPM <= 0 && l.TPD <= 0 {
		return
	}
	at := k.all.nanos(now)
	c := k.open()
	defer c.done()
	if l.TPM > 0 {
		c.tokens.add(at, tokens)
		c.lower(byTPM, l.TPM, c.tokens.total(at), at)
	}
	if l.TPD > 0 {
		c.daily.add(at, tokens)
		c.lower(byTPD, l.TPD, c.daily.total(at), at)
		c.spent = true
	}
	c.changed = true
	c.all.changes.Add(1)
}

// State is where one limit stands.
type State struct {
	Limit   string
	Most    int64
	Used    int64
	Refused time.Time     // last; zero: never
	Reset   time.Duration // until a request would pass; 0: it passes now. For a slot, which may come free at any moment, 1 s.
	Part    bool          // of Most only Share may be used here
	Share   int64
	Frees   time.Duration // until the oldest of Used counts no more; 0: nothing is used, or no clock says
}

// State tells where each limit of a key stands. A key that has not used any has all of each.
func (k *Keys) State(id string, l levelrail.KeyLimits, now time.Time) []State {
	at := k.nanos(now)
	c, ok := k.known(id)
	if ok {
		defer c.done()
	} else {
		c = locked{k, new(counter), k.keys.windows(new(counter))}
	}
	c.adopt(k.Terms(), at)
	var out []State
	add := func(i int, name string, most, used int64, until func(most int64) time.Duration) {
		if most <= 0 {
			return
		}
		s, may := State{Limit: name, Most: most, Used: used, Refused: timeOf(c.refused[i])}, c.bound(i, most)
		if !c.alone {
			s.Part, s.Share = true, may
		}
		if used > 0 && i != byParallel {
			s.Frees = until(used)
		}
		if used >= may {
			s.Reset = until(max(may, 1))
		}
		out = append(out, s)
	}
	for i, limit := range c.limited(l) {
		if i == byTPD {
			limit.window = c.day(at)
		}
		add(i, [...]string{RPM, TPM, TPD}[i], limit.most, limit.total(at), func(most int64) time.Duration { return limit.until(at, most) })
	}
	add(byParallel, MaxParallel, l.MaxParallel, c.inFlight, func(int64) time.Duration { return time.Second })
	return out
}

// Kept is what of a key's use outlives the process: pairs of a step's number and its count. A step is a second of the
// minutes and five minutes of the day.
type Kept struct {
	ID  string     `json:"id"`
	RPM [][2]int64 `json:"rpm,omitempty"`
	TPM [][2]int64 `json:"tpm,omitempty"`
	TPD [][2]int64 `json:"tpd,omitempty"`
	// TPDOthers is what other gateways have counted.
	TPDOthers [][2]int64 `json:"tpd_others,omitempty"`
}

// Changes is a number that grows whenever something worth keeping changes.
func (k *Keys) Changes() int64 { return k.changes.Load() }

// Keep calls yield with what each key has used, until it returns false, and forgets keys of which nothing is left. The
// lists are used again for the next key.
func (k *Keys) Keep(now time.Time, yield func(Kept) bool) {
	at := k.nanos(now)
	var kept Kept
	k.each(func(c locked) bool {
		for _, w := range [...]struct {
			*window
			pairs *[][2]int64
		}{{&c.requests, &kept.RPM}, {&c.tokens, &kept.TPM}, {&c.daily, &kept.TPD}, {&c.foreign, &kept.TPDOthers}} {
			*w.pairs = w.kept(at, (*w.pairs)[:0])
		}
		empty := len(kept.RPM)+len(kept.TPM)+len(kept.TPD)+len(kept.TPDOthers) == 0
		if !empty {
			kept.ID = c.id.String()
		}
		if empty && c.inFlight == 0 && c.may == [4]int64{} && !c.some && !c.asked && c.freed == nil {
			k.keys.remove(c.counter)
		} else {
			k.keys.tidy(c.counter, c.windows)
		}
		c.done()
		return empty || yield(kept)
	})
}

// each calls f with every counter there is, until it returns false. F calls done.
func (k *Keys) each(f func(locked) bool) {
	k.keys.all(func(c *counter) bool {
		c.mu.Lock()
		if !c.live {
			c.mu.Unlock()
			return true
		}
		return f(locked{k, c, k.keys.windows(c)})
	})
}

// Restore adds what an earlier process has kept at the time saved. When that lies in the future, by a clock that has been
// set back since, everything is as old as it was then.
func (k *Keys) Restore(kept Kept, saved, now time.Time) {
	at := k.nanos(now)
	back := max(0, saved.Sub(now))
	c := k.lock(kept.ID)
	defer c.done()
	for _, w := range []struct {
		*window
		pairs [][2]int64
	}{{&c.requests, kept.RPM}, {&c.tokens, kept.TPM}, {&c.daily, kept.TPD}, {&c.foreign, kept.TPDOthers}} {
		w.restore(at, w.pairs, -int64(back/w.step))
	}
}
