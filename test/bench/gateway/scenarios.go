package main

import (
	"fmt"
	"time"
)

// clients is how many connections ask at once where throughput is measured.
const clients = 32

// small is 1 KiB in, 1 KiB out: what the gateway's own work costs.
func (b *bench) small() error {
	b.cutLogs(b.ours, b.plain)
	n, warm, long := b.pick(10, 20), 150*time.Millisecond, b.length(600*time.Millisecond, 1500*time.Millisecond)
	w, err := b.throughput(1<<10, n, warm, long)
	if err != nil {
		return err
	}
	b.result["rps_ratio_1k"] = ratio(w[0], w[1], rate)
	b.result["cpu_ratio_1k"] = ratio(w[0], w[1], cpu)
	b.table("1 KiB in, 1 KiB out, 32 connections", "request", []string{"levelrail-gateway", "plain Caddy", "the stub itself"}, w)
	return b.profile("1k", b.wholes(1<<10), b.ours, b.plain)
}

// large is 100 KiB in, 100 KiB out: what checking and reading bodies costs.
func (b *bench) large() error {
	b.cutLogs(b.ours, b.plain)
	n, warm, long := b.pick(8, 14), 200*time.Millisecond, b.length(700*time.Millisecond, 1500*time.Millisecond)
	w, err := b.throughput(100<<10, n, warm, long)
	if err != nil {
		return err
	}
	b.result["rps_ratio_100k"] = ratio(w[0], w[1], rate)
	b.table("100 KiB in, 100 KiB out, 32 connections", "request", []string{"levelrail-gateway", "plain Caddy", "the stub itself"}, w)
	return b.profile("100k", b.wholes(100<<10), b.ours, b.plain)
}

func (b *bench) wholes(size int) func(*proxy) *load {
	ask := newRequest(size, uniform(keys), fmt.Sprintf(`"stub":{"bytes":%d}`, size))
	return func(p *proxy) *load { return &load{target: p.target, clients: clients, request: ask, bytes: size} }
}

// throughput lets the gateway, plain Caddy and the bare stub take turns.
func (b *bench) throughput(size, n int, warm, long time.Duration) ([][]window, error) {
	of := b.wholes(size)
	turns := func(p *proxy, every int) side {
		return side{every: every, turn: func() (window, error) {
			l, used := of(p), p
			if p.Process == nil { // nothing between
				used = nil
			}
			w, err := b.turn(used, l, warm, long, func() (int64, error) { return l.total(), l.failed() })
			p.asked += l.total()
			return w, err
		}}
	}
	// What the stub does by itself is no part of a ratio: a few turns show how far both are from it.
	return b.rounds(n, turns(b.ours, 1), turns(b.plain, 1), turns(&proxy{target: target{"the stub", "unix", b.path("engine.sock")}}, 4))
}

// streams is how many event streams are open at once while the cost of an event is measured.
const streams = 100

// events is paced streams, 200 events 10 ms apart: what a token costs on its way.
func (b *bench) events() error {
	b.cutLogs(b.ours, b.plain)
	ask := newRequest(1<<10, uniform(keys), `"stream":true,"stream_options":{"include_usage":true},"stub":{"events":200,"gap":"10ms","event_bytes":200}`)
	of := func(p *proxy) *load { return &load{target: p.target, clients: streams, request: ask} }
	turns := func(p *proxy) side {
		return side{turn: func() (window, error) {
			return b.turn(p, of(p), 700*time.Millisecond, b.length(1500*time.Millisecond, 3*time.Second), func() (int64, error) {
				n, err := b.counters()
				return n.Events, err
			})
		}}
	}
	w, err := b.rounds(b.pick(6, 10), turns(b.ours), turns(b.plain))
	if err != nil {
		return err
	}
	b.result["sse_cpu_ratio"] = ratio(w[0], w[1], cpu)
	b.table(fmt.Sprintf("event streams, %d open, an event each 10 ms", streams), "event", []string{"levelrail-gateway", "plain Caddy"}, w)
	return b.profile("sse", of, b.ours, b.plain)
}

