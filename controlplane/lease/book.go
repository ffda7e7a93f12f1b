// Package lease shares each key's limits among the gateways that serve, so that they hold for all of them together.
//
// The leader keeps one book in memory: what each gateway uses of each key, and what it may use. A gateway admits by itself
// within its leases, and asks for more when one is used up; what others do not use is called back before anybody is
// refused. Of each limit the leases never come to more than the limit, where a lease counts until its gateway has said
// that it holds less, and use counts for as long as its window is long, also that of a gateway that is gone. Nothing is
// granted before every gateway that serves has said what it uses: a server that starts anew raises nobody until then.
// A gateway that is alone needs no lease and is told so.
//
// What a gateway does with its leases is caddymodule/limit, what limits mean is docs/decisions/0014.
package lease

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

const (
	// LostAfter is how long a gateway may be silent before its leases are free for others.
	LostAfter = 10 * time.Second
	// minuteKept is how long what was used in a minute counts after a gateway's last word; windows slide by seconds.
	minuteKept = 62 * time.Second
	dayKept    = 24*time.Hour + 5*time.Minute
	// waitMost is how long a word that waits is held while others are asked.
	waitMost = 250 * time.Millisecond
	// holdKept is after what time of silence about a key a gateway is taken to have forgotten it. It says each key that it
	// uses within half a minute.
	holdKept = 90 * time.Second
)

// Options say what a book asks of the server.
type Options struct {
	Clock func() time.Time
	// Limits are a key's limits; false: there is no such key.
	Limits func(key string) (levelrail.KeyLimits, bool, error)
	// Tokens are a key's stored tokens since a time, by hours since 1970, in a map of the caller's own.
	Tokens func(key string, since time.Time) (map[int64]int64, error)
	// Others tells whether another gateway than this one has ever reported usage.
	Others func(gateway string) (bool, error)
	Log    *slog.Logger
}

// Book is the book of one server. It is safe for concurrent use.
type Book struct {
	o     Options
	id    string
	began time.Time

	mu      sync.Mutex
	members map[string]*member
	keys    map[string]*entry
	heard   bool          // everybody who may hold a lease from before has had the time to come
	readied chan struct{} // closed when it may have become possible to grant
	swept   time.Time
	epochs  uint64
}

// member is a gateway that follows this server, or has until a moment ago.
type member struct {
	id, boot string
	streams  int       // watches; one that reconnects may hold two for a moment
	word     time.Time // when it was last heard of
	said     int       // of how many gateways it had heard when it came
	epoch    uint64    // grows when its whole word is needed anew
	complete bool      // it has given its whole word
	alone    bool      // it was told to count by itself
	silent   bool      // it is connected and has said nothing for too long
	left     bool      // it has said that it ends

	share wire.Share
	lines map[string]json.RawMessage // the open lines of its watch
	bell  chan struct{}              // closed when the lines change
}

// New returns a book in which nobody stands.
func New(o Options) *Book {
	return &Book{o: o, id: levelrail.NewID("book"), began: o.Clock(), members: map[string]*member{}, keys: map[string]*entry{}, readied: make(chan struct{})}
}

// Connect enters a gateway's watch. boot names its process, and said is of how many gateways it last heard, 0 for none.
// What is returned ends the watch.
func (b *Book) Connect(id, boot string, said int) (disconnect func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.o.Clock()
	m := b.members[id]
	if m == nil {
		m = &member{id: id, lines: map[string]json.RawMessage{}, bell: make(chan struct{})}
		b.members[id] = m
	}
	if m.boot != boot {
		// The process before has ended. What it had used, the new one has from its state directory and says again; where it
		// has less, the rest counts as that of one that is gone.
		b.bury(m, now)
		m.boot, m.complete, m.silent, m.left = boot, false, false, false
		m.epoch = b.next()
		for key, e := range b.keys {
			e.came(id)
			delete(m.lines, key)
		}
	}
	m.said, m.word = said, now
	m.streams++
	b.settle(now)
	return sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		now := b.o.Clock()
		if m.streams--; m.streams == 0 {
			m.word = now
		}
		b.settle(now)
	})
}

// Lines are the lines of kind share in a gateway's watch, by id.
func (b *Book) Lines(gateway string) map[string]json.RawMessage {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m := b.members[gateway]; m != nil {
		return maps.Clone(m.lines)
	}
	return nil
}

// Changed is closed when the lines of a gateway change next; nil, for one that does not follow, is never closed.
func (b *Book) Changed(gateway string) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m := b.members[gateway]; m != nil {
		return m.bell
	}
	return nil
}

// next is an epoch that no gateway has had.
func (b *Book) next() uint64 {
	b.epochs++
	return b.epochs
}

