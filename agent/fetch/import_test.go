package fetch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/engine"
)

func init() { engine.Register(importing{}) }

// importing is an engine that makes its own store, as the fetch sees one: content files and manifests that name them.
type importing struct{ engine.Engine }

func (importing) Name() string { return "importing" }

func (importing) Weights(spec levelrail.ModelSpec) (engine.WeightsPlan, error) {
	p := engine.WeightsPlan{From: engine.FromEngine, Tag: spec.Source}
	if levelrail.IsPath(spec.Source) {
		p.Tag, p.Path = "", spec.Source
	}
	p.Serve = func(program, dir, address string) engine.Launch {
		return engine.Launch{Args: []string{program}, Env: []string{"IMPORTER_DIR=" + dir, "IMPORTER_ADDRESS=" + address, "IMPORTER_MODE=" + spec.Options["mode"]}, StopSeconds: 5}
	}
	p.Import = func(ctx context.Context, c *http.Client, w engine.ImportWant, progress func(levelrail.Progress)) error {
		progress(levelrail.Progress{Phase: "importing"})
		for {
			resp, err := c.Get("http://localhost/import?names=" + strings.Join(w.Names, ",") + "&sum=" + w.SHA256)
			if err == nil {
				defer resp.Body.Close()
				b, err := io.ReadAll(resp.Body)
				if resp.StatusCode != http.StatusOK {
					return &engine.ImportError{Why: levelrail.DownloadFailed, Message: string(b), Next: "ask somebody"}
				}
				return err
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
	}
	return p, nil
}

// importer is that engine's server: it has one model, and writes it with bad modes on purpose.
func importer(address, dir string) {
	http.HandleFunc("/import", func(rw http.ResponseWriter, r *http.Request) {
		mode := os.Getenv("IMPORTER_MODE")
		sum := r.FormValue("sum")
		switch mode {
		case "refuse":
			http.Error(rw, "no such tag", http.StatusNotFound)
			return
		case "there":
			if _, err := os.Stat(filepath.Join(dir, "blobs", "sha256-"+sumOf([]byte("pulled weights")))); err != nil {
				http.Error(rw, "it would have to be brought again", http.StatusConflict)
				return
			}
		case "die":
			fmt.Println("first line")
			fmt.Println("fatal: the disk smells")
			os.Exit(3)
		}
		if sum == "" {
			content := []byte("pulled weights")
			sum = sumOf(content)
			if mode == "lie" {
				content = []byte("something else")
			}
			must(os.WriteFile(filepath.Join(dir, "blobs", "sha256-"+sum), content, 0o600))
		} else if _, err := os.Stat(filepath.Join(dir, "blobs", "sha256-"+sum)); err != nil {
			http.Error(rw, "the blob is not there", http.StatusBadRequest)
			return
		}
		must(os.WriteFile(filepath.Join(dir, "blobs", "sha256-"+sumOf([]byte("garbage"))), []byte("garbage"), 0o600))
		must(os.WriteFile(filepath.Join(dir, "blobs", "sha256-"+sumOf([]byte("half"))+"-partial"), []byte("ha"), 0o600))
		must(os.MkdirAll(filepath.Join(dir, "manifests"), 0o700))
		for n := range strings.SplitSeq(r.FormValue("names"), ",") {
			b, err := json.Marshal(map[string]any{"layers": []map[string]string{{"digest": "sha256:" + sum}}})
			must(err)
			must(os.WriteFile(filepath.Join(dir, "manifests", n), b, 0o600))
		}
	})
	must(http.ListenAndServe(address, nil))
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func (w *world) importSpec(model, source, mode string, names ...string) Spec {
	s := w.spec(model, source)
	s.Engine, s.Spec.Engine, s.Program, s.Names = "importing", "importing", os.Args[0], names
	if mode != "" {
		s.Spec.Options = levelrail.Options{"mode": mode}
	}
	return s
}

// TestImportPull: the engine's own pull ends in a set whose files are verified, shared, readable and not more than named.
func TestImportPull(t *testing.T) {
	w := newWorld(t, 10)
	m := w.must(w.importSpec("one", "tag:1", "", "one", "tag"))
	set := w.store.Set("one")
	var paths []string
	for _, f := range m.Files {
		paths = append(paths, f.Path)
		if info, err := os.Stat(filepath.Join(set, f.Path)); err != nil || info.Mode().Perm() != 0o644 {
			t.Errorf("%s: %v, %v", f.Path, info, err)
		}
	}
	blob := "blobs/sha256-" + sumOf([]byte("pulled weights"))
	if !slices.Equal(paths, []string{blob, "manifests/one", "manifests/tag"}) || m.Files[0].Role != levelrail.RoleModel {
		t.Errorf("files %+v", m.Files)
	}
	entries, err := os.ReadDir(filepath.Join(set, "blobs"))
	if err != nil || len(entries) != 1 {
		t.Errorf("blobs: %v, %v: what nothing names has to go", entries, err)
	}
	if info, err := os.Stat(filepath.Join(set, "manifests")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("directory: %v, %v", info, err)
	}
	a, err := os.Stat(filepath.Join(set, blob))
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.Stat(w.store.blob(sumOf([]byte("pulled weights")))); err != nil || !os.SameFile(a, b) {
		t.Errorf("not shared with the store: %v", err)
	}
	// A second model of the same tag shares it too, and the engine has nothing to bring.
	w.must(w.importSpec("two", "tag:1", "there", "two"))
	if b, err := os.Stat(filepath.Join(w.store.Set("two"), blob)); err != nil || !os.SameFile(a, b) {
		t.Errorf("stored twice: %v", err)
	}
	// Another name makes another set, and the old names go.
	renamed := w.importSpec("one", "tag:1", "", "one", "new")
	if _, why := Missing(set, renamed.Want()); !strings.Contains(why, "does not know the name new") {
		t.Errorf("a name that the store lacks: %q", why)
	}
	w.must(renamed)
	if _, err := os.Stat(filepath.Join(set, "manifests", "tag")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the old name stayed: %v", err)
	}
}

// TestImportFile: a file of the node is put where the engine looks for it, so that it copies nothing.
func TestImportFile(t *testing.T) {
	w := newWorld(t, 200_000)
	copy(w.data, ggufMagic)
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := os.WriteFile(path, w.data, 0o600); err != nil {
		t.Fatal(err)
	}
	m := w.must(w.importSpec("one", path, "", "one"))
	if m.Files[0].SHA256 != sumOf(w.data) || len(m.Locals) != 1 {
		t.Errorf("manifest %+v", m)
	}
	a, err := os.Stat(w.store.blob(sumOf(w.data)))
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.Stat(filepath.Join(w.store.Set("one"), m.Files[0].Path)); err != nil || !os.SameFile(a, b) {
		t.Errorf("stored twice: %v", err)
	}
}

// TestImportFails: what the engine says, or how it ended, is the reason; nothing half-made stays, and no process.
func TestImportFails(t *testing.T) {
	w := newWorld(t, 10)
	if f := w.fails(w.importSpec("a", "tag:1", "refuse", "a"), levelrail.DownloadFailed, "no such tag"); f.Next != "ask somebody" {
		t.Errorf("next %q", f.Next)
	}
	w.fails(w.importSpec("b", "tag:1", "die", "b"), levelrail.EngineFailed, "fatal: the disk smells")
	w.fails(w.importSpec("c", "tag:1", "lie", "c"), levelrail.DownloadFailed, "is not what its source names")
	s := w.importSpec("d", "tag:1", "", "d")
	s.Program = "/nonexistent/engine"
	w.fails(s, levelrail.EngineFailed, "/nonexistent/engine")
	// The same orders work once they can.
	w.must(w.importSpec("c", "tag:1", "", "c"))
}
