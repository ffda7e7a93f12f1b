// Package registrystub stands in for the Ollama registry: manifests and blobs of models made from GGUF files of this
// machine, so that a real `ollama pull` runs against it.
//
// It owns what the registry says, nothing of what Ollama does with it. As the real one it sends blobs from a storage
// service on another host name: Ollama 0.17.4 fails ("no Location header") when a blob comes without such a redirect.
//
// Two ways in. Over plain HTTP the model's name carries the address, 127.0.0.1:5000/library/smollm2:135m, and the pull
// needs "insecure": true. Under the registry's own name, registry.ollama.ai, a plain smollm2:135m works unchanged: serve
// over TLS with a certificate of package testca, trust that authority on the host and point the name at its loopback.
//
// What it leaves out: pushing, and the signed token exchange of private models.
package registrystub

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"github.com/levelrail/levelrail/test/engines/faults"
)

// A Model is one name of the registry.
type Model struct {
	Name     string         // "smollm2:135m" or "someone/smollm2:135m"; the tag defaults to latest
	GGUF     string         // path on this machine
	Family   string         // default llama
	Size     string         // as shown, default 134.52M
	Quant    string         // default Q4_1
	Template string         // default ChatML, in Ollama's template language
	Params   map[string]any // default: stop at ChatML's marks
	License  string         // default: the words "Apache-2.0"
}

// chatML is how SmolLM2 and many other models are spoken to.
const chatML = `{{- range .Messages }}<|im_start|>{{ .Role }}
{{ .Content }}<|im_end|>
{{ end }}<|im_start|>assistant
`

// Media types of a manifest's parts.
const (
	typeManifest = "application/vnd.docker.distribution.manifest.v2+json"
	typeConfig   = "application/vnd.docker.container.image.v1+json"
	typeModel    = "application/vnd.ollama.image.model"
	typeTemplate = "application/vnd.ollama.image.template"
	typeParams   = "application/vnd.ollama.image.params"
	typeLicense  = "application/vnd.ollama.image.license"
)

// A Stub is a running stand-in.
type Stub struct {
	RegistryFaults faults.Faults // on manifests and on the way to blobs
	StorageFaults  faults.Faults // on the blobs

	manifests map[string][]byte // by "namespace/model:tag"
	models    map[string]string // digest of the weights, by the same
	blobs     map[string]string // path of a file, by digest
	dir       string            // of small blobs

	mu       sync.Mutex
	storage  string // base URL
	requests []Request
}

// A Request is one that reached the stand-in.
type Request struct {
	Storage bool // at the storage service, else at the registry
	Method  string
	Path    string
	Range   string
}

type descriptor struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Size      int64  `json:"size"`
}

// New hashes the models and returns a stand-in. It keeps small files in dir, which must live as long as it does.
func New(dir string, models ...Model) (*Stub, error) {
	s := &Stub{manifests: map[string][]byte{}, models: map[string]string{}, blobs: map[string]string{}, dir: dir}
	for _, m := range models {
		if err := s.add(m); err != nil {
			return nil, fmt.Errorf("model %s: %w", m.Name, err)
		}
	}
	return s, nil
}

func (s *Stub) add(m Model) error {
	or := func(v *string, other string) {
		if *v == "" {
			*v = other
		}
	}
	or(&m.Family, "llama")
	or(&m.Size, "134.52M")
	or(&m.Quant, "Q4_1")
	or(&m.Template, chatML)
	or(&m.License, "Apache-2.0")
	if m.Params == nil {
		m.Params = map[string]any{"stop": []string{"<|im_start|>", "<|im_end|>"}}
	}
	weights, err := s.addFile(typeModel, m.GGUF)
	if err != nil {
		return err
	}
	layers := []descriptor{weights}
	params, err := json.Marshal(m.Params)
	if err != nil {
		return err
	}
	for _, part := range []struct{ kind, text string }{{typeTemplate, m.Template}, {typeLicense, m.License}, {typeParams, string(params)}} {
		d, err := s.addText(part.kind, part.text)
		if err != nil {
			return err
		}
		layers = append(layers, d)
	}
	var diffs []string
	for _, l := range layers {
		diffs = append(diffs, l.Digest)
	}
	config, err := json.Marshal(map[string]any{
		"model_format": "gguf", "model_family": m.Family, "model_families": []string{m.Family},
		"model_type": m.Size, "file_type": m.Quant, "architecture": "amd64", "os": "linux",
		"rootfs": map[string]any{"type": "layers", "diff_ids": diffs},
	})
	if err != nil {
		return err
	}
	c, err := s.addText(typeConfig, string(config))
	if err != nil {
		return err
	}
	manifest, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": typeManifest, "config": c, "layers": layers})
	if err != nil {
		return err
	}
	key := fullName(m.Name)
	s.manifests[key], s.models[key] = manifest, weights.Digest
	return nil
}

