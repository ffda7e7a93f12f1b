package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
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
)

// dialled is a client that reaches one server whatever the host of the request, as the agent's does.
func dialled(s *httptest.Server) *http.Client {
	address := s.Listener.Addr().String()
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", address)
	}}}
}

// TestReadyOfKeyedEngines: llama.cpp and vLLM are ready when they are healthy and list this model under this replica's
// key; another server in their place, or one with another key, is not.
func TestReadyOfKeyedEngines(t *testing.T) {
	type handler = map[string]string // path to "status body"
	list := `200 {"object":"list","data":[{"id":"chat","aliases":["chat","org/name"]}]}`
	for _, c := range []struct {
		name    string
		engine  string
		answers handler
		key     string
		want    State
		says    string
	}{
		{"serves", "llamacpp", handler{"/health": `200 {"status":"ok"}`, "/v1/models": list}, "K", Serving, ""},
		{"loads", "llamacpp", handler{"/health": `503 {"error":{"message":"Loading model","type":"unavailable_error","code":503}}`}, "K", Load, "Loading model"},
		{"another key", "llamacpp", handler{"/health": `200 {}`, "/v1/models": list}, "WRONGKEY", Broken, "does not accept this replica's key"},
		{"another model", "llamacpp", handler{"/health": `200 {}`, "/v1/models": `200 {"data":[{"id":"else"}]}`}, "K", Broken, `serves "else" and not chat`},
		{"another server", "llamacpp", handler{"/health": `200 {}`, "/v1/models": `200 <html>`}, "K", Broken, "did not answer with a listing"},
		{"unhealthy", "llamacpp", handler{"/health": `500 {"error":{"message":"x y"}}`}, "K", Broken, "answered 500: x y"},
		{"alias", "vllm", handler{"/health": "200 ", "/v1/models": `200 {"data":[{"id":"org/name"},{"id":"chat"}]}`}, "K", Serving, ""},
		{"dead", "vllm", handler{"/health": "503 "}, "K", Broken, "answered 503"},
		{"unauthorized", "vllm", handler{"/health": "200 ", "/v1/models": list}, "WRONGKEY", Broken, "key"},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Host != "localhost" {
				t.Errorf("%s: asked as host %q", c.name, r.Host)
			}
			answer, ok := c.answers[r.URL.Path]
			if !ok {
				answer = "404 not here"
			}
			if r.URL.Path == "/v1/models" && r.Header.Get("Authorization") != "Bearer K" {
				answer = `401 {"error":{"code":401,"message":"Invalid API Key"}}`
			}
			status, body, _ := strings.Cut(answer, " ")
			var code int
			fmt.Sscan(status, &code)
			w.WriteHeader(code)
			io.WriteString(w, body)
		}))
		p := params("org/name", nil, nil)
		p.Key = c.key
		got := get(t, c.engine).Ready(t.Context(), dialled(s), p)
		if got.State != c.want || !strings.Contains(got.Message, c.says) || strings.Contains(got.Message, "WRONGKEY") {
			t.Errorf("%s: got %+v, want %s saying %q", c.name, got, c.want, c.says)
		}
		s.Close()
		if got := get(t, c.engine).Ready(t.Context(), dialled(s), p); got.State != Down {
			t.Errorf("%s, gone: %+v", c.name, got)
		}
	}
}

// fakeOllama keeps the state that Ready depends on: a load lives as long as the request that began it, and a model that
// is being loaded is listed like a loaded one.
type fakeOllama struct {
	mu        sync.Mutex
	models    map[string]bool // name to "can generate"
	loading   string
	loaded    string
	loads     int
	aborted   int
	failure   string        // what a load ends with
	finish    chan struct{} // closed: loads end
	embedding int
}

