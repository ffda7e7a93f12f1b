package meter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// plane is a control plane's half: it applies a batch once, by its number.
type plane struct {
	mu    sync.Mutex
	last  map[string]uint64
	total levelrail.Usage
	rows  map[string]levelrail.Usage
	used  map[string]time.Time
	lost  int64
	sizes []int
	fail  func() (before, after bool) // the connection breaks before the batch is applied, or before its answer is read
}

func newPlane() *plane {
	return &plane{last: map[string]uint64{}, rows: map[string]levelrail.Usage{}, used: map[string]time.Time{}}
}

var errBroken = errors.New("connection reset by peer")

func (p *plane) Usage(_ context.Context, batch json.RawMessage) (wire.UsageAccepted, error) {
	var b wire.UsageBatch
	if err := json.Unmarshal(batch, &b); err != nil {
		return wire.UsageAccepted{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	before, after := false, false
	if p.fail != nil {
		before, after = p.fail()
	}
	if before {
		return wire.UsageAccepted{}, errBroken
	}
	if b.Sequence > p.last[b.GatewayID] {
		p.last[b.GatewayID] = b.Sequence
		for _, r := range b.Rows {
			p.total.Add(r.Counts)
			sum := p.rows[r.ObjectID()]
			sum.Add(r.Counts)
			sum.Owner, sum.Tags = r.Owner, r.Tags
			p.rows[r.ObjectID()] = sum
		}
		for k, at := range b.LastUsed {
			p.used[k] = at
		}
		p.lost += b.Dropped
		p.sizes = append(p.sizes, len(b.Rows))
	}
	if after {
		return wire.UsageAccepted{}, errBroken
	}
	return wire.UsageAccepted{Sequence: p.last[b.GatewayID]}, nil
}

func (p *plane) requests() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.total.Requests
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func newMeter(p *plane, dir string, s Settings) *Meter {
	return New(Options{ControlPlane: p, GatewayID: func() string { return "gw_a" }, Directory: dir, Settings: func() Settings { return s }, Log: quiet()})
}

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func record(key, model string) Record {
	return Record{Method: "POST", KeyID: key, Model: model, Status: 200, End: Complete, Start: noon.Add(5 * time.Minute), Duration: 2 * time.Second,
		FirstByte: 300 * time.Millisecond, Bytes: 100, HasUsage: true, Input: 10, Output: 20, Owner: levelrail.DefaultOwner}
}

// TestClasses: each way a request can end is counted where the reports say it is.
func TestClasses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Record)
		want   levelrail.Counts
	}{
		"complete":          {func(*Record) {}, levelrail.Counts{OK: 1, WithUsage: 1, InputTokens: 10, OutputTokens: 20}},
		"no usage":          {func(r *Record) { r.HasUsage, r.Input, r.Output = false, 0, 0 }, levelrail.Counts{OK: 1}},
		"part of the usage": {func(r *Record) { r.HasUsage, r.Partial = false, true }, levelrail.Counts{OK: 1, InputTokens: 10, OutputTokens: 20}},
		"limited":           {func(r *Record) { *r = refusal(*r, 429) }, levelrail.Counts{ClientErrors: 1, Limited: 1}},
		"engine's 429":      {func(r *Record) { *r = refusal(*r, 429); r.End = Complete }, levelrail.Counts{ClientErrors: 1}},
		"bad body":          {func(r *Record) { *r = refusal(*r, 400) }, levelrail.Counts{ClientErrors: 1}},
		"not loaded":        {func(r *Record) { *r = refusal(*r, 503) }, levelrail.Counts{ServerErrors: 1}},
		"left before":       {func(r *Record) { *r = refusal(*r, 499); r.End = ClientGone }, levelrail.Counts{Aborted: 1}},
		"left in a stream":  {func(r *Record) { r.End = ClientGone }, levelrail.Counts{OK: 1, Aborted: 1, WithUsage: 1, InputTokens: 10, OutputTokens: 20}},
		"engine gone":       {func(r *Record) { r.End = EngineGone }, levelrail.Counts{ServerErrors: 1, WithUsage: 1, InputTokens: 10, OutputTokens: 20}},
		"engine's error":    {func(r *Record) { r.End = EngineError }, levelrail.Counts{ServerErrors: 1, WithUsage: 1, InputTokens: 10, OutputTokens: 20}},
	} {
		r := record("key_a", "chat")
		c.change(&r)
		var got levelrail.Counts
		count(&got, &r)
		c.want.Requests, c.want.ResponseBytes, c.want.DurationMS, c.want.FirstByteMS = 1, r.Bytes, 2000, r.FirstByte.Milliseconds()
		if fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, c.want)
		}
	}
}

