package caddymodule

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// TestFramingRows: every way of framing a request either gives the engine the exact bytes with their length, once, or is refused and gives it
// nothing. What has to be refused, is.
func TestFramingRows(t *testing.T) {
	h := newHost(t)
	line := "POST " + chatPath + " HTTP/1.1\r\n"
	auth := "Authorization: Bearer " + h.key + "\r\nContent-Type: application/json\r\n"
	head := line + "Host: x\r\n" + auth
	n := len(chatBody)
	length := fmt.Sprintf("Content-Length: %d\r\n", n)
	const te = "Transfer-Encoding: chunked\r\n"
	chunks := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", n, chatBody)
	const passes, refused = true, false
	for name, c := range map[string]struct {
		request string
		reaches bool
	}{
		"a length":                     {head + length + "\r\n" + chatBody, passes},
		"chunks":                       {head + te + "\r\n" + chunks, passes},
		"chunks in upper case":         {head + "Transfer-Encoding: CHUNKED\r\n\r\n" + chunks, passes},
		"one byte a chunk":             {head + te + "\r\n" + oneByteChunks(chatBody), passes},
		"chunk extensions":             {head + te + fmt.Sprintf("\r\n%x;a=b;c=\"d;e\"\r\n%s\r\n0;f\r\n\r\n", n, chatBody), passes},
		"zeros before a chunk's size":  {head + te + fmt.Sprintf("\r\n000%x\r\n%s\r\n000\r\n\r\n", n, chatBody), passes},
		"trailers":                     {head + te + "Trailer: X-Sum\r\n" + fmt.Sprintf("\r\n%x\r\n%s\r\n0\r\nX-Sum: 1\r\nAuthorization: Bearer x\r\nContent-Length: 1\r\n\r\n", n, chatBody), passes},
		"a length and chunks":          {head + "Content-Length: 3\r\n" + te + "\r\n" + chunks, passes},
		"chunks and a length":          {head + te + "Content-Length: 100000\r\n\r\n" + chunks, passes},
		"twice the same length":        {head + length + length + "\r\n" + chatBody, passes},
		"zeros before the length":      {head + fmt.Sprintf("Content-Length: 000%d\r\n\r\n", n) + chatBody, passes},
		"line ends without CR":         {strings.ReplaceAll(head+length+"\r\n", "\r\n", "\n") + chatBody, passes},
		"a folded line":                {line + "Host: x\r\nX-Folded: a\r\n b\r\n" + auth + length + "\r\n" + chatBody, passes},
		"a folded key":                 {line + "Host: x\r\nAuthorization: Bearer\r\n " + h.key + "\r\n" + length + "\r\n" + chatBody, passes},
		"waits for leave to send":      {head + length + "Expect: 100-continue\r\n\r\n" + chatBody, passes},
		"waits, with chunks":           {head + te + "Expect: 100-Continue\r\n\r\n" + chunks, passes},
		"HTTP/1.0":                     {"POST " + chatPath + " HTTP/1.0\r\n" + auth + length + "\r\n" + chatBody, passes},
		"a name with an underscore":    {head + "api_key: " + h.key + "\r\n" + length + "\r\n" + chatBody, passes},
		"content coding identity":      {head + "Content-Encoding: identity\r\n" + length + "\r\n" + chatBody, passes},
		"two lengths":                  {head + length + "Content-Length: 3\r\n\r\n" + chatBody, refused},
		"a list of lengths":            {head + fmt.Sprintf("Content-Length: %d, 3\r\n\r\n", n) + chatBody, refused},
		"a length with a sign":         {head + fmt.Sprintf("Content-Length: +%d\r\n\r\n", n) + chatBody, refused},
		"a negative length":            {head + "Content-Length: -1\r\n\r\n" + chatBody, refused},
		"a length in hex":              {head + fmt.Sprintf("Content-Length: 0x%x\r\n\r\n", n) + chatBody, refused},
		"a length beyond counting":     {head + "Content-Length: 99999999999999999999\r\n\r\n" + chatBody, refused},
		"a length and a word":          {head + fmt.Sprintf("Content-Length: %d bytes\r\n\r\n", n) + chatBody, refused},
		"no length":                    {head + "\r\n" + chatBody, refused},
		"chunks over HTTP/1.0":         {"POST " + chatPath + " HTTP/1.0\r\n" + auth + te + "\r\n" + chunks, refused},
		"another coding":               {head + "Transfer-Encoding: gzip\r\n\r\n" + chunks, refused},
		"two codings":                  {head + "Transfer-Encoding: gzip, chunked\r\n\r\n" + chunks, refused},
		"twice chunked":                {head + "Transfer-Encoding: chunked, chunked\r\n\r\n" + chunks, refused},
		"chunked in two fields":        {head + te + te + "\r\n" + chunks, refused},
		"chunked, then identity":       {head + te + "Transfer-Encoding: identity\r\n\r\n" + chunks, refused},
		"almost chunked":               {head + "Transfer-Encoding: xchunked\r\n" + length + "\r\n" + chatBody, refused},
		"identity":                     {head + "Transfer-Encoding: identity\r\n" + length + "\r\n" + chatBody, refused},
		"a blank before the colon":     {head + "Transfer-Encoding : chunked\r\n" + length + "\r\n" + chatBody, refused},
		"a control byte in the coding": {head + "Transfer-Encoding: \x0bchunked\r\n" + length + "\r\n" + chatBody, refused},
		"NUL in a field":               {head + "X-Nul: a\x00b\r\n" + length + "\r\n" + chatBody, refused},
		"a bare CR in a field":         {head + "X-CR: a\rContent-Length: 3\r\n" + length + "\r\n" + chatBody, refused},
		"a chunk with a sign":          {head + te + fmt.Sprintf("\r\n+%x\r\n%s\r\n0\r\n\r\n", n, chatBody), refused},
		"a chunk with 0x":              {head + te + fmt.Sprintf("\r\n0x%x\r\n%s\r\n0\r\n\r\n", n, chatBody), refused},
		"a chunk of no size":           {head + te + fmt.Sprintf("\r\n\r\n%s\r\n0\r\n\r\n", chatBody), refused},
		"a chunk beyond counting":      {head + te + "\r\n" + strings.Repeat("f", 17) + "\r\n" + chatBody + "\r\n0\r\n\r\n", refused},
		"a chunk that is longer":       {head + te + fmt.Sprintf("\r\n%x\r\n%s\r\n0\r\n\r\n", n-1, chatBody), refused},
		"a chunk size's line end LF":   {head + te + fmt.Sprintf("\r\n%x\n%s\r\n0\r\n\r\n", n, chatBody), refused},
		"a chunk's line end LF":        {head + te + fmt.Sprintf("\r\n%x\r\n%s\n0\r\n\r\n", n, chatBody), refused},
		"an endless chunk extension":   {head + te + fmt.Sprintf("\r\n%x;%s\r\n%s\r\n0\r\n\r\n", n, strings.Repeat("x", 9<<10), chatBody), refused},
		"another expectation":          {head + "Expect: 200-ok\r\n" + length + "\r\n" + chatBody, refused},
		"a compressed body":            {head + "Content-Encoding: gzip\r\n" + length + "\r\n" + chatBody, refused},
		"two content codings":          {head + "Content-Encoding: identity\r\nContent-Encoding: gzip\r\n" + length + "\r\n" + chatBody, refused},
		"no host":                      {line + auth + length + "\r\n" + chatBody, refused},
		"an empty host and a second":   {line + "Host:\r\nHost: x\r\n" + auth + length + "\r\n" + chatBody, refused},
		"a host with a blank":          {line + "Host: a b\r\n" + auth + length + "\r\n" + chatBody, refused},
		"a host with a path":           {line + "Host: x/y\r\n" + auth + length + "\r\n" + chatBody, refused},
		"two blanks in the first line": {"POST  " + chatPath + " HTTP/1.1\r\nHost: x\r\n" + auth + length + "\r\n" + chatBody, refused},
		"no version":                   {"POST " + chatPath + "\r\nHost: x\r\n" + auth + length + "\r\n" + chatBody, refused},
		"a version in lower case":      {"POST " + chatPath + " http/1.1\r\nHost: x\r\n" + auth + length + "\r\n" + chatBody, refused},
		"a version of the future":      {"POST " + chatPath + " HTTP/3.0\r\nHost: x\r\n" + auth + length + "\r\n" + chatBody, refused},
		"a field without a colon":      {head + "X-Nothing\r\n" + length + "\r\n" + chatBody, refused},
		"a field without a name":       {head + ": x\r\n" + length + "\r\n" + chatBody, refused},
		"a field folded at the start":  {line + " Host: x\r\n" + auth + length + "\r\n" + chatBody, refused},
		"too many fields":              {head + strings.Repeat("X-Many: "+strings.Repeat("x", 90)+"\r\n", 300) + length + "\r\n" + chatBody, refused},
	} {
		before := len(h.engine.requests())
		resp, body := h.exchange(name, c.request)
		reached := h.engine.requests()[before:]
		switch {
		case c.reaches && (resp == nil || resp.StatusCode != 200 || len(reached) != 1):
			t.Errorf("%s: %v %s, the engine saw %d", name, resp, body, len(reached))
		case !c.reaches && (resp != nil && resp.StatusCode < 400 || len(reached) != 0):
			t.Errorf("%s: %v %s, the engine saw %v", name, resp, body, reached)
		}
		for _, r := range reached {
			if string(r.body) != chatBody || r.length != int64(n) || r.target != chatPath || r.header.Get("Authorization") != "Bearer engine-secret" || r.header.Get("Transfer-Encoding")+r.header.Get("Trailer")+r.header.Get("Expect")+r.header.Get("X-Folded")+r.header.Get("Api_key") != "" {
				t.Errorf("%s: the engine was sent %d bytes %s, %v", name, r.length, r.body, r.header)
			}
		}
	}
	h.eventually("the slots are free", func() bool { return pooledSlots("chat") == 0 })
}