func (f *fakeOllama) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Model     string          `json:"model"`
		KeepAlive json.RawMessage `json:"keep_alive"`
		Prompt    *string         `json:"prompt"`
	}
	json.NewDecoder(r.Body).Decode(&req)
	say := func(status int, v any) {
		w.WriteHeader(status)
		json.NewEncoder(w).Encode(v)
	}
	switch r.URL.Path {
	case "/api/ps":
		f.mu.Lock()
		defer f.mu.Unlock()
		models := []map[string]string{}
		for _, m := range []string{f.loading, f.loaded} {
			if m != "" {
				models = append(models, map[string]string{"name": m + ":latest"})
			}
		}
		say(200, map[string]any{"models": models})
	case "/api/generate", "/api/embed":
		f.mu.Lock()
		generates, there := f.models[req.Model]
		switch {
		case !there:
			f.mu.Unlock()
			say(404, map[string]string{"error": fmt.Sprintf("model '%s' not found", req.Model)})
			return
		case r.URL.Path == "/api/generate" && !generates:
			f.mu.Unlock()
			say(400, map[string]string{"error": fmt.Sprintf("%q does not support generate", req.Model)})
			return
		case r.URL.Path == "/api/embed":
			f.embedding++
		}
		if string(req.KeepAlive) != "-1" || req.Prompt != nil {
			f.mu.Unlock()
			say(400, map[string]string{"error": "the load was asked for in another way"})
			return
		}
		if f.loaded == req.Model {
			f.mu.Unlock()
			say(200, map[string]any{"done": true, "done_reason": "load"})
			return
		}
		f.loads++
		f.loading = req.Model
		f.mu.Unlock()
		select {
		case <-r.Context().Done():
			f.mu.Lock()
			f.loading = ""
			f.aborted++
			f.mu.Unlock()
		case <-f.finish:
			f.mu.Lock()
			f.loading = ""
			fail := f.failure
			if fail == "" {
				f.loaded = req.Model
			}
			f.mu.Unlock()
			if fail != "" {
				say(500, map[string]string{"error": fail})
				return
			}
			say(200, map[string]any{"done": true, "done_reason": "load"})
		}
	default:
		say(404, map[string]string{"error": "no such route"})
	}
}

func (f *fakeOllama) count() (loads, aborted int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.loads, f.aborted
}

// until polls Ready until it answers with the state.
func until(t *testing.T, e Engine, c *http.Client, p Params, want State) Readiness {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		r := e.Ready(t.Context(), c, p)
		if r.State == want {
			return r
		}
		if time.Now().After(deadline) {
			t.Fatalf("still %+v, want %s", r, want)
		}
		time.Sleep(time.Millisecond)
	}
}

// TestOllamaLoadsOnce: however often it is asked, one load is begun and lives to its end, and only its end is readiness.
func TestOllamaLoadsOnce(t *testing.T) {
	f := &fakeOllama{models: map[string]bool{"chat": true}, finish: make(chan struct{})}
	s := httptest.NewServer(f)
	defer s.Close()
	e, c, p := &ollama{}, dialled(s), params("llama3.1:8b", nil, nil)
	for range 50 {
		if r := e.Ready(t.Context(), c, p); r.State != Load {
			t.Fatalf("before the load ended: %+v", r)
		}
	}
	close(f.finish)
	until(t, e, c, p, Serving)
	if loads, aborted := f.count(); loads != 1 || aborted != 0 {
		t.Errorf("%d loads, %d aborted", loads, aborted)
	}
	for range 5 {
		if r := e.Ready(t.Context(), c, p); r.State != Serving {
			t.Errorf("later: %+v", r)
		}
	}
	if loads, _ := f.count(); loads != 1 {
		t.Errorf("%d loads in the end", loads)
	}

	// The engine restarts, empty: the next call loads again.
	f.mu.Lock()
	f.loaded = ""
	f.mu.Unlock()
	until(t, e, c, p, Serving)
	if loads, _ := f.count(); loads != 2 {
		t.Errorf("%d loads after a restart", loads)
	}
}

// TestOllamaLoadOfAnother: a load that a client's request began is listed and is not readiness, and asking does not end it.
func TestOllamaLoadOfAnother(t *testing.T) {
	f := &fakeOllama{models: map[string]bool{"chat": true}, finish: make(chan struct{}), loading: "chat"}
	s := httptest.NewServer(f)
	defer s.Close()
	e, p := &ollama{}, params("llama3.1:8b", nil, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if r := e.Ready(ctx, dialled(s), p); r.State == Serving {
		t.Errorf("got %+v", r)
	}
}

// TestOllamaEmbeddingModel: a model that cannot generate is loaded by an embedding of nothing.
func TestOllamaEmbeddingModel(t *testing.T) {
	f := &fakeOllama{models: map[string]bool{"chat": false}, finish: make(chan struct{})}
	close(f.finish)
	s := httptest.NewServer(f)
	defer s.Close()
	until(t, &ollama{}, dialled(s), params("nomic-embed-text", nil, nil), Serving)
	if f.embedding == 0 {
		t.Error("no embedding was asked for")
	}
}

// TestOllamaLoadFails: why a load failed is told, and it is not begun again at every call.
func TestOllamaLoadFails(t *testing.T) {
	for name, f := range map[string]*fakeOllama{
		"model requires more system memory (12.0 GiB) than is available (7.1 GiB)": {models: map[string]bool{"chat": true}},
		"model 'chat' not found": {models: map[string]bool{}},
	} {
		f.finish = make(chan struct{})
		close(f.finish)
		if len(f.models) > 0 {
			f.failure = name
		}
		s := httptest.NewServer(f)
		e, c, p := &ollama{}, dialled(s), params("llama3.1:8b", nil, nil)
		if r := until(t, e, c, p, Broken); r.Message != name {
			t.Errorf("%s: got %q", name, r.Message)
		}
		before, _ := f.count()
		for range 20 {
			if r := e.Ready(t.Context(), c, p); r.State != Broken {
				t.Errorf("%s: later %+v", name, r)
			}
		}
		if after, _ := f.count(); after != before {
			t.Errorf("%s: %d further loads", name, after-before)
		}
		s.Close()
	}
}

// TestOllamaDiesWhileLoading: an engine that goes away in the middle is no failed load: its successor is asked at once.
func TestOllamaDiesWhileLoading(t *testing.T) {
	f := &fakeOllama{models: map[string]bool{"chat": true}, finish: make(chan struct{})}
	s := httptest.NewServer(f)
	defer s.Close()
	e, c, p := &ollama{}, dialled(s), params("llama3.1:8b", nil, nil)
	loads := func(want int) {
		t.Helper()
		deadline := time.Now().Add(10 * time.Second)
		for got, _ := f.count(); got < want; got, _ = f.count() {
			if r := e.Ready(t.Context(), c, p); r.State == Broken || r.State == Serving {
				t.Fatalf("got %+v", r)
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d loads, want %d", got, want)
			}
			time.Sleep(time.Millisecond)
		}
	}
	loads(1)
	s.CloseClientConnections()
	loads(2)
	close(f.finish)
	until(t, e, c, p, Serving)
}

// TestOllamaIsNotOllama: something else behind the door is not taken for it.
func TestOllamaIsNotOllama(t *testing.T) {
	for _, body := range []string{"<html>", "{}", `{"models":null}`, `[]`} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, body) }))
		if r := (&ollama{}).Ready(t.Context(), dialled(s), params("x", nil, nil)); r.State != Broken {
			t.Errorf("%s: %+v", body, r)
		}
		s.Close()
	}
}

