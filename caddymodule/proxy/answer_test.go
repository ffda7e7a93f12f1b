package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/levelrail/levelrail/client/wire"
)

// pieces is a connection on which an answer comes in pieces, and then the engine's end of it.
type pieces struct {
	net.Conn
	left [][]byte
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.left) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.left[0])
	if p.left[0] = p.left[0][n:]; len(p.left[0]) == 0 {
		p.left = p.left[1:]
	}
	return n, nil
}

// split cuts an answer into pieces of n bytes; the first may be shorter.
func split(s string, first, n int) [][]byte {
	var out [][]byte
	if first > 0 && first < len(s) {
		out = append(out, []byte(s[:first]))
		s = s[first:]
	}
	for len(s) > 0 {
		k := min(n, len(s))
		out = append(out, []byte(s[:k]))
		s = s[k:]
	}
	return out
}

// understood is what is made of an answer.
type understood struct {
	head  head
	body  string
	keeps bool
	rest  int // bytes after it
}

func understand(method string, parts [][]byte) (u understood, err error) {
	c := &conn{Conn: &pieces{left: parts}, b: newBuffer(smallBuffer)}
	defer func() { freeBuffer(c.b) }()
	if err := c.readHead(&u.head); err != nil {
		return u, err
	}
	var b body
	u.keeps = b.begin(&u.head, method)
	for {
		p, err := b.buffered(c)
		u.body += string(p)
		if err == nil {
			err = c.fill()
			if err == io.EOF && b.part != bodyToClose {
				err = io.ErrUnexpectedEOF
			}
		}
		if err == io.EOF {
			u.rest = c.w - c.r
			return u, nil
		}
		if err != nil {
			return u, err
		}
	}
}

// reference is what net/http makes of an answer.
func reference(method, raw string) (resp *http.Response, body string, err error) {
	r := bufio.NewReader(strings.NewReader(raw))
	for {
		resp, err := http.ReadResponse(r, &http.Request{Method: method})
		if err != nil {
			return nil, "", err
		}
		if resp.StatusCode < 200 && resp.StatusCode != http.StatusSwitchingProtocols {
			continue
		}
		if resp.StatusCode == http.StatusSwitchingProtocols {
			return resp, "", nil
		}
		b, err := io.ReadAll(resp.Body)
		return resp, string(b), err
	}
}

// agree checks that net/http understands an answer as we did.
func agree(t *testing.T, method, raw string, u understood) {
	t.Helper()
	resp, body, err := reference(method, raw)
	if err != nil {
		if strings.Contains(err.Error(), "bad trailer key") {
			return // a field that announces trailers; nobody here looks at it
		}
		t.Fatalf("net/http refuses it: %v\n%q", err, raw)
	}
	if resp.StatusCode != u.head.status || body != u.body {
		t.Fatalf("net/http reads %d %q, we %d %q\n%q", resp.StatusCode, body, u.head.status, u.body, raw)
	}
	for i, name := range toClient {
		want := resp.Header.Get(name)
		if i == contentEncoding || i == contentLanguage || i == cacheControl {
			var said []string
			for _, v := range resp.Header[name] {
				if v != "" {
					said = append(said, v)
				}
			}
			want = strings.Join(said, ", ")
		} else {
			for _, v := range resp.Header[name] {
				if v != "" {
					want = v
					break
				}
			}
		}
		if u.head.fields.Get(name) != want {
			t.Fatalf("%s: net/http reads %q, we %q\n%q", name, want, u.head.fields.Get(name), raw)
		}
	}
	if u.keeps && resp.Close {
		t.Fatalf("net/http would close the connection, we keep it\n%q", raw)
	}
}

const crlf = "\r\n"

