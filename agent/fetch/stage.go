package fetch

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/beneath"
	"github.com/levelrail/levelrail/engine"
	"github.com/levelrail/levelrail/hub"
)

// The stage of a fetch: the one directory that its process can write. The process runs as a user of its own, for as long
// as its unit runs, so the next run may be another user; a stage is therefore writable by everybody, and nobody but the
// process reaches it, because the directory above is closed.
const (
	stagesDir  = ".fetch"      // below the store: one directory a model
	filesDir   = "files"       // in a stage: downloads, by key
	engineDir  = "store"       // in a stage: what an engine's own import makes
	resultName = "result.json" // in a stage: what the fetch says of its finished work
	spareName  = "spare"       // in a stage: given up when the disk is full, so that the fetch can still say so
)

// Bounds of what is read from a stage. Whoever writes there is not trusted.
const (
	mostState    = 1 << 20  // of the state file
	mostResult   = 32 << 20 // of the result: a listing of 100,000 files
	mostManifest = 4 << 20  // of one file of an engine's store that is no content
	mostSmall    = 16 << 20 // of all of them
	mostListed   = 100_000  // files of a repository's listing
	mostEntries  = 20000    // files and directories of an engine's store
	mostDepth    = 32       // directories in one another
)

// result is what a finished fetch says. Take believes none of it that it can check.
type result struct {
	Key     string  `json:"key"`
	Commit  string  `json:"commit,omitempty"`
	Listing listing `json:"listing,omitempty"` // the Hub's, at Commit
}

// listing is read with a bound: of a few bytes each, more files fit into a result than into memory.
type listing []engine.HubFile

func (l *listing) UnmarshalJSON(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	if begin, err := d.Token(); err != nil || begin != json.Delim('[') {
		return errors.Join(err, errors.New("the listing is no list"))
	}
	for *l = nil; d.More(); {
		if len(*l) == mostListed {
			return fmt.Errorf("the listing has more than %d files", mostListed)
		}
		var f engine.HubFile
		if err := d.Decode(&f); err != nil {
			return err
		}
		*l = append(*l, f)
	}
	return nil
}

func (s Store) stages() string { return filepath.Join(s.Dir, stagesDir) }

// Stage is the directory in which the model's fetch works.
func (s Store) Stage(model string) string { return filepath.Join(s.stages(), model) }

// Staged lists the models that have a stage.
func (s Store) Staged() ([]string, error) {
	entries, err := os.ReadDir(s.stages())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list what is being fetched: %w", err)
	}
	var models []string
	for _, e := range entries {
		if e.IsDir() {
			models = append(models, e.Name())
		}
	}
	return models, nil
}

// Prepare makes the stage of a fetch ready for its process, and returns the order with what the process has to know of
// the store. What an earlier run brought is kept. A file of the node that an engine has to import is copied into the store
// first, and linked into the stage.
func (s Store) Prepare(ctx context.Context, o Spec, dirs Dirs, tell func(levelrail.Progress)) (Spec, error) {
	plan, err := o.plan()
	if err != nil {
		return o, err
	}
	if err := s.prepare(); err != nil {
		return o, err
	}
	if err := os.Mkdir(s.stages(), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return o, fmt.Errorf("prepare the fetch: %w", err)
	}
	o.Stage = s.Stage(o.Model)
	fail := func(err error) (Spec, error) { return o, fmt.Errorf("prepare the fetch: %w", err) }
	// First of all every link goes that an earlier run may have put there.
	err = errors.Join(stageDir(o.Stage), loosen(o.Stage))
	if errors.Is(err, errTooMuch) { // no fetch makes that, so nothing in it is worth going on with
		err = errors.Join(sweep(o.Stage), stageDir(o.Stage))
	}
	if err := errors.Join(err, s.keepIdentity(o, plan)); err != nil {
		return fail(err)
	}
	files, blobs := filepath.Join(o.Stage, filesDir), filepath.Join(o.Stage, engineDir, "blobs")
	if err := errors.Join(stageDir(files), stageDir(filepath.Dir(blobs)), stageDir(blobs), s.showIdentity(o, plan)); err != nil {
		return fail(err)
	}
	s.adopt(files)
	for _, name := range []string{resultName, StateName} {
		if err := os.RemoveAll(filepath.Join(o.Stage, name)); err != nil {
			return fail(err)
		}
	}
	if plan.From != engine.FromEngine {
		if o.Have, err = s.have(); err != nil {
			return o, err
		}
		return o, nil
	}
	if err := s.seed(o, blobs); err != nil {
		return fail(err)
	}
	if plan.Path != "" {
		local, sum, err := s.copyIn(ctx, dirs, plan.Path, o.Spec.SHA256, func(p levelrail.Progress, total int64) {
			p.TotalBytes = &total
			tell(p)
		})
		if err != nil {
			return o, err
		}
		o.Local, o.LocalSHA256 = &local, sum
		// Under the name by which the engine would store it: it then has nothing to copy.
		if err := os.Link(s.blob(sum), filepath.Join(blobs, "sha256-"+sum)); err != nil && !errors.Is(err, fs.ErrExist) {
			return o, err
		}
	}
	return o, nil
}

