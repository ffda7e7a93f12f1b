package proxy

import (
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
)

// Body is a request's whole body, in memory from the first check until the engine has it. Its buffer comes from a pool and
// goes back when both the gateway and whoever writes it, which may go on after an answer, have let go.
type Body struct {
	buf  *[]byte
	uses atomic.Int32
}

const (
	firstBuffer  = 16 << 10 // what a body is read into first; most fit
	pooledBuffer = 1 << 20  // larger buffers are left to the garbage collector
)

var buffers = sync.Pool{New: func() any { b := make([]byte, 0, firstBuffer); return &b }}

// ErrTooLarge says that a body is larger than its bound.
var ErrTooLarge = errors.New("the body is too large")

// Reading bounds how a body is read.
type Reading interface {
	// Room is asked before the body takes so many bytes of memory, in all.
	Room(bytes int64) error
	// More is told that so many bytes have come, and that there are more to wait for.
	More(got int64) error
}

// ReadBody reads a body to its end; most ≤ 0 means no bound. What it holds grows with what has come, not with what was
// announced. On an error nothing is held. Reading may be nil.
func ReadBody(r io.Reader, most int64, reading Reading) (*Body, error) {
	b := &Body{buf: buffers.Get().(*[]byte)}
	b.uses.Store(1)
	buf := (*b.buf)[:0]
	var err error
	if reading != nil {
		err = reading.Room(int64(cap(buf)))
	}
	for err == nil {
		if len(buf) == cap(buf) {
			size := 2 * cap(buf)
			if most > 0 && int64(size) > most+1 { // the byte that is too much has to fit
				size = max(int(most+1), len(buf)+1)
			}
			if reading != nil { // both are there for a moment
				if err = reading.Room(int64(size + cap(buf))); err != nil {
					break
				}
			}
			buf = append(make([]byte, 0, size), buf...)
			if reading != nil {
				reading.Room(int64(cap(buf))) // less than before
			}
		}
		var n int
		n, err = r.Read(buf[len(buf):cap(buf)])
		if buf = buf[:len(buf)+n]; most > 0 && int64(len(buf)) > most {
			err = ErrTooLarge
		}
		if err == nil && reading != nil {
			err = reading.More(int64(len(buf)))
		}
	}
	*b.buf = buf
	if !errors.Is(err, io.EOF) {
		b.Release()
		return nil, err
	}
	return b, nil
}

// Bytes is the body. It is valid until Release.
func (b *Body) Bytes() []byte { return *b.buf }

// Splice puts text in the place of the bytes from up to to. It is called before an engine gets the body.
func (b *Body) Splice(from, to int, text string) {
	*b.buf = slices.Replace(*b.buf, from, to, []byte(text)...)
}

// Release lets go of the body.
func (b *Body) Release() {
	if b.uses.Add(-1) > 0 {
		return
	}
	if cap(*b.buf) <= pooledBuffer {
		buffers.Put(b.buf)
	}
}

// hold makes the body stay until one more Release.
func (b *Body) hold() { b.uses.Add(1) }
