package hub

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
)

const (
	commit = "0123456789abcdef0123456789abcdef01234567"
	marker = "hf_MARKERmarkerMARKERmarkerMARKERmarker12"
)

// stand is a Hub of one repository, org/name, with files in a storage on another host, as the real one has them.
type stand struct {
	hub, storage *httptest.Server
	files        map[string][]byte
	pageSize     int
	info         map[string]any                                // laid over the metadata
	before       func(http.ResponseWriter, *http.Request) bool // true: answered
	atStorage    func(http.ResponseWriter, *http.Request) bool

	mu         sync.Mutex
	requests   []string // "hub GET /path Range" in order
	storageGot []http.Header
}

func newStand(t *testing.T, files map[string][]byte) *stand {
	t.Helper()
	s := &stand{files: files, pageSize: 100}
	s.hub = httptest.NewServer(http.HandlerFunc(s.serveHub))
	s.storage = httptest.NewServer(http.HandlerFunc(s.serveStorage))
	t.Cleanup(s.hub.Close)
	t.Cleanup(s.storage.Close)
	return s
}

func (s *stand) client() *Client {
	return &Client{BaseURL: s.hub.URL, Timeout: 2 * time.Second, Stall: 2 * time.Second,
		wait: func(ctx context.Context, _ time.Duration) error { return ctx.Err() }}
}

func large(name string) bool { return strings.HasSuffix(name, ".gguf") }

func (s *stand) serveHub(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, strings.TrimSpace("hub "+r.URL.Path+" "+r.Header.Get("Range")))
	s.mu.Unlock()
	if s.before != nil && s.before(w, r) {
		return
	}
	switch {
	case r.URL.Path == "/api/models/org/name/revision/main" || r.URL.Path == "/api/models/org/name/revision/"+commit:
		info := map[string]any{"id": "org/name", "sha": commit, "private": false, "gated": false, "tags": []string{"gguf", "license:apache-2.0"}}
		for k, v := range s.info {
			info[k] = v
		}
		answerJSON(w, info)
	case r.URL.Path == "/api/models/org/name/tree/"+commit:
		names := make([]string, 0, len(s.files))
		for n := range s.files {
			names = append(names, n)
		}
		slices.Sort(names)
		from, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
		to := min(from+s.pageSize, len(names))
		if to < len(names) {
			w.Header().Set("Link", fmt.Sprintf(`<https://huggingface.co%s?recursive=true&cursor=%d>; rel="next"`, r.URL.Path, to))
		}
		entries := []map[string]any{{"type": "directory", "path": "folder", "size": 0, "oid": "x"}}
		for _, n := range names[from:to] {
			e := map[string]any{"type": "file", "path": n, "size": len(s.files[n]), "oid": gitOID(s.files[n])}
			if large(n) {
				e["lfs"] = map[string]any{"oid": sum(s.files[n]), "size": len(s.files[n]), "pointerSize": 134}
			}
			entries = append(entries, e)
		}
		answerJSON(w, entries)
	case strings.HasPrefix(r.URL.Path, "/org/name/resolve/"+commit+"/"):
		name := strings.TrimPrefix(r.URL.Path, "/org/name/resolve/"+commit+"/")
		b, ok := s.files[name]
		w.Header().Set("X-Repo-Commit", commit)
		switch {
		case !ok:
			w.Header().Set("X-Error-Code", "EntryNotFound")
			http.Error(w, "Entry not found", http.StatusNotFound)
		case large(name):
			w.Header().Set("X-Linked-Etag", `"`+sum(b)+`"`)
			http.Redirect(w, r, s.storage.URL+"/blob/"+name+"?X-Signature=SIGNED", http.StatusFound)
		default:
			w.Header().Set("Content-Type", "text/plain")
			http.ServeContent(w, r, "", time.Time{}, strings.NewReader(string(b)))
		}
	default:
		w.Header().Set("X-Error-Code", "RepoNotFound")
		w.WriteHeader(http.StatusNotFound)
		answerJSON(w, map[string]string{"error": "Repository not found"})
	}
}

