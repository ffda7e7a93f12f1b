package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/engine"
)

// fromEngine lets the engine make its own store: a short-lived server of the engine writes it, and an engine unit later
// sees it read-only. Such a store has its files by content (sha256-HEX), so they are shared with other models like any.
func (j *job) fromEngine(ctx context.Context, plan engine.WeightsPlan, m *Manifest) error {
	dir := j.store.staging(j.spec.Model)
	if _, err := os.Stat(filepath.Join(dir, ManifestName)); err == nil { // an old set that a crash left there
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	// Kept from an earlier try: the engine goes on with its own partial files.
	if err := os.MkdirAll(filepath.Join(dir, "blobs"), 0o755); err != nil {
		return err
	}
	if err := j.seed(filepath.Join(dir, "blobs")); err != nil {
		return fmt.Errorf("reuse what is there already: %w", err)
	}
	want := engine.ImportWant{Tag: plan.Tag, Path: plan.Path, Names: j.spec.Names}
	if plan.Path != "" {
		info, err := local(plan.Path)
		if err != nil {
			return err
		}
		total := info.Size()
		want.Open = func() (io.ReadCloser, int64, error) {
			f, err := os.Open(plan.Path)
			return f, total, err
		}
		l := Local{Path: plan.Path, Bytes: total, Modified: info.ModTime()}
		want.SHA256, err = j.copyIn(ctx, l, j.spec.Spec.SHA256, func(phase string, n int64) {
			j.rec.tell(levelrail.Progress{Phase: phase, DoneBytes: n, TotalBytes: &total, File: filepath.Base(plan.Path)})
		})
		if err != nil {
			return err
		}
		// Under the name by which the engine would store it: it then has nothing to copy.
		if err := j.store.link(want.SHA256, dir, "blobs/sha256-"+want.SHA256); err != nil {
			return err
		}
		m.Locals = []Local{l}
	} else if err := j.store.room(1); err != nil { // how much a pull brings, the engine learns only while pulling
		return err
	}
	if err := j.serve(ctx, plan, dir, func(ctx context.Context, c *http.Client) error {
		return plan.Import(ctx, c, want, func(p levelrail.Progress) { j.rec.tell(p) })
	}); err != nil {
		return err
	}
	files, err := j.tidy(ctx, dir)
	if err != nil {
		return fmt.Errorf("read the store that the engine made: %w", err)
	}
	m.Files, m.Names, m.Tag = files, j.spec.Names, plan.Tag
	return nil
}

// seed links into the new set the content files of the set in use, and of other models' sets from the same source, so that
// the engine finds what it would bring again. They were verified when they came; what the new set does not name is
// removed at its end.
func (j *job) seed(to string) error {
	sets, err := j.store.Sets()
	if err != nil {
		return err
	}
	for model, m := range sets {
		if m.Engine != j.spec.Engine || model != j.spec.Model && m.Source != j.spec.Spec.Source {
			continue
		}
		for _, f := range m.Files {
			base := filepath.Base(f.Path)
			if filepath.Dir(f.Path) != "blobs" || !contentName.MatchString(base) {
				continue
			}
			err := os.Link(filepath.Join(j.store.Set(model), f.Path), filepath.Join(to, base))
			if err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrNotExist) { // gone: that model was just updated
				return err
			}
		}
	}
	return nil
}

// serve runs the engine's server on dir while use works with it. The port is whatever is free; the client dials it
// whatever host a request names.
func (j *job) serve(ctx context.Context, plan engine.WeightsPlan, dir string, use func(context.Context, *http.Client) error) error {
	if j.spec.Program == "" {
		return &Failure{Reason: levelrail.EngineNotInstalled, Message: "the engine " + j.spec.Engine + ", which has to import the weights, is not on this node"}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("find a free port for the import: %w", err)
	}
	address := l.Addr().String()
	l.Close()
	launch := plan.Serve(j.spec.Program, dir, address)
	cmd := exec.Command(launch.Args[0], launch.Args[1:]...)
	cmd.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, launch.Env...)
	for name, value := range j.spec.Proxy {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	tail := &lastLines{}
	cmd.Stdout, cmd.Stderr = tail, tail
	// The server must not outlive this process, whatever ends it; and its children go with its group.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return &Failure{Reason: levelrail.EngineFailed, Message: fmt.Sprintf("start %s for the import: %v", launch.Args[0], err), Next: "run it by hand to see what it misses"}
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()

	useCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	dialer := &net.Dialer{}
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, "tcp", address)
	}}}
	used := make(chan error, 1)
	go func() { used <- use(useCtx, client) }()
	select {
	case err = <-used:
	case exit := <-ended:
		ended <- exit
		cancel()
		<-used
		err = &Failure{Reason: levelrail.EngineFailed, Message: fmt.Sprintf("%s ended during the import (%v): %s", launch.Args[0], exit, tail), Next: "run it by hand to see what it misses"}
	case <-ctx.Done():
		err = ctx.Err()
	}
	client.CloseIdleConnections()
	syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
	select {
	case <-ended:
	case <-time.After(time.Duration(max(launch.StopSeconds, 5)) * time.Second):
	}
	syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // whatever the group still has
	return err
}

