package stub

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// exchange is one request being answered.
type exchange struct {
	*conn
	b       *Behaviour
	chunked bool
	pack    packer // nil: nothing is compressed
	broken  bool   // a write has failed: the client has left
	last    bool   // the connection ends with this answer
}

// answer answers the request that has been read and tells whether another may follow.
func (c *conn) answer() bool {
	if strings.HasPrefix(c.head.path, "/stub/") {
		return c.control()
	}
	b, err := c.behaviour()
	r := c.e.begin(&c.head, c.body)
	x := &exchange{conn: c, b: b, last: c.head.close}
	var end string
	switch {
	case err != nil:
		x.b = c.e.plain.Load()
		end = x.refuse(http.StatusBadRequest, err.Error())
	case c.ready != nil && x.allowed():
		if _, err := c.nc.Write(c.ready); err != nil {
			end = endLeft
		} else {
			end = endAnswered
		}
	default:
		end = x.run()
	}
	c.unwatch()
	c.e.end(r, end)
	return end == endAnswered && !x.last
}

// behaviour settles how the request is answered. The same text as last time is not read again.
func (c *conn) behaviour() (*Behaviour, error) {
	plain := c.e.plain.Load()
	raw := behaviourIn(c.body, c.head.contentType)
	if raw == nil {
		raw = c.head.behaviour
	}
	if c.plan != nil && c.plain == plain && bytes.Equal(raw, c.raw) {
		return c.plan, nil
	}
	b := plain
	if raw != nil {
		var err error
		if b, err = plain.from(raw); err != nil {
			return nil, err
		}
	}
	c.plain, c.plan, c.raw, c.ready = plain, b, append(c.raw[:0], raw...), nil
	if b.instant() {
		body := wholeOf(b.Bytes, c.e.o.Names[0], b)
		c.ready = append(fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", len(body)), body...)
	}
	return b, nil
}

// behaviourIn finds the field "stub" of a JSON body, or the part of that name in a form, without reading the rest.
func behaviourIn(body []byte, contentType string) []byte {
	if strings.HasPrefix(contentType, "multipart/") {
		_, after, ok := bytes.Cut(body, []byte(`name="stub"`))
		if _, after, ok2 := bytes.Cut(after, []byte("\r\n\r\n")); ok && ok2 {
			value, _, _ := bytes.Cut(after, []byte("\r\n--"))
			return value
		}
		return nil
	}
	i := bytes.Index(body, []byte(`"stub":`))
	if i < 0 {
		return nil
	}
	rest := bytes.TrimLeft(body[i+len(`"stub":`):], " \t\r\n")
	depth, quoted := 0, false
	for at := 0; at < len(rest); at++ {
		switch c := rest[at]; {
		case quoted && c == '\\':
			at++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			if depth--; depth == 0 {
				return rest[:at+1]
			}
		}
	}
	return rest
}

func (x *exchange) allowed() bool {
	return x.e.o.Key == "" || x.head.authorization == "Bearer "+x.e.o.Key
}

// run answers by the behaviour and returns how it ended.
func (x *exchange) run() string {
	switch x.b.End {
	case NoAnswer:
		x.waitGone()
		return endLeft
	case Refuse:
		return x.drop()
	case Garbage:
		io.WriteString(x.nc, "\x15\x03\x01\x00\x02\x02\x46 not HTTP\r\n\r\n")
		return endCut
	}
	if x.b.First > 0 && !x.wait(time.Duration(x.b.First)) {
		return endLeft
	}
	if x.b.Early {
		x.out = append(x.out[:0], "HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n"...)
		if !x.flush() {
			return endLeft
		}
	}
	if !x.allowed() {
		return x.refuse(http.StatusUnauthorized, "Invalid API Key")
	}
	if x.b.Status >= 300 {
		return x.refuse(x.b.Status, "the stub was told to answer "+strconv.Itoa(x.b.Status))
	}
	if x.b.Bytes > 0 {
		return x.whole("application/json", wholeOf(x.b.Bytes, x.e.o.Names[0], x.b))
	}
	return x.route()
}

func (x *exchange) route() string {
	h := &x.head
	switch {
	case h.path == "/health" && h.method == "GET":
		return x.json(map[string]any{"status": "ok"})
	case h.path == "/v1/models" && h.method == "GET":
		return x.json(x.e.models())
	}
	serve, ok := map[string]func(*exchange) string{
		"/v1/chat/completions":     (*exchange).chat,
		"/v1/completions":          (*exchange).completions,
		"/v1/embeddings":           (*exchange).embeddings,
		"/v1/responses":            (*exchange).responses,
		"/v1/audio/transcriptions": (*exchange).audio,
		"/v1/audio/translations":   (*exchange).audio,
	}[h.path]
	switch {
	case !ok:
		return x.refuse(http.StatusNotFound, "File Not Found")
	case h.method != "POST":
		return x.refuse(http.StatusMethodNotAllowed, "Method Not Allowed")
	}
	return serve(x)
}

func (e *Engine) models() any {
	data := make([]any, len(e.o.Names))
	for i, name := range e.o.Names {
		data[i] = map[string]any{"id": name, "object": "model", "created": e.started, "owned_by": e.o.Manner}
	}
	return map[string]any{"object": "list", "data": data}
}

func (x *exchange) json(v any) string {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err) // made of maps and strings
	}
	return x.whole("application/json", body)
}

