package proxy

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
)

// TestReadBody: a body comes whole, in whatever pieces it is sent, up to its bound and not one byte more.
func TestReadBody(t *testing.T) {
	for _, size := range []int{0, 1, firstBuffer - 1, firstBuffer, firstBuffer + 1, 1 << 20, 1<<20 + 1} {
		want := strings.Repeat("x", size)
		for name, r := range map[string]io.Reader{"at once": strings.NewReader(want), "halves": iotest.HalfReader(strings.NewReader(want)), "data with EOF": iotest.DataErrReader(strings.NewReader(want))} {
			b, err := ReadBody(r, int64(size), nil)
			if err != nil || string(b.Bytes()) != want {
				t.Fatalf("%d bytes, %s: %v", size, name, err)
			}
			b.Release()
			if size > 0 {
				if _, err := ReadBody(strings.NewReader(want), int64(size)-1, nil); size > 1 && !errors.Is(err, ErrTooLarge) {
					t.Errorf("%d bytes passed a bound of one less: %v", size, err)
				}
			}
		}
	}
	if b, err := ReadBody(strings.NewReader(strings.Repeat("x", 3<<20)), 0, nil); err != nil || len(b.Bytes()) != 3<<20 {
		t.Errorf("without a bound: %v", err)
	}
	broken := errors.New("broken")
	if _, err := ReadBody(io.MultiReader(strings.NewReader("abc"), iotest.ErrReader(broken)), 10, nil); !errors.Is(err, broken) {
		t.Errorf("a reader's error is %v", err)
	}
}

// TestBodyIsNotShared: while a body is still being written to an engine, nobody else gets its buffer, in whichever order
// the gateway and the writer let go.
func TestBodyIsNotShared(t *testing.T) {
	for range 200 {
		b, err := ReadBody(strings.NewReader(strings.Repeat("a", 4000)), 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		b.hold()
		var wg sync.WaitGroup
		wg.Go(func() {
			if bytes.ContainsAny(b.Bytes(), "b") {
				t.Error("another request's body was read")
			}
			b.Release()
		})
		wg.Go(b.Release)
		for range 3 {
			next, err := ReadBody(strings.NewReader(strings.Repeat("b", 4000)), 0, nil)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.ContainsAny(next.Bytes(), "a") || len(next.Bytes()) != 4000 {
				t.Fatal("a body was written over")
			}
			next.Release()
		}
		wg.Wait()
	}
}