func (m *member) ring() {
	close(m.bell)
	m.bell = make(chan struct{})
}

// Tick notices what comes with time alone: who is lost, and who is alone. Call it about once a second.
func (b *Book) Tick() {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.o.Clock()
	b.settle(now)
	if now.Sub(b.swept) >= holdKept/3 {
		b.swept = now
		for key, e := range b.keys {
			if e.sweep(now); len(e.holds) == 0 && len(e.ghosts) == 0 {
				delete(b.keys, key)
			}
		}
	}
}

// present are the gateways that serve as far as is known, by id.
func (b *Book) present() []*member {
	var out []*member
	for _, id := range slices.Sorted(maps.Keys(b.members)) {
		if m := b.members[id]; !m.left && !m.silent {
			out = append(out, m)
		}
	}
	return out
}

// settle brings who serves up to date, and what they are told of it.
func (b *Book) settle(now time.Time) {
	for id, m := range b.members {
		switch {
		case m.streams == 0 && (m.left || now.Sub(m.word) >= LostAfter):
			b.bury(m, now)
			delete(b.members, id)
			if !m.left {
				b.o.Log.Warn("a gateway is gone; others may use what it held of the keys' limits", "gateway", id)
			}
			b.ready()
		case m.streams > 0 && !m.alone && !m.silent && !m.left && now.Sub(m.word) >= LostAfter:
			b.bury(m, now)
			m.silent, m.complete = true, false
			m.epoch = b.next()
			b.o.Log.Warn("a gateway is connected and does not say what it uses of the keys' limits; others may use what it held", "gateway", id)
			b.ready()
		}
	}
	present := b.present()
	if !b.heard && b.everybody(present, now) {
		b.heard = true
		b.ready()
	}
	alone := len(present) == 1 && present[0].streams > 0 && b.heard && (present[0].alone || !b.ghosts(now))
	for _, m := range b.members {
		is := alone && m == present[0]
		if m.alone != is {
			m.alone, m.complete, m.word = is, false, now
			m.epoch = b.next()
			if is {
				b.drop(m)
			}
		}
		if m.left || m.silent {
			is = false
		}
		m.tell(wire.Share{Book: b.id, Epoch: m.epoch, Gateways: max(len(present), 1), Alone: is})
	}
}

// everybody tells whether all gateways that may hold a lease of an earlier server's book are here, or too late.
func (b *Book) everybody(present []*member, now time.Time) bool {
	if now.Sub(b.began) >= LostAfter {
		return true
	}
	said := 0
	for _, m := range present {
		said = max(said, m.said)
	}
	if said > 0 || len(present) != 1 {
		return said > 0 && len(present) >= said
	}
	// The first gateway that has ever served holds nothing, and there is nobody to wait for.
	others, err := b.o.Others(present[0].id)
	if err != nil {
		b.o.Log.Error("it cannot be read which gateways there were", "error", err)
	}
	return err == nil && !others
}

// ready wakes who waits for grants to be possible.
func (b *Book) ready() {
	close(b.readied)
	b.readied = make(chan struct{})
}

// grants tells whether everybody's word is known.
func (b *Book) grants() bool {
	return b.heard && !slices.ContainsFunc(b.present(), func(m *member) bool { return !m.complete })
}

// ghosts tells whether the use of anybody who is gone still counts in a minute.
func (b *Book) ghosts(now time.Time) bool {
	for _, e := range b.keys {
		for _, g := range e.ghosts {
			if now.Before(g.until) && (g.used[rpm] > 0 || g.used[tpm] > 0) {
				return true
			}
		}
	}
	return false
}

// bury makes what a gateway has used that of one that is gone.
func (b *Book) bury(m *member, now time.Time) {
	for key, e := range b.keys {
		if e.bury(m.id, m.word, m.left) {
			delete(m.lines, key)
		}
	}
}

// drop forgets what a gateway holds, which needs no lease any more.
func (b *Book) drop(m *member) {
	for key, e := range b.keys {
		delete(m.lines, key)
		if delete(e.holds, m.id); len(e.ghosts) == 0 {
			delete(b.keys, key)
		}
	}
}

func (m *member) tell(s wire.Share) {
	if m.share == s && m.lines[wire.ShareID] != nil {
		return
	}
	text, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("a share cannot be written: %v", err)) // it has numbers and plain text only
	}
	m.share, m.lines[wire.ShareID] = s, text
	m.ring()
}

// recall asks a gateway for what it does not use of a key.
func (m *member) recall(key string) {
	if _, open := m.lines[key]; open || m.streams == 0 {
		return
	}
	m.lines[key] = json.RawMessage(`{}`)
	m.ring()
}
