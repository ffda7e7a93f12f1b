package caddymodule

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/levelrail/levelrail/client/wire"
)

// rawEngine is an engine that answers in bytes. What next says is the answer to the next request, once; every other one is answered properly with
// the body plain.
type rawEngine struct {
	mu       sync.Mutex
	next     func(conn net.Conn) (keep bool)
	requests int
}

const plain = `{"choices":[],"plain":true}`

func plainAnswer(conn net.Conn) bool {
	fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(plain), plain)
	return true
}

// rawEngine takes the place of the host's engine.
func (h *host) rawEngine() *rawEngine {
	h.t.Helper()
	h.engine.server.Close()
	os.Remove(h.engine.socket)
	l, err := net.Listen("unix", h.engine.socket)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { l.Close() })
	e := new(rawEngine)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go e.serve(conn)
		}
	}()
	return e
}

func (e *rawEngine) serve(conn net.Conn) {
	defer conn.Close()
	for r := bufio.NewReader(conn); ; {
		length := 0
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			if line = strings.TrimSpace(line); line == "" {
				break
			}
			if name, value, _ := strings.Cut(line, ":"); strings.EqualFold(name, "Content-Length") {
				length, _ = strconv.Atoi(strings.TrimSpace(value))
			}
		}
		if _, err := io.CopyN(io.Discard, r, int64(length)); err != nil {
			return
		}
		e.mu.Lock()
		e.requests++
		answer := e.next
		e.next = nil
		e.mu.Unlock()
		if answer == nil {
			answer = plainAnswer
		}
		if !answer(conn) {
			return
		}
	}
}

func (e *rawEngine) say(answer func(net.Conn) bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.next = answer
}

