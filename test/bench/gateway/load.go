package main

import (
	"fmt"
	"math/bits"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// keyText is the text of key i. It costs no more than writing it down, so that a million need not be kept.
func keyText(dst []byte, i int) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, "lr-"...)
	x := uint64(i)*0x9e3779b97f4a7c15 + 0x632be59bd9b4e019
	for range 4 {
		x ^= x >> 30
		x *= 0xbf58476d1ce4e5b9
		x ^= x >> 27
		for shift := 60; shift >= 0; shift -= 4 {
			dst = append(dst, hex[x>>shift&15])
		}
	}
	return dst
}

const keyLength = 3 + 64

// routeKey is key i as the control plane says it: with limits of every kind, none of them ever reached.
func routeKey(i int) wire.RouteKey {
	text := string(keyText(nil, i))
	return wire.RouteKey{ID: fmt.Sprintf("key_%d", i), Name: "bench", SHA256: levelrail.HashSecret(text), Prefix: levelrail.SecretPrefix(text), Models: []string{"chat"},
		Limits: levelrail.KeyLimits{RPM: 1e9, TPM: 1e12, TPD: 1e13, MaxParallel: 1e6}, Owner: levelrail.DefaultOwner}
}

// request is a request whose key can be changed in place.
type request struct {
	text []byte
	key  int // where the key begins
	keys draw
	n    uint64
}

// newRequest makes a chat request whose body has exactly so many bytes.
func newRequest(size int, keys draw, members string) *request {
	head := `{"model":"chat","max_tokens":256,` + members + `,"messages":[{"role":"system","content":"You answer briefly."},{"role":"user","content":"`
	const tail = `"}]}`
	// A line of prose with the escapes that prose has.
	const prose = `The quick brown fox said \"jump\" over the lazy dog, and counted: 1, 2, 3.\n`
	pad := size - len(head) - len(tail)
	text := strings.Repeat(prose, pad/len(prose)) + strings.Repeat("x", pad%len(prose))
	r := &request{keys: keys}
	r.text = fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:7421\r\nUser-Agent: levelrail-bench/1\r\nAccept: application/json\r\nContent-Type: application/json\r\nContent-Length: %d\r\nAuthorization: Bearer ", size)
	r.key = len(r.text)
	r.text = keyText(r.text, 0)
	r.text = append(r.text, "\r\n\r\n"+head+text+tail...)
	return r
}

func (r *request) clone(seed int) *request {
	c := *r
	c.text, c.n = append([]byte(nil), r.text...), uint64(seed)
	return &c
}

// next puts in another key.
func (r *request) next() []byte {
	r.n = r.n*6364136223846793005 + 1442695040888963407
	keyText(r.text[r.key:r.key], r.keys.of(r.n^r.n>>29))
	return r.text
}

// load is many clients that ask one thing as fast as they are answered, or at a pace.
type load struct {
	target  target
	clients int
	request *request
	bytes   int           // of a whole answer; 0: an event stream, read to its end
	pace    time.Duration // between two requests of one client; 0: none
	seed    int           // of the choice of keys
	stop    atomic.Bool
	done    sync.WaitGroup
	count   []counter
	fail    atomic.Pointer[error]
}

// counter has a cache line to itself.
type counter struct {
	n      atomic.Int64
	waited [buckets]int64 // requests by how long they took
	took   time.Duration  // all together
	_      [64]byte
}

// target is where a load goes.
type target struct {
	name, network, address string
}

func (l *load) begin() {
	l.count = make([]counter, l.clients)
	for i := range l.clients {
		l.done.Add(1)
		go func() {
			defer l.done.Done()
			if err := l.client(i); err != nil && !l.stop.Load() {
				err = fmt.Errorf("%s: %w", l.target.name, err)
				l.fail.CompareAndSwap(nil, &err)
			}
		}()
	}
}

func (l *load) client(i int) error {
	c := newClient(l.target.network, l.target.address)
	defer c.close()
	r, n := l.request.clone(l.seed+i+1), &l.count[i]
	if l.pace > 0 { // not all at once
		time.Sleep(l.pace * time.Duration(i) / time.Duration(l.clients))
	}
	on := func(int) bool { return !l.stop.Load() }
	for next := time.Now(); !l.stop.Load(); n.n.Add(1) {
		began := time.Now()
		var err error
		if l.bytes > 0 {
			err = c.whole(r.next(), 200, l.bytes)
		} else {
			err = c.stream(r.next(), on)
		}
		if err != nil {
			return err
		}
		took := time.Since(began)
		n.waited[bucket(took)]++
		n.took += took
		if l.pace > 0 {
			next = next.Add(l.pace)
			time.Sleep(time.Until(next))
		}
	}
	return nil
}

// buckets of time, four to a doubling of microseconds: up to half an hour.
const buckets = 128

func bucket(d time.Duration) int {
	us := uint64(max(d.Microseconds(), 1))
	e := bits.Len64(us) - 1
	quarter := 0
	if e >= 2 {
		quarter = int(us>>(e-2)) & 3
	}
	return min(4*e+quarter, buckets-1)
}

// mean is how long a request took on average, once the load has ended.
func (l *load) mean() time.Duration {
	var all time.Duration
	for i := range l.count {
		all += l.count[i].took
	}
	return all / time.Duration(max(l.total(), 1))
}

// percentile is the time that so many of a hundred requests took at most, to a quarter of a doubling.
func (l *load) percentile(p float64) time.Duration {
	var all [buckets]int64
	total := int64(0)
	for i := range l.count {
		for b, n := range l.count[i].waited {
			all[b] += n
			total += n
		}
	}
	want := int64(float64(total) * p / 100)
	for b, n := range all {
		if want -= n; want < 0 {
			e, quarter := b/4, b%4
			if e < 2 { // too short for quarters
				quarter = 3
			}
			return time.Duration((1<<e)*(4+quarter+1)/4) * time.Microsecond
		}
	}
	return 0
}

// total is how many requests have been answered.
func (l *load) total() int64 {
	sum := int64(0)
	for i := range l.count {
		sum += l.count[i].n.Load()
	}
	return sum
}

// end stops the load and tells what went wrong first, if anything did.
func (l *load) end() error {
	l.stop.Store(true)
	l.done.Wait()
	if err := l.fail.Load(); err != nil {
		return *err
	}
	return nil
}

func (l *load) failed() error {
	if err := l.fail.Load(); err != nil {
		return *err
	}
	return nil
}