// stageDir makes a directory of a stage, in place of whatever else stands there.
func stageDir(dir string) error {
	if info, err := os.Lstat(dir); err == nil && !info.IsDir() {
		if err := os.Remove(dir); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.Chmod(dir, 0o777)
}

// identity names the two halves of the key pair by which an engine's import is known to registries.
func identity(plan engine.WeightsPlan) []string {
	if plan.Identity == "" || !filepath.IsLocal(plan.Identity) {
		return nil
	}
	return []string{plan.Identity, plan.Identity + ".pub"}
}

// keepIdentity keeps the key pair that the first import made, beside all sets, so that it stays the same from fetch to
// fetch.
func (s Store) keepIdentity(o Spec, plan engine.WeightsPlan) error {
	for _, name := range identity(plan) {
		kept := filepath.Join(s.Dir, name)
		if _, err := os.Lstat(kept); err == nil {
			continue
		}
		b, err := readStaged(o.Stage, name, 64<<10)
		if err != nil {
			continue // none was made yet
		}
		if err := os.MkdirAll(filepath.Dir(kept), 0o700); err != nil {
			return err
		}
		if err := WriteFile(kept, b, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// showIdentity puts the kept key pair where the next import looks for it.
func (s Store) showIdentity(o Spec, plan engine.WeightsPlan) error {
	for _, name := range identity(plan) {
		b, err := os.ReadFile(filepath.Join(s.Dir, name))
		if err != nil {
			continue // none is kept yet
		}
		dir := o.Stage
		for _, part := range strings.Split(filepath.Dir(name), "/") {
			dir = filepath.Join(dir, part)
			if err := stageDir(dir); err != nil {
				return err
			}
		}
		to := filepath.Join(o.Stage, name)
		// Readable by all in a stage, which nobody else reaches: the process is not its owner.
		if err := errors.Join(os.RemoveAll(to), os.WriteFile(to, b, 0o644), os.Chmod(to, 0o644)); err != nil {
			return err
		}
	}
	return nil
}

// have lists the files of the store, by checksum, with their sizes.
func (s Store) have() (map[string]int64, error) {
	entries, err := os.ReadDir(s.blobs())
	if err != nil {
		return nil, fmt.Errorf("list the store of weights: %w", err)
	}
	have := map[string]int64{}
	for _, e := range entries {
		if !contentName.MatchString(e.Name()) || len(have) == mostHave {
			continue
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			have[strings.TrimPrefix(e.Name(), "sha256-")] = info.Size()
		}
	}
	return have, nil
}

// mostHave bounds the order, which travels as a credential of at most a megabyte. What is not named is fetched again.
const mostHave = 8000

// adopt moves into a stage what fetches of earlier versions, which worked in the store itself, left unfinished there.
func (s Store) adopt(to string) {
	paths, err := filepath.Glob(filepath.Join(s.blobs(), "*"+hub.PartialSuffix))
	if err != nil {
		return
	}
	for _, p := range paths {
		key := strings.TrimSuffix(filepath.Base(p), hub.PartialSuffix)
		if !fetchKeyName.MatchString(key) {
			continue
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // one try: whoever holds the lock, a fetch of an earlier version that still runs, needs the file
		unlock, err := s.lock(ctx, key, func() {})
		if err != nil {
			continue
		}
		moved := filepath.Join(to, filepath.Base(p))
		if os.Rename(p, moved) == nil && os.Chmod(moved, 0o666) != nil { // else it is downloaded again
			os.Remove(moved)
		}
		unlock()
	}
}

// loosen lets whatever user the next process is go on with what the last one left: directories and files of its own are
// opened to all, anything that is neither is removed. Links of the store stay as they are. It follows no link.
func loosen(stage string) error {
	root, err := os.OpenRoot(stage)
	if err != nil {
		return err
	}
	defer root.Close()
	return walk(root, func(path string, e fs.DirEntry) error {
		if !e.IsDir() && !e.Type().IsRegular() {
			return root.Remove(path)
		}
		f, err := root.OpenFile(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		if e.IsDir() {
			return f.Chmod(0o777)
		}
		if n, err := links(f); err != nil || n > 1 {
			return err
		}
		return f.Chmod(0o666)
	})
}

// errTooMuch says that a stage holds what no fetch makes.
var errTooMuch = fmt.Errorf("it holds more than %d files, or directories more than %d deep", mostEntries, mostDepth)

// walk calls each for all that lies below a directory of a stage, a directory before what is in it. It follows no link, and
// holds a part of a directory only, however many names have been made there.
func walk(root *os.Root, each func(path string, e fs.DirEntry) error) error {
	entries := 0
	var below func(dir string, depth int) error
	below = func(dir string, depth int) error {
		if depth > mostDepth {
			return errTooMuch
		}
		return names(root, dir, func(e fs.DirEntry) error {
			if entries++; entries > mostEntries {
				return errTooMuch
			}
			path := filepath.Join(dir, e.Name())
			if err := each(path, e); err != nil || !e.IsDir() {
				return err
			}
			return below(path, depth+1)
		})
	}
	return below(".", 0)
}

// names calls each for what a directory holds, a part of it at a time.
func names(root *os.Root, dir string, each func(e fs.DirEntry) error) error {
	f, err := root.OpenFile(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		entries, err := f.ReadDir(256)
		for _, e := range entries {
			if err := each(e); err != nil {
				return err
			}
		}
		if err != nil && err != io.EOF || len(entries) == 0 {
			return ignoreEOF(err)
		}
	}
}

func ignoreEOF(err error) error {
	if err == io.EOF {
		return nil
	}
	return err
}

// sweep removes a stage whose fetch has ended. os.RemoveAll holds a directory open for each level that it goes down, and
// directories in one another cost a process nothing: here each comes up to the first level before what is in it is looked at.
func sweep(stage string) error {
	root, err := os.OpenRoot(stage)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return os.RemoveAll(stage)
	}
	defer root.Close()
	if err := sweepIn(root); err != nil {
		return err
	}
	return ignoreMissing(os.Remove(stage))
}

func sweepIn(root *os.Root) error {
	up, moved := rand.Text(), 0 // a name that nobody has made there
	for left := true; left; {
		left = false
		before := moved
		removed := 0
		gone := func(path string) bool {
			ok := root.Remove(path) == nil
			if ok {
				removed++
			}
			return ok
		}
		err := names(root, ".", func(e fs.DirEntry) error {
			left = true
			if gone(e.Name()) || !e.IsDir() {
				return nil
			}
			err := names(root, e.Name(), func(in fs.DirEntry) error {
				path := filepath.Join(e.Name(), in.Name())
				if gone(path) || !in.IsDir() {
					return nil
				}
				moved++
				return root.Rename(path, fmt.Sprint(up, moved))
			})
			gone(e.Name())
			return err
		})
		if err != nil {
			return err
		}
		if left && removed == 0 && moved == before {
			return fmt.Errorf("remove what lies in %s: nothing of it can be removed", root.Name())
		}
	}
	return nil
}

// removeStaged removes what has a name in a stage, whatever it is.
func removeStaged(root *os.Root, name string) error {
	err := ignoreMissing(root.Remove(name))
	if err == nil {
		return nil
	}
	in, openErr := root.OpenRoot(name)
	if openErr != nil {
		return err
	}
	defer in.Close()
	return errors.Join(sweepIn(in), root.Remove(name))
}

func links(f *os.File) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, err
	}
	return uint64(st.Nlink), nil
}

// openStaged opens a file of a stage whose fetch has ended: a regular file that has no other name, below the stage, over
// no link.
func openStaged(stage, name string) (*os.File, fs.FileInfo, error) {
	f, err := beneath.Open(stage, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", f.Name())
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// readStaged reads a small file of a stage. A fetch may be writing there, as whom is not known.
func readStaged(stage, name string, most int64) ([]byte, error) {
	f, info, err := openStaged(stage, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if n, err := links(f); err != nil || n > 1 {
		return nil, errors.Join(err, fmt.Errorf("%s has several names", f.Name()))
	}
	if info.Size() > most {
		return nil, fmt.Errorf("%s has %d bytes, more than the %d that it may have", f.Name(), info.Size(), most)
	}
	return io.ReadAll(io.LimitReader(f, most))
}

func readResult(stage string) (result, error) {
	var r result
	b, err := readStaged(stage, resultName, mostResult)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("read %s: %w", filepath.Join(stage, resultName), err)
	}
	return r, nil
}