func oneByteChunks(body string) string {
	var b strings.Builder
	for i := range len(body) {
		fmt.Fprintf(&b, "1\r\n%s\r\n", body[i:i+1])
	}
	return b.String() + "0\r\n\r\n"
}

// exchange sends bytes, ends the sending side, and returns the answer, or nil where the connection ended without one.
func (h *host) exchange(name, request string) (*http.Response, string) {
	h.t.Helper()
	conn, err := net.Dial("tcp", "127.0.0.1:"+h.port)
	if err != nil {
		h.t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(5 * time.Second))
	io.WriteString(conn, request)
	r := bufio.NewReader(conn)
	for {
		resp, err := http.ReadResponse(r, &http.Request{Method: "POST"})
		if err != nil {
			if e, ok := err.(net.Error); ok && e.Timeout() {
				h.t.Errorf("%s: no answer and no end", name)
			}
			return nil, ""
		}
		body, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusContinue {
			return resp, string(body)
		}
	}
}

// TestSmuggling: a request hidden in another one's body, by a length and chunks that contradict each other, is at most a request of its own,
// which needs a key of its own; the first one's bytes end where the gateway says they do.
func TestSmuggling(t *testing.T) {
	h := newHost(t)
	hidden := "POST " + chatPath + " HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
	head := "POST " + chatPath + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + h.key + "\r\n"
	chunks := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(chatBody), chatBody)
	for name, request := range map[string]string{
		"by chunks that end early":  head + fmt.Sprintf("Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n", len(chunks)+len(hidden)) + chunks + hidden,
		"by a length that is short": head + fmt.Sprintf("Content-Length: %d\r\n\r\n", len(chatBody)) + chatBody + hidden,
		"by a chunk's extension":    head + "Transfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("%x;\r\n", len(chatBody)) + chatBody + "\r\n0\r\n\r\n" + hidden,
	} {
		before := len(h.engine.requests())
		conn, err := net.Dial("tcp", "127.0.0.1:"+h.port)
		if err != nil {
			t.Fatal(err)
		}
		conn.SetDeadline(time.Now().Add(5 * time.Second))
		io.WriteString(conn, request)
		r := bufio.NewReader(conn)
		for i, want := range []int{200, 401} {
			resp, err := http.ReadResponse(r, &http.Request{Method: "POST"})
			if err != nil {
				t.Errorf("%s: answer %d: %v", name, i+1, err)
				break
			}
			io.Copy(io.Discard, resp.Body)
			if resp.StatusCode != want {
				t.Errorf("%s: answer %d is %d, want %d", name, i+1, resp.StatusCode, want)
			}
		}
		conn.Close()
		if seen := h.engine.requests()[before:]; len(seen) != 1 || string(seen[0].body) != chatBody {
			t.Errorf("%s: the engine saw %v", name, seen)
		}
	}
}

