package caddymodule

import (
	"os"
	"sync"
)

// headroomBytes is how much address space is taken so that the heap may grow by twice of it before it is collected.
const headroomBytes = 32 << 20

var headroom struct {
	once sync.Once
	held []byte
}

// keepHeadroom makes collections of garbage rarer in a process whose heap is small for what passes through it. Go collects
// when the heap has doubled, and a gateway's is some 10 MiB, through which a busy one allocates every tenth of a second:
// a tenth of its CPU went into that. The memory taken here is never touched, so the kernel gives none for it, and holds no
// pointers, so that nobody reads it; it only counts. What it costs is garbage: up to twice headroomBytes more resident.
// Whoever sets GOGC has decided otherwise.
func keepHeadroom() {
	headroom.once.Do(func() {
		if os.Getenv("GOGC") == "" {
			headroom.held = make([]byte, headroomBytes)
		}
	})
}