func (s *stand) serveStorage(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, strings.TrimSpace("storage "+r.URL.Path+" "+r.Header.Get("Range")))
	s.storageGot = append(s.storageGot, r.Header.Clone())
	s.mu.Unlock()
	if s.atStorage != nil && s.atStorage(w, r) {
		return
	}
	b := s.files[strings.TrimPrefix(r.URL.Path, "/blob/")]
	w.Header().Set("ETag", `"`+sum(b)+`"`)
	http.ServeContent(w, r, "", time.Time{}, strings.NewReader(string(b)))
}

func answerJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	json.NewEncoder(w).Encode(v)
}

func sum(b []byte) string { h := sha256.Sum256(b); return hex.EncodeToString(h[:]) }

func gitOID(b []byte) string {
	h := sha1.Sum(append([]byte(fmt.Sprintf("blob %d\x00", len(b))), b...))
	return hex.EncodeToString(h[:])
}

func blob(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>9)
	}
	return b
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// TestResolve: a repository's commit, licence and every file come back, over several pages whose addresses name another
// host than the one that was asked.
func TestResolve(t *testing.T) {
	s := newStand(t, map[string][]byte{"README.md": []byte("hi"), "folder/m-Q8_0.gguf": blob(5000), "a.gguf": blob(10), "config.json": []byte("{}")})
	s.pageSize = 2
	s.info = map[string]any{"gated": "manual"}
	got := must[Repo](t)(s.client().Resolve(t.Context(), "org/name", ""))
	if got.Commit != commit || got.License != "apache-2.0" || got.Gated != "manual" || len(got.Files) != 4 {
		t.Fatalf("got %+v", got)
	}
	for _, f := range got.Files {
		want := File{Path: f.Path, Bytes: int64(len(s.files[f.Path])), GitOID: gitOID(s.files[f.Path])}
		if large(f.Path) {
			want.SHA256, want.GitOID = sum(s.files[f.Path]), ""
		}
		if f != want {
			t.Errorf("got %+v, want %+v", f, want)
		}
	}
}

// TestTokenStaysWithTheHub: the storage that a download is redirected to never sees the token, and the Hub does.
func TestTokenStaysWithTheHub(t *testing.T) {
	s := newStand(t, map[string][]byte{"a.gguf": blob(1000)})
	hubSaw := ""
	s.before = func(_ http.ResponseWriter, r *http.Request) bool {
		hubSaw = r.Header.Get("Authorization")
		return false
	}
	c := s.client()
	c.Token = " " + marker + "\r\n"
	must[Got](t)(c.Download(t.Context(), "org/name", commit, file(s, "a.gguf"), filepath.Join(t.TempDir(), "a"), nil))
	if hubSaw != "Bearer "+marker {
		t.Errorf("the Hub saw %q", hubSaw)
	}
	if len(s.storageGot) != 1 || s.storageGot[0].Get("Authorization") != "" || s.storageGot[0].Get("Referer") != "" {
		t.Errorf("the storage saw %v", s.storageGot)
	}
}

func file(s *stand, name string) File {
	f := File{Path: name, Bytes: int64(len(s.files[name]))}
	if large(name) {
		f.SHA256 = sum(s.files[name])
	} else {
		f.GitOID = gitOID(s.files[name])
	}
	return f
}