// TestEngineWire: however an engine frames its answer, its client gets the whole of it, or a visible cut, or an error of the gateway's; and
// nothing of one answer ever gets into the next request's, whether the connection is kept or not.
func TestEngineWire(t *testing.T) {
	h := newHost(t)
	r := h.route("chat")
	r.Limits.HeaderTimeout, r.Limits.IdleTimeout = 60, 60
	h.cp.putRoute(r)
	h.caughtUp()
	e := h.rawEngine()
	const ok, js = "HTTP/1.1 200 OK\r\n", "Content-Type: application/json\r\n"
	const body = `{"a":"bc"}` // 10 bytes
	const length = "Content-Length: 10\r\n"
	const te = "Transfer-Encoding: chunked\r\n"
	const poison = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 17\r\n\r\n{\"poison\":\"here\"}"
	const keep, ends = true, false
	const cutOff, failed = -1, 502
	for name, c := range map[string]struct {
		bytes  string
		keep   bool
		status int // cutOff: an answer that begins and is cut; failed: the gateway's own
		body   string
	}{
		"a length":                       {ok + js + length + "\r\n" + body, keep, 200, body},
		"a length, and it ends":          {ok + js + length + "\r\n" + body, ends, 200, body},
		"a length, and it says so":       {ok + js + length + "Connection: close\r\n\r\n" + body, ends, 200, body},
		"no body":                        {ok + js + "Content-Length: 0\r\n\r\n", keep, 200, ""},
		"204":                            {"HTTP/1.1 204 No Content\r\n\r\n", keep, 204, ""},
		"chunks":                         {ok + js + te + "\r\n5\r\n{\"a\":\r\n5\r\n\"bc\"}\r\n0\r\n\r\n", keep, 200, body},
		"chunks in upper case":           {ok + js + "Transfer-Encoding: Chunked\r\n\r\nA\r\n" + body + "\r\n0\r\n\r\n", keep, 200, body},
		"chunk extensions":               {ok + js + te + "\r\na;x=y;z=\"q\"\r\n" + body + "\r\n0;end\r\n\r\n", keep, 200, body},
		"zeros before a size":            {ok + js + te + "\r\n00a\r\n" + body + "\r\n0000\r\n\r\n", keep, 200, body},
		"trailers":                       {ok + js + te + "Trailer: X-Sum\r\n\r\na\r\n" + body + "\r\n0\r\nX-Sum: 1\r\nX-Other: 2\r\n\r\n", keep, 200, body},
		"no length, until it ends":       {ok + js + "Connection: close\r\n\r\n" + body, ends, 200, body},
		"no length, without a word":      {ok + js + "\r\n" + body, ends, 200, body},
		"HTTP/1.0, until it ends":        {"HTTP/1.0 200 OK\r\n" + js + "\r\n" + body, ends, 200, body},
		"HTTP/1.0 with a length":         {"HTTP/1.0 200 OK\r\n" + js + length + "\r\n" + body, ends, 200, body},
		"HTTP/1.0 that keeps":            {"HTTP/1.0 200 OK\r\n" + js + length + "Connection: keep-alive\r\n\r\n" + body, keep, 200, body},
		"names in lower case":            {ok + "content-type: application/json\r\ncontent-length:10\r\n\r\n" + body, keep, 200, body},
		"blanks around values":           {ok + js + "Content-Length: \t 10 \t\r\n\r\n" + body, keep, 200, body},
		"no reason":                      {"HTTP/1.1 200\r\n" + js + length + "\r\n" + body, keep, 200, body},
		"an empty reason":                {"HTTP/1.1 200 \r\n" + js + length + "\r\n" + body, keep, 200, body},
		"100 first":                      {"HTTP/1.1 100 Continue\r\n\r\n" + ok + js + length + "\r\n" + body, keep, 200, body},
		"102 and 103 first":              {"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + ok + js + length + "\r\n" + body, keep, 200, body},
		"an engine's own refusal":        {"HTTP/1.1 422 Unprocessable Entity\r\n" + js + length + "\r\n" + body, keep, 422, body},
		"an engine's own failure":        {"HTTP/1.1 500 Internal Server Error\r\n" + js + te + "\r\na\r\n" + body + "\r\n0\r\n\r\n", keep, 500, body},
		"more than it said":              {ok + js + length + "\r\n" + body + poison, keep, 200, body},
		"more than it said, and ends":    {ok + js + length + "\r\n" + body + poison, ends, 200, body},
		"more after the chunks":          {ok + js + te + "\r\na\r\n" + body + "\r\n0\r\n\r\n" + poison, keep, 200, body},
		"more after 204":                 {"HTTP/1.1 204 No Content\r\n\r\n" + poison, keep, 204, ""},
		"less than it said":              {ok + js + "Content-Length: 11\r\n\r\n" + body, ends, cutOff, body},
		"chunks without their end":       {ok + js + te + "\r\na\r\n" + body + "\r\n", ends, cutOff, body},
		"chunks that end in one":         {ok + js + te + "\r\nb\r\n" + body, ends, cutOff, body},
		"a size that is no number":       {ok + js + te + "\r\na\r\n" + body + "\r\nzz\r\n", keep, cutOff, body},
		"a size with a sign":             {ok + js + te + "\r\na\r\n" + body + "\r\n+5\r\nxxxxx\r\n0\r\n\r\n", keep, cutOff, body},
		"a size beyond counting":         {ok + js + te + "\r\na\r\n" + body + "\r\nffffffffffffffffff\r\n", keep, cutOff, body},
		"a chunk without its line end":   {ok + js + te + "\r\na\r\n" + body + "0\r\n\r\n", keep, cutOff, body},
		"nothing":                        {"", ends, failed, ""},
		"half a line":                    {"HTTP/1.1 20", ends, failed, ""},
		"half a head":                    {ok + js + "Content-Le", ends, failed, ""},
		"another protocol":               {"220 mail.example.com ESMTP\r\n\r\n", ends, failed, ""},
		"a status that is no number":     {"HTTP/1.1 abc OK\r\n" + js + length + "\r\n" + body, ends, failed, ""},
		"a status of four digits":        {"HTTP/1.1 2000 OK\r\n" + js + length + "\r\n" + body, ends, failed, ""},
		"a status below all":             {"HTTP/1.1 042 OK\r\n" + js + length + "\r\n" + body, ends, failed, ""},
		"101":                            {"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", ends, failed, ""},
		"304":                            {"HTTP/1.1 304 Not Modified\r\n\r\n", keep, failed, ""},
		"two lengths":                    {ok + js + length + "Content-Length: 5\r\n\r\n" + body, ends, failed, ""},
		"a length with a sign":           {ok + js + "Content-Length: +10\r\n\r\n" + body, ends, failed, ""},
		"a negative length":              {ok + js + "Content-Length: -1\r\n\r\n" + body, ends, failed, ""},
		"a length beyond counting":       {ok + js + "Content-Length: 99999999999999999999\r\n\r\n" + body, ends, failed, ""},
		"a coding that nobody asked for": {ok + js + "Transfer-Encoding: gzip, chunked\r\n\r\na\r\n" + body + "\r\n0\r\n\r\n", ends, failed, ""},
		"a head without an end":          {ok + js + strings.Repeat("X-Fill: "+strings.Repeat("x", 100)+"\r\n", 2000), ends, failed, ""},
		"informational for ever":         {strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 2000), ends, failed, ""},
		"a field without a colon":        {ok + js + "nonsense\r\n" + length + "\r\n" + body, ends, failed, ""},
	} {
		for _, slowly := range []bool{false, true} {
			if slowly && (len(c.bytes) > 4096 || strings.Contains(c.bytes, poison)) {
				continue // what comes after the next request looks like its answer, to everybody
			}
			if resp, got := h.do("POST", chatPath, chatBody); resp.StatusCode != 200 || got != plain { // there is a connection to keep
				t.Fatalf("before %s: %d %s", name, resp.StatusCode, got)
			}
			said := make(chan struct{})
			e.say(func(conn net.Conn) bool {
				defer close(said)
				if slowly {
					for i := range len(c.bytes) { // each byte may be a read of its own
						io.WriteString(conn, c.bytes[i:i+1])
					}
				} else {
					io.WriteString(conn, c.bytes)
				}
				if !c.keep {
					conn.Close()
				}
				return c.keep
			})
			where := fmt.Sprintf("%s, byte by byte %v", name, slowly)
			began := time.Now()
			resp, err := httpClient.Do(h.request("POST", chatPath, chatBody))
			if err != nil {
				if c.status != cutOff {
					t.Errorf("%s: %v", where, err)
				}
			} else {
				b, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				switch got := string(b); {
				case c.status == cutOff && (err == nil || !strings.HasPrefix(c.body, got)):
					t.Errorf("%s: %d %q, a clean end %v", where, resp.StatusCode, got, err == nil)
				case c.status == failed && (resp.StatusCode != failed || errorCode(got) != "engine_error" || err != nil):
					t.Errorf("%s: %d %q %v", where, resp.StatusCode, got, err)
				case c.status > 0 && c.status != failed && (resp.StatusCode != c.status || got != c.body || err != nil):
					t.Errorf("%s: %d %q %v, want %d %q", where, resp.StatusCode, got, err, c.status, c.body)
				}
			}
			if took := time.Since(began); took > 15*time.Second {
				t.Errorf("%s: it took %s", where, took)
			}
			<-said
			for range 2 { // on the kept connection, or a new one
				if resp, got := h.do("POST", chatPath, chatBody); resp.StatusCode != 200 || got != plain {
					t.Errorf("after %s: %d %s", where, resp.StatusCode, got)
				}
			}
		}
	}
	h.eventually("the slots are free", func() bool { return pooledSlots("chat") == 0 })
	if n := len(h.ask(wire.Question{Ask: wire.AskRequests, Model: "chat"}).Requests); n != 0 {
		t.Errorf("%d are in flight", n)
	}
}

// TestEngineWireOfStreams: chunks cut events where they like, and several events come in one; the client gets the bytes, each when it is there.
func TestEngineWireOfStreams(t *testing.T) {
	h := newHost(t)
	e := h.rawEngine()
	long := "data: " + strings.Repeat("x", 300<<10) + "\n\n"
	for name, pieces := range map[string][]string{
		"an event a chunk":      {engineChunk, engineChunk, engineUsage, engineDone},
		"all in one":            {engineChunk + engineChunk + engineUsage + engineDone},
		"an event in two":       {engineChunk[:20], engineChunk[20:], engineDone},
		"a line end in two":     {strings.TrimSuffix(engineChunk, "\n"), "\n", engineDone},
		"a character in two":    {"data: \xe4\xbd", "\xa0\n\n", engineDone},
		"one long event":        {long, engineDone},
		"a long event in three": {long[:100<<10], long[100<<10 : 200<<10], long[200<<10:], engineDone},
		"one byte a chunk":      strings.Split(engineChunk+engineDone, ""),
	} {
		for _, framed := range []string{"chunks", "chunk lines of their own", "until it ends"} {
			step := make(chan struct{})
			e.say(func(conn net.Conn) bool {
				head := "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
				if framed == "until it ends" {
					io.WriteString(conn, head+"\r\n")
				} else {
					io.WriteString(conn, head+"Transfer-Encoding: chunked\r\n\r\n")
				}
				for _, p := range pieces {
					<-step
					switch framed {
					case "chunks":
						fmt.Fprintf(conn, "%x\r\n%s\r\n", len(p), p)
					case "chunk lines of their own":
						fmt.Fprintf(conn, "%x", len(p))
						io.WriteString(conn, "\r\n")
						io.WriteString(conn, p)
						io.WriteString(conn, "\r\n")
					default:
						io.WriteString(conn, p)
					}
				}
				<-step
				if framed != "until it ends" {
					io.WriteString(conn, "0\r\n\r\n")
				}
				return framed != "until it ends"
			})
			where := name + ", " + framed
			resp, err := httpClient.Do(h.request("POST", chatPath, streamBody))
			if err != nil {
				t.Fatalf("%s: %v", where, err) // the headers wait for no event
			}
			for _, p := range pieces {
				step <- struct{}{}
				got := make([]byte, len(p))
				if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != p {
					t.Fatalf("%s: wrote %.40q, read %.40q %v", where, p, got, err)
				}
			}
			step <- struct{}{}
			if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) != 0 {
				t.Errorf("%s: after the end %q %v", where, rest, err)
			}
			resp.Body.Close()
			if resp, got := h.do("POST", chatPath, chatBody); resp.StatusCode != 200 || got != plain {
				t.Errorf("after %s: %d %s", where, resp.StatusCode, got)
			}
		}
	}
}

