package hubstub

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail/test/engines/faults"
)

const id = "org/model"

// fixture serves one open, one gated, one private and one renamed repository.
type fixture struct {
	*Stub
	t        *testing.T
	hub, cdn *httptest.Server
	weights  []byte
}

func newFixture(t *testing.T, change func(*Options)) *fixture {
	t.Helper()
	dir := t.TempDir()
	write := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	weights := tinyGGUF()
	files := map[string]string{
		"README.md":       write("README.md", []byte("# A model\n")),
		"m.Q4_1.gguf":     write("m.gguf", weights),
		"extra/a/x.txt":   write("x.txt", []byte("x")),
		"extra/b c/y.txt": write("y.txt", []byte("y")),
	}
	opts := Options{
		Repos: []Repo{
			{ID: id, Files: files},
			{ID: "org/gated", Files: files, Gated: "manual"},
			{ID: "org/private", Files: files, Private: true},
			{ID: "org/old", MovedTo: id},
		},
		Tokens: map[string]User{
			"hf_friend":   {Name: "friend", MayRead: []string{"org/gated", "org/private"}},
			"hf_stranger": {Name: "stranger"},
			"hf_noscope":  {Name: "robot", NoReadScope: true},
		},
	}
	if change != nil {
		change(&opts)
	}
	s, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{Stub: s, t: t, hub: httptest.NewServer(s.Hub()), cdn: httptest.NewServer(s.CDN()), weights: weights}
	t.Cleanup(f.hub.Close)
	t.Cleanup(f.cdn.Close)
	s.SetCDN(f.cdn.URL)
	return f
}

// tinyGGUF has the header of a model with 6 parameters.
func tinyGGUF() []byte {
	var b bytes.Buffer
	put := func(vs ...any) {
		for _, v := range vs {
			if s, ok := v.(string); ok {
				binary.Write(&b, binary.LittleEndian, uint64(len(s)))
				b.WriteString(s)
				continue
			}
			binary.Write(&b, binary.LittleEndian, v)
		}
	}
	b.WriteString("GGUF")
	put(uint32(3), uint64(1), uint64(4))
	put("general.architecture", uint32(8), "llama")
	put("llama.context_length", uint32(4), uint32(8192))
	put("tokenizer.tokens", uint32(9), uint32(8), uint64(2), "a", "b")
	put("tokenizer.add_bos", uint32(7), uint8(1))
	put("weight", uint32(2), uint64(2), uint64(3), uint32(0), uint64(0))
	b.Write(bytes.Repeat([]byte{7}, 5000))
	return b.Bytes()
}

// do sends one request to the hub, or to a whole URL, and follows nothing.
func (f *fixture) do(method, path, token string, header ...string) (*http.Response, []byte, error) {
	f.t.Helper()
	if !strings.HasPrefix(path, "http") {
		path = f.hub.URL + path
	}
	req, err := http.NewRequest(method, path, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp, body, err
}

// TestModelInfo: a model's information has what the Hub says of files, sizes, checksums and GGUF headers.
func TestModelInfo(t *testing.T) {
	f := newFixture(t, nil)
	_, body, _ := f.do("GET", "/api/models/org/model/revision/main?blobs=true", "")
	var info struct {
		ID, SHA  string
		Gated    any
		Siblings []struct {
			RFilename string
			Size      int64
			LFS       *struct{ SHA256 string }
		}
		GGUF struct {
			Total         int
			Architecture  string
			ContextLength int `json:"context_length"`
		}
	}
	if err := json.Unmarshal(body, &info); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	sum := sha256.Sum256(f.weights)
	if info.ID != id || info.SHA != f.Commit(id) || len(info.SHA) != 40 || info.Gated != false || len(info.Siblings) != 4 {
		t.Errorf("info: %s", body)
	}
	if s := info.Siblings[3]; s.RFilename != "m.Q4_1.gguf" || s.Size != int64(len(f.weights)) || s.LFS == nil || s.LFS.SHA256 != hex.EncodeToString(sum[:]) {
		t.Errorf("the weights: %+v", s)
	}
	if info.Siblings[0].LFS != nil {
		t.Errorf("a small text file is kept outside git: %+v", info.Siblings[0])
	}
	if g := info.GGUF; g.Total != 6 || g.Architecture != "llama" || g.ContextLength != 8192 {
		t.Errorf("gguf: %+v", g)
	}
	_, body, _ = f.do("GET", "/api/models/org/model", "")
	if bytes.Contains(body, []byte(`"lfs"`)) {
		t.Errorf("checksums without blobs=true: %s", body)
	}
	_, body, _ = f.do("GET", "/api/models/org/model?expand=gated&expand=sha", "")
	if bytes.Contains(body, []byte("siblings")) || !bytes.Contains(body, []byte(f.Commit(id))) {
		t.Errorf("expand: %s", body)
	}
}

// TestTreePages: a long file list comes in pages that link to each other, and holds every file once.
func TestTreePages(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.PageSize = 3 })
	next, pages := "/api/models/org/model/tree/main?recursive=true", 0
	var paths []string
	for next != "" {
		resp, body, _ := f.do("GET", next, "")
		var entries []struct{ Type, Path string }
		if err := json.Unmarshal(body, &entries); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		for _, e := range entries {
			paths = append(paths, e.Type[:1]+" "+e.Path)
		}
		next, _, _ = strings.Cut(strings.TrimPrefix(resp.Header.Get("Link"), "<"), `>; rel="next"`)
		if pages++; pages > 9 {
			t.Fatal("the pages have no end")
		}
	}
	want := "f README.md,d extra,d extra/a,f extra/a/x.txt,d extra/b c,f extra/b c/y.txt,f m.Q4_1.gguf"
	if got := strings.Join(paths, ","); got != want || pages != 3 {
		t.Errorf("%d pages: %s\nwant %s", pages, got, want)
	}
	_, body, _ := f.do("GET", "/api/models/org/model/tree/main", "")
	if n := bytes.Count(body, []byte(`"path"`)); n != 3 {
		t.Errorf("the top alone has %d entries: %s", n, body)
	}
}