// TestSameTag: names are compared as Ollama does.
func TestSameTag(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"chat", "chat:latest", true}, {"chat", "library/chat:latest", true}, {"registry.ollama.ai/library/chat", "chat", true}, {"Chat", "chat", true},
		{"chat:8b", "chat", false}, {"org/chat", "chat", false}, {"127.0.0.1:5000/library/x", "127.0.0.1:5000/library/x:latest", true},
	} {
		if sameTag(c.a, c.b) != c.same {
			t.Errorf("%s and %s: not %v", c.a, c.b, c.same)
		}
	}
}

// TestLoopbackRegistry: only registries of this machine are spoken to without TLS.
func TestLoopbackRegistry(t *testing.T) {
	for tag, want := range map[string]bool{
		"127.0.0.1:5000/library/x:tag": true, "localhost:5000/a/b": true, "127.8.8.8/a/b": true, "localhost/a/b": true,
		"llama3.1:8b": false, "localhost/x": false, "registry.example:5000/a/b": false, "10.0.0.1:5000/a/b": false, "localhost.evil.example/a/b": false,
	} {
		if loopbackRegistry(tag) != want {
			t.Errorf("%s: not %v", tag, want)
		}
	}
}

// importFake is the fetch's server: it keeps blobs, models and names.
type importFake struct {
	t     *testing.T
	mu    sync.Mutex
	blobs map[string]int
	names map[string]string
	pull  []string // lines of a pull
	insec bool
}

func (f *importFake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		f.t.Error(err)
	}
	var req struct {
		Model, Source, Destination string
		Insecure                   bool
		Files                      map[string]string
	}
	json.Unmarshal(body, &req)
	digest := strings.TrimPrefix(r.URL.Path, "/api/blobs/")
	switch {
	case r.URL.Path == "/api/version":
		io.WriteString(w, `{"version":"0.17.4"}`)
	case r.Method == http.MethodHead && digest != r.URL.Path:
		if _, there := f.blobs[digest]; !there {
			w.WriteHeader(404)
		}
	case r.Method == http.MethodPost && digest != r.URL.Path:
		f.blobs[digest] = len(body)
		w.WriteHeader(201)
	case r.URL.Path == "/api/create":
		for _, d := range req.Files {
			if _, there := f.blobs[d]; !there {
				io.WriteString(w, `{"error":"no such blob"}`+"\n")
				return
			}
			f.names[req.Model] = d
		}
		io.WriteString(w, `{"status":"parsing GGUF"}`+"\n"+`{"status":"success"}`+"\n")
	case r.URL.Path == "/api/pull":
		f.insec = req.Insecure
		f.names[req.Model] = "pulled"
		io.WriteString(w, strings.Join(f.pull, "\n")+"\n")
	case r.URL.Path == "/api/copy":
		from, there := f.names[req.Source]
		if !there {
			w.WriteHeader(404)
			io.WriteString(w, `{"error":"model not found"}`)
			return
		}
		f.names[req.Destination] = from
	default:
		w.WriteHeader(404)
	}
}