// TestEngineAnswersEarly: an engine that refuses a large body before it has read it, and closes, is heard: its client gets that answer.
func TestEngineAnswersEarly(t *testing.T) {
	h := newHost(t)
	h.engine.server.Close()
	os.Remove(h.engine.socket)
	l, err := net.Listen("unix", h.engine.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const said = `{"error":{"message":"too long for this context","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}`
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				r := bufio.NewReader(conn)
				for line := "x"; strings.TrimSpace(line) != ""; {
					if line, err = r.ReadString('\n'); err != nil {
						return
					}
				}
				fmt.Fprintf(conn, "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(said), said)
			}()
		}
	}()
	large := `{"model":"chat","x":"` + strings.Repeat("x", 8<<20) + `"}`
	for i := range 20 {
		resp, body := h.do("POST", chatPath, large)
		if resp.StatusCode != 400 || body != said {
			t.Fatalf("request %d: %d %s", i+1, resp.StatusCode, body)
		}
	}
}

// TestEngineLeavesBetween: engines close connections that are silent. A request that finds its kept connection closed is not lost, and none is
// sent twice once an engine may have read it.
func TestEngineLeavesBetween(t *testing.T) {
	h := newHost(t)
	e := h.rawEngine()
	count := func() int { e.mu.Lock(); defer e.mu.Unlock(); return e.requests }
	for i := range 200 {
		closed := make(chan struct{})
		e.say(func(conn net.Conn) bool {
			plainAnswer(conn)
			if i%2 == 0 {
				conn.Close() // without a word before
			}
			close(closed)
			return i%2 != 0
		})
		if resp, got := h.do("POST", chatPath, chatBody); resp.StatusCode != 200 || got != plain {
			t.Fatalf("request %d: %d %s", i, resp.StatusCode, got)
		}
		<-closed
	}
	if n := count(); n != 200 {
		t.Errorf("the engine read %d requests of 200", n)
	}
	// It reads the whole request on a kept connection and closes without a word: that may have been generated, and is not sent again.
	h.do("POST", chatPath, chatBody)
	before := count()
	e.say(func(net.Conn) bool { return false })
	resp, body := h.do("POST", chatPath, chatBody, "Idempotency-Key", "again", "X-Idempotency-Key", "again")
	h.refused(resp, body, http.StatusBadGateway, "engine_error")
	if n := count() - before; n != 1 {
		t.Errorf("it was sent %d times", n)
	}
}