// fullName gives "namespace/model:tag".
func fullName(name string) string {
	if !strings.Contains(name, "/") {
		name = "library/" + name
	}
	if !strings.Contains(name, ":") {
		name += ":latest"
	}
	return name
}

func (s *Stub) addText(kind, text string) (descriptor, error) {
	sum := sha256.Sum256([]byte(text))
	path := filepath.Join(s.dir, "sha256-"+hex.EncodeToString(sum[:]))
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		return descriptor{}, err
	}
	return s.addFile(kind, path)
}

func (s *Stub) addFile(kind, path string) (descriptor, error) {
	f, err := os.Open(path)
	if err != nil {
		return descriptor{}, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	if err != nil {
		return descriptor{}, err
	}
	digest := "sha256:" + hex.EncodeToString(h.Sum(nil))
	s.blobs[digest] = path
	return descriptor{kind, digest, n}, nil
}

// WeightsDigest returns the digest of a model's GGUF, "sha256:…", "" without such a model.
func (s *Stub) WeightsDigest(name string) string { return s.models[fullName(name)] }

// SetStorage says under which base URL Storage is served. Its host name, not only its port, must differ from the
// registry's, as it does in the world: 127.0.0.2 is a loopback address too.
func (s *Stub) SetStorage(base string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.storage = base
}

// Requests returns all requests so far, oldest first.
func (s *Stub) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request(nil), s.requests...)
}

func (s *Stub) recorded(storage bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.requests = append(s.requests, Request{storage, r.Method, r.URL.Path, r.Header.Get("Range")})
		s.mu.Unlock()
		next.ServeHTTP(w, r)
	})
}

// Registry returns the handler of the registry.
func (s *Stub) Registry() http.Handler {
	return s.recorded(false, s.RegistryFaults.Wrap(http.HandlerFunc(s.serveRegistry)))
}

// Storage returns the handler of the storage service.
func (s *Stub) Storage() http.Handler {
	return s.recorded(true, s.StorageFaults.Wrap(http.HandlerFunc(s.serveStorage)))
}

var registryPath = regexp.MustCompile(`^/v2/([^/]+/[^/]+)/(manifests|blobs)/([^/]+)$`)

func (s *Stub) serveRegistry(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		registryError(w, http.StatusMethodNotAllowed, "UNSUPPORTED", "this registry is read-only")
		return
	}
	if r.URL.Path == "/v2/" {
		w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
		io.WriteString(w, "{}")
		return
	}
	m := registryPath.FindStringSubmatch(r.URL.Path)
	if m == nil {
		registryError(w, http.StatusNotFound, "NAME_UNKNOWN", "repository name not known to registry")
		return
	}
	name, kind, ref := m[1], m[2], m[3]
	if kind == "manifests" {
		manifest, ok := s.manifests[name+":"+ref]
		if !ok {
			registryError(w, http.StatusNotFound, "MANIFEST_UNKNOWN", "manifest unknown")
			return
		}
		// The real registry says text/plain, whatever was asked for.
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Ollama-Content-Digest", fmt.Sprintf("%x", sha256.Sum256(manifest)))
		w.Write(manifest)
		return
	}
	path, ok := s.blobs[ref]
	if !ok {
		registryError(w, http.StatusNotFound, "BLOB_UNKNOWN", "blob unknown to registry")
		return
	}
	if r.Method == http.MethodHead { // answered by the registry itself: Ollama asks the size here
		info, err := os.Stat(path)
		if err != nil {
			registryError(w, http.StatusInternalServerError, "UNKNOWN", err.Error())
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(info.Size()))
		w.Header().Set("Docker-Content-Digest", ref)
		return
	}
	s.mu.Lock()
	base := s.storage
	s.mu.Unlock()
	w.Header().Set("Location", base+"/blobs/"+strings.Replace(ref, ":", "-", 1)+"?signature=stand-in")
	w.WriteHeader(http.StatusTemporaryRedirect)
}

func (s *Stub) serveStorage(w http.ResponseWriter, r *http.Request) {
	digest := strings.Replace(strings.TrimPrefix(r.URL.Path, "/blobs/"), "-", ":", 1)
	path, ok := s.blobs[digest]
	switch {
	case r.Header.Get("Authorization") != "":
		http.Error(w, "Only one auth mechanism allowed", http.StatusBadRequest)
	case !ok || r.URL.Query().Get("signature") == "":
		http.Error(w, "Access denied", http.StatusForbidden)
	default:
		s.StorageFaults.ServeFile(w, r, path)
	}
}

func registryError(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]any{"errors": []map[string]string{{"code": code, "message": message}}})
}
