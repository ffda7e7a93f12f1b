package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail/caddymodule/meter"
)

// client is where an answer is sent. It tells what it gets with each flush.
type client struct {
	header  http.Header
	status  int
	now     bytes.Buffer
	flushed chan string // what each flush sent, after "head " when it sent the head
	begun   bool
	write   func(p []byte) error // before each write
}

func newClient() *client { return &client{header: http.Header{}, flushed: make(chan string, 1000)} }

func (c *client) Header() http.Header { return c.header }
func (c *client) WriteHeader(s int)   { c.status = s }
func (c *client) Write(p []byte) (int, error) {
	if c.write != nil {
		if err := c.write(p); err != nil {
			return 0, err
		}
	}
	return c.now.Write(p)
}

func (c *client) Flush() {
	s := c.now.String()
	c.now.Reset()
	if !c.begun {
		c.begun, s = true, "head "+s
	}
	c.flushed <- s
}

// TestFlush: whenever the engine is waited for, the client has everything that it has said, in one piece; and nothing is
// flushed that the end follows at once.
func TestFlush(t *testing.T) {
	const events, unknown, known = "Content-Type: text/event-stream\r\n", "Content-Type: application/json\r\n", "Content-Type: application/json\r\nContent-Length: 6\r\n\r\n"
	const chunked = "Transfer-Encoding: chunked\r\n\r\n"
	chunk := func(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }
	type say struct{ engine, client string } // what the engine says, and what is flushed then before it says more
	for name, c := range map[string]struct {
		says []say
		rest string // never flushed: the server does it when the handler is done
	}{
		"events":                   {[]say{{events + chunked, "head "}, {chunk("data: a\n\n"), "data: a\n\n"}, {chunk("data: b\n\n"), "data: b\n\n"}, {"0\r\n\r\n", ""}}, ""},
		"events with the head":     {[]say{{events + chunked + chunk("data: a\n\n"), "head data: a\n\n"}, {"0\r\n\r\n", ""}}, ""},
		"events together":          {[]say{{events + chunked + chunk("a\n\n") + chunk("b\n\n") + chunk("c\n\n"), "head a\n\nb\n\nc\n\n"}, {chunk("d") + "0\r\n\r\n", ""}}, "d"},
		"all at once":              {[]say{{events + chunked + chunk("data: a\n\n") + chunk("data: b\n\n") + "0\r\n\r\n", ""}}, "data: a\n\ndata: b\n\n"},
		"half a chunk":             {[]say{{events + chunked + "9\r\ndata", "head data"}, {": a\n\n", ": a\n\n"}, {"\r", ""}, {"\n3", ""}, {"\r\nxy", "xy"}, {"z\r\n0\r\n\r\n", ""}}, "z"},
		"events of a known length": {[]say{{events + "Content-Length: 6\r\n\r\n", "head "}, {"abc", "abc"}, {"def", ""}}, "def"},
		"events until the end":     {[]say{{events + "\r\nabc", "head abc"}, {"def", "def"}}, ""},
		"an unknown length":        {[]say{{unknown + chunked, "head "}, {chunk("{}"), "{}"}, {"0\r\n\r\n", ""}}, ""},
		"a known length":           {[]say{{known, ""}, {"abc", ""}, {"def", ""}}, "abcdef"},
		"nothing":                  {[]say{{"Content-Length: 0\r\n\r\n", ""}}, ""},
	} {
		next := make(chan string)
		s := newEngine(t, "unix", func(conn net.Conn, _ int64) {
			request(bufio.NewReader(conn))
			io.WriteString(conn, "HTTP/1.1 200 OK\r\n")
			for p := range next {
				io.WriteString(conn, p)
			}
		})
		w, done := newClient(), make(chan error, 1)
		cl := call(t, "{}", s.target)
		cl.Progress = new(Progress)
		go func() {
			a, err := NewEngines().Do(t.Context(), cl)
			if err == nil {
				_, err = a.Send(w)
				a.Close()
			}
			done <- err
		}()
		sent := 0
		for _, say := range c.says {
			next <- say.engine
			if say.client == "" {
				continue
			}
			select {
			case got := <-w.flushed:
				if got != say.client {
					t.Errorf("%s: after %q the client got %q, want %q", name, say.engine, got, say.client)
				}
				sent += len(strings.TrimPrefix(got, "head "))
			case <-time.After(10 * time.Second):
				t.Fatalf("%s: after %q the client got nothing", name, say.engine)
			}
		}
		close(next)
		if err := <-done; err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if w.now.String() != c.rest || len(w.flushed) != 0 {
			t.Errorf("%s: unflushed is %q, want %q, and %d flushes more", name, w.now.String(), c.rest, len(w.flushed))
		}
		if n := cl.Progress.Bytes.Load(); n != int64(sent+len(c.rest)) {
			t.Errorf("%s: progress says %d bytes", name, n)
		}
	}
}

