package gateway

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/caddymodule/limit"
	"github.com/levelrail/levelrail/caddymodule/meter"
	"github.com/levelrail/levelrail/caddymodule/proxy"
	"github.com/levelrail/levelrail/caddymodule/route"
	"github.com/levelrail/levelrail/caddymodule/wake"
	"github.com/levelrail/levelrail/client/wire"
)

const key = "lr-0123456789abcdef"

type sink struct {
	mu      sync.Mutex
	records []meter.Record
}

func (s *sink) Record(r meter.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records = append(s.records, r)
}

func (s *sink) last() meter.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.records) == 0 {
		return meter.Record{}
	}
	return s.records[len(s.records)-1]
}

// newGateway serves the model chat, whose engine listens on the socket.
func newGateway(t testing.TB, socket string, keys int) (*Gateway, *sink, *bytes.Buffer) {
	t.Helper()
	e := new(route.Table).Edit()
	err := e.PutModel(wire.Route{Model: "chat", Engine: "llamacpp", Names: []string{"chat"}, Serving: true,
		Targets: []wire.RouteTarget{{ID: "chat", Network: "unix", Address: socket, Serving: true}},
		Limits:  wire.Limits{MaxBodyBytes: 32 << 20, MaxInflight: 32, HeaderTimeout: 300, IdleTimeout: 120, DialTimeoutSeconds: 5}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range keys {
		secret := key
		if i > 0 {
			secret = levelrail.NewSecret("lr")
		}
		if _, err := e.PutKey(wire.RouteKey{ID: "key_" + secret[3:9], SHA256: levelrail.HashSecret(secret), Prefix: secret[:8], Models: []string{"chat"}}); err != nil {
			t.Fatal(err)
		}
	}
	table, s, log := e.Table(), new(sink), new(bytes.Buffer)
	text := slog.New(slog.NewTextHandler(log, nil))
	w := wake.New(wake.Options{GatewayID: func() string { return "gw_test" }, Table: func() (*route.Table, <-chan struct{}) { return table, nil }, Log: text})
	return &Gateway{Table: func() *route.Table { return table }, Engines: proxy.NewEngines(), Slots: new(limit.Slots), Keys: limit.NewKeys(time.Now()), Wake: w,
		Sink: s, Log: text, Now: time.Now}, s, log
}

func request(body string) *http.Request {
	r := httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+key)
	r.Header.Set("Content-Type", "application/json")
	return r
}

const body = `{"model":"chat","messages":[{"role":"user","content":"private words"}]}`

// TestPanicBeforeAnswer: a mistake of the gateway's is a 500 in OpenAI's shape, gives its slot back, is recorded once, and
// its log holds nothing of the request.
func TestPanicBeforeAnswer(t *testing.T) {
	g, s, log := newGateway(t, "/nowhere", 1)
	g.Engines = nil // the mistake
	w := httptest.NewRecorder()
	g.ServeHTTP(w, request(body))
	if w.Code != 500 || !strings.Contains(w.Body.String(), `"code":"internal_error"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if r := s.last(); r.End != meter.Panic || r.Status != 500 || len(s.records) != 1 {
		t.Errorf("%d records, the last %+v", len(s.records), r)
	}
	if g.Slots.Gate("chat").InFlight() != 0 {
		t.Error("the slot is still taken")
	}
	if l := log.String(); strings.Contains(l, "private") || strings.Contains(l, key) || !strings.Contains(l, "stack=") {
		t.Errorf("the log: %s", l)
	}
}

// quoting is a writer that panics with what it was given.
type quoting struct{ http.ResponseWriter }

func (q quoting) Write(p []byte) (int, error) { panic("cannot write " + string(p)) }

// TestPanicInAnswer: a mistake after the answer began cuts the connection and does not say what was written.
func TestPanicInAnswer(t *testing.T) {
	socket := listen(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "private words") })
	g, s, log := newGateway(t, socket, 1)
	defer func() {
		if v := recover(); v != http.ErrAbortHandler {
			t.Errorf("panicked with %v", v)
		}
		if r := s.last(); r.End != meter.Panic || len(s.records) != 1 {
			t.Errorf("%d records, the last %+v", len(s.records), r)
		}
		if g.Slots.Gate("chat").InFlight() != 0 {
			t.Error("the slot is still taken")
		}
		if strings.Contains(log.String(), "private") {
			t.Errorf("the log: %s", log)
		}
	}()
	g.ServeHTTP(quoting{httptest.NewRecorder()}, request(body))
}

// TestRequestID: a plain id of the client's is kept, anything else is replaced by one of the gateway's.
func TestRequestID(t *testing.T) {
	for _, id := range []string{"a", "req_1.2-3", strings.Repeat("x", 64)} {
		if got := requestID(http.Header{"X-Request-Id": {id}}); got != id {
			t.Errorf("%q became %q", id, got)
		}
	}
	seen := map[string]bool{}
	for _, ids := range [][]string{nil, {""}, {strings.Repeat("x", 65)}, {"a b"}, {"a\nb"}, {"é"}, {"a", "b"}, {"<script>"}} {
		got := requestID(http.Header{"X-Request-Id": ids})
		if !strings.HasPrefix(got, "req_") || len(got) != 28 || seen[got] {
			t.Errorf("%q became %q", ids, got)
		}
		seen[got] = true
	}
}

// TestAllowedPath: an entry of allow_paths is one path, or everything below it when it ends with a slash.
func TestAllowedPath(t *testing.T) {
	for _, c := range []struct {
		list []string
		path string
		want bool
	}{
		{nil, "/v1/embeddings", true},
		{[]string{"/v1/embeddings"}, "/v1/embeddings", true},
		{[]string{"/v1/embeddings"}, "/v1/chat/completions", false},
		{[]string{"/v1/chat/"}, "/v1/chat/completions", true},
		{[]string{"/v1/chat"}, "/v1/chat/completions", false},
		{[]string{"/v1/"}, "/v1/models/{id}", true},
		{[]string{""}, "/v1/models", false},
	} {
		if got := allowedPath(c.list, c.path); got != c.want {
			t.Errorf("%q opens %s: %v", c.list, c.path, got)
		}
	}
}

func listen(t testing.TB, h http.HandlerFunc) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "lr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return socket
}

// discard is a client that takes everything.
type discard struct{ h http.Header }

func (d *discard) Header() http.Header         { return d.h }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(int)             {}
func (d *discard) Flush()                      {}

// BenchmarkServe is one request through all checks to an engine's socket and back, without Caddy and a client's connection;
// the engine, in this process, is part of the figure.
func BenchmarkServe(b *testing.B) {
	answer := []byte(`{"choices":[{"message":{"content":"` + strings.Repeat("word ", 200) + `"}}],"usage":{"prompt_tokens":3,"completion_tokens":4}}`)
	socket := listen(b, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header()["Content-Type"] = []string{"application/json"}
		w.Write(answer)
	})
	for _, c := range []struct {
		name string
		keys int
		size int
	}{{"1KiB/10keys", 10, 1 << 10}, {"1KiB/1Mkeys", 1_000_000, 1 << 10}, {"100KiB/1000keys", 1000, 100 << 10}} {
		b.Run(c.name, func(b *testing.B) {
			g, _, _ := newGateway(b, socket, c.keys)
			g.Sink = nothing{}
			text := `{"model":"chat","messages":[{"role":"user","content":"` + strings.Repeat("word ", c.size/5) + `"}]}`
			b.ReportAllocs()
			for b.Loop() {
				g.ServeHTTP(&discard{h: http.Header{}}, request(text))
			}
		})
	}
}

// BenchmarkRefuse is a request with a wrong key: what a flood of them costs.
func BenchmarkRefuse(b *testing.B) {
	g, _, _ := newGateway(b, "/nowhere", 1000)
	g.Sink = nothing{}
	gone, cancel := context.WithCancel(b.Context())
	cancel() // an address that fails so often is held up, unless it has left
	r := httptest.NewRequest("GET", "/v1/models", nil).WithContext(gone)
	r.Header.Set("Authorization", "Bearer lr-wrong")
	b.ReportAllocs()
	for b.Loop() {
		g.ServeHTTP(&discard{h: http.Header{}}, r)
	}
}

type nothing struct{}

func (nothing) Record(meter.Record) {}