// TestDownload: large and small files arrive whole, with progress, and a second call fetches nothing.
func TestDownload(t *testing.T) {
	s := newStand(t, map[string][]byte{"folder/a.gguf": blob(700_000), "config.json": []byte(`{"a":1}`), "empty": {}})
	for name, want := range s.files {
		dst := filepath.Join(t.TempDir(), "f")
		var last int64 = -1
		got := must[Got](t)(s.client().Download(t.Context(), "org/name", commit, file(s, name), dst, func(n int64) {
			if n < last {
				t.Errorf("%s: progress went back from %d to %d", name, last, n)
			}
			last = n
		}))
		if b, err := os.ReadFile(dst); err != nil || string(b) != string(want) {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
		if got.SHA256 != sum(want) || got.Bytes != int64(len(want)) || last != int64(len(want)) {
			t.Errorf("%s: got %+v, progress ended at %d", name, got, last)
		}
		if st, err := os.Stat(dst); err != nil || st.Mode().Perm() != 0o644 {
			t.Errorf("%s: mode %v, %v", name, st.Mode(), err)
		}
		if _, err := os.Stat(dst + PartialSuffix); !os.IsNotExist(err) {
			t.Errorf("%s: the partial file stayed: %v", name, err)
		}
		before := len(s.requests)
		must[Got](t)(s.client().Download(t.Context(), "org/name", commit, file(s, name), dst, nil))
		if len(s.requests) != before {
			t.Errorf("%s: fetched again: %v", name, s.requests[before:])
		}
	}
}

// TestResume: a download cut off goes on where it stopped, within one call and from an earlier run's partial file.
func TestResume(t *testing.T) {
	data := blob(600_000)
	s := newStand(t, map[string][]byte{"a.gguf": data})
	cuts := 0
	s.atStorage = func(w http.ResponseWriter, r *http.Request) bool {
		if cuts++; cuts > 2 {
			return false
		}
		from := 0
		if v := r.Header.Get("Range"); v != "" {
			from, _ = strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(v, "bytes="), "-"))
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(data)-1, len(data)))
		}
		w.Header().Set("ETag", `"x"`)
		w.Header().Set("Content-Length", strconv.Itoa(len(data)-from))
		if from > 0 {
			w.WriteHeader(http.StatusPartialContent)
		}
		w.Write(data[from : from+100_000])
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	dir := t.TempDir()
	must[Got](t)(s.client().Download(t.Context(), "org/name", commit, file(s, "a.gguf"), filepath.Join(dir, "a"), nil))
	want := []string{"storage /blob/a.gguf", "storage /blob/a.gguf bytes=100000-", "storage /blob/a.gguf bytes=200000-"}
	if got := only(s.requests, "storage"); strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("requests %q, want %q", got, want)
	}

	s.requests = nil
	write(t, filepath.Join(dir, "b"+PartialSuffix), data[:250_000])
	must[Got](t)(s.client().Download(t.Context(), "org/name", commit, file(s, "a.gguf"), filepath.Join(dir, "b"), nil))
	if got := only(s.requests, "storage"); len(got) != 1 || got[0] != "storage /blob/a.gguf bytes=250000-" {
		t.Errorf("requests %q", got)
	}
}

func only(all []string, who string) []string {
	var out []string
	for _, r := range all {
		if strings.HasPrefix(r, who) {
			out = append(out, r)
		}
	}
	return out
}