// TestLargeAnswers: large answers of every framing come whole; those whose length is known in few pieces.
func TestLargeAnswers(t *testing.T) {
	networks(t, func(t *testing.T, network string) {
		want := strings.Repeat("0123456789abcdef", 20<<10)
		for name, raw := range map[string]string{
			"length":      fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(want), want),
			"chunk":       fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(want), want),
			"chunks":      "Transfer-Encoding: chunked\r\n\r\n" + strings.Repeat("10\r\n0123456789abcdef\r\n", 20<<10) + "0\r\n\r\n",
			"until close": "\r\n" + want,
		} {
			s := newEngine(t, network, func(c net.Conn, _ int64) {
				r := bufio.NewReader(c)
				for {
					if req, _ := request(r); req == nil {
						return
					}
					io.WriteString(c, "HTTP/1.1 200 OK\r\n"+raw)
					if name == "until close" {
						return
					}
				}
			})
			e := NewEngines()
			for range 3 {
				a, err := e.Do(t.Context(), call(t, "{}", s.target))
				if err != nil {
					t.Fatal(err)
				}
				w, n := newClient(), 0
				var all strings.Builder
				w.write = func(p []byte) error { n++; all.Write(p); return nil }
				sent, err := a.Send(w)
				a.Close()
				if err != nil || all.String() != want || sent.Bytes != int64(len(want)) {
					t.Errorf("%s: %d bytes, %d counted, %v", name, all.Len(), sent.Bytes, err)
				}
				if name == "length" && n > len(want)/4000 {
					t.Errorf("%s: written in %d pieces", name, n)
				}
			}
		}
	})
}

// TestSlowClient: a client that takes long to read is not the engine's silence.
func TestSlowClient(t *testing.T) {
	t.Parallel()
	networks(t, func(t *testing.T, network string) {
		s := newEngine(t, network, func(c net.Conn, _ int64) {
			request(bufio.NewReader(c))
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
			io.WriteString(c, "1\r\nb\r\n0\r\n\r\n")
		})
		c := call(t, "{}", s.target)
		c.Limits.HeaderTimeout, c.Limits.IdleTimeout = 1, 1
		a, err := NewEngines().Do(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		w := newClient()
		w.write = func([]byte) error { <-time.After(1500 * time.Millisecond); return nil } // slower than the engine may be
		if sent, err := a.Send(w); err != nil || sent.Bytes != 2 {
			t.Errorf("%d bytes, %v", sent.Bytes, err)
		}
	})
}

// TestClientFails: a client that cannot be written to has left; the engine's connection ends.
func TestClientFails(t *testing.T) {
	networks(t, func(t *testing.T, network string) {
		left := make(chan struct{})
		s := newEngine(t, network, func(c net.Conn, _ int64) {
			r := bufio.NewReader(c)
			request(r)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: x\n\n")
			r.ReadByte()
			close(left)
		})
		a, err := NewEngines().Do(t.Context(), call(t, "{}", s.target))
		if err != nil {
			t.Fatal(err)
		}
		broken := errors.New("broken pipe")
		w := newClient()
		w.write = func([]byte) error { return broken }
		_, err = a.Send(w)
		if f := new(Failure); !errors.As(err, &f) || f.End != meter.ClientGone || !errors.Is(err, broken) {
			t.Errorf("%v", err)
		}
		a.Close()
		<-left
	})
}

// TestLastWords: what the engine has said reaches the client before the cut, and between events the cut is told.
func TestLastWords(t *testing.T) {
	const head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	for name, c := range map[string]struct {
		says string
		want string // prefix of what the client gets
		told bool
	}{
		"nothing":           {head, "", true},
		"between events":    {head + "9\r\ndata: a\n\n\r\n", "data: a\n\n", true},
		"within an event":   {head + "5\r\ndata:\r\n", "data:", false},
		"within a chunk":    {head + "ff\r\ndata: a\n\n", "data: a\n\n", true},
		"a malformed chunk": {head + "9\r\ndata: a\n\n\r\nxyz\r\n", "data: a\n\n", true},
		"no last line":      {head + "9\r\ndata: a\n\n\r\n0\r\n", "data: a\n\n", true},
	} {
		s := newEngine(t, "unix", func(conn net.Conn, _ int64) {
			request(bufio.NewReader(conn))
			io.WriteString(conn, c.says)
		})
		a, err := NewEngines().Do(t.Context(), call(t, "{}", s.target))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		w := newClient()
		_, err = a.Send(w)
		a.Close()
		if f := new(Failure); !errors.As(err, &f) || f.End != meter.EngineGone {
			t.Errorf("%s: %v", name, err)
		}
		got := ""
		for len(w.flushed) > 0 {
			got += strings.TrimPrefix(<-w.flushed, "head ")
		}
		rest, ok := strings.CutPrefix(got, c.want)
		if !ok || strings.HasPrefix(rest, `data: {"error":`) != c.told || !c.told && rest != "" || w.now.Len() != 0 {
			t.Errorf("%s: the client got %q, and unflushed %q", name, got, w.now.String())
		}
	}
}
