package limit

import (
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/caddymodule/dense"
)

// Terms are by what a gateway's limits are bounded.
type Terms struct {
	Alone    bool  // by themselves: no other gateway serves
	Gateways int64 // that share them, this one included
	// Away: the control plane cannot be asked. The last leases rule; where there is none, an even part of the limit does.
	Away bool
}

// Amounts are numbers of each limit: requests a minute, tokens a minute, tokens of a day, requests in flight.
type Amounts [4]int64

// idleAfter is when a key counts as unused, and what it may use is given back.
const idleAfter = 10 * time.Second

// ringPause is how long a key is not told of before its time again.
const ringPause = 50 * time.Millisecond

// restAfter is how often a key is told of which nothing but its day is left.
const restAfter = 30 * time.Second

// shares is what a key has of limits that are shared.
type shares struct {
	met     bool  // it has come under terms
	alone   bool  // it counts by itself
	learned bool  // alone: it has what others counted of its day
	learn   int64 // when to try that again
	may     [4]int64
	slack   [4]int64 // that may was above what was used, when it was granted
	limits  levelrail.KeyLimits
	touched int64 // when a request came last
	retry   int64 // when there may be more, as the control plane says

	seq  int64 // of the last word
	told int64 // the round in which all of its day was told; Keys.rounds
	at   int64 // when it was last told

	rung    bool // somebody has been told to tell of it
	short   bool // a request was refused since it was last told of
	asked   bool // a request waits for the answer to the last word
	some    bool // the last word told of some use
	awaited bool // somebody waits for a slot to come free
	changed bool // used since
	spent   bool // tokens were
}

// SetTerms says by what limits are bounded from now on. A gateway that ceases to be alone keeps what each key has used,
// and its even part of the rest.
func (k *Keys) SetTerms(t Terms) {
	if t.Gateways < 1 {
		t.Gateways = 1
	}
	old := k.Terms()
	k.terms.Store(&t)
	if old.Alone != t.Alone || old.Gateways != t.Gateways {
		k.changes.Add(1)
	}
}

// Terms are what SetTerms said last; Keys to which it has said nothing are alone.
func (k *Keys) Terms() Terms {
	if t := k.terms.Load(); t != nil {
		return *t
	}
	return Terms{Alone: true, Gateways: 1}
}

// Anew makes the next word about each key tell all of it.
func (k *Keys) Anew() { k.rounds.Add(1) }

// Rings is sent to when Rung has something.
func (k *Keys) Rings() <-chan struct{} { return k.rings }

// Rung are the keys that are to be told of before their time: half of what they had left is used, or they have to learn
// of their day.
func (k *Keys) Rung() (ids []string) {
	k.ringing.Lock()
	defer k.ringing.Unlock()
	ids, k.rung = k.rung, nil
	return ids
}

func (c *locked) ring() {
	if c.rung {
		return
	}
	c.rung = true
	c.all.ringing.Lock()
	c.all.rung = append(c.all.rung, c.Key.String())
	c.all.ringing.Unlock()
	select {
	case c.all.rings <- struct{}{}:
	default:
	}
}

// adopt brings a key under the present terms. The key is locked.
func (c *locked) adopt(t Terms, at int64) {
	switch {
	case t.Alone && !c.alone:
		c.alone, c.learned, c.may = true, false, [4]int64{}
	case !t.Alone && c.alone && c.met:
		c.alone = false
		used, most := c.used(at), most(c.limits)
		for i := range most {
			if c.may[i] = 0; most[i] > 0 {
				c.may[i] = used[i] + (max(0, most[i]-used[i])+t.Gateways-1)/t.Gateways
			}
		}
	}
	c.met = true
	if t.Away && !t.Alone {
		for i, most := range most(c.limits) {
			if most > 0 && c.may[i] == 0 {
				c.may[i] = max(1, most/t.Gateways)
			}
		}
	}
}

func most(l levelrail.KeyLimits) [4]int64 {
	return [4]int64{byRPM: l.RPM, byTPM: l.TPM, byTPD: l.TPD, byParallel: l.MaxParallel}
}

func (c *locked) used(at int64) [4]int64 {
	return [4]int64{byRPM: c.requests.total(at), byTPM: c.tokens.total(at), byTPD: c.daily.total(at), byParallel: c.inFlight}
}