func refusal(r Record, status int) Record {
	r.Status, r.End, r.HasUsage, r.Input, r.Output, r.FirstByte = status, Refused, false, 0, 0, 0
	return r
}

// TestWhoseUsage: a request without a key or model is nobody's usage, and one that was refused is no use of its key.
func TestWhoseUsage(t *testing.T) {
	p := newPlane()
	m := newMeter(p, "", Settings{})
	m.Record(record("", "chat"))
	m.Record(record("key_a", ""))
	list := record("key_a", "chat")
	list.Method = "GET"
	m.Record(list)
	m.flush(t.Context())
	if len(p.rows) != 0 || len(p.used) != 0 {
		t.Fatalf("counted: %v %v", p.rows, p.used)
	}
	m.Record(refusal(record("key_a", "chat"), 429))
	m.Record(record("key_b", "chat"))
	m.flush(t.Context())
	if _, a := p.used["key_a"]; a || !p.used["key_b"].Equal(noon.Add(5*time.Minute)) {
		t.Errorf("last used: %v", p.used)
	}
	if r := p.rows["2026030112/key_a/chat"]; r.Limited != 1 || r.Requests != 1 {
		t.Errorf("the refused request's row: %+v", p.rows)
	}
}

// TestAppliedOnce: whatever breaks, and however often the gateway is killed, each count that a flush has written arrives
// exactly once; only what was counted since then is lost with a killed gateway.
func TestAppliedOnce(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		p, dir := newPlane(), t.TempDir()
		p.fail = func() (bool, bool) { n := rng.IntN(6); return n == 0, n == 1 }
		m := newMeter(p, dir, Settings{BatchRows: 3})
		var want, fresh int64
		for range 300 {
			switch n := rng.IntN(10); {
			case n < 6:
				r := record(fmt.Sprintf("key_%d", rng.IntN(9)), "chat")
				r.Start = r.Start.Add(time.Duration(rng.IntN(3)) * time.Hour)
				m.Record(r)
				fresh++
			case n < 9:
				m.flush(t.Context())
				want, fresh = want+fresh, 0
			default: // kill -9: what is in memory is gone, the next run has the files
				fresh = 0
				m = newMeter(p, dir, Settings{BatchRows: 3})
			}
		}
		p.fail = nil
		m.flush(t.Context())
		if want += fresh; p.total.Requests != want || p.total.InputTokens != 10*want {
			t.Errorf("seed %d: %d requests arrived, %d were counted", seed, p.total.Requests, want)
		}
		if m.Rows() != 0 {
			t.Errorf("seed %d: %d rows are held after all have arrived", seed, m.Rows())
		}
		for _, n := range p.sizes {
			if n > 3 {
				t.Fatalf("a batch has %d rows", n)
			}
		}
	}
}

// TestKilledAtEveryFile: a gateway whose state directory is that of any moment between two writes sends nothing twice.
func TestKilledAtEveryFile(t *testing.T) {
	p, dir := newPlane(), t.TempDir()
	m := newMeter(p, dir, Settings{BatchRows: 1})
	for i := range 4 {
		m.Record(record(fmt.Sprint("key_", i), "chat"))
	}
	m.mu.Lock()
	m.collect()
	m.number()
	m.write()
	m.mu.Unlock()
	old, err := os.ReadFile(filepath.Join(dir, usageFile))
	if err != nil {
		t.Fatal(err)
	}
	m.flush(t.Context())
	if err := os.WriteFile(filepath.Join(dir, usageFile), old, 0o600); err != nil { // all was sent, and nothing of it noted
		t.Fatal(err)
	}
	m = newMeter(p, dir, Settings{BatchRows: 1})
	m.Record(record("key_9", "chat"))
	m.flush(t.Context())
	m.flush(t.Context())
	if p.total.Requests != 5 || m.Rows() != 0 {
		t.Errorf("%d requests arrived, 5 were made; %d rows are held", p.total.Requests, m.Rows())
	}
}

