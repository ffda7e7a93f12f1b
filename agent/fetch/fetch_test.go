package fetch

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/engine"
	"github.com/levelrail/levelrail/hub"
	"github.com/levelrail/levelrail/test/engines/faults"
	"github.com/levelrail/levelrail/test/engines/hubstub"
)

// TestMain lets this binary stand in for two programs: the fetch process, and an engine's importing server.
func TestMain(m *testing.M) {
	switch {
	case os.Getenv("FETCH_SPEC") != "":
		if err := Main(context.Background(), os.Getenv("FETCH_SPEC")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case os.Getenv("IMPORTER_DIR") != "":
		importer(os.Getenv("IMPORTER_ADDRESS"), os.Getenv("IMPORTER_DIR"))
	}
	os.Exit(m.Run())
}

const (
	repoID = "org/tiny-GGUF"
	quant  = "tiny.Q4_K_M.gguf"
)

// world is a Hub, a store and a place for specs.
type world struct {
	t     *testing.T
	stub  *hubstub.Stub
	url   string
	store Store
	dirs  Dirs   // that files of the node are taken from
	data  []byte // of the model's file
}

func newWorld(t *testing.T, size int) *world {
	t.Helper()
	w := &world{t: t, dirs: Dirs{os.TempDir()}, store: Store{Dir: t.TempDir()}, data: make([]byte, size)}
	rng := rand.NewChaCha8([32]byte{1})
	if _, err := rng.Read(w.data); err != nil {
		t.Fatal(err)
	}
	src := t.TempDir()
	files := map[string]string{}
	for name, data := range map[string][]byte{quant: w.data, "tiny.Q8_0.gguf": append(bytes.Clone(w.data), 1), "mmproj-tiny.gguf": []byte("projector"), "README.md": []byte("# tiny")} {
		files[name] = filepath.Join(src, name)
		if err := os.WriteFile(files[name], data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if w.stub, err = hubstub.New(hubstub.Options{Repos: []hubstub.Repo{{ID: repoID, Files: files}}}); err != nil {
		t.Fatal(err)
	}
	hubServer, cdn := httptest.NewServer(w.stub.Hub()), httptest.NewServer(w.stub.CDN())
	t.Cleanup(hubServer.Close)
	t.Cleanup(cdn.Close)
	w.stub.SetCDN(cdn.URL)
	w.url = hubServer.URL
	return w
}

func (w *world) spec(model, source string) Spec {
	return Spec{Key: "k-" + model, Model: model, Engine: "llamacpp", Spec: levelrail.ModelSpec{Engine: "llamacpp", Source: source},
		Names: []string{model}, HubURL: w.url}
}

// prepare makes the stage ready, as the agent does.
func (w *world) prepare(s Spec) Spec {
	w.t.Helper()
	s, err := w.store.Prepare(w.t.Context(), s, w.dirs, func(levelrail.Progress) {})
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// fetch brings the weights of an order in the steps that agent and fetch unit take.
func (w *world) fetch(ctx context.Context, s Spec) error {
	w.t.Helper()
	tell := func(levelrail.Progress) {}
	plan, err := s.plan()
	if err != nil {
		return err
	}
	if plan.From == engine.FromFile {
		return w.store.Import(ctx, s, w.dirs, tell)
	}
	if s, err = w.store.Prepare(ctx, s, w.dirs, tell); err != nil {
		return err
	}
	if err := Run(ctx, s, &hub.Client{BaseURL: s.HubURL, Attempts: 1}); err != nil {
		return err
	}
	if st := w.state(s); st.Step != Done || st.Key != s.Key {
		w.t.Fatalf("state %+v", st)
	}
	return w.store.Take(ctx, s, tell)
}

func (w *world) must(s Spec) Manifest {
	w.t.Helper()
	if err := w.fetch(w.t.Context(), s); err != nil {
		w.t.Fatal(err)
	}
	m, why := Missing(w.store.Set(s.Model), s.Want())
	if why != "" {
		w.t.Fatalf("after the fetch: %s", why)
	}
	if _, err := os.Lstat(w.store.Stage(s.Model)); !errors.Is(err, fs.ErrNotExist) {
		w.t.Fatalf("the stage stayed: %v", err)
	}
	return m
}

func (w *world) state(s Spec) State {
	w.t.Helper()
	st, err := ReadState(w.store.Stage(s.Model))
	if err != nil {
		w.t.Fatal(err)
	}
	return st
}

// fails runs a fetch that must fail for the reason, leaving no set behind.
func (w *world) fails(s Spec, reason levelrail.Reason, says string) Failure {
	w.t.Helper()
	err := w.fetch(w.t.Context(), s)
	var f *Failure
	if !errors.As(err, &f) || f.Reason != reason || !strings.Contains(f.Message, says) {
		w.t.Fatalf("got %v, want %s with %q", err, reason, says)
	}
	if st, err := ReadState(w.store.Stage(s.Model)); err == nil && (st.Step != Failed || st.Failure == nil || st.Failure.Message != printable(f.Message, 2000) || st.Failure.Reason != f.Reason) {
		w.t.Errorf("state %+v, want the failure in it", st)
	}
	if f.Next == "" {
		w.t.Error("a failure without a next step")
	}
	if _, err := ReadManifest(w.store.Set(s.Model)); !errors.Is(err, fs.ErrNotExist) {
		w.t.Errorf("a set stands after a failure: %v", err)
	}
	return *f
}

// downloads counts the requests for file contents so far.
func (w *world) downloads() (n int) {
	for _, r := range w.stub.Requests() {
		if r.CDN {
			n++
		}
	}
	return n
}

// leftovers lists what lies in the store beside finished files.
func (w *world) leftovers() (names []string) {
	w.t.Helper()
	entries, err := os.ReadDir(w.store.blobs())
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range entries {
		if !contentName.MatchString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names
}

func sumOf(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// TestHub: the chosen file and no other arrives, verified, readable by engines, with a manifest.
func TestHub(t *testing.T) {
	w := newWorld(t, 100_000)
	m := w.must(w.spec("chat", repoID))
	if len(m.Files) != 1 || m.Files[0].Path != quant || m.Files[0].SHA256 != sumOf(w.data) || m.Files[0].Role != levelrail.RoleModel || m.Commit != w.stub.Commit(repoID) {
		t.Errorf("manifest %+v", m)
	}
	path := filepath.Join(w.store.Set("chat"), quant)
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, w.data) {
		t.Errorf("the file is not the source's: %v", err)
	}
	for p, mode := range map[string]fs.FileMode{path: 0o644, w.store.Set("chat"): 0o755 | fs.ModeDir} {
		if info, err := os.Stat(p); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v, want %v", p, info.Mode(), err, mode)
		}
	}
	if left := w.leftovers(); len(left) != 0 {
		t.Errorf("left over: %q", left)
	}
}

// TestSecondModelDownloadsNothing: the same file is brought and stored once a node.
func TestSecondModelDownloadsNothing(t *testing.T) {
	w := newWorld(t, 50_000)
	w.must(w.spec("one", repoID))
	before := w.downloads()
	w.must(w.spec("two", repoID+":Q4_K_M"))
	if n := w.downloads() - before; n != 0 {
		t.Errorf("%d downloads for a file that was there", n)
	}
	a, err := os.Stat(filepath.Join(w.store.Set("one"), quant))
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.Stat(filepath.Join(w.store.Set("two"), quant))
	if err != nil || !os.SameFile(a, b) {
		t.Errorf("stored twice: %v", err)
	}
}

// TestKilledFetchResumes: a fetch killed in the middle leaves no lock that matters, and the next one goes on where it
// stopped (C045).
func TestKilledFetchResumes(t *testing.T) {
	w := newWorld(t, 4_000_000)
	w.stub.CDNFaults.Set(faults.Settings{Rate: 2_000_000})
	s := w.spec("chat", repoID)
	specPath := filepath.Join(t.TempDir(), SpecName)
	b, err := json.Marshal(w.prepare(s))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(specPath, b, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "FETCH_SPEC="+specPath)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the download is under way", func() bool {
		st, err := ReadState(w.store.Stage(s.Model))
		return err == nil && st.Step == Running && st.Progress != nil && st.Progress.DoneBytes > 500_000
	})
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("the fetch ended before it was killed")
	}
	st := w.state(s)
	if st.Progress.TotalBytes == nil || *st.Progress.TotalBytes != int64(len(w.data)) {
		t.Errorf("state of the killed fetch: %+v", st)
	}
	w.stub.CDNFaults.Set(faults.Settings{})
	w.must(s)
	ranged := false
	for _, r := range w.stub.Requests() {
		ranged = ranged || r.CDN && strings.HasPrefix(r.Range, "bytes=") && r.Range != "bytes=0-"
	}
	if !ranged {
		t.Error("the second fetch began from the start")
	}
	if left := w.leftovers(); len(left) != 0 {
		t.Errorf("left over: %q", left)
	}
}

// TestAbandon: deleting a model in mid-download takes all of it along.
func TestAbandon(t *testing.T) {
	w := newWorld(t, 2_000_000)
	w.stub.CDNFaults.Set(faults.Settings{Rate: 2_000_000})
	s := w.spec("chat", repoID)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.fetch(ctx, s) }()
	eventually(t, "the download is under way", func() bool {
		st, err := ReadState(w.store.Stage("chat"))
		return err == nil && st.Progress != nil && st.Progress.DoneBytes > 0
	})
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatalf("the fetch ended with %v", err)
	}
	if err := w.store.Abandon("chat"); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{w.store.Stage("chat"), w.store.staging("chat")} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s stayed: %v", path, err)
		}
	}
	if left := w.leftovers(); len(left) != 0 {
		t.Errorf("left over: %q", left)
	}
}

