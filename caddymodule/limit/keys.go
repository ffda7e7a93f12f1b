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

	waiting sync.Mutex
	waits   map[dense.ID]chan struct{} // closed when one of the key's slots comes free
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
	*shard
	*record
}

// state is what is counted of a key.
type state struct {
	sums     [4]sums // of the windows
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
	byOthers   = byParallel
)

// windows are a counter's.
type windows struct {
	requests window // of a minute
	tokens   window // of a minute
	daily    window // tokens of a day
	foreign  window // tokens of a day that other gateways have counted; they count while this one is alone
}

// locked is a counter that nobody else uses until done.
type locked struct {
	all *Keys
	*shard
	*record
	*counter
	windows
}

func open(all *Keys, s *shard, r *record) locked {
	c := &r.Value
	return locked{all, s, r, c, windows{window{&minute, &c.sums[byRPM], &s.steps}, window{&minute, &c.sums[byTPM], &s.steps},
		window{&day, &c.sums[byTPD], &s.steps}, window{&day, &c.sums[byOthers], &s.steps}}}
}

func (c *locked) done() { c.counter.mu.Unlock() }

// lock locks a key's counter, which it makes when there is none.
func (k *Keys) lock(key string) locked {
	c, _ := k.hold(key, true)
	return c
}

// known is lock where there is a counter.
func (k *Keys) known(key string) (locked, bool) { return k.hold(key, false) }

func (k *Keys) hold(key string, orMake bool) (locked, bool) {
	id := dense.NewID(key)
	for {
		f, ok := k.keys.find(&id, orMake)
		if !ok {
			return locked{}, false
		}
		if f.hold() {
			return open(k, f.shard, f.record), true
		}
	}
}

// open is lock for who has come in: the counter is the key's until he leaves.
func (k Key) open() locked {
	k.record.Value.mu.Lock()
	return open(k.all, k.shard, k.record)
}

// Enter takes one of the key's slots. Leave is called once on the Key returned, and nothing after it.
func (k *Keys) Enter(id string, l levelrail.KeyLimits, now time.Time) (Key, bool) {
	if l.RPM <= 0 && l.TPM <= 0 && l.TPD <= 0 && l.MaxParallel <= 0 {
		return Key{}, true
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
	c.inFlight++
	c.changed = true
	c.lower(byParallel, l.MaxParallel, c.inFlight, at)
	return Key{k, c.shard, c.record}, true
}

// asks tells whether who is refused for his part may ask for more, and says afterwards that he was refused.
func (k *Keys) asks() bool {
	t := k.Terms()
	return !t.Alone && !t.Away
}

// Leave gives the key's slot back.
func (k Key) Leave() {
	if k.record == nil {
		return
	}
	c := k.open()
	defer c.done()
	c.inFlight--
	c.changed = true
	if c.awaited {
		c.awaited = false
		c.all.free(c.Key)
	}
}

// Charge counts a request if every limit has room for one, and nothing otherwise. A limit on tokens has room while less
// than it has been spent: what a request will cost is known at its end only. ticket is for TakeBack. wait is how long the
// refusal holds at least, if the key does nothing meanwhile.
func (k Key) Charge(l levelrail.KeyLimits, now time.Time) (ticket int64, wait time.Duration, ok bool) {
	if k.record == nil {
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
func (c *locked) limited(l levelrail.KeyLimits) [3]limited {
	return [3]limited{byRPM: {&c.requests, l.RPM}, byTPM: {&c.tokens, l.TPM}, byTPD: {&c.daily, l.TPD}}
}

// TakeBack uncounts a request that has not reached an engine.
func (k Key) TakeBack(ticket int64) {
	if k.record == nil {
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
	if k.record == nil || tokens <= 0 || l.TPM <= 0 && l.TPD <= 0 {
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

// free tells whoever waits for one of a key's slots.
func (k *Keys) free(id dense.ID) {
	k.waiting.Lock()
	defer k.waiting.Unlock()
	if freed := k.waits[id]; freed != nil {
		close(freed)
		delete(k.waits, id)
	}
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
		c = open(k, new(shard), new(record))
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
			kept.ID = c.Key.String()
		}
		if empty && c.inFlight == 0 && c.may == [4]int64{} && !c.some && !c.asked && !c.awaited {
			c.requests.clear()
			c.tokens.clear()
			c.daily.clear()
			c.foreign.clear()
			c.shard.remove(c.record)
		}
		c.done()
		return empty || yield(kept)
	})
}

// each calls f with every counter there is, until it returns false. F calls done.
func (k *Keys) each(f func(locked) bool) {
	k.keys.all(func(s *shard, r *record) bool {
		c := &r.Value
		c.mu.Lock()
		if !c.live {
			c.mu.Unlock()
			return true
		}
		return f(open(k, s, r))
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