// TestOutage: while the control plane is away, sums go on adding up in one row each, on disk, readable by the owner alone;
// then everything arrives, once.
func TestOutage(t *testing.T) {
	p, dir := newPlane(), t.TempDir()
	down := true
	p.fail = func() (bool, bool) { return down, false }
	m := newMeter(p, dir, Settings{})
	for range 50 {
		m.Record(record("key_a", "chat"))
		m.flush(t.Context())
	}
	if n := m.Rows(); n > 2 {
		t.Errorf("50 flushes of one row hold %d rows", n)
	}
	info, err := os.Stat(filepath.Join(dir, usageFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v %v", info.Mode(), err)
	}
	m = newMeter(p, dir, Settings{})
	down = false
	m.flush(t.Context())
	if p.total.Requests != 50 {
		t.Errorf("%d of 50 requests arrived", p.total.Requests)
	}
}

// TestBound: past the bound rows are dropped, counted once each, said in the log and told to the control plane; rows that
// are there go on counting.
func TestBound(t *testing.T) {
	p := newPlane()
	var log strings.Builder
	m := New(Options{ControlPlane: p, GatewayID: func() string { return "gw_a" }, Directory: t.TempDir(), Settings: func() Settings { return Settings{MaxRows: 3} },
		Log: slog.New(slog.NewTextHandler(&log, nil))})
	for range 2 {
		for i := range 5 {
			m.Record(record(fmt.Sprint("key_", i), "chat"))
		}
	}
	m.flush(t.Context())
	if p.total.Requests != 6 || p.lost != 2 || m.Dropped() != 2 {
		t.Errorf("%d requests arrived, %d rows lost, %d dropped; want 6, 2, 2", p.total.Requests, p.lost, m.Dropped())
	}
	if !strings.Contains(log.String(), "rows=2") {
		t.Errorf("the log does not say so: %s", &log)
	}
	m.Record(record("key_9", "chat"))
	m.flush(t.Context())
	if p.total.Requests != 7 {
		t.Error("nothing fits after the rows have arrived")
	}
}

// TestLostState: a gateway whose files are gone while the control plane still knows its numbers goes on behind them.
func TestLostState(t *testing.T) {
	p := newPlane()
	p.last["gw_a"] = 40
	m := newMeter(p, t.TempDir(), Settings{BatchRows: 1})
	for i := range 3 {
		m.Record(record(fmt.Sprint("key_", i), "chat"))
	}
	m.flush(t.Context())
	if p.total.Requests != 3 || p.last["gw_a"] != 43 {
		t.Errorf("%d of 3 requests arrived, the last number is %d", p.total.Requests, p.last["gw_a"])
	}
}

// TestNothingIsSentBeforeItIsKept: counts that cannot be written stay in memory, and go once they can be.
func TestNothingIsSentBeforeItIsKept(t *testing.T) {
	p, dir := newPlane(), t.TempDir()
	blocked := filepath.Join(dir, "state")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m := newMeter(p, blocked, Settings{})
	m.Record(record("key_a", "chat"))
	m.flush(t.Context())
	if p.total.Requests != 0 {
		t.Fatal("sent, and not on disk")
	}
	os.Remove(blocked)
	m.flush(t.Context())
	if p.total.Requests != 1 {
		t.Error("not sent after the disk works again")
	}
}

// TestRun: sums go out at the interval, which may change while the meter runs, and at the end to the disk.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := newPlane()
		var mu sync.Mutex
		every := time.Minute
		m := New(Options{ControlPlane: p, GatewayID: func() string { return "gw_a" }, Directory: dir, Log: quiet(), Settings: func() Settings {
			mu.Lock()
			defer mu.Unlock()
			return Settings{Flush: every}
		}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); m.Run(ctx) }()
		synctest.Wait()
		m.Record(record("key_a", "chat"))
		time.Sleep(58 * time.Second) // the bubble's clock
		synctest.Wait()
		if p.requests() != 0 {
			t.Error("sent before the interval")
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if p.requests() != 1 {
			t.Error("not sent after the interval")
		}
		mu.Lock()
		every = 5 * time.Second
		mu.Unlock()
		m.Record(record("key_a", "chat"))
		time.Sleep(7 * time.Second)
		synctest.Wait()
		if p.requests() != 2 {
			t.Error("not sent after the shorter interval")
		}
		m.Record(record("key_a", "chat"))
		cancel()
		<-done
		if p.requests() != 2 {
			t.Error("sent at the end, by a context that had ended")
		}
		newMeter(p, dir, Settings{}).flush(t.Context())
		if p.requests() != 3 {
			t.Error("what was counted last was not kept")
		}
	})
}

// TestConcurrentRecords: no count is lost between a flush and the requests that end meanwhile.
func TestConcurrentRecords(t *testing.T) {
	p := newPlane()
	m := newMeter(p, "", Settings{})
	var all sync.WaitGroup
	for w := range 8 {
		all.Go(func() {
			for i := range 500 {
				m.Record(record(fmt.Sprintf("key_%d_%d", w, i%7), "chat"))
			}
		})
	}
	stop := make(chan struct{})
	flushed := make(chan struct{})
	go func() {
		defer close(flushed)
		for {
			m.flush(context.Background())
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	all.Wait()
	close(stop)
	<-flushed
	m.flush(t.Context())
	if p.total.Requests != 8*500 || m.Rows() != 0 {
		t.Errorf("%d requests arrived, %d rows held", p.total.Requests, m.Rows())
	}
}
