package main

import (
	"math"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail/test/engines/stub"
)

// TestClient: the load generator reads what the stub says, whole and streamed, and takes nothing else for it.
func TestClient(t *testing.T) {
	e, err := stub.New(stub.Options{Keep: 100})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	go e.Serve(listener)
	defer e.Close()
	c := newClient("unix", path)
	defer c.close()
	for _, size := range []int{1 << 10, 100 << 10} {
		if err := c.whole(newRequest(size, uniform(5), `"stub":{"bytes":2048}`).next(), 200, 2048); err != nil {
			t.Error(err)
		}
	}
	for _, r := range e.Requests() {
		if r.Length != 1<<10 && r.Length != 100<<10 || !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer lr-") || len(r.Header.Get("Authorization")) != len("Bearer ")+keyLength {
			t.Errorf("%d bytes, %q", r.Length, r.Header)
		}
	}
	if err := c.whole(newRequest(1<<10, uniform(1), `"stub":{"bytes":2048}`).next(), 200, 2049); err == nil {
		t.Error("an answer of another size passes")
	}
	if err := c.whole(newRequest(1<<10, uniform(1), `"stub":{"status":500}`).next(), 200, -1); err == nil {
		t.Error("an error passes")
	}
	for _, behaviour := range []string{`{"events":20}`, `{"events":20,"gap":"1ms"}`} {
		if err := c.stream(newRequest(1<<10, uniform(1), `"stream":true,"stub":`+behaviour).next(), func(int) bool { return true }); err != nil {
			t.Errorf("%s: %v", behaviour, err)
		}
	}
	if err := c.stream(newRequest(1<<10, uniform(1), `"stream":true,"stub":{"end":"cut","at":2}`).next(), func(int) bool { return true }); err == nil {
		t.Error("a cut stream passes")
	}
	c.close()
	left := e.Counters().Left
	if err := c.stream(newRequest(1<<10, uniform(1), `"stream":true,"stub":{"endless":true,"gap":"1ms"}`).next(), func(n int) bool { return n < 3 }); err != nil {
		t.Error(err)
	}
	for deadline := time.Now().Add(5 * time.Second); e.Counters().Left != left+1; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the stub did not see the client leave")
		}
	}
}

// TestLoad counts every request once and gives times in order.
func TestLoad(t *testing.T) {
	e, err := stub.New(stub.Options{})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	go e.Serve(listener)
	defer e.Close()
	l := &load{target: target{"stub", "unix", path}, clients: 3, request: newRequest(1<<10, uniform(10), `"stub":{"bytes":600,"first":"2ms"}`), bytes: 600}
	l.begin()
	for deadline := time.Now().Add(5 * time.Second); l.total() < 50 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
	}
	if err := l.end(); err != nil {
		t.Fatal(err)
	}
	e.Close() // waits until all is counted
	if n := l.total(); n < 50 || n != e.Counters().Answered {
		t.Errorf("%d requests counted, %+v", n, e.Counters())
	}
	if p50, p99 := l.percentile(50), l.percentile(99); p50 < 2*time.Millisecond || p99 < p50 {
		t.Errorf("p50 %s, p99 %s", p50, p99)
	}
}

// TestKeys: keys differ, and a request's next key is one of those that the control plane says.
func TestKeys(t *testing.T) {
	seen, known := map[string]bool{}, map[string]bool{}
	for i := range 10000 {
		text := string(keyText(nil, i))
		if len(text) != keyLength || seen[text] {
			t.Fatalf("key %d is %q", i, text)
		}
		seen[text] = true
	}
	for i := range 7 {
		known[string(keyText(nil, i))] = true
	}
	r := newRequest(1<<10, uniform(7), `"x":1`)
	used := map[string]bool{}
	for range 1000 {
		text := r.next()
		used[string(text[r.key:r.key+keyLength])] = true
	}
	for k := range used {
		if !known[k] {
			t.Errorf("a request has key %q", k)
		}
	}
	if len(used) != len(known) {
		t.Errorf("%d of %d keys are used", len(used), len(known))
	}
}