func write(t *testing.T, p string, b []byte) {
	t.Helper()
	if err := os.WriteFile(p, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestPartialOfAnotherFile: what an earlier run left of another file costs one download from the start, no failure.
func TestPartialOfAnotherFile(t *testing.T) {
	s := newStand(t, map[string][]byte{"a.gguf": blob(50_000)})
	for name, left := range map[string][]byte{"shorter": make([]byte, 100), "same length": make([]byte, 50_000), "longer": make([]byte, 60_000)} {
		dst := filepath.Join(t.TempDir(), "a")
		write(t, dst+PartialSuffix, left)
		if _, err := s.client().Download(t.Context(), "org/name", commit, file(s, "a.gguf"), dst, nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestNoRangeSupport: a server that always sends the whole file is taken as it is.
func TestNoRangeSupport(t *testing.T) {
	s := newStand(t, map[string][]byte{"a.gguf": blob(50_000)})
	s.atStorage = func(w http.ResponseWriter, _ *http.Request) bool { w.Write(s.files["a.gguf"]); return true }
	dst := filepath.Join(t.TempDir(), "a")
	write(t, dst+PartialSuffix, s.files["a.gguf"][:20_000])
	must[Got](t)(s.client().Download(t.Context(), "org/name", commit, file(s, "a.gguf"), dst, nil))
}

// TestWrongContent: bytes that are not the file never get its name, are asked for once, and leave nothing.
func TestWrongContent(t *testing.T) {
	s := newStand(t, map[string][]byte{"a.gguf": blob(50_000), "config.json": []byte(`{"a":1}`)})
	lie := func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasPrefix(r.URL.Path, "/api/") || strings.HasSuffix(r.URL.Path, ".gguf") && r.Host == strings.TrimPrefix(s.hub.URL, "http://") {
			return false
		}
		n := len(s.files[filepath.Base(r.URL.Path)])
		w.Write(make([]byte, n))
		return true
	}
	s.atStorage, s.before = lie, lie
	for name := range s.files {
		dst := filepath.Join(t.TempDir(), "f")
		before := len(s.requests)
		_, err := s.client().Download(t.Context(), "org/name", commit, file(s, name), dst, nil)
		if !errors.Is(err, ErrChecksum) {
			t.Errorf("%s: got %v", name, err)
		}
		for _, p := range []string{dst, dst + PartialSuffix} {
			if _, err := os.Stat(p); !os.IsNotExist(err) {
				t.Errorf("%s is there: %v", p, err)
			}
		}
		if n := len(s.requests) - before; n > 2 {
			t.Errorf("%s: %d requests for bytes that were wrong from the start", name, n)
		}
	}
}

// TestPinnedCommit: a mirror that answers for another commit, or has other contents than its list says, is found out
// before anything is downloaded.
func TestPinnedCommit(t *testing.T) {
	s := newStand(t, map[string][]byte{"a.gguf": blob(5_000)})
	for name, header := range map[string][2]string{
		"commit": {"X-Repo-Commit", strings.Repeat("f", 40)}, "etag": {"X-Linked-Etag", `"` + strings.Repeat("0", 64) + `"`},
	} {
		s.before = func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set(header[0], header[1])
			http.Redirect(w, r, s.storage.URL+"/blob/a.gguf", http.StatusFound)
			return true
		}
		s.requests = nil
		_, err := s.client().Download(t.Context(), "org/name", commit, file(s, "a.gguf"), filepath.Join(t.TempDir(), "a"), nil)
		if !errors.Is(err, ErrChecksum) || len(only(s.requests, "storage")) != 0 {
			t.Errorf("%s: %v after %v", name, err, s.requests)
		}
	}
}

// TestStall: a connection that stands still is given up and the download goes on over another.
func TestStall(t *testing.T) {
	data := blob(300_000)
	s := newStand(t, map[string][]byte{"a.gguf": data})
	first := true
	s.atStorage = func(w http.ResponseWriter, r *http.Request) bool {
		if !first {
			return false
		}
		first = false
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
		w.Write(data[:100_000])
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return true
	}
	c := s.client()
	c.Stall = 100 * time.Millisecond
	must[Got](t)(c.Download(t.Context(), "org/name", commit, file(s, "a.gguf"), filepath.Join(t.TempDir(), "a"), nil))
	if got := only(s.requests, "storage"); len(got) != 2 || !strings.HasSuffix(got[1], "bytes=100000-") {
		t.Errorf("requests %q", got)
	}
}

// TestExpiredSignature: the storage's 403 is no word on the token; a fresh address is asked for.
func TestExpiredSignature(t *testing.T) {
	s := newStand(t, map[string][]byte{"a.gguf": blob(1000)})
	n := 0
	s.atStorage = func(w http.ResponseWriter, _ *http.Request) bool {
		if n++; n == 1 {
			http.Error(w, "expired", http.StatusForbidden)
		}
		return n == 1
	}
	must[Got](t)(s.client().Download(t.Context(), "org/name", commit, file(s, "a.gguf"), filepath.Join(t.TempDir(), "a"), nil))
	if got := only(s.requests, "hub"); len(got) != 2 {
		t.Errorf("requests %q", got)
	}
}

// TestCancelled: a download ends with its context and keeps what it has.
func TestCancelled(t *testing.T) {
	s := newStand(t, map[string][]byte{"a.gguf": blob(300_000)})
	ctx, cancel := context.WithCancel(t.Context())
	s.atStorage = func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Content-Length", "300000")
		w.Write(s.files["a.gguf"][:100_000])
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return true
	}
	dst := filepath.Join(t.TempDir(), "a")
	_, err := s.client().Download(ctx, "org/name", commit, file(s, "a.gguf"), dst, func(n int64) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if st, err := os.Stat(dst + PartialSuffix); err != nil || st.Size() == 0 {
		t.Errorf("the partial file: %v", err)
	}
}

// TestDiskFull: a full disk is a kind and a reason of its own.
func TestDiskFull(t *testing.T) {
	d := &download{file: File{Path: "a.gguf", Bytes: 100}, dst: "/x/a"}
	var e *Error
	err := d.local("write", &os.PathError{Op: "write", Path: "/x/a.partial", Err: syscall.ENOSPC})
	if !errors.Is(err, ErrDiskFull) || !errors.As(err, &e) || e.Reason() != levelrail.InsufficientDisk {
		t.Errorf("got %v", err)
	}
	if err := d.local("write", os.ErrPermission); !errors.Is(err, ErrLocal) {
		t.Errorf("got %v", err)
	}
}