// earlyRow is a request whose refusal needs none of its body.
type earlyRow struct {
	status                               int
	code, method, path, key, contentType string
}

// earlyRows are all of them. They need fill.
func earlyRows(h *host) []earlyRow {
	const json = "application/json"
	key := func(id string, edit func(*wire.RouteKey), models ...string) string {
		secret := levelrail.NewSecret("lr")
		k := wire.RouteKey{ID: id, SHA256: levelrail.HashSecret(secret), Prefix: secret[:8], Models: models}
		if edit != nil {
			edit(&k)
		}
		h.cp.putKey(k)
		return secret
	}
	small := h.route("small")
	small.Limits.MaxBodyBytes = 1000
	h.cp.putRoute(small)
	rows := []earlyRow{
		{401, "invalid_api_key", "POST", chatPath, "wrong", json},
		{404, "unknown_url", "POST", "/v1/nothing", h.key, json},
		{404, "unknown_url", "POST", "/v1/audio/translations", h.key, "multipart/form-data; boundary=x"},
		{405, "method_not_allowed", "PUT", chatPath, h.key, json},
		{403, "path_not_allowed", "POST", "/v1/embeddings", key("key_narrow", func(k *wire.RouteKey) { k.AllowPaths = []string{chatPath} }, "chat"), json},
		{404, "model_not_found", "POST", chatPath, key("key_gone", nil, "gone"), json},
		{413, "request_too_large", "POST", chatPath, key("key_small", nil, "small"), json},
		{415, "unsupported_media_type", "POST", chatPath, h.key, "text/plain"},
		{429, "rate_limit_exceeded", "POST", chatPath, h.busy, json},
	}
	h.caughtUp()
	return rows
}