// refuse answers with an error in the engine's words.
func (x *exchange) refuse(status int, message string) string {
	body, err := json.Marshal(errorBody(x.b.Manner, status, message))
	if err != nil {
		panic(err)
	}
	return x.send(status, "application/json", body)
}

func (x *exchange) whole(contentType string, body []byte) string {
	status := http.StatusOK
	if x.b.Status != 0 {
		status = x.b.Status
	}
	return x.send(status, contentType, body)
}

// send writes an answer that is there in full.
func (x *exchange) send(status int, contentType string, body []byte) string {
	if x.b.Compress {
		var name string
		if x.pack, name = packerFor(x.head.accept); x.pack != nil {
			packed := x.pack.pack(body, true)
			x.pack = nil
			body = packed
			x.start(status, contentType, x.lengthOf(body), "Content-Encoding: "+name+"\r\n")
		}
	}
	if len(x.out) == 0 {
		x.start(status, contentType, x.lengthOf(body), "")
	}
	switch x.b.End {
	case HeadersOnly, CutHeaders:
		return x.ending(nil)
	}
	if x.b.Body > 0 && (!x.flush() || !x.wait(time.Duration(x.b.Body))) {
		return endLeft
	}
	if x.head.method == "HEAD" || status == http.StatusNoContent || status == http.StatusNotModified {
		body = nil
	}
	at := len(body)
	if x.b.End != "" {
		at = min(x.b.At, at)
	}
	if !x.put(body[:at]) {
		return endLeft
	}
	if x.b.End != "" {
		return x.ending(nil)
	}
	return x.finish()
}

func (x *exchange) lengthOf(body []byte) int {
	if x.b.Chunked {
		return -1
	}
	return len(body)
}

// ending ends an answer badly, as the behaviour says. errorEvent is the engine's, in a stream.
func (x *exchange) ending(errorEvent func() string) string {
	if !x.flush() {
		return endLeft
	}
	switch x.b.End {
	case HeadersOnly, Silence:
		x.waitGone()
		return endLeft
	case ErrorEvent:
		if errorEvent != nil {
			return errorEvent()
		}
	case NoDone:
		return x.finish()
	}
	return x.drop()
}

// drop ends the connection without a word.
func (x *exchange) drop() string {
	if tcp, ok := x.nc.(*net.TCPConn); ok && x.b.End == Reset {
		tcp.SetLinger(0) // what is not sent yet is lost, and the peer gets a reset
	}
	return endCut
}

// start begins the answer; what it writes goes out with the first piece of the body, or a flush. A length of -1 is unknown.
func (x *exchange) start(status int, contentType string, length int, more string) {
	x.out = fmt.Appendf(x.out[:0], "HTTP/1.1 %d %s\r\nContent-Type: %s\r\n%s", status, http.StatusText(status), contentType, more)
	for _, name := range slices.Sorted(maps.Keys(x.b.Header)) {
		x.out = fmt.Appendf(x.out, "%s: %s\r\n", name, x.b.Header[name])
	}
	switch {
	case length >= 0 && status != http.StatusNoContent && status != http.StatusNotModified:
		x.out = fmt.Appendf(x.out, "Content-Length: %d\r\n", length)
	case length >= 0:
	case x.head.old:
		x.last = true
	default:
		x.chunked = true
		x.out = append(x.out, "Transfer-Encoding: chunked\r\n"...)
	}
	if x.last = x.last || x.b.Close; x.last {
		x.out = append(x.out, "Connection: close\r\n"...)
	}
	x.out = append(x.out, "\r\n"...)
}

