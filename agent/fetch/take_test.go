package fetch

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/hub"
)

// brought runs a fetch up to where the agent takes over, and returns the order and the path of the file in the stage.
func (w *world) brought(model string) (Spec, string) {
	w.t.Helper()
	s := w.prepare(w.spec(model, repoID))
	if err := Run(w.t.Context(), s, &hub.Client{BaseURL: s.HubURL, Attempts: 1}); err != nil {
		w.t.Fatal(err)
	}
	return s, filepath.Join(s.Stage, filesDir, "sha256-"+sumOf(w.data))
}

// TestTakeDistrusts: whatever a fetch leaves in place of the file that it was to bring, no other file of the node and no
// wrong content comes into the store or the set, and the next fetch mends it.
func TestTakeDistrusts(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "secret")
	for name, change := range map[string]func(w *world, file string) error{
		"a link to a file of the same size": func(w *world, file string) error {
			return errors.Join(os.WriteFile(outside, w.data, 0o600), os.Remove(file), os.Symlink(outside, file))
		},
		"a second name of a file": func(w *world, file string) error {
			return errors.Join(os.WriteFile(outside, w.data, 0o600), os.Remove(file), os.Link(outside, file))
		},
		"the directory is a link": func(w *world, file string) error {
			dir := filepath.Dir(file)
			elsewhere := filepath.Join(filepath.Dir(outside), "elsewhere")
			return errors.Join(os.Rename(dir, elsewhere), os.Symlink(elsewhere, dir))
		},
		"other content of the same size": func(w *world, file string) error {
			return os.WriteFile(file, bytes.Repeat([]byte("x"), len(w.data)), 0o644)
		},
		"other content, and a listing that agrees with it": func(w *world, file string) error {
			other := bytes.Repeat([]byte("x"), len(w.data))
			res, err := readResult(filepath.Dir(filepath.Dir(file)))
			if err != nil {
				return err
			}
			for i := range res.Listing {
				res.Listing[i].Path = "../../" + res.Listing[i].Path
			}
			b, err := json.Marshal(res)
			return errors.Join(err, os.WriteFile(file, other, 0o644), os.WriteFile(filepath.Join(filepath.Dir(filepath.Dir(file)), resultName), b, 0o644))
		},
		"a longer file":    func(w *world, file string) error { return os.WriteFile(file, append(bytes.Clone(w.data), 1), 0o644) },
		"a directory":      func(w *world, file string) error { return errors.Join(os.Remove(file), os.Mkdir(file, 0o755)) },
		"a pipe":           func(w *world, file string) error { return errors.Join(os.Remove(file), unix.Mkfifo(file, 0o666)) },
		"nothing":          func(w *world, file string) error { return os.Remove(file) },
		"a result by link": func(w *world, file string) error { return linked(filepath.Dir(filepath.Dir(file)), resultName) },
		"a huge result": func(w *world, file string) error {
			return os.Truncate(filepath.Join(filepath.Dir(filepath.Dir(file)), resultName), mostResult+1)
		},
		"a listing of more files than memory holds": func(w *world, file string) error {
			stage := filepath.Dir(filepath.Dir(file))
			b, err := os.ReadFile(filepath.Join(stage, resultName))
			more := bytes.Replace(b, []byte(`"listing":[`), []byte(`"listing":[`+strings.Repeat(`{},`, mostListed)), 1)
			return errors.Join(err, os.WriteFile(filepath.Join(stage, resultName), more, 0o644))
		},
		"directories in one another": func(w *world, file string) error { return errors.Join(os.Remove(file), nest(w.t, file)) },
		"the result of another order": func(w *world, file string) error {
			return os.WriteFile(filepath.Join(filepath.Dir(filepath.Dir(file)), resultName), []byte(`{"key":"k-other"}`), 0o644)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 50_000)
			os.Remove(outside)
			os.RemoveAll(filepath.Join(filepath.Dir(outside), "elsewhere"))
			s, file := w.brought("chat")
			if err := change(w, file); err != nil {
				t.Fatal(err)
			}
			err := w.store.Take(t.Context(), s, func(levelrail.Progress) {})
			var f *Failure
			if !errors.As(err, &f) || f.Reason != levelrail.DownloadFailed || f.Next == "" {
				t.Fatalf("got %v, want a failure that says what is next", err)
			}
			if _, err := ReadManifest(w.store.Set("chat")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("a set stands: %v", err)
			}
			entries, err := os.ReadDir(w.store.blobs())
			if err != nil || len(entries) != 0 {
				t.Errorf("in the store: %v, %v", entries, err)
			}
			if info, err := os.Stat(outside); err == nil && info.Mode().Perm() != 0o600 {
				t.Errorf("a file outside has the mode %v now", info.Mode())
			}
			w.must(w.spec("chat", repoID))
			if got, err := os.ReadFile(filepath.Join(w.store.Set("chat"), quant)); err != nil || !bytes.Equal(got, w.data) {
				t.Errorf("the next fetch brought something else: %v", err)
			}
		})
	}
}

