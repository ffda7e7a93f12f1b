package fetch

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/levelrail/levelrail"
)

// TestForbiddenFiles: nothing but a GGUF file below an allowed directory, reached over no link, is taken; what is said of
// anything else tells neither its content nor its checksum, and a link answers alike wherever it leads.
func TestForbiddenFiles(t *testing.T) {
	w := newWorld(t, 10_000)
	copy(w.data, ggufMagic)
	allowed, outside := openDir(t), openDir(t)
	w.dirs = Dirs{"/nonexistent", allowed}
	const secret = "root:$6$secret-of-the-machine"
	put := func(path, text string) {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	link := func(target, path string) {
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
	}
	put(filepath.Join(outside, "shadow"), secret)
	put(filepath.Join(outside, "real.gguf"), string(w.data))
	put(filepath.Join(allowed, "shadow.gguf"), secret)
	put(filepath.Join(allowed, "short.gguf"), "GG")
	put(filepath.Join(allowed, "good.gguf"), string(w.data))
	link(filepath.Join(outside, "shadow"), filepath.Join(allowed, "forbidden.gguf"))
	link(filepath.Join(outside, "real.gguf"), filepath.Join(allowed, "model.gguf"))
	link(filepath.Join(outside, "nothing"), filepath.Join(allowed, "dangling.gguf"))
	link("/proc/self/mem", filepath.Join(allowed, "memory.gguf"))
	link(outside, filepath.Join(allowed, "folder"))
	if err := unix.Mkfifo(filepath.Join(allowed, "pipe.gguf"), 0o644); err != nil {
		t.Fatal(err)
	}
	said := map[string]string{}
	for name, says := range map[string]string{
		allowed + "/forbidden.gguf":   "links are not followed",
		allowed + "/model.gguf":       "links are not followed",
		allowed + "/dangling.gguf":    "links are not followed",
		allowed + "/memory.gguf":      "links are not followed",
		allowed + "/folder/real.gguf": "links are not followed",
		allowed + "/shadow.gguf":      "does not begin as a GGUF file does",
		allowed + "/short.gguf":       "does not begin as a GGUF file does",
		allowed + "/pipe.gguf":        "is not a file", // and nobody waits for its other end
		outside + "/real.gguf":        "is not below a directory",
		outside + "/nothing.gguf":     "is not below a directory",
		allowed + "x/y.gguf":          "is not below a directory",
	} {
		// A checksum of all but this is asked for as well: it must make no difference.
		for _, sum := range []string{"", sumOf([]byte(secret))} {
			s := w.spec("m", name)
			s.Spec.SHA256 = sum
			f := w.fails(s, levelrail.DownloadFailed, says)
			text := f.Message + f.Next
			for what, leak := range map[string]string{"its content": "secret-of-the", "its beginning": "root:", "a checksum": sumOf([]byte(secret)), "where the link leads": filepath.Base(outside) + "/shadow"} {
				if strings.Contains(text, leak) && !strings.Contains(name, leak) {
					t.Errorf("%s: the message tells %s: %s", name, what, text)
				}
			}
			said[filepath.Base(name)] = strings.ReplaceAll(text, name, "FILE")
		}
	}
	for _, name := range []string{"model.gguf", "dangling.gguf", "memory.gguf"} {
		if said[name] != said["forbidden.gguf"] {
			t.Errorf("a link answers %q and %q, by where it leads", said[name], said["forbidden.gguf"])
		}
	}
	if left := w.leftovers(); len(left) != 0 {
		t.Errorf("left over: %q", left)
	}
	if w.store.has(sumOf([]byte(secret)), -1) {
		t.Error("the secret came into the store")
	}
	w.must(w.spec("m", filepath.Join(allowed, "good.gguf")))
	// The directory that root has listed may be a link itself.
	listed := filepath.Join(openDir(t), "models")
	link(allowed, listed)
	w.dirs = Dirs{listed}
	w.must(w.spec("n", filepath.Join(listed, "good.gguf")))
}

// TestClosedPlaces: of a directory that other users of the machine cannot walk into, nothing is told, whatever is wrong.
func TestClosedPlaces(t *testing.T) {
	w := newWorld(t, 10_000)
	copy(w.data, ggufMagic)
	home := filepath.Join(openDir(t), "alice")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	w.dirs = Dirs{filepath.Dir(home)}
	for name, text := range map[string]string{"note.gguf": "dear diary", "good.gguf": string(w.data)} {
		if err := os.WriteFile(filepath.Join(home, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("/etc/hostname", filepath.Join(home, "link.gguf")), os.Mkdir(filepath.Join(home, "folder.gguf"), 0o700)); err != nil {
		t.Fatal(err)
	}
	said := map[string]string{}
	for _, name := range []string{"note.gguf", "nothing.gguf", "link.gguf", "folder.gguf", "no/thing.gguf"} {
		path := filepath.Join(home, name)
		f := w.fails(w.spec("m", path), levelrail.DownloadFailed, "closed to other users")
		said[strings.ReplaceAll(f.Message+f.Next, path, "FILE")] = name
	}
	if len(said) != 1 {
		t.Errorf("%d different answers: %q", len(said), said)
	}
	w.must(w.spec("m", filepath.Join(home, "good.gguf")))
}

// TestSwappedWhileCopied: what is taken is the file that was looked at, also when its name leads elsewhere by then.
func TestSwappedWhileCopied(t *testing.T) {
	w := newWorld(t, 10_000)
	copy(w.data, ggufMagic)
	dir := openDir(t)
	w.dirs = Dirs{dir}
	path := filepath.Join(dir, "m.gguf")
	if err := os.WriteFile(path, w.data, 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := w.dirs.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := errors.Join(os.Remove(path), os.Symlink("/etc/hostname", path)); err != nil {
		t.Fatal(err)
	}
	if b := pread(f, 10_000); sumOf(b) != sumOf(w.data) {
		t.Error("another file is read than was looked at")
	}
	at, err := w.dirs.find(path)
	if err == nil {
		unix.Close(at.fd)
		t.Error("the link passes")
	}
}