// TestWrongChecksum: a file that is not what was promised is removed, whoever made the promise.
func TestWrongChecksum(t *testing.T) {
	w := newWorld(t, 50_000)
	w.stub.CDNFaults.Set(faults.Settings{Corrupt: true})
	w.fails(w.spec("chat", repoID), levelrail.DownloadFailed, "")
	if left := w.leftovers(); len(left) != 0 {
		t.Errorf("left over: %q", left)
	}
	w.stub.CDNFaults.Set(faults.Settings{})
	w.must(w.spec("chat", repoID))
}

// TestHubRefusals: what the Hub says becomes the reason and the next step.
func TestHubRefusals(t *testing.T) {
	w := newWorld(t, 1000)
	w.fails(w.spec("a", "org/nothing"), levelrail.DownloadFailed, "missing, private or gated")
	w.fails(w.spec("b", repoID+":Q2_K"), levelrail.DownloadFailed, "no quantization")
	s := w.spec("c", repoID)
	s.HubURL = "http://127.0.0.1:1"
	w.fails(s, levelrail.DownloadFailed, "cannot be reached")
}

// TestAnotherRevisionReplacesTheSet: an update puts the new set in place in one step, and what is the same is not brought
// again. The old file stays in the store, for going back.
func TestAnotherRevisionReplacesTheSet(t *testing.T) {
	w := newWorld(t, 10_000)
	s := w.spec("chat", repoID)
	w.must(s)
	open, err := os.Open(filepath.Join(w.store.Set("chat"), quant)) // as a running engine has it
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	next := s
	next.Spec.Source = repoID + ":Q8_0"
	if _, why := Missing(w.store.Set("chat"), next.Want()); why == "" {
		t.Fatal("the old set passes for the new one")
	}
	m := w.must(next)
	if len(m.Files) != 1 || m.Files[0].Path != "tiny.Q8_0.gguf" {
		t.Errorf("manifest %+v", m)
	}
	if _, err := os.Stat(filepath.Join(w.store.Set("chat"), quant)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the old file is still in the set: %v", err)
	}
	if b := make([]byte, 10_000); true {
		if n, err := open.Read(b); err != nil || !bytes.Equal(b[:n], w.data[:n]) {
			t.Errorf("the old file is gone under its reader: %v", err)
		}
	}
	before := w.downloads()
	w.must(s)
	if w.downloads() != before {
		t.Error("going back downloaded again")
	}
	if _, err := os.Stat(w.store.staging("chat")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the old set stayed: %v", err)
	}
}