// TestMedian of paired ratios is what one disturbed round does not change.
func TestMedian(t *testing.T) {
	ours := []window{{rate: 20}, {rate: 1}, {rate: 22}}
	plain := []window{{rate: 10}, {rate: 10}, {rate: 11}}
	if got := ratio(ours, plain, rate); got != 2 {
		t.Errorf("%v", got)
	}
	if got := median([]float64{4, 1, 3, 2}); got != 2.5 {
		t.Errorf("%v", got)
	}
	// All turns together do show it.
	if each, used := sums([]window{{done: 10, took: time.Second, used: 100}, {done: 10, took: 3 * time.Second, used: 300}}); each != 2e8 || used != 20 {
		t.Errorf("%v %v", each, used)
	}
	// Neither counts what others had of the core.
	disturbed := window{rate: 10, done: 10, took: time.Second, used: 100, others: 0.5}
	if each, _ := sums([]window{disturbed}); each != 5e7 || rate(disturbed) != 20 {
		t.Errorf("%v %v", each, rate(disturbed))
	}
	if !math.IsNaN(median(nil)) {
		t.Error("a median of nothing is a number")
	}
	for _, d := range []time.Duration{time.Microsecond, 3 * time.Microsecond, time.Millisecond, time.Second, time.Hour} {
		l := &load{count: make([]counter, 1)}
		l.count[0].waited[bucket(d)]++
		if got := l.percentile(50); d < time.Hour && (got < d || got > 2*d) {
			t.Errorf("%s is counted as %s", d, got)
		}
	}
}

// TestQuietest: the rounds kept are those that other processes disturbed least, on whichever side, in their order.
func TestQuietest(t *testing.T) {
	ours := []window{{others: 0.5}, {others: 0.01}, {others: 0.02}, {others: 0.03}}
	plain := []window{{others: 0}, {others: 0}, {others: 0.4}, {}}
	if got := quietest([][]window{ours, plain}, 2); len(got) != 2 || got[0] != 1 || got[1] != 3 {
		t.Errorf("rounds %v are kept", got)
	}
	if got := quietest([][]window{ours, plain}, 9); len(got) != 4 {
		t.Errorf("of four rounds %v are kept", got)
	}
}

// TestDraws: keys come as often as their law says, and every key is one of those that there are.
func TestDraws(t *testing.T) {
	const n, times = 1000, 400_000
	popular, random := newSkewed(n), rand.New(rand.NewPCG(1, 2))
	var ranks, keys, even [n]int
	for range times {
		r := random.Uint64()
		ranks[popular.rank(r)]++
		keys[popular.of(r)]++
		even[uniform(n).of(r)]++
	}
	for _, first := range []int{1, 2, 10, 100, 500, n} { // the approximation is a little off for the third to the tenth
		want, got := 0.0, 0
		for i := range first {
			want += math.Pow(float64(i+1), -skew) / popular.zeta
			got += ranks[i]
		}
		if share := float64(got) / times; math.Abs(share-want) > 0.03 {
			t.Errorf("the first %d have %.3f of the requests, want %.3f", first, share, want)
		}
	}
	seen := 0
	for i := range n {
		if keys[i] > 0 {
			seen++
		}
		if c := float64(even[i]) * n / times; c < 0.7 || c > 1.3 {
			t.Errorf("key %d has %.2f of its share", i, c)
		}
	}
	if seen < n*9/10 || keys[0] != ranks[0] {
		t.Errorf("%d of %d keys come at all", seen, n)
	}
	for _, r := range []uint64{0, math.MaxUint64} {
		if k := newSkewed(1_000_000).of(r); k < 0 || k >= 1_000_000 {
			t.Errorf("key %d", k)
		}
	}
}