// bound is how much of a limit may be used here.
func (c *locked) bound(i int, most int64) int64 {
	if c.alone {
		return most
	}
	return min(most, c.may[i])
}

// lower rings when half of what was left of a limit is used, but not all the time.
func (c *locked) lower(i int, most, used, at int64) {
	if !c.alone && !c.asked && 2*(c.may[i]-used) <= c.slack[i] && c.may[i] < most && at-c.at >= int64(ringPause) {
		c.ring()
	}
}

// Short tells whether a key is refused for its part alone: here it has not used all of a limit, and others may have some
// of it.
func (k *Keys) Short(id string, now time.Time) bool {
	at := k.nanos(now)
	c, ok := k.known(id)
	if !ok {
		return false
	}
	defer c.done()
	return c.isShort(at)
}

func (c *locked) isShort(at int64) (short bool) {
	if c.adopt(c.all.Terms(), at); c.alone {
		return false
	}
	used := c.used(at)
	for i, most := range most(c.limits) {
		if most > 0 && used[i] >= most {
			return false
		}
		short = short || most > 0 && used[i] >= c.may[i]
	}
	return short
}

// Freed is closed when one of a key's slots comes free here.
func (k *Keys) Freed(id string) <-chan struct{} {
	c := k.lock(id)
	defer c.done()
	k.waiting.Lock()
	defer k.waiting.Unlock()
	freed := k.waits[c.Key]
	if freed == nil {
		if k.waits == nil {
			k.waits = map[dense.ID]chan struct{}{}
		}
		freed = make(chan struct{})
		k.waits[c.Key], c.awaited = freed, true
	}
	return freed
}

// Refused notes that a request was refused for a key's part, and that it wants more.
func (k *Keys) Refused(id string, now time.Time) {
	at := k.nanos(now)
	c, ok := k.known(id)
	if !ok {
		return
	}
	defer c.done()
	if !c.isShort(at) {
		return
	}
	used := c.used(at)
	for i, most := range most(c.limits) {
		if most > 0 && used[i] >= c.may[i] {
			c.refused[i] = now.UnixNano()
		}
	}
	c.short = true
}

// Word is what the control plane is told of a key.
type Word struct {
	ID    string
	Seq   int64
	Used  Amounts
	Held  Amounts    // that may be used here
	Frees Amounts    // milliseconds until the oldest of Used counts no more
	Days  [][2]int64 // pairs of an hour since 1970 and its tokens: all of the day at first, then the newest
	Want  bool       // a request was refused, or waits
}

// Tell is a word about one key, whatever there is to tell. giveBack first gives back what it does not use.
func (k *Keys) Tell(id string, giveBack bool, now time.Time) Word {
	at := k.nanos(now)
	c := k.lock(id)
	defer c.done()
	c.adopt(k.Terms(), at)
	if giveBack {
		c.giveBack(at)
	}
	return c.word(at)
}

// Ask is a word about a key for which a request waits. Until Asked no other one is said of itself.
func (k *Keys) Ask(id string, now time.Time) Word {
	at := k.nanos(now)
	c := k.lock(id)
	defer c.done()
	c.adopt(k.Terms(), at)
	c.asked = true
	w := c.word(at)
	w.Want = true
	return w
}

// Asked ends what Ask has begun.
func (k *Keys) Asked(id string) {
	if c, ok := k.known(id); ok {
		defer c.done()
		c.asked = false
	}
}

// TellAll yields a word about each key about which there is something new, or about each, until it returns false. A key
// that is not used gives back what it could use.
func (k *Keys) TellAll(all bool, now time.Time, yield func(Word) bool) {
	at, t := k.nanos(now), k.Terms()
	k.each(func(c locked) bool {
		c.adopt(t, at)
		if !t.Alone && !t.Away && at-c.touched > int64(idleAfter) {
			c.giveBack(at)
		}
		if !c.due(at, all) {
			c.done()
			return true
		}
		w := c.word(at)
		c.done()
		return yield(w)
	})
}

func (c *locked) giveBack(at int64) {
	for i, used := range c.used(at) {
		c.may[i] = min(c.may[i], used)
	}
}