// TestMissing: a finished set is looked at, not believed.
func TestMissing(t *testing.T) {
	w := newWorld(t, 1000)
	s := w.spec("chat", repoID)
	w.must(s)
	set := w.store.Set("chat")
	for name, change := range map[string]func(*Want){
		"another engine":   func(x *Want) { x.Engine = "ollama" },
		"another source":   func(x *Want) { x.Spec.Source = "org/other-GGUF" },
		"a pinned commit":  func(x *Want) { x.Spec.SourceCommit = "main" },
		"a checksum":       func(x *Want) { x.Spec.SHA256 = sumOf(w.data) },
		"with a projector": func(x *Want) { x.Spec.Options = levelrail.Options{"mmproj": "auto"} },
	} {
		want := s.Want()
		change(&want)
		if _, why := Missing(set, want); why == "" {
			t.Errorf("%s: the set passes", name)
		}
	}
	same := s.Want()
	same.Spec.Options = levelrail.Options{"parallel": "2"} // of no concern to the weights
	same.Names = []string{"chat", "more"}
	if _, why := Missing(set, same); why != "" {
		t.Errorf("the set does not pass: %s", why)
	}
	if err := os.Truncate(filepath.Join(set, quant), 10); err != nil {
		t.Fatal(err)
	}
	if _, why := Missing(set, s.Want()); !strings.Contains(why, "10 bytes instead of 1000") {
		t.Errorf("a short file: %q", why)
	}
	if err := os.Remove(filepath.Join(set, quant)); err != nil {
		t.Fatal(err)
	}
	if _, why := Missing(set, s.Want()); !strings.Contains(why, "gone") {
		t.Errorf("a missing file: %q", why)
	}
	// It is mended without asking the network for the file: the store was cut short too, so it must be brought again.
	w.must(s)
}