var (
	contentName = regexp.MustCompile(`^sha256-[0-9a-f]{64}$`)
	contentRef  = regexp.MustCompile(`sha256:[0-9a-f]{64}`)
)

// tidy checks and completes what the engine made: content files that nothing names any more are removed, every other one
// is verified and shared with the store, and modes are set so that the engine's user can read what root wrote.
func (j *job) tidy(ctx context.Context, dir string) ([]levelrail.WeightsFile, error) {
	named := map[string]bool{}
	var content, others []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		switch {
		case e.IsDir():
			return os.Chmod(path, 0o755)
		case !e.Type().IsRegular():
			return os.Remove(path)
		case filepath.Dir(rel) == "blobs":
			content = append(content, rel)
			return nil
		}
		others = append(others, rel)
		b, err := os.ReadFile(path)
		for _, ref := range contentRef.FindAllString(string(b), -1) {
			named[strings.Replace(ref, ":", "-", 1)] = true
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var files []levelrail.WeightsFile
	add := func(rel, hex, role string) error {
		info, err := os.Stat(filepath.Join(dir, rel))
		if err == nil {
			files = append(files, levelrail.WeightsFile{Path: rel, SHA256: hex, Bytes: info.Size(), Role: role})
		}
		return err
	}
	for _, rel := range content {
		path, base := filepath.Join(dir, rel), filepath.Base(rel)
		if !named[base] {
			if err := os.Remove(path); err != nil {
				return nil, err
			}
			continue
		}
		hex := strings.TrimPrefix(base, "sha256-")
		if err := j.share(ctx, path, hex); err != nil {
			return nil, err
		}
		if err := add(rel, hex, levelrail.RoleConfig); err != nil {
			return nil, err
		}
	}
	largest := -1
	for i, f := range files {
		if largest < 0 || f.Bytes > files[largest].Bytes {
			largest = i
		}
	}
	if largest < 0 {
		return nil, errors.New("it holds no model")
	}
	files[largest].Role = levelrail.RoleModel
	for _, rel := range others {
		path := filepath.Join(dir, rel)
		if err := os.Chmod(path, 0o644); err != nil {
			return nil, err
		}
		hex, err := sum(ctx, path, nil)
		if err != nil {
			return nil, err
		}
		if err := add(rel, hex, levelrail.RoleManifest); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// share makes one file of a content file and the store's: verified, whoever had it first.
func (j *job) share(ctx context.Context, path, hex string) error {
	if blob, err := os.Stat(j.store.blob(hex)); err == nil {
		own, err := os.Stat(path)
		if err != nil {
			return err
		}
		if os.SameFile(blob, own) {
			return nil
		}
		if blob.Size() == own.Size() { // verified when it came into the store
			tmp := path + ".link"
			if err := os.Link(j.store.blob(hex), tmp); err != nil {
				return err
			}
			return os.Rename(tmp, path)
		}
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	total := info.Size()
	got, err := sum(ctx, path, func(n int64) { j.rec.tell(levelrail.Progress{Phase: "verifying", DoneBytes: n, TotalBytes: &total}) })
	if err != nil {
		return err
	}
	if got != hex {
		return errors.Join(&Failure{Reason: levelrail.DownloadFailed, Message: fmt.Sprintf("the engine brought a file with the checksum %s under the name of %s; it was removed", got, hex),
			Next: "it is fetched again by itself"}, os.Remove(path))
	}
	if err := os.Chmod(path, 0o644); err != nil {
		return err
	}
	err = os.Link(path, j.store.blob(hex))
	if errors.Is(err, fs.ErrExist) {
		return nil // another fetch was first
	}
	return err
}

// lastLines passes what a program says on to the journal and keeps the end for an error text.
type lastLines struct{ tail []byte }

func (l *lastLines) Write(b []byte) (int, error) {
	os.Stderr.Write(b)
	l.tail = append(l.tail, b...)
	if len(l.tail) > 2000 {
		l.tail = l.tail[len(l.tail)-2000:]
	}
	return len(b), nil
}

func (l *lastLines) String() string {
	lines := strings.Split(strings.TrimSpace(string(l.tail)), "\n")
	return strings.Join(lines[max(0, len(lines)-3):], " | ")
}
