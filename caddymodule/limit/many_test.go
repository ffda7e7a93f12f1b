package limit

import (
	"fmt"
	"runtime"
	"testing"
	"unsafe"

	"github.com/levelrail/levelrail"
)

// BenchmarkManyKeys is a first request of each of very many keys with every limit, and what a key then takes in memory.
func BenchmarkManyKeys(b *testing.B) {
	const keys = 100_000
	l := levelrail.KeyLimits{RPM: 1 << 40, TPM: 1 << 40, TPD: 1 << 40, MaxParallel: 1 << 20}
	ids := make([]string, keys)
	for i := range ids {
		ids[i] = fmt.Sprint("key_", i)
	}
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		k, gate := NewKeys(start), new(Gate)
		for _, id := range ids {
			c, ok := k.Enter(id, l, gate, 0, start)
			if !ok {
				b.Fatal("refused")
			}
			c.Charge(l, start)
			c.Spend(l, 30, start)
			c.Leave()
			gate.Give()
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/keys, "bytes/key")
		runtime.KeepAlive(k)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/keys, "ns/key")
}

// TestWindowTakesNoMoreThanItHas: steps that have left the window leave nothing behind, and one that is used again and again
// holds no more of them than it has.
func TestWindowTakesNoMoreThanItHas(t *testing.T) {
	w := window{span: minute}
	now := start.UnixNano()
	for range 10_000 {
		now += int64(minute.step) * 2
		w.add(now, 1)
		if len(w.counts()) > 31 || cap(w.more) > 128 {
			t.Fatalf("%d steps of %d are held", len(w.counts()), cap(w.more))
		}
	}
	if got := w.total(now + int64(minute.step)*61); got != 0 || w.counts() != nil {
		t.Errorf("after its span it has %d and holds %d", got, cap(w.more))
	}
}

// TestSizeOfKey: a key's counter is small enough for the garbage collector's short way. Beyond 512 bytes each is looked at by
// itself, and a million of them are a tenth of a gateway's time.
func TestSizeOfKey(t *testing.T) {
	if size := unsafe.Sizeof(Key{}); size > 512 {
		t.Errorf("a key's counter has %d bytes", size)
	} else {
		t.Logf("%d bytes", size)
	}
}