func opener(file string) func() (io.ReadCloser, int64, error) {
	return func() (io.ReadCloser, int64, error) {
		f, err := os.Open(file)
		if err != nil {
			return nil, 0, err
		}
		info, err := f.Stat()
		return f, info.Size(), err
	}
}

// TestOllamaImportFile: a file goes in once, by its checksum, and the model has all its names.
func TestOllamaImportFile(t *testing.T) {
	file := filepath.Join("testdata", "journal", "ollama-ready.txt")
	for _, linked := range []bool{false, true} {
		f := &importFake{t: t, blobs: map[string]int{}, names: map[string]string{}}
		if linked {
			f.blobs["sha256:abc"] = 1
		}
		s := httptest.NewServer(f)
		var phases []string
		err := ollamaImport(t.Context(), dialled(s), ImportWant{Path: file, Open: opener(file), SHA256: "abc", Names: []string{"chat", "org/name", "chat:latest"}}, func(p levelrail.Progress) { phases = append(phases, p.Phase) })
		s.Close()
		if err != nil || f.names["chat"] != "sha256:abc" || f.names["org/name"] != "sha256:abc" || len(f.names) != 2 {
			t.Errorf("linked %v: %v, %v", linked, err, f.names)
		}
		if linked != (f.blobs["sha256:abc"] == 1) {
			t.Errorf("linked %v: the blob has %d bytes", linked, f.blobs["sha256:abc"])
		}
		if len(phases) == 0 {
			t.Errorf("linked %v: no progress", linked)
		}
	}
}

// TestOllamaPull: the bytes of all layers add up, the names are given, and a loopback registry goes without TLS.
func TestOllamaPull(t *testing.T) {
	f := &importFake{t: t, blobs: map[string]int{}, names: map[string]string{}, pull: []string{
		`{"status":"pulling manifest"}`, `{"status":"pulling aaa","digest":"sha256:aaa","total":100}`, `{"status":"pulling aaa","digest":"sha256:aaa","total":100,"completed":60}`,
		`{"status":"pulling aaa","digest":"sha256:aaa","total":100,"completed":100}`, `{"status":"pulling bbb","digest":"sha256:bbb","total":20,"completed":20}`,
		`{"status":"verifying sha256 digest"}`, `{"status":"writing manifest"}`, `{"status":"success"}`}}
	s := httptest.NewServer(f)
	defer s.Close()
	var got []string
	tag := "127.0.0.1:5000/library/x:tag"
	err := ollamaImport(t.Context(), dialled(s), ImportWant{Tag: tag, Names: []string{"chat", tag}}, func(p levelrail.Progress) {
		total := int64(-1)
		if p.TotalBytes != nil {
			total = *p.TotalBytes
		}
		got = append(got, fmt.Sprintf("%s %d/%d", p.Phase, p.DoneBytes, total))
	})
	want := "downloading 0/100, downloading 60/100, downloading 100/100, downloading 120/120, verifying 0/-1, importing 0/-1"
	if err != nil || strings.Join(got, ", ") != want {
		t.Errorf("%v, progress %q", err, got)
	}
	if f.names["chat"] != "pulled" || !f.insec {
		t.Errorf("names %v, insecure %v", f.names, f.insec)
	}
}

// TestOllamaPullFails: only success is success, and each failure has its reason.
func TestOllamaPullFails(t *testing.T) {
	for _, c := range []struct {
		line   string
		reason levelrail.Reason
		says   string
	}{
		{`{"error":"pull model manifest: file does not exist"}`, levelrail.DownloadFailed, "the registry has no x:y"},
		{`{"error":"write /x: no space left on device"}`, levelrail.InsufficientDisk, "disk is full"},
		{`{"error":"unauthorized: access denied"}`, levelrail.DownloadFailed, "access denied"},
		{`{"error":"digest mismatch, file must be downloaded again"}`, levelrail.DownloadFailed, "digest mismatch"},
		{`{"error":"Get \"https://x\": dial tcp: lookup x: no such host"}`, levelrail.DownloadFailed, "no such host"},
		{`{"status":"pulling manifest"}`, levelrail.DownloadFailed, "without saying success"},
		{`<html>`, levelrail.DownloadFailed, "<html>"},
	} {
		f := &importFake{t: t, blobs: map[string]int{}, names: map[string]string{}, pull: []string{c.line}}
		s := httptest.NewServer(f)
		err := ollamaImport(t.Context(), dialled(s), ImportWant{Tag: "x:y", Names: []string{"chat"}}, func(levelrail.Progress) {})
		s.Close()
		e, ok := err.(*ImportError)
		if !ok || e.Reason() != c.reason || !strings.Contains(e.Message, c.says) {
			t.Errorf("%s: got %v", c.line, err)
		}
		if _, named := f.names["chat"]; named {
			t.Errorf("%s: the model was named after a failed pull", c.line)
		}
	}
}