// TestFile: a file of the node is copied, never shared with its owner.
func TestFile(t *testing.T) {
	w := newWorld(t, 300_000)
	copy(w.data, ggufMagic) // as a file of the node begins
	path := filepath.Join(openDir(t), "my model.gguf")
	s := w.spec("own", path)
	f := w.fails(s, levelrail.DownloadFailed, path+" on this node is not there")
	if time.Duration(f.RetryAfter) != 10*time.Second {
		t.Errorf("looked for again after %v", time.Duration(f.RetryAfter))
	}
	if err := os.WriteFile(path, w.data, 0o600); err != nil {
		t.Fatal(err)
	}
	s.Spec.SHA256 = strings.Repeat("1", 64)
	w.fails(s, levelrail.DownloadFailed, "does not have the expected checksum 1111")
	s.Spec.SHA256 = ""
	m := w.must(s)
	copied := filepath.Join(w.store.Set("own"), "my model.gguf")
	a, err := os.Stat(copied)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.Stat(path)
	if err != nil || os.SameFile(a, b) || a.Mode().Perm() != 0o644 {
		t.Errorf("shared with the owner's file, or mode %v: %v", a.Mode(), err)
	}
	if got, err := os.ReadFile(copied); err != nil || !bytes.Equal(got, w.data) {
		t.Errorf("the copy differs: %v", err)
	}
	if m.Outdated(w.dirs) != "" {
		t.Error("an unchanged file counts as changed")
	}
	// The same content under another name is stored once.
	other := filepath.Join(t.TempDir(), "other.gguf")
	if err := os.WriteFile(other, w.data, 0o600); err != nil {
		t.Fatal(err)
	}
	w.must(w.spec("again", other))
	c, err := os.Stat(filepath.Join(w.store.Set("again"), "other.gguf"))
	if err != nil || !os.SameFile(a, c) {
		t.Errorf("stored twice: %v", err)
	}
	if err := os.WriteFile(path, append(w.data, 1), 0o600); err != nil {
		t.Fatal(err)
	}
	if m.Outdated(w.dirs) != path {
		t.Error("a changed file counts as unchanged")
	}
	folder := filepath.Join(openDir(t), "folder.gguf")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	w.fails(w.spec("dir", folder), levelrail.DownloadFailed, "is not a file")
	if left := w.leftovers(); len(left) != 0 {
		t.Errorf("left over: %q", left)
	}
}

