package controlplane

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/controlplane/ledger"
	"github.com/levelrail/levelrail/controlplane/reconcile"
	"github.com/levelrail/levelrail/controlplane/stored"
	"github.com/levelrail/levelrail/controlplane/view"
	"github.com/levelrail/levelrail/raftstore"
	"github.com/levelrail/levelrail/raftstore/command"
)

var tester = command.By{Principal: levelrail.Principal{Kind: "server", ID: "test"}, Ability: levelrail.AbilityRoot}

// crowd is a store in memory with one model that has so many keys, and a round over it.
type crowd struct {
	t     testing.TB
	store *raftstore.Store
	loop  *loop
	made  int
}

func newCrowd(t testing.TB, keys int) *crowd {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	c := &crowd{t: t, store: raftstore.OpenMemory(raftstore.Config{Logger: log, Fatal: func(err error) { t.Error(err) }})}
	reports := ledger.New()
	t.Cleanup(func() { reports.Close(); c.store.Close(context.Background()) })
	c.loop = &loop{store: c.store, reader: stored.New(c.store), ledger: reports, board: view.NewBoard(), newID: levelrail.NewID, log: log,
		settings: func(*reconcile.Desired) {}, retention: func() time.Duration { return 0 }, failed: map[string]failure{}, reasons: map[string]levelrail.Reason{},
		world: func(d *reconcile.Desired) view.World {
			return view.World{Desired: d, Observed: reports.Snapshot(), Term: 1}
		}}
	c.propose(command.ModelDeploy{Model: levelrail.Model{Name: "chat"},
		Revision: levelrail.Revision{Model: "chat", Number: 1, Spec: levelrail.ModelSpec{Engine: "llamacpp", Source: "org/chat"}}})
	for range keys {
		c.newKey()
	}
	return c
}

func (c *crowd) propose(cmd command.Command) {
	c.t.Helper()
	if _, err := c.store.Propose(context.Background(), tester, cmd); err != nil {
		c.t.Fatal(err)
	}
}

func (c *crowd) newKey() {
	c.t.Helper()
	c.made++
	id := fmt.Sprintf("key_%07d", c.made)
	c.propose(command.KeyCreate{Key: levelrail.Key{ID: id, Name: id, Models: []string{"chat"}, SHA256: levelrail.HashSecret(id), Prefix: "lr-12345"}})
}

// round makes the state new by a key and looks at it: what the server does after each change.
func (c *crowd) round() {
	c.newKey()
	c.loop.round(context.Background())
}

// TestRoundsDoNotReadKeys: after a change, a server reads and works out the same, whether there are ten keys or thousands.
// Its work is counted in allocations: reading a key takes dozens.
func TestRoundsDoNotReadKeys(t *testing.T) {
	work := func(keys int) float64 {
		c := newCrowd(t, keys)
		c.round()
		return testing.AllocsPerRun(20, c.round)
	}
	few, many := work(10), work(5000)
	if many > few+200 {
		t.Errorf("a round takes %.0f allocations with ten keys and %.0f with 5000", few, many)
	}
}

// BenchmarkRound is a key made and a round over the change, with so many keys there already. The two must be alike; the
// tree of a store in memory is a little deeper.
func BenchmarkRound(b *testing.B) {
	for _, keys := range []int{10, 100_000} {
		b.Run(fmt.Sprintf("%d keys", keys), func(b *testing.B) {
			c := newCrowd(b, keys)
			c.round()
			b.ReportAllocs()
			for b.Loop() {
				c.round()
			}
		})
	}
}