// fill takes the one slot of the key busy of the model full. It returns what gives it back.
func fill(h *host) func() {
	h.t.Helper()
	h.cp.putRoute(h.route("full"))
	secret := levelrail.NewSecret("lr")
	h.cp.putKey(wire.RouteKey{ID: "key_holder", SHA256: levelrail.HashSecret(secret), Prefix: secret[:8], Models: []string{"full"}, Limits: levelrail.KeyLimits{MaxParallel: 1}})
	h.busy = secret
	h.caughtUp()
	entered, leave := make(chan struct{}, 8), make(chan struct{})
	h.engine.on(blockUntil(entered, leave))
	done := make(chan struct{})
	go func() {
		defer close(done)
		resp, err := httpClient.Do(h.request("POST", chatPath, `{"model":"full"}`, "Authorization", "Bearer "+secret))
		if err == nil {
			resp.Body.Close()
		}
	}()
	<-entered
	return func() { close(leave); <-done }
}

// TestEveryEarlyAnswer: every refusal that needs none of the body comes at once over HTTP/1.1, to a client that waits for leave, has sent nothing,
// half or much, or trickles on; it says that the connection ends, and the connection does end although the client sends on.
func TestEveryEarlyAnswer(t *testing.T) {
	h := newHost(t)
	full := fill(h)
	defer full()
	var ends sync.WaitGroup
	for _, row := range earlyRows(h) {
		for _, sends := range []struct {
			name, headers, first, then string
		}{
			{"waits for leave", "Content-Length: 100000\r\nExpect: 100-continue\r\n", "", ""},
			{"has sent nothing", "Content-Length: 100000\r\n", "", ""},
			{"trickles", "Content-Length: 100000\r\n", "{", " "},
			{"has sent half", "Content-Length: 100000\r\n", strings.Repeat("x", 50000), ""},
			{"sends on", "Content-Length: 100000000\r\n", strings.Repeat("x", 50000), strings.Repeat("x", 1000)},
			{"sends chunks", "Transfer-Encoding: chunked\r\n", "3e8\r\n" + strings.Repeat("x", 1000) + "\r\n", "1\r\nx\r\n"},
		} {
			if row.status == 413 && sends.name == "sends chunks" {
				sends.first = "3e9\r\n" + strings.Repeat("x", 1001) + "\r\n" // too large only now
			}
			where := fmt.Sprintf("%d %s to a client that %s", row.status, row.code, sends.name)
			var conn net.Conn
			var began time.Time
			for try := 1; ; try++ { // on a busy machine everything may take long once; what waits for a body does each time
				var err error
				if conn, err = net.Dial("tcp", "127.0.0.1:"+h.port); err != nil {
					t.Fatal(err)
				}
				began = time.Now()
				conn.SetDeadline(began.Add(10 * time.Second))
				fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: %s\r\n%s\r\n%s", row.method, row.path, row.key, row.contentType, sends.headers, sends.first)
				resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: row.method})
				if err != nil {
					t.Fatalf("%s: %v", where, err)
				}
				body, err := io.ReadAll(resp.Body)
				took := time.Since(began)
				if took > 300*time.Millisecond && try < 10 {
					conn.Close()
					continue
				}
				if resp.StatusCode != row.status || errorCode(string(body)) != row.code || err != nil || took > 300*time.Millisecond {
					t.Errorf("%s: %d %s %v after %s", where, resp.StatusCode, body, err, took)
				}
				if !resp.Close {
					t.Errorf("%s: the connection is said to stay", where)
				}
				break
			}
			if sends.then == "" {
				conn.Close()
				continue
			}
			ends.Go(func() {
				defer conn.Close()
				for pace := time.NewTicker(time.Millisecond); time.Since(began) < 10*time.Second; <-pace.C {
					if _, err := io.WriteString(conn, sends.then); err != nil {
						return
					}
				}
				t.Errorf("%s: the connection is still open after %s", where, time.Since(began))
			})
		}
	}
	ends.Wait()
	if n := pooledSlots("chat") + pooledSlots("small"); n != 0 || pooledSlots("full") != 1 {
		t.Errorf("%d slots are taken, and %d of the full model", n, pooledSlots("full"))
	}
}
