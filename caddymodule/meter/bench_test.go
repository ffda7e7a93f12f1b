package meter

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// accepting takes every batch.
type accepting struct{ batches int }

func (a *accepting) Usage(_ context.Context, batch json.RawMessage) (wire.UsageAccepted, error) {
	a.batches++
	return wire.UsageAccepted{Sequence: uint64(a.batches)}, nil
}

func oneRecord(key string) Record {
	return Record{Method: "POST", Model: "chat", KeyID: key, Owner: levelrail.DefaultOwner, Status: 200, End: Complete, Start: time.Now(), Duration: 12 * time.Millisecond,
		FirstByte: 9 * time.Millisecond, Bytes: 1024, HasUsage: true, Input: 100, Output: 50}
}

// BenchmarkRecord is what counting a request costs it.
func BenchmarkRecord(b *testing.B) {
	m := New(Options{Settings: func() Settings { return Settings{} }})
	records := make([]Record, 1000)
	for i := range records {
		records[i] = oneRecord(fmt.Sprint("key_", i))
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		m.Record(records[i%len(records)])
		i++
	}
}

// BenchmarkFlush is what a request costs in all, its way to the disk and to the control plane included, when no two requests
// of an interval have one key.
func BenchmarkFlush(b *testing.B) {
	const keys = 100_000
	records := make([]Record, keys)
	for i := range records {
		records[i] = oneRecord(levelrail.NewID("key"))
	}
	cp := new(accepting)
	m := New(Options{ControlPlane: cp, GatewayID: func() string { return "gw_1" }, Directory: b.TempDir(), Settings: func() Settings { return Settings{} }, Log: slog.New(slog.DiscardHandler)})
	n := 0
	for b.Loop() {
		for i := range records {
			m.Record(records[i])
		}
		m.flush(context.Background())
		n += keys
	}
	if cp.batches != n/defaultBatch || m.Rows() != 0 {
		b.Fatalf("%d batches of %d rows have arrived", cp.batches, n)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/row")
}