func (c *locked) due(at int64, all bool) bool {
	used := c.used(at)
	if used == [4]int64{} && c.may == [4]int64{} {
		return c.some && !c.asked // once more, that nothing is left
	}
	day := used[byTPD]
	used[byTPD] = 0
	rest := used == [4]int64{} && c.may[byRPM] == 0 && c.may[byTPM] == 0 && c.may[byParallel] == 0 && c.may[byTPD] <= day
	return all || !c.asked && (c.changed || !rest || at-c.at >= int64(restAfter))
}

func (c *locked) word(at int64) Word {
	c.seq = c.all.seq.Add(1)
	used := c.used(at)
	w := Word{ID: c.Key.String(), Seq: c.seq, Used: used, Held: c.may, Want: c.short}
	for i, win := range []*window{byRPM: &c.requests, byTPM: &c.tokens, byTPD: &c.daily} {
		if used[i] > 0 {
			w.Frees[i] = (int64(win.until(at, used[i])) + 999_999) / 1_000_000
		}
	}
	round := c.all.rounds.Load() + 1
	switch {
	case c.told != round:
		w.Days = c.daily.hours(at, hoursOfDay)
	case c.spent:
		w.Days = c.daily.hours(at, 2)
	}
	c.told, c.at, c.changed, c.spent, c.short, c.rung = round, at, false, false, false, false
	c.some = used != [4]int64{} || c.may != [4]int64{}
	return w
}

// Newer tells whether there has been a word about a key since seq.
func (k *Keys) Newer(id string, seq int64) bool {
	c, ok := k.known(id)
	if !ok {
		return false
	}
	defer c.done()
	return c.seq > seq
}

// Untold makes the next word about a key tell all of it again, since the last one has not arrived.
func (k *Keys) Untold(id string) {
	if c, ok := k.known(id); ok {
		defer c.done()
		c.told, c.changed, c.rung = 0, true, false
	}
}

// Grant says what a key may use here from now on, in answer to the word seq; an answer to an older one is passed over.
// retry is in how long there may be more; 0: not known.
func (k *Keys) Grant(id string, seq int64, may Amounts, retry time.Duration, now time.Time) bool {
	at := k.nanos(now)
	c, ok := k.known(id)
	if !ok {
		return false
	}
	defer c.done()
	if c.adopt(k.Terms(), at); c.alone || c.seq != seq {
		return false
	}
	c.may, c.rung, c.retry = may, false, 0
	if retry > 0 {
		c.retry = at + int64(retry)
	}
	for i, used := range c.used(at) {
		c.slack[i] = max(0, may[i]-used)
	}
	return true
}

// Learn tells a key's tokens of the day by the hour, whoever counted them. What is more than is counted here is others'.
func (k *Keys) Learn(id string, days [][2]int64, now time.Time) {
	at := k.nanos(now)
	c := k.lock(id)
	defer c.done()
	c.adopt(k.Terms(), at)
	c.learned, c.rung = true, false
	c.foreign.clear()
	own, mine := map[int64]int64{}, int64(0)
	for _, h := range c.daily.hours(at, hoursOfDay) {
		own[h[0]] = h[1]
		mine += h[1]
	}
	// Of the oldest hour a part has left the window here, and requests may be counted in the hour after the one in which
	// they are stored: others have no more than what the sums differ by.
	oldest, all := int64(0), int64(0)
	if mine > 0 {
		oldest = (at - int64(24*time.Hour)) / int64(time.Hour)
	}
	for _, d := range days {
		if d[0] > oldest {
			all += d[1]
		}
	}
	left := all - mine
	for _, d := range days {
		if n := min(left, d[1]-own[d[0]]); n > 0 && d[0] > oldest {
			c.foreign.put(at, (d[0]+1)*int64(time.Hour)-1, n)
			left -= n
		}
	}
	c.all.changes.Add(1)
}

// day is the window that bounds a key's tokens of a day: with others' where it is alone.
func (c *locked) day(at int64) *window {
	if !c.alone || c.foreign.total(at) == 0 {
		return &c.daily
	}
	both := window{&day, new(sums), new(steps)}
	both.restore(at, c.daily.kept(at, nil), 0)
	both.restore(at, c.foreign.kept(at, nil), 0)
	return &both
}