// TestResolve: large files come from the content network with ranges and without the token, small ones from the Hub.
func TestResolve(t *testing.T) {
	f := newFixture(t, nil)
	resp, _, _ := f.do("HEAD", "/org/model/resolve/main/m.Q4_1.gguf", "hf_friend")
	h := resp.Header
	if resp.StatusCode != 302 || h.Get("X-Repo-Commit") != f.Commit(id) || h.Get("X-Linked-Etag") != `"`+f.SHA256(id, "m.Q4_1.gguf")+`"` ||
		h.Get("X-Linked-Size") != strconv.Itoa(len(f.weights)) || !strings.HasPrefix(h.Get("Location"), f.cdn.URL) {
		t.Errorf("%s %v", resp.Status, h)
	}
	link := h.Get("Location")
	if resp, body, err := f.do("GET", link, ""); err != nil || resp.StatusCode != 200 || !bytes.Equal(body, f.weights) {
		t.Errorf("the whole: %s, %d bytes, %v", resp.Status, len(body), err)
	}
	if resp, body, _ := f.do("GET", link, "", "Range", "bytes=100-"); resp.StatusCode != 206 || !bytes.Equal(body, f.weights[100:]) {
		t.Errorf("a range: %s, %d bytes", resp.Status, len(body))
	}
	if f.LeakedTokens() != 0 {
		t.Error("a token seems to have leaked")
	}
	if resp, body, _ := f.do("GET", link, "hf_friend"); resp.StatusCode != 400 || !bytes.Contains(body, []byte("Only one auth")) || f.LeakedTokens() != 1 {
		t.Errorf("a leaked token: %s %s, counted %d", resp.Status, body, f.LeakedTokens())
	}
	if resp, _, _ := f.do("GET", strings.Replace(link, "Signature=", "Signature=0", 1), ""); resp.StatusCode != 403 {
		t.Errorf("a forged link: %s", resp.Status)
	}

	resp, _, _ = f.do("GET", "/org/model/resolve/"+f.Commit(id)+"/extra/b%20c/y.txt", "")
	to := resp.Header.Get("Location")
	if resp.StatusCode != 307 || !strings.HasPrefix(to, "/api/resolve-cache/") {
		t.Fatalf("a small file: %s %v", resp.Status, resp.Header)
	}
	if resp, body, _ := f.do("GET", to, ""); resp.StatusCode != 200 || string(body) != "y" {
		t.Errorf("a small file: %s %q", resp.Status, body)
	}
	if reqs := f.Requests(); len(reqs) != 7 || reqs[2].Range != "bytes=100-" || !reqs[2].CDN || reqs[0].Token != "hf_friend" {
		t.Errorf("requests: %+v", reqs)
	}
}

// TestLinksExpire: a link to the content network works for its time and no longer; resolve gives a new one.
func TestLinksExpire(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.LinkLife = -time.Second })
	resp, _, _ := f.do("HEAD", "/org/model/resolve/main/m.Q4_1.gguf", "")
	if resp, body, _ := f.do("GET", resp.Header.Get("Location"), ""); resp.StatusCode != 403 || !bytes.Contains(body, []byte("expired")) {
		t.Errorf("%s %s", resp.Status, body)
	}
}