// memory is what an open stream holds: 1,000 of them in processes that have done little else.
func (b *bench) memory() error {
	const open = 1000
	ask := newRequest(1<<10, uniform(keys), `"stream":true,"stub":{"endless":true,"gap":"400ms","event_bytes":200}`)
	each := func(start func(name string) (*proxy, error), name string) (float64, error) {
		p, err := start(name)
		if err != nil {
			return 0, err
		}
		defer b.stopLast(p)
		warm := b.wholes(1 << 10)(p)
		warm.begin()
		time.Sleep(500 * time.Millisecond)
		if err := warm.end(); err != nil {
			return 0, err
		}
		if err := b.settle(p, 10*time.Second); err != nil {
			return 0, err
		}
		before, err := p.RSS()
		if err != nil {
			return 0, err
		}
		l := &load{target: p.target, clients: open, request: ask}
		l.begin()
		defer l.end()
		err = b.until("all streams are open", 30*time.Second, func() bool {
			n, err := b.counters()
			return err == nil && n.Active >= open || l.failed() != nil
		})
		if err == nil {
			err = l.failed()
		}
		if err != nil {
			return 0, err
		}
		var samples []float64
		for range 10 { // several events of each stream pass meanwhile
			time.Sleep(200 * time.Millisecond)
			now, err := p.RSS()
			if err != nil {
				return 0, err
			}
			samples = append(samples, float64(now-before)/open)
		}
		return median(samples), l.failed()
	}
	var ours, plain []float64
	for i := range b.pick(1, 3) {
		o, err := each(func(name string) (*proxy, error) { return b.startOurs(name, keys) }, fmt.Sprintf("memory-ours-%d", i))
		if err != nil {
			return err
		}
		p, err := each(b.startPlain, fmt.Sprintf("memory-plain-%d", i))
		if err != nil {
			return err
		}
		ours, plain = append(ours, o), append(plain, p)
	}
	b.result["stream_bytes"] = median(ours)
	fmt.Printf("\nmemory of an open stream, %d open\n  %-20s %9.1f KiB\n  %-20s %9.1f KiB\n", open, "levelrail-gateway", median(ours)/1024, "plain Caddy", median(plain)/1024)
	return nil
}

// lookup is the same small requests on a table of ten keys and on one of a million. The floor is about whole requests, one
// after another, each with another key. Then 32 connections ask as fast as they are answered, with keys as popular as customers
// are and with each as likely as any other, which tells what a core can do and has no floor (docs/decisions/0017).
func (b *bench) lookup() error {
	few, err := b.startOurs("few", 10)
	if err != nil {
		return err
	}
	began := time.Now()
	many, err := b.startOurs("many", b.manyKeys)
	if err != nil {
		return err
	}
	rss, err := many.RSS()
	if err != nil {
		return err
	}
	fmt.Printf("\na table of %d keys was there after %s (written to disk included), in %d MiB\n", b.manyKeys, time.Since(began).Round(100*time.Millisecond), rss>>20)
	loadOf := func(p *proxy, keys draw, clients int) *load { // other keys in each turn
		return &load{target: p.target, clients: clients, request: newRequest(1<<10, keys, `"stub":{"bytes":1024}`), bytes: 1 << 10, seed: int(p.asked)}
	}
	turns := func(p *proxy, keys draw, clients int) side {
		return side{turn: func() (window, error) {
			l := loadOf(p, keys, clients)
			w, err := b.turn(p, l, 150*time.Millisecond, b.length(800*time.Millisecond, 1500*time.Millisecond), func() (int64, error) { return l.total(), l.failed() })
			p.asked += l.total()
			return w, err
		}}
	}
	popular, any := newSkewed(b.manyKeys), uniform(b.manyKeys)
	for _, c := range []struct {
		title           string
		many            draw
		clients, rounds int
	}{
		{"one request after another, each key as likely as any other", any, 1, b.pick(14, 28)},
		{"32 connections, keys by Zipf's law", popular, clients, b.pick(8, 14)},
		{"32 connections, each key as likely as any other", any, clients, b.pick(8, 14)},
	} {
		sides := []side{turns(many, c.many, c.clients), turns(few, uniform(10), c.clients)}
		for range b.pick(3, 6) { // a heap that grows for the first time waits for the system's pages
			for _, s := range sides {
				if _, err := s.turn(); err != nil {
					return err
				}
			}
		}
		w, err := b.rounds(c.rounds, sides...)
		if err != nil {
			return err
		}
		b.table("1 KiB in, 1 KiB out, "+c.title, "request", []string{fmt.Sprintf("%d keys", b.manyKeys), "10 keys"}, w)
		if c.clients == 1 {
			b.result["lookup_ratio_1m"] = float64(waits(w[0])) / float64(waits(w[1]))
			fmt.Printf("  all turns together: a request takes %s, and %s with ten keys\n", waits(w[0]).Round(time.Microsecond/10), waits(w[1]).Round(time.Microsecond/10))
			continue
		}
		manyTime, manyCPU := sums(w[0])
		fewTime, fewCPU := sums(w[1])
		fmt.Printf("  all turns together, collections of the large heap included: %.2f× the time, %.2f× the CPU\n", manyTime/fewTime, manyCPU/fewCPU)
	}
	if err := b.metered(many); err != nil {
		return err
	}
	if err := b.profile("lookup-many", func(p *proxy) *load { return loadOf(p, any, clients) }, many); err != nil {
		return err
	}
	b.stopLast(many)
	b.stopLast(few)
	return nil
}

// stopLast ends a proxy early. What its stop would do at the end does nothing more then.
func (b *bench) stopLast(p *proxy) {
	p.Stop(30 * time.Second)
	if p.control != nil {
		p.control.Close()
	}
}

func (b *bench) pick(quick, full int) int {
	if b.quick {
		return quick
	}
	return full
}

func (b *bench) length(quick, full time.Duration) time.Duration {
	if b.quick {
		return quick
	}
	return full
}
