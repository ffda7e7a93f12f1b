package openai

import (
	"compress/gzip"
	"io"
)

// unzip reads a compressed answer's copy. The answer itself goes to the client as it came.
type unzip struct {
	in   *io.PipeWriter
	tail *Tail
	done chan struct{}
}

func newUnzip(tail *Tail) *unzip {
	out, in := io.Pipe()
	u := &unzip{in: in, tail: tail, done: make(chan struct{})}
	go func() {
		defer close(u.done)
		r, err := gzip.NewReader(out)
		if err == nil {
			_, err = io.Copy(tail, r)
		}
		out.CloseWithError(io.ErrClosedPipe) // what follows a broken or finished one is of no interest
	}()
	return u
}

func (u *unzip) write(p []byte) { u.in.Write(p) }

// end waits for the copy's end. A cut one has told what it had.
func (u *unzip) end() Seen {
	u.in.Close()
	<-u.done
	return u.tail.End()
}