// TestRefusals: each refusal has the Hub's status, code and words.
func TestRefusals(t *testing.T) {
	f := newFixture(t, nil)
	for _, c := range []struct {
		name, path, token string
		status            int
		code, message     string
	}{
		{"gated metadata is open", "/api/models/org/gated", "", 200, "", ""},
		{"gated file, no token", "/org/gated/resolve/main/README.md", "", 401, "GatedRepo", "Please log in"},
		{"gated file, not let in", "/org/gated/resolve/main/README.md", "hf_stranger", 403, "GatedRepo", "not in the authorized list"},
		{"gated file, let in", "/org/gated/resolve/main/README.md", "hf_friend", 307, "", ""},
		{"gated check, not let in", "/api/models/org/gated/auth-check", "hf_stranger", 403, "GatedRepo", ""},
		{"gated check, let in", "/api/models/org/gated/auth-check", "hf_friend", 200, "", ""},
		{"private, no token", "/api/models/org/private", "", 401, "", "Invalid username or password."},
		{"private, stranger", "/api/models/org/private", "hf_stranger", 404, "RepoNotFound", "Repository not found"},
		{"private, friend", "/api/models/org/private", "hf_friend", 200, "", ""},
		{"missing, no token", "/api/models/org/nothing", "", 401, "", "Invalid username or password."},
		{"missing, token", "/org/nothing/resolve/main/x", "hf_friend", 404, "RepoNotFound", "Repository not found"},
		{"revision", "/api/models/org/model/revision/refs%2Fpr%2F1", "", 404, "RevisionNotFound", "Invalid rev id: refs/pr/1"},
		{"file", "/org/model/resolve/main/none.gguf", "", 404, "EntryNotFound", "Entry not found"},
		{"bad token on a public model", "/api/models/org/model", "hf_wrong", 401, "", "Invalid credentials in Authorization header"},
		{"no scope", "/org/model/resolve/main/README.md", "hf_noscope", 403, "", "permission"},
		{"renamed", "/api/models/org/old/tree/main", "", 307, "", ""},
		{"whoami", "/api/whoami-v2", "hf_friend", 200, "", ""},
		{"no page", "/somewhere", "", 404, "", "can't find"},
	} {
		resp, body, _ := f.do("GET", c.path, c.token)
		if resp.StatusCode != c.status || resp.Header.Get("X-Error-Code") != c.code ||
			!strings.Contains(resp.Header.Get("X-Error-Message"), c.message) || !strings.Contains(string(body), c.message) {
			t.Errorf("%s: %s %q %q %s", c.name, resp.Status, resp.Header.Get("X-Error-Code"), resp.Header.Get("X-Error-Message"), body)
		}
	}
	if resp, _, _ := f.do("GET", "/api/models/org/old/tree/main", ""); resp.Header.Get("Location") != "/api/models/org/model/tree/main" {
		t.Errorf("renamed: %v", resp.Header)
	}
	f.LimitRequests("api", 1)
	for i, want := range []int{200, 429, 429} {
		if resp, _, _ := f.do("GET", "/api/models/org/model", ""); resp.StatusCode != want || resp.Header.Get("RateLimit") != `"api";r=0;t=55` {
			t.Errorf("request %d: %s %s", i, resp.Status, resp.Header.Get("RateLimit"))
		}
	}
	if resp, _, _ := f.do("HEAD", "/org/model/resolve/main/README.md", ""); resp.StatusCode != 307 {
		t.Errorf("another budget: %s", resp.Status)
	}
}

// TestFaultsReachFiles: a content network may break off, and the Hub may answer with a web page.
func TestFaultsReachFiles(t *testing.T) {
	f := newFixture(t, nil)
	f.CDNFaults.Set(faults.Settings{CutAfter: 1000, Cuts: 1})
	resp, _, _ := f.do("HEAD", "/org/model/resolve/main/m.Q4_1.gguf", "")
	if _, body, err := f.do("GET", resp.Header.Get("Location"), ""); !errors.Is(err, io.ErrUnexpectedEOF) || len(body) != 1000 {
		t.Errorf("cut: %d bytes, %v", len(body), err)
	}
	f.HubFaults.Set(faults.Settings{HTML: true})
	if resp, _, _ := f.do("GET", "/api/models/org/model", ""); !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html") {
		t.Errorf("a web page: %v", resp.Header)
	}
}