func linked(dir, name string) error {
	to := filepath.Join(dir, "there")
	return errors.Join(os.Rename(filepath.Join(dir, name), to), os.Symlink(to, filepath.Join(dir, name)))
}

// nest makes directories in one another, more than this process may have open until the test ends.
func nest(t *testing.T, dir string) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	t.Cleanup(func() { unix.Setrlimit(unix.RLIMIT_NOFILE, &limit) })
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 300, Max: limit.Max}); err != nil {
		return err
	}
	at, name := unix.AT_FDCWD, dir
	for range 1000 {
		if err := unix.Mkdirat(at, name, 0o700); err != nil {
			return err
		}
		next, err := unix.Openat(at, name, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if at >= 0 {
			unix.Close(at)
		}
		if err != nil {
			return err
		}
		at, name = next, "d"
	}
	return unix.Close(at)
}

// TestStageIsGivenUp: a tree that no fetch makes neither keeps the stage from being removed nor the next fetch from beginning.
func TestStageIsGivenUp(t *testing.T) {
	w := newWorld(t, 1000)
	s := w.prepare(w.spec("chat", repoID))
	if err := errors.Join(nest(t, filepath.Join(s.Stage, "a")), nest(t, filepath.Join(s.Stage, "b"))); err != nil {
		t.Fatal(err)
	}
	w.must(w.spec("chat", repoID))
	s = w.prepare(w.spec("other", repoID))
	if err := nest(t, filepath.Join(s.Stage, filesDir, "a")); err != nil {
		t.Fatal(err)
	}
	if err := w.store.Abandon("other"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(s.Stage); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the stage: %v", err)
	}
}

// TestTakeOwns: what comes into the store belongs to the agent's user and can be written by nobody else.
func TestTakeOwns(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("files of another user take root")
	}
	w := newWorld(t, 50_000)
	s, file := w.brought("chat")
	if err := errors.Join(os.Chown(file, 61234, 61234), os.Chmod(file, 0o666)); err != nil {
		t.Fatal(err)
	}
	if err := w.store.Take(t.Context(), s, func(levelrail.Progress) {}); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{w.store.blob(sumOf(w.data)), filepath.Join(w.store.Set("chat"), quant)} {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil || st.Uid != 0 || st.Gid != 0 || st.Mode&0o777 != 0o644 {
			t.Errorf("%s: owner %d:%d, mode %o, %v", path, st.Uid, st.Gid, st.Mode&0o777, err)
		}
	}
}

// TestAnotherUserGoesOn: the process of the next run may be another user; it goes on with what the last one left.
func TestAnotherUserGoesOn(t *testing.T) {
	w := newWorld(t, 1000)
	s := w.prepare(w.spec("chat", repoID))
	partial := filepath.Join(s.Stage, filesDir, "sha256-"+sumOf(w.data)+hub.PartialSuffix)
	deep := filepath.Join(s.Stage, engineDir, "a")
	if err := errors.Join(os.WriteFile(partial, w.data[:10], 0o600), os.Mkdir(deep, 0o700), os.WriteFile(filepath.Join(s.Stage, StateName), []byte("{}"), 0o600),
		os.Symlink("/etc/hostname", filepath.Join(deep, "link")), unix.Mkfifo(filepath.Join(deep, "pipe"), 0o600)); err != nil {
		t.Fatal(err)
	}
	w.prepare(w.spec("chat", repoID))
	for path, want := range map[string]fs.FileMode{partial: 0o666, deep: 0o777, s.Stage: 0o777, filepath.Dir(partial): 0o777, filepath.Dir(s.Stage): 0o700} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has the mode %v, %v, want %v", path, info.Mode().Perm(), err, want)
		}
	}
	for _, name := range []string{"link", "pipe"} {
		if _, err := os.Lstat(filepath.Join(deep, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the %s stayed: %v", name, err)
		}
	}
}