// TestSameFileAtOnce: two fetches of one file of the node, and a third of a copy of it, store it once.
func TestSameFileAtOnce(t *testing.T) {
	w := newWorld(t, 3_000_000)
	copy(w.data, ggufMagic) // as a file of the node begins
	dir := t.TempDir()
	var wg sync.WaitGroup
	errs := make([]error, 6)
	path := func(i int) string { return filepath.Join(dir, fmt.Sprintf("m%d.gguf", i/2)) }
	for i := range errs {
		if err := os.WriteFile(path(i), w.data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for i := range errs {
		s := w.spec(fmt.Sprintf("f%d", i), path(i))
		wg.Go(func() { errs[i] = w.fetch(t.Context(), s) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	blob, err := os.Stat(w.store.blob(sumOf(w.data)))
	if err != nil {
		t.Fatal(err)
	}
	for i := range errs {
		info, err := os.Stat(filepath.Join(w.store.Set(fmt.Sprintf("f%d", i)), fmt.Sprintf("m%d.gguf", i/2)))
		if err != nil || !os.SameFile(info, blob) {
			t.Errorf("f%d is stored apart: %v", i, err)
		}
	}
	if left := w.leftovers(); len(left) != 0 {
		t.Errorf("left over: %q", left)
	}
}

// openDir is a directory that every user of the machine may walk to.
func openDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != filepath.Clean(os.TempDir()); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestDiskFull: what does not fit is not begun, and the reason has the numbers. The disk is a small one of its own.
func TestDiskFull(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting a small disk takes root")
	}
	w := newWorld(t, 3<<20)
	copy(w.data, ggufMagic) // as a file of the node begins
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	w.store = Store{Dir: dir}
	if err := os.WriteFile(filepath.Join(dir, "ballast"), make([]byte, 2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	w.fails(w.spec("chat", repoID), levelrail.InsufficientDisk, "the weights need 3.0 MiB more on the disk of "+dir+", and it has ")
	if n := w.downloads(); n != 0 {
		t.Errorf("%d downloads were begun", n)
	}
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := os.WriteFile(path, w.data, 0o600); err != nil {
		t.Fatal(err)
	}
	w.fails(w.spec("file", path), levelrail.InsufficientDisk, "need")
	// Mended, it works. 3 MiB and the margin of a twentieth fit into 4 MiB.
	if err := os.Remove(filepath.Join(dir, "ballast")); err != nil {
		t.Fatal(err)
	}
	w.must(w.spec("chat", repoID))
}

// TestPathsStayInside: a repository's file names do not lead out of the set, whatever a mirror says.
func TestPathsStayInside(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	if err := s.prepare(); err != nil {
		t.Fatal(err)
	}
	sum := sumOf(nil)
	if err := os.WriteFile(s.blob(sum), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	dir, err := s.begin("m")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"../x", "/etc/x", "a/../../x", "", ManifestName, "sub/.levelrail.json"} {
		if err := s.link(sum, dir, p); err == nil {
			t.Errorf("%q was linked", p)
		}
	}
	if err := s.link(sum, dir, "sub/dir/a.gguf"); err != nil {
		t.Error(err)
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !is() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
