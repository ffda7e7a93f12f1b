package registrystub

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRegistry: the manifest names every blob with its size, blobs come from storage in ranges, and their digests are true.
func TestRegistry(t *testing.T) {
	dir := t.TempDir()
	gguf := filepath.Join(dir, "m.gguf")
	if err := os.WriteFile(gguf, []byte("GGUF and more"), 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := New(dir, Model{Name: "tiny:1b", GGUF: gguf})
	if err != nil {
		t.Fatal(err)
	}
	registry, storage := httptest.NewServer(s.Registry()), httptest.NewServer(s.Storage())
	defer registry.Close()
	defer storage.Close()
	s.SetStorage(storage.URL)
	do := func(method, url, rangeHeader string) (*http.Response, string) {
		t.Helper()
		req, _ := http.NewRequest(method, url, nil)
		if rangeHeader != "" {
			req.Header.Set("Range", rangeHeader)
		}
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp, string(body)
	}

	resp, body := do("GET", registry.URL+"/v2/library/tiny/manifests/1b", "")
	var manifest struct {
		SchemaVersion int
		Config        descriptor
		Layers        []descriptor
	}
	if err := json.Unmarshal([]byte(body), &manifest); err != nil || resp.StatusCode != 200 || manifest.SchemaVersion != 2 || len(manifest.Layers) != 4 {
		t.Fatalf("manifest: %s %v %s", resp.Status, err, body)
	}
	if l := manifest.Layers[0]; l.MediaType != typeModel || l.Digest != s.WeightsDigest("tiny:1b") || l.Size != 13 {
		t.Errorf("weights: %+v", l)
	}
	for _, d := range append(manifest.Layers, manifest.Config) {
		blob := registry.URL + "/v2/library/tiny/blobs/" + d.Digest
		if resp, _ := do("HEAD", blob, ""); resp.StatusCode != 200 || resp.ContentLength != d.Size {
			t.Errorf("HEAD %s: %s, %d bytes", d.MediaType, resp.Status, resp.ContentLength)
		}
		resp, _ := do("GET", blob, "")
		to := resp.Header.Get("Location")
		if resp.StatusCode != 307 || !strings.HasPrefix(to, storage.URL) {
			t.Fatalf("GET %s: %s %v", d.MediaType, resp.Status, resp.Header)
		}
		_, content := do("GET", to, "")
		if sum := sha256.Sum256([]byte(content)); "sha256:"+hex.EncodeToString(sum[:]) != d.Digest {
			t.Errorf("%s is not what its digest says: %q", d.MediaType, content)
		}
		if resp, rest := do("GET", to, "bytes=2-"); resp.StatusCode != 206 || rest != content[2:] {
			t.Errorf("%s, a range: %s %q", d.MediaType, resp.Status, rest)
		}
	}
	for path, want := range map[string]string{
		"/v2/library/tiny/manifests/2b":     "MANIFEST_UNKNOWN",
		"/v2/library/other/manifests/1b":    "MANIFEST_UNKNOWN",
		"/v2/library/tiny/blobs/sha256:00":  "BLOB_UNKNOWN",
		"/v2/a/b/c/d/manifests/too-many":    "NAME_UNKNOWN",
		"/v2/library/tiny/something/latest": "NAME_UNKNOWN",
	} {
		if resp, body := do("GET", registry.URL+path, ""); resp.StatusCode != 404 || !strings.Contains(body, want) {
			t.Errorf("%s: %s %s", path, resp.Status, body)
		}
	}
}
