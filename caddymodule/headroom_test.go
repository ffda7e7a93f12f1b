package caddymodule

import (
	"os"
	"runtime"
	"testing"
)

// TestHeadroom: a small heap may grow past the headroom before it is collected, and taking it twice is taking it once.
func TestHeadroom(t *testing.T) {
	if os.Getenv("GOGC") != "" {
		t.Setenv("GOGC", "")
	}
	keepHeadroom()
	keepHeadroom()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if m.NextGC < 2*headroomBytes {
		t.Errorf("the next collection is at %d MiB", m.NextGC>>20)
	}
	if m.HeapAlloc > 3*headroomBytes {
		t.Errorf("the heap has %d MiB", m.HeapAlloc>>20)
	}
	runtime.KeepAlive(headroom.held)
}