// put writes a piece of the body and tells whether the client is still there.
func (x *exchange) put(p []byte) bool {
	if x.pack != nil {
		p = x.pack.pack(p, false)
	}
	if x.b.Split <= 0 {
		return x.piece(p) && x.flush()
	}
	gap := time.Duration(x.b.SplitGap)
	if gap == 0 {
		gap = time.Millisecond
	}
	for i := 0; i < len(p); i += x.b.Split {
		if i > 0 && !x.wait(gap) {
			return false
		}
		if !x.piece(p[i:min(i+x.b.Split, len(p))]) || !x.flush() {
			return false
		}
	}
	return !x.broken
}

func (x *exchange) piece(p []byte) bool {
	if len(p) == 0 {
		return true
	}
	if x.chunked {
		x.out = strconv.AppendInt(x.out, int64(len(p)), 16)
		x.out = append(x.out, "\r\n"...)
	}
	x.out = append(x.out, p...)
	if x.chunked {
		x.out = append(x.out, "\r\n"...)
	}
	return true
}

func (x *exchange) flush() bool {
	if len(x.out) > 0 && !x.broken {
		_, err := x.nc.Write(x.out)
		x.broken = err != nil
	}
	x.out = x.out[:0]
	return !x.broken
}

// finish ends the body properly.
func (x *exchange) finish() string {
	if x.pack != nil {
		rest := x.pack.pack(nil, true)
		x.pack = nil
		x.piece(rest)
	}
	if x.chunked {
		x.out = append(x.out, "0\r\n\r\n"...)
	}
	if !x.flush() {
		return endLeft
	}
	return endAnswered
}

// packer compresses. What it returns can be decoded at once; last ends the stream.
type packer interface {
	pack(p []byte, last bool) []byte
}

// packerFor takes the first encoding of the request that the stub knows.
func packerFor(accept string) (packer, string) {
	for _, one := range strings.Split(accept, ",") {
		name, params, _ := strings.Cut(strings.ToLower(strings.TrimSpace(one)), ";")
		if strings.ReplaceAll(params, " ", "") == "q=0" {
			continue
		}
		switch strings.TrimSpace(name) {
		case "gzip":
			g := &gzipPacker{}
			g.w = gzip.NewWriter(&g.buf)
			return g, "gzip"
		case "br":
			return &brotliPacker{}, "br"
		}
	}
	return nil, ""
}

type gzipPacker struct {
	buf bytes.Buffer
	w   *gzip.Writer
}

func (g *gzipPacker) pack(p []byte, last bool) []byte {
	g.buf.Reset()
	g.w.Write(p)
	if last {
		g.w.Close()
	} else {
		g.w.Flush()
	}
	return g.buf.Bytes()
}

// brotliPacker stores: blocks of a valid Brotli stream that are not compressed (RFC 7932, section 9.2).
type brotliPacker struct{ begun bool }

func (b *brotliPacker) pack(p []byte, last bool) []byte {
	var out []byte
	for len(p) > 0 {
		n := min(len(p), 1<<16)
		// ISLAST 0, MNIBBLES 0 (16 bits), MLEN-1, ISUNCOMPRESSED 1; before the first of all: WBITS 0, a window of 64 KiB.
		bits := uint32(n-1)<<3 | 1<<19
		if !b.begun {
			bits, b.begun = bits<<1, true
		}
		out = append(out, byte(bits), byte(bits>>8), byte(bits>>16))
		out = append(out, p[:n]...)
		p = p[n:]
	}
	if last {
		end := byte(3) // ISLAST, ISLASTEMPTY
		if !b.begun {
			end <<= 1
		}
		out = append(out, end)
	}
	return out
}