// good are answers that are understood, and what is to be made of them.
var good = []struct {
	name, method, raw string
	status            int
	body              string
	keeps             bool
}{
	{"length", "POST", "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\nhello", 200, "hello", true},
	{"no reason", "POST", "HTTP/1.1 404\r\ncontent-length: 0\r\n\r\n", 404, "", true},
	{"an empty reason", "POST", "HTTP/1.1 299 \r\ncontent-length:2\r\n\r\nab", 299, "ab", true},
	{"spaces and tabs", "POST", "HTTP/1.1 200 OK\r\nContent-Length: \t 2 \t\r\nCache-Control:\tno-store \r\n\r\nab", 200, "ab", true},
	{"line feeds only", "POST", "HTTP/1.1 200 OK\nContent-Length: 2\nContent-Type: text/plain\n\nab", 200, "ab", true},
	{"the same length twice", "POST", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nab", 200, "ab", true},
	{"closes", "POST", "HTTP/1.1 200 OK\r\nConnection: x, Close\r\nContent-Length: 2\r\n\r\nab", 200, "ab", false},
	{"until the end", "POST", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: x\n\n", 200, "data: x\n\n", false},
	{"until the end, nothing", "POST", "HTTP/1.1 200 OK\r\n\r\n", 200, "", false},
	{"HTTP/1.0", "POST", "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nab", 200, "ab", false},
	{"HTTP/1.0 that keeps", "POST", "HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 2\r\n\r\nab", 200, "ab", true},
	{"HTTP/1.0 until the end", "POST", "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\nab", 200, "ab", false},
	{"chunks", "POST", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n00a\r\n0123456789\r\n0\r\n\r\n", 200, "abc0123456789", false},
	{"chunks, no data", "POST", "HTTP/1.1 200 OK\r\ntransfer-encoding: CHUNKED\r\n\r\n0\r\n\r\n", 200, "", false},
	{"chunks of one", "POST", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n1\r\n\r\r\n1\r\n\n\r\n0\r\n\r\n", 200, "a\r\n", false},
	{"extensions", "POST", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b;c=\"d\"\r\nabc\r\n2  \r\nde\r\n0;x\r\n\r\n", 200, "abcde", false},
	{"a trailer", "POST", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 1\r\nContent-Type: evil\r\n\r\n", 200, "abc", false},
	{"large hexadecimal", "POST", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFf\r\n" + strings.Repeat("x", 255) + "\r\n0\r\n\r\n", 200, strings.Repeat("x", 255), false},
	{"a large chunk", "POST", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3000\r\n" + strings.Repeat("xyz", 4<<10) + "\r\n0\r\n\r\n", 200, strings.Repeat("xyz", 4<<10), false},
	{"interim answers", "POST", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\nRetry-After: 9\r\nConnection: close\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na", 200, "a", true},
	{"HEAD", "HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", 200, "", true},
	{"HEAD in chunks", "HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 200, "", true},
	{"HEAD, no length", "HEAD", "HTTP/1.1 200 OK\r\n\r\n", 200, "", true},
	{"204", "POST", "HTTP/1.1 204 No Content\r\n\r\n", 204, "", true},
	{"204 with a length", "POST", "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", 204, "", true},
	{"304", "GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", 304, "", true},
	{"another protocol", "GET", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", 101, "", false},
	{"many fields", "POST", "HTTP/1.1 200 OK\r\n" + strings.Repeat("X-Filler: "+strings.Repeat("f", 90)+"\r\n", 500) + "Content-Length: 1\r\n\r\na", 200, "a", true},
	{"a long field", "POST", "HTTP/1.1 200 OK\r\nX-Filler: " + strings.Repeat("f", 60<<10) + "\r\nContent-Length: 1\r\n\r\na", 200, "a", true},
	{"repeated fields", "POST", "HTTP/1.1 200 OK\r\ncache-control: a\r\nCACHE-CONTROL: b\r\ncontent-type: one\r\nContent-Type: two\r\nContent-Length: 0\r\n\r\n", 200, "", true},
	{"other bytes", "POST", "HTTP/1.1 200 D\xe9j\xe0\r\nX: \xff\xfe\r\nContent-Length: 0\r\n\r\n", 200, "", true},
	{"status beyond", "POST", "HTTP/1.1 999 ?\r\nContent-Length: 0\r\n\r\n", 999, "", true},
}

// bad are answers that are refused: what they mean is not certain, or they have no end.
var bad = []struct{ name, raw string }{
	{"nothing", ""},
	{"half a line", "HTTP/1.1 20"},
	{"half a head", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n"},
	{"no such protocol", "SSH-2.0-OpenSSH_9.2\r\n\r\n"},
	{"HTTP/2", "HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n"},
	{"HTTP/1.2", "HTTP/1.2 200 OK\r\nContent-Length: 0\r\n\r\n"},
	{"HTTP/0.9", "HTTP/0.9 200 OK\r\nContent-Length: 0\r\n\r\n"},
	{"small letters", "http/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"},
	{"an empty line first", "\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"},
	{"two spaces", "HTTP/1.1  200 OK\r\nContent-Length: 0\r\n\r\n"},
	{"a signed status", "HTTP/1.1 +20 OK\r\nContent-Length: 0\r\n\r\n"},
	{"a short status", "HTTP/1.1 20 OK\r\nContent-Length: 0\r\n\r\n"},
	{"a long status", "HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n"},
	{"status 099", "HTTP/1.1 099 OK\r\nContent-Length: 0\r\n\r\n"},
	{"a NUL in the reason", "HTTP/1.1 200 O\x00K\r\nContent-Length: 0\r\n\r\n"},
	{"a CR in the reason", "HTTP/1.1 200 O\rK\r\nContent-Length: 0\r\n\r\n"},
	{"a folded line", "HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 0\r\n\r\n"},
	{"a folded line with a colon", "HTTP/1.1 200 OK\r\nX: a\r\n\tb: c\r\nContent-Length: 0\r\n\r\n"},
	{"a first line that is folded", "HTTP/1.1 200 OK\r\n X: a\r\nContent-Length: 0\r\n\r\n"},
	{"no colon", "HTTP/1.1 200 OK\r\nX\r\nContent-Length: 0\r\n\r\n"},
	{"no name", "HTTP/1.1 200 OK\r\n: x\r\nContent-Length: 0\r\n\r\n"},
	{"a space before the colon", "HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\nhello"},
	{"a name of other bytes", "HTTP/1.1 200 OK\r\nX\xe9: a\r\nContent-Length: 0\r\n\r\n"},
	{"a CR in a value", "HTTP/1.1 200 OK\r\nX: a\rb\r\nContent-Length: 0\r\n\r\n"},
	{"a CR before the line's end", "HTTP/1.1 200 OK\r\nX: a\r\r\nContent-Length: 0\r\n\r\n"},
	{"a CR as a line's end", "HTTP/1.1 200 OK\rContent-Length: 0\r\r"},
	{"a NUL in a value", "HTTP/1.1 200 OK\r\nX: a\x00b\r\nContent-Length: 0\r\n\r\n"},
	{"two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"},
	{"the same length in other words", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 02\r\n\r\nab"},
	{"a list of lengths", "HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nab"},
	{"a signed length", "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nab"},
	{"a negative length", "HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nab"},
	{"a hexadecimal length", "HTTP/1.1 200 OK\r\nContent-Length: 0x2\r\n\r\nab"},
	{"no length", "HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\nab"},
	{"a length beyond all", "HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775808\r\n\r\nab"},
	{"a length beyond twice", "HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551618\r\n\r\nab"},
	{"both", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"},
	{"both, the other way", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\nab\r\n0\r\n\r\n"},
	{"both without a body", "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"},
	{"chunked twice", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
	{"gzip, chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"},
	{"identity", "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\nab"},
	{"xchunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"},
	{"chunked in HTTP/1.0", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
	{"interim answers only", strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 100)},
	{"a long head", "HTTP/1.1 200 OK\r\n" + strings.Repeat("X-Filler: "+strings.Repeat("f", 90)+"\r\n", 700) + "Content-Length: 1\r\n\r\na"},
	{"a long line", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("f", 66<<10)},
	{"long interim answers", strings.Repeat("HTTP/1.1 103 Early Hints\r\nX: "+strings.Repeat("f", 9<<10)+"\r\n\r\n", 10)},
	{"cut", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell"},
	{"cut at once", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"},
	{"no last chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"},
	{"no chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"},
	{"half a chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc"},
	{"half a last chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n"},
	{"half a trailer", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX: y\r\n"},
	{"a chunk too long", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n"},
	{"a chunk too short", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab\r\n0\r\n\r\n"},
	{"a chunk without a length", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\nabc\r\n0\r\n\r\n"},
	{"a chunk's length is none", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\nabc\r\n0\r\n\r\n"},
	{"a chunk's length has a sign", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n+3\r\nabc\r\n0\r\n\r\n"},
	{"a chunk's length has a prefix", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n"},
	{"a chunk's length beyond all", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000003\r\nabc\r\n0\r\n\r\n"},
	{"a chunk's line ends with LF", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n"},
	{"a chunk ends with LF", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\n0\r\n\r\n"},
	{"a CR in a chunk's line", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;a\rb\r\nabc\r\n0\r\n\r\n"},
	{"the last line ends with LF", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\n"},
	{"a long chunk line", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;" + strings.Repeat("x", 5000) + "\r\nabc\r\n0\r\n\r\n"},
	{"little but chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("1;"+strings.Repeat("x", 500)+"\r\na\r\n", 100) + "0\r\n\r\n"},
	{"a long trailer", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + strings.Repeat("X: y\r\n", 1000) + "\r\n"},
	{"a trailer of no fields", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nnothing\r\n\r\n"},
	{"a folded trailer", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: y\r\n z: a\r\n\r\n"},
}

// TestGoodAnswers: an answer is understood as net/http understands it, in whatever pieces it comes, and what comes after
// it is not taken for a part of it.
func TestGoodAnswers(t *testing.T) {
	for _, c := range good {
		check := func(how string, parts [][]byte, alone bool) {
			t.Helper()
			u, err := understand(c.method, parts)
			if err != nil || u.head.status != c.status || u.body != c.body || u.keeps != c.keeps || (u.rest == 0) != alone {
				t.Fatalf("%s, %s: %d %.80q keeps %v %v, want %d %.80q %v", c.name, how, u.head.status, u.body, u.keeps, err, c.status, c.body, c.keeps)
			}
			if alone {
				agree(t, c.method, c.raw, u)
			}
		}
		check("whole", split(c.raw, 0, len(c.raw)), true)
		check("byte by byte", split(c.raw, 0, 1), true)
		step := max(1, len(c.raw)/500) // of the long ones not every place
		for at := 1; at < len(c.raw); at += step {
			check("in two", split(c.raw, at, len(c.raw)), true)
		}
		if c.keeps {
			check("with more behind it", split(c.raw+"HTTP/1.1 500 Evil\r\n\r\n", 0, 1<<20), false)
		}
	}
}

// TestBadAnswers: what is malformed or cut is an error in whatever pieces it comes, never an answer; and what is said about
// it does not repeat it.
func TestBadAnswers(t *testing.T) {
	for _, c := range bad {
		for how, parts := range map[string][][]byte{"whole": split(c.raw, 0, len(c.raw)+1), "byte by byte": split(c.raw, 0, 1), "in fours": split(c.raw, 3, 4)} {
			u, err := understand("POST", parts)
			if err == nil {
				t.Errorf("%s, %s: passed as %d %.80q", c.name, how, u.head.status, u.body)
			} else if m := malformed(""); !errors.As(err, &m) && err != io.ErrUnexpectedEOF && !(err == io.EOF && c.raw == "") {
				t.Errorf("%s, %s: %v", c.name, how, err)
			}
		}
	}
}

// FuzzAnswer: whatever is accepted, net/http accepts, with the same status, fields and body; and the pieces in which it
// comes make no difference.
func FuzzAnswer(f *testing.F) {
	for _, c := range good {
		f.Add(c.raw, c.method == "HEAD", 3, 7)
	}
	for _, c := range bad {
		f.Add(c.raw, false, 1, 5)
	}
	f.Fuzz(func(t *testing.T, raw string, head bool, first, n int) {
		method := "POST"
		if head {
			method = "HEAD"
		}
		u, err := understand(method, split(raw, 0, len(raw)+1))
		pieces, perr := understand(method, split(raw, first, max(n, 1)))
		if (err == nil) != (perr == nil) || u.head != pieces.head || u.body != pieces.body || u.keeps != pieces.keeps {
			t.Fatalf("whole: %+v %v; in pieces: %+v %v\n%q", u, err, pieces, perr, raw)
		}
		if err == nil {
			agree(t, method, raw, u)
		}
	})
}

// TestAnswerFields: of an engine's fields those pass that are on the list, and no value can be changed for all by whoever
// changes it for one client.
func TestAnswerFields(t *testing.T) {
	u, err := understand("POST", split("HTTP/1.1 200 OK\r\nServer: uvicorn\r\nSet-Cookie: a=b\r\nConnection: X-Foo\r\nX-Foo: bar\r\nAccess-Control-Allow-Origin: *\r\ncontent-type: application/json\r\n"+
		"RETRY-AFTER: 7\r\nretry-after-ms: 7000\r\nOpenAI-Processing-MS: 12\r\nContent-Language: de\r\nContent-Language: en\r\nCache-Control: no-cache\r\nContent-Length: 0\r\n\r\n", 0, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	to := http.Header{"Server": {"Caddy"}}
	answerHeader(to, &Answer{Header: u.head.fields, ContentLength: 12}, false)
	want := http.Header{"Content-Type": {"application/json"}, "Retry-After": {"7"}, "Retry-After-Ms": {"7000"}, "Openai-Processing-Ms": {"12"}, "Content-Language": {"de, en"},
		"Cache-Control": {"no-cache"}, "Content-Length": {"12"}, "X-Content-Type-Options": {"nosniff"}}
	if len(to) != len(want) {
		t.Errorf("the client gets %v", to)
	}
	for name, v := range want {
		if len(to[name]) != 1 || to[name][0] != v[0] {
			t.Errorf("%s is %q, want %q", name, to[name], v)
		}
		to[name][0] = "changed"
		to[name] = append(to[name], "more")
	}
	events := http.Header{}
	answerHeader(events, &Answer{Header: u.head.fields, ContentLength: -1}, true)
	if len(events["Cache-Control"]) != 1 || events.Get("Cache-Control") != "no-cache" || events.Get("X-Accel-Buffering") != "no" || events.Get("Content-Type") != "application/json" || events["Content-Length"] != nil {
		t.Errorf("a stream's client gets %v", events)
	}
}

// TestRequestHead: an engine is sent what is on the list and what the gateway says itself, and nothing that could be read as
// another line.
func TestRequestHead(t *testing.T) {
	client := http.Header{"Accept": {"a/b", "c/d"}, "Traceparent": {"00-1"}, "Tracestate": {"x=y"}, "User-Agent": {"client/1", "client/2"}, "Authorization": {"Bearer lr-key"}, "Cookie": {"a=b"},
		"Content-Type": {"evil/type"}, "Accept-Encoding": {"gzip"}, "Expect": {"100-continue"}, "X-Forwarded-For": {"1.2.3.4"}, "Idempotency-Key": {"1"}, "Connection": {"close"}, "Host": {"evil"}, "Content-Length": {"7"},
		"Transfer-Encoding": {"chunked"}}
	for _, c := range []struct {
		name   string
		call   Call
		key    string
		length int
		line   string
		want   http.Header
	}{
		{"a body", Call{Method: "POST", Path: "/v1/chat/completions", Header: client, Type: "application/json"}, "secret", 5, "POST /v1/chat/completions HTTP/1.1",
			http.Header{"Host": {"localhost"}, "User-Agent": {"client/1"}, "Content-Length": {"5"}, "Accept": {"a/b", "c/d"}, "Traceparent": {"00-1"}, "Tracestate": {"x=y"}, "Accept-Encoding": {"identity"},
				"Authorization": {"Bearer secret"}, "Content-Type": {"application/json"}}},
		{"nothing", Call{Method: "GET", Path: "/v1/models"}, "", 0, "GET /v1/models HTTP/1.1", http.Header{"Host": {"localhost"}, "Accept-Encoding": {"identity"}}},
		{"no body", Call{Method: "POST", Path: "/x"}, "", 0, "POST /x HTTP/1.1", http.Header{"Host": {"localhost"}, "Accept-Encoding": {"identity"}, "Content-Length": {"0"}}},
		{"a path that needs care", Call{Method: "GET", Path: "/a b\r\nX: y?#%"}, "", 0, "GET /a%20b%0D%0AX:%20y%3F%23%25 HTTP/1.1", http.Header{"Host": {"localhost"}, "Accept-Encoding": {"identity"}}},
	} {
		b, err := appendHead(nil, &c.call, &wire.RouteTarget{Key: c.key}, c.length)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		lines := strings.Split(string(b), crlf)
		if lines[0] != c.line || len(lines) < 3 || lines[len(lines)-1] != "" || lines[len(lines)-2] != "" {
			t.Errorf("%s: %q", c.name, b)
		}
		got, n := http.Header{}, 0
		for _, line := range lines[1 : len(lines)-2] {
			name, value, _ := strings.Cut(line, ": ")
			got[name] = append(got[name], value)
			n++
		}
		for name, v := range c.want {
			if strings.Join(got[name], "|") != strings.Join(v, "|") {
				t.Errorf("%s: %s is %q, want %q", c.name, name, got[name], v)
			}
			n -= len(v)
		}
		if n != 0 {
			t.Errorf("%s: it is sent more than that: %v", c.name, got)
		}
		if req, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(b))); err != nil || req.Host != "localhost" {
			t.Errorf("%s: net/http reads %v", c.name, err)
		}
	}
	for name, c := range map[string]Call{
		"a line end":          {Header: http.Header{"Accept": {"a\r\nX: y"}}},
		"a CR":                {Header: http.Header{"Traceparent": {"a\rb"}}},
		"a NUL":               {Header: http.Header{"User-Agent": {"a\x00b"}}},
		"an LF in a type":     {Type: "a\nb"},
		"a space in a method": {Method: "GET /x"},
	} {
		if b, err := appendHead(nil, &c, &wire.RouteTarget{}, 0); !errors.Is(err, errField) {
			t.Errorf("%s: %q %v", name, b, err)
		}
	}
	if b, err := appendHead(nil, &Call{Method: "GET", Path: "/"}, &wire.RouteTarget{Key: "a\nb"}, 0); err == nil || strings.Contains(err.Error(), "a\nb") {
		t.Errorf("a key of two lines: %q %v", b, err)
	}
}
