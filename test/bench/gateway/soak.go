package main

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/levelrail/levelrail"
)

// soak is everything at once at a steady pace, for minutes: memory must not grow. Small and large requests, streams, clients
// that leave in mid-stream, wrong keys, and keys that come and go.
func (b *bench) soak() error {
	p, err := b.startOurs("soak", keys)
	if err != nil {
		return err
	}
	defer b.stopLast(p)
	loads := []*load{
		{target: p.target, clients: 10, pace: 50 * time.Millisecond, bytes: 1 << 10, request: newRequest(1<<10, uniform(keys), `"stub":{"bytes":1024}`)},
		{target: p.target, clients: 2, pace: 200 * time.Millisecond, bytes: 100 << 10, request: newRequest(100<<10, uniform(keys), `"stub":{"bytes":102400}`)},
		{target: p.target, clients: 40, request: newRequest(2<<10, uniform(keys), `"stream":true,"stream_options":{"include_usage":true},"stub":{"events":60,"gap":"25ms"}`)},
	}
	var stop atomic.Bool
	var odd sync.WaitGroup
	var oddErr atomic.Pointer[error]
	go1 := func(f func(i int) error, pace time.Duration) {
		odd.Add(1)
		go func() {
			defer odd.Done()
			for i := 0; !stop.Load(); i++ {
				if err := f(i); err != nil {
					oddErr.CompareAndSwap(nil, &err)
					return
				}
				time.Sleep(pace)
			}
		}()
	}
	leaver := newRequest(1<<10, uniform(keys), `"stream":true,"stub":{"endless":true,"gap":"5ms"}`)
	go1(func(int) error { // a client that leaves in mid-stream
		c := newClient(p.target.network, p.target.address)
		defer c.close()
		return c.stream(leaver.next(), func(reads int) bool { return reads < 4 })
	}, 30*time.Millisecond)
	wrong := newRequest(1<<10, uniform(keys), `"stub":{"bytes":1024}`)
	wrong.next()[wrong.key+keyLength-1] = '!'
	go1(func(int) error { // a key that opens nothing: answered before the body is read, so the connection ends
		c := newClient(p.target.network, p.target.address)
		defer c.close()
		return c.whole(wrong.text, 401, -1)
	}, 100*time.Millisecond)
	go1(func(i int) error { // keys come and go
		p.control.NewKey(fmt.Sprintf("churn_%d", i%50), levelrail.KeyLimits{}, "chat")
		if i >= 25 {
			p.control.Revoke(fmt.Sprintf("churn_%d", (i-25)%50))
		}
		return nil
	}, 200*time.Millisecond)
	for _, l := range loads {
		l.begin()
	}
	began, first, last := time.Now(), []float64{}, []float64{}
	// The heap finds its size in the first tenth; the two windows compared are a tenth each.
	warm := min(b.soakFor/10, 30*time.Second)
	width := b.soakFor / 10
	var failed error
	for failed == nil {
		time.Sleep(200 * time.Millisecond)
		at := time.Since(began)
		if at >= b.soakFor {
			break
		}
		rss, err := p.RSS()
		switch {
		case err != nil:
			failed = err
		case b.ctx.Err() != nil:
			failed = fmt.Errorf("interrupted")
		case at >= warm && at < warm+width:
			first = append(first, float64(rss)/(1<<20))
		case at >= b.soakFor-width:
			last = append(last, float64(rss)/(1<<20))
		}
		for _, l := range loads {
			if err := l.failed(); err != nil {
				failed = err
			}
		}
	}
	stop.Store(true)
	requests := int64(0)
	for _, l := range loads {
		if err := l.end(); failed == nil {
			failed = err
		}
		requests += l.total()
	}
	odd.Wait()
	if err := oddErr.Load(); err != nil && failed == nil {
		failed = *err
	}
	if failed != nil {
		return failed
	}
	b.result["soak_rss_mb_first"], b.result["soak_rss_mb_last"] = median(first), median(last)
	fmt.Printf("\nsoak of %s: %d whole requests and streams, besides clients that leave, wrong keys and keys that come and go\n  resident at first %.1f MiB, at last %.1f MiB\n",
		b.soakFor, requests, median(first), median(last))
	n, err := b.counters()
	if err != nil {
		return err
	}
	return b.until("the stub's requests have ended with their clients", 5*time.Second, func() bool { n, err = b.counters(); return err == nil && n.Active == 0 })
}