// TestStateIsDistrusted: what a fetch says of itself cannot lead the agent to another file, hold it up, or write to an
// operator's terminal.
func TestStateIsDistrusted(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, StateName)
	if err := os.WriteFile(path, []byte(`{"key":"k","state":"failed","progress":{"phase":"down\u001b[2Jloading","done_bytes":-5,"total_bytes":-9,"file":"a\nb"},`+
		`"failure":{"reason":"ModelLoaded","message":"`+strings.Repeat("x", 5000)+`\u001b]0;owned\u0007","next":"rm\nx","retry_after_seconds":100000000}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := ReadState(dir)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(b, []byte(`\u001b`)) || bytes.Contains(b, []byte(`\n`)) || len(s.Failure.Message) > 2000 {
		t.Errorf("it went through: %s", b)
	}
	if s.Failure.Reason != levelrail.DownloadFailed || time.Duration(s.Failure.RetryAfter) > 24*time.Hour || s.Progress.DoneBytes != 0 || *s.Progress.TotalBytes != 0 {
		t.Errorf("it is believed: %+v %+v", s.Failure, s.Progress)
	}
	for name, change := range map[string]func() error{
		"link":   func() error { return os.Symlink("/proc/self/status", path) },
		"pipe":   func() error { return unix.Mkfifo(path, 0o666) },
		"folder": func() error { return os.Mkdir(path, 0o755) },
		"size":   func() error { return errors.Join(os.WriteFile(path, nil, 0o644), os.Truncate(path, mostState+1)) },
	} {
		if err := errors.Join(os.RemoveAll(path), change()); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadState(dir); err == nil {
			t.Errorf("%s: it is read", name)
		}
	}
}

// TestEarlierLayout: what a fetch of an earlier version left in the store is gone on with, unless that fetch still runs.
func TestEarlierLayout(t *testing.T) {
	w := newWorld(t, 100_000)
	if err := w.store.prepare(); err != nil {
		t.Fatal(err)
	}
	k := key(sumOf(w.data), "")
	put := func() {
		if err := os.WriteFile(w.store.partial(k), w.data[:60_000], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put()
	unlock, err := w.store.lock(t.Context(), k, func() {})
	if err != nil {
		t.Fatal(err)
	}
	w.prepare(w.spec("chat", repoID))
	if _, err := os.Stat(w.store.partial(k)); err != nil {
		t.Errorf("a partial file in use was taken away: %v", err)
	}
	unlock()
	w.prepare(w.spec("chat", repoID))
	moved := filepath.Join(w.store.Stage("chat"), filesDir, filepath.Base(w.store.partial(k)))
	if info, err := os.Stat(moved); err != nil || info.Mode().Perm() != 0o666 { // the fetch is another user
		t.Errorf("taken over: %v, %v", info, err)
	}
	w.must(w.spec("chat", repoID))
	ranged := false
	for _, r := range w.stub.Requests() {
		ranged = ranged || r.CDN && r.Range == "bytes=60000-"
	}
	if !ranged {
		t.Error("the fetch began from the start")
	}
	if left := w.leftovers(); len(left) != 0 {
		t.Errorf("left over: %q", left)
	}
}

// TestImportDistrusts: an engine's import cannot bring a file of the node into its set by a link, nor a name that leads out.
func TestImportDistrusts(t *testing.T) {
	w := newWorld(t, 10)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("pulled weights"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := w.prepare(w.importSpec("one", "tag:1", "", "one"))
	if err := Run(t.Context(), s, nil); err != nil {
		t.Fatal(err)
	}
	store := filepath.Join(s.Stage, engineDir)
	blob := filepath.Join(store, "blobs", "sha256-"+sumOf([]byte("pulled weights")))
	if err := errors.Join(os.Symlink(secret, filepath.Join(store, "manifests", "shadow")), os.Link(secret, filepath.Join(store, "manifests", "hard"))); err != nil {
		t.Fatal(err)
	}
	err := os.Rename(filepath.Join(store, "manifests", "hard"), filepath.Join(store, "manifests", "\x1b]0;owned\a"))
	if err == nil {
		err = w.store.Take(t.Context(), s, func(levelrail.Progress) {})
	}
	if f := new(Failure); !errors.As(err, &f) || !strings.Contains(f.Message, "several names") || strings.ContainsFunc(f.Message, unicode.IsControl) {
		t.Errorf("a second name of a file was taken, or its name is told as it is: %q", err)
	}
	w.must(w.importSpec("one", "tag:1", "", "one"))
	s = w.prepare(w.importSpec("many", "tag:1", "", "many"))
	if err := Run(t.Context(), s, nil); err != nil {
		t.Fatal(err)
	}
	for i := range mostSmall/mostManifest + 1 {
		if err := os.WriteFile(filepath.Join(s.Stage, engineDir, "manifests", strconv.Itoa(i)), make([]byte, mostManifest), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.store.Take(t.Context(), s, func(levelrail.Progress) {}); err == nil {
		t.Error("more was taken beside the content than all imports together need")
	}
	s = w.prepare(w.importSpec("two", "tag:2", "", "two"))
	if err := Run(t.Context(), s, nil); err != nil {
		t.Fatal(err)
	}
	blob = strings.Replace(blob, "one", "two", 1)
	if err := errors.Join(os.RemoveAll(w.store.blob(sumOf([]byte("pulled weights")))), os.Remove(blob), os.Symlink(secret, blob)); err != nil {
		t.Fatal(err)
	}
	if err := w.store.Take(t.Context(), s, func(levelrail.Progress) {}); err == nil {
		t.Error("a link was taken for the model's file")
	}
}
