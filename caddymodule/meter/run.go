package meter

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/caddymodule/durable"
	"github.com/levelrail/levelrail/client/wire"
)

// ControlPlane is what the meter asks of it. *client.Client meets it. A batch is a wire.UsageBatch in JSON.
type ControlPlane interface {
	Usage(ctx context.Context, batch json.RawMessage) (wire.UsageAccepted, error)
}

// Settings are the control plane's wishes. The zero value stands for what a gateway does before it knows them.
type Settings struct {
	Flush     time.Duration // how often sums are written and sent; default 30 s
	BatchRows int           // rows of a batch; default 200
	MaxRows   int64         // rows held in all; 0 or less: no bound
}

// Options say what a meter needs.
type Options struct {
	ControlPlane ControlPlane
	GatewayID    func() string   // asked once, by Run
	Directory    string          // the gateway's state directory; empty: nothing is kept
	Settings     func() Settings // the newest
	Log          *slog.Logger
}

// Meter counts requests. Record may be called from the beginning on; Run brings the counts home.
type Meter struct {
	o    Options
	sums *sums

	mu    sync.Mutex // of what follows: Run and Save
	state *unsent    // nil before it is loaded
	stale bool       // the state differs from the file
	said  string     // the last failure logged, which is not repeated
	drops atomic.Int64
}

// New returns a meter that counts. It starts nothing and touches no file.
func New(o Options) *Meter {
	m := &Meter{o: o, sums: newSums()}
	m.sums.most.Store(o.Settings().MaxRows)
	return m
}

// Record counts one request.
func (m *Meter) Record(r Record) { m.sums.add(&r) }

// Dropped is how many rows did not fit the bound since the meter was made.
func (m *Meter) Dropped() int64 { return m.drops.Load() }

// Rows is how many rows are held: counted, and not accepted by the control plane yet.
func (m *Meter) Rows() int64 { return m.sums.rows.Load() }

// Defaults of the settings, and the least pause between two flushes.
const (
	defaultFlush = 30 * time.Second
	defaultBatch = 200
	leastFlush   = time.Second
	sendTime     = 30 * time.Second // for one batch
)

func (m *Meter) settings() Settings {
	s := m.o.Settings()
	if s.Flush <= 0 {
		s.Flush = defaultFlush
	}
	s.Flush = max(s.Flush, leastFlush)
	if s.BatchRows <= 0 {
		s.BatchRows = defaultBatch
	}
	m.sums.most.Store(s.MaxRows)
	return s
}

// Run sends what an earlier run has left, then flushes at each interval until ctx ends, and once more then, to the disk.
func (m *Meter) Run(ctx context.Context) {
	m.flush(ctx)
	begun := time.Now()
	for {
		// Settings may come with the first table, and change with any: the pause is cut into steps.
		wait := min(time.Until(begun.Add(m.settings().Flush)), time.Second)
		if wait > 0 {
			select {
			case <-ctx.Done():
				m.Save()
				return
			case <-time.After(wait):
			}
			continue
		}
		begun = time.Now()
		m.flush(ctx)
	}
}

// Save brings what has been counted to the disk, and nowhere else. A meter that has neither run nor counted touches nothing.
func (m *Meter) Save() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state == nil && m.sums.rows.Load() == 0 {
		return
	}
	m.collect()
	m.write()
}

// flush writes what has been counted, then sends what is written.
func (m *Meter) flush(ctx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.collect()
	for m.number() && m.write() && m.send(ctx) {
	}
	m.write() // what was accepted need not be sent again by the next run
}

// collect takes the counts over into the state.
func (m *Meter) collect() {
	m.load()
	t := m.sums.take()
	if t.rows == 0 && t.lost == 0 {
		return
	}
	m.stale = true
	m.sums.rows.Add(-m.state.add(&t))
	if t.lost > 0 {
		m.drops.Add(t.lost)
		m.o.Log.Error("usage does not fit the bound and is lost", "rows", t.lost, "held", m.sums.rows.Load(), "next", "see why the control plane does not take it; APP_MODEL_USAGE_MAX_BUFFERED is the bound")
	}
}

func (m *Meter) load() {
	if m.state != nil {
		return
	}
	if err := durable.Sweep(m.o.Directory, usageFile); err != nil {
		m.o.Log.Warn("an unfinished file cannot be removed", "error", err)
	}
	state, err := load(m.o.Directory, m.o.GatewayID())
	if err != nil {
		m.o.Log.Error("the usage that an earlier run has kept cannot be read", "error", err)
	}
	m.state = state
	m.sums.rows.Add(state.rows())
}

// number makes batches when none wait, and tells whether there is one to send.
func (m *Meter) number() bool {
	if len(m.state.batches) == 0 && m.state.unnumbered() > 0 {
		m.state.number(m.settings().BatchRows)
		m.stale = true
	}
	return len(m.state.batches) > 0
}

// write saves the state if the file differs, and tells whether they are the same now.
func (m *Meter) write() bool {
	if !m.stale {
		return true
	}
	if err := m.state.save(m.o.Directory); err != nil {
		m.tell("usage cannot be kept on disk and is not sent before it is", err, "directory", m.o.Directory)
		return false
	}
	m.stale = false
	return true
}

// send sends the batches one after another and tells whether all were accepted.
func (m *Meter) send(ctx context.Context) bool {
	for len(m.state.batches) > 0 && ctx.Err() == nil {
		b := m.state.batches[0]
		one, cancel := context.WithTimeout(ctx, sendTime)
		answer, err := m.o.ControlPlane.Usage(one, b.text)
		cancel()
		switch {
		case ctx.Err() != nil:
			return false
		case err != nil && refused(err):
			// It will be refused for ever, and what comes after it must not wait for ever.
			m.o.Log.Error("the control plane refuses a batch of usage; it is lost", "sequence", b.sequence, "rows", b.rows, "error", err)
			m.drops.Add(int64(b.rows))
			answer.Sequence = b.sequence
		case err != nil:
			m.tell("usage cannot be sent; it is kept", err, "rows", m.state.rows())
			return false
		case answer.Sequence < b.sequence:
			m.tell("usage cannot be sent; it is kept", fmt.Errorf("batch %d was answered with %d", b.sequence, answer.Sequence), "rows", m.state.rows())
			return false
		}
		m.said, m.stale = "", true
		lost := answer.Sequence > m.state.sequence
		rows, err := m.state.accepted(answer.Sequence)
		if err != nil { // of what this process or an earlier one has written itself
			m.tell("usage cannot be numbered anew; it is kept", err)
			return false
		}
		m.sums.rows.Add(-rows)
		if lost && !m.write() { // new numbers count once they are on disk
			return false
		}
	}
	return ctx.Err() == nil
}

// refused tells whether sending the same again would be answered the same.
func refused(err error) bool {
	k := levelrail.KindOf(err)
	return k == levelrail.ErrInvalid
}

// tell logs a failure once, until something works again.
func (m *Meter) tell(what string, err error, more ...any) {
	if text := what + err.Error(); text != m.said {
		m.said = text
		m.o.Log.Warn(what, append([]any{"error", err}, more...)...)
	}
}
