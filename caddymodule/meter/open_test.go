package meter

import (
	"context"
	"testing"
	"time"
)

// TestOpenSumsOutliveARun: sums that wait behind unsent batches, and when their keys were used last, are those of the next
// run, which adds to them.
func TestOpenSumsOutliveARun(t *testing.T) {
	p, dir := newPlane(), t.TempDir()
	broken := true
	p.fail = func() (bool, bool) { return broken, false }
	count := func(m *Meter, key string, at time.Duration, refused bool) {
		r := record(key, "chat")
		r.Start = noon.Add(at)
		if refused {
			r = refusal(r, 429)
		}
		m.Record(r)
	}
	m := newMeter(p, dir, Settings{})
	count(m, "key_a", time.Minute, false)
	m.flush(context.Background()) // a batch, which cannot be sent
	count(m, "key_a", 3*time.Minute, false)
	count(m, "key_b", 2*time.Minute, true)
	m.flush(context.Background()) // open sums behind it
	count(m, "key_a", 2*time.Minute, false)
	count(m, "key_c", 2*time.Minute, false)
	m.flush(context.Background()) // added to
	m.Save()

	next := newMeter(p, dir, Settings{})
	count(next, "key_a", time.Minute, false)
	next.flush(context.Background())
	broken = false
	next.flush(context.Background())
	for key, want := range map[string]struct {
		requests int64
		used     time.Duration
	}{"key_a": {4, 3 * time.Minute}, "key_b": {1, 0}, "key_c": {1, 2 * time.Minute}} {
		sum := p.rows[noon.Format("2006010215")+"/"+key+"/chat"]
		at, used := p.used[key]
		if sum.Requests != want.requests || used != (want.used > 0) || used && !at.Equal(noon.Add(want.used)) {
			t.Errorf("%s: %d requests, used %v; want %d and %s after noon", key, sum.Requests, at, want.requests, want.used)
		}
	}
	if len(p.sizes) != 2 || next.Rows() != 0 {
		t.Errorf("batches of %v rows, %d rows are held", p.sizes, next.Rows())
	}
}
