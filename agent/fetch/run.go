package fetch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/engine"
	"github.com/levelrail/levelrail/hub"
)

// Hub is what a fetch asks of the Hugging Face Hub; *hub.Client meets it.
type Hub interface {
	Resolve(ctx context.Context, repo, revision string) (hub.Repo, error)
	Download(ctx context.Context, repo, commit string, f hub.File, dst string, progress func(done int64)) (hub.Got, error)
}

// Main is the fetch process: it reads the spec, brings the weights, and leaves the outcome in the state file beside the
// spec. The error is for the journal; the agent reads the file.
func Main(ctx context.Context, specPath string) error {
	b, err := os.ReadFile(specPath)
	if err != nil {
		return fmt.Errorf("read what to fetch: %w", err)
	}
	var spec Spec
	if err := json.Unmarshal(b, &spec); err != nil {
		return fmt.Errorf("read what to fetch: %s: %w", specPath, err)
	}
	token := ""
	if dir := os.Getenv("CREDENTIALS_DIRECTORY"); dir != "" {
		t, err := os.ReadFile(filepath.Join(dir, "hf_token"))
		if err = ignoreMissing(err); err != nil {
			return fmt.Errorf("read the Hub token's credential: %w", err)
		}
		token = string(t)
	}
	for name, value := range spec.Proxy { // for this process and for an engine's own import
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	return Run(ctx, spec, &hub.Client{BaseURL: spec.HubURL, Token: token}, filepath.Join(filepath.Dir(specPath), StateName))
}

// Run brings the weights of spec and keeps the state file up to date. It returns nil when the set is in place, and the
// *Failure that the state file has otherwise. When ctx ends it returns ctx's error, and what was brought so far stays for
// the next run.
func Run(ctx context.Context, spec Spec, h Hub, statePath string) error {
	r := &recorder{path: statePath, s: State{Key: spec.Key, Step: Running, Partials: spec.Partials}}
	j := &job{spec: spec, hub: h, store: Store{Dir: spec.Store}, rec: r}
	started := time.Now()
	err := j.run(ctx)
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		f := failure(err)
		slog.Error("weights not fetched", "model", spec.Model, "source", spec.Spec.Source, "reason", f.Reason, "error", f.Message)
		return errors.Join(f, r.end(f))
	}
	if err := j.store.Abandon(spec.Model, r.s.Partials); err != nil {
		slog.Warn("files of an earlier fetch stay", "model", spec.Model, "error", err)
	}
	r.s.Partials = nil
	slog.Info("weights fetched", "model", spec.Model, "source", spec.Spec.Source, "took", time.Since(started).Round(time.Millisecond))
	return r.end(nil)
}

// job is one fetch on its way.
type job struct {
	spec  Spec
	hub   Hub
	store Store
	rec   *recorder
}

func (j *job) run(ctx context.Context) error {
	e, err := engine.Get(j.spec.Engine)
	if err != nil {
		return err
	}
	plan, err := e.Weights(j.spec.Spec)
	if err != nil {
		return err
	}
	if err := j.store.prepare(); err != nil {
		return err
	}
	m := Manifest{Engine: j.spec.Engine, Source: j.spec.Spec.Source, From: plan.From, Asked: j.spec.Spec.SourceCommit, SHA256: j.spec.Spec.SHA256}
	switch plan.From {
	case engine.FromHub:
		err = j.fromHub(ctx, plan, &m)
	case engine.FromFile:
		err = j.fromFiles(ctx, plan.Files, &m)
	case engine.FromEngine:
		err = j.fromEngine(ctx, plan, &m)
	default:
		err = fmt.Errorf("the engine %s says that its weights come from %q, which nobody knows", j.spec.Engine, plan.From)
	}
	if err != nil {
		return err
	}
	m.FetchedAt = time.Now().UTC().Truncate(time.Second)
	return j.store.finish(j.spec.Model, m)
}

// fromHub brings the chosen files of a repository, those that the store does not have yet.
func (j *job) fromHub(ctx context.Context, plan engine.WeightsPlan, m *Manifest) error {
	j.rec.tell(levelrail.Progress{Phase: "downloading"})
	repo, err := j.hub.Resolve(ctx, plan.Repo, plan.Commit)
	if err != nil {
		return err
	}
	files := make(map[string]hub.File, len(repo.Files))
	for _, f := range repo.Files {
		files[f.Path] = f
		m.Listing = append(m.Listing, engine.HubFile{Path: f.Path, Bytes: f.Bytes, SHA256: f.SHA256})
	}
	chosen, err := plan.Choose(m.Listing)
	if err != nil {
		return err
	}
	from := func(f engine.HubFile) string { return plan.Repo + "@" + repo.Commit + "/" + f.Path }
	var missing, total, done int64
	for _, f := range chosen {
		total += f.Bytes
		if f.SHA256 == "" || !j.store.has(f.SHA256, f.Bytes) {
			missing += f.Bytes
			if info, err := os.Stat(j.store.partial(key(f.SHA256, from(f)))); err == nil {
				missing -= min(info.Size(), f.Bytes)
			}
		}
	}
	if err := j.store.room(missing); err != nil {
		return err
	}
	dir, err := j.store.begin(j.spec.Model)
	if err != nil {
		return err
	}
	for _, f := range chosen {
		tell := func(phase string, n int64) {
			j.rec.tell(levelrail.Progress{Phase: phase, DoneBytes: done + n, TotalBytes: &total, File: f.Path})
		}
		sum, err := j.ensure(ctx, key(f.SHA256, from(f)), f.SHA256, f.Bytes, tell, func(dst string) (string, error) {
			got, err := j.hub.Download(ctx, plan.Repo, repo.Commit, files[f.Path], dst, func(n int64) { tell("downloading", n) })
			return got.SHA256, err
		})
		if err != nil {
			return err
		}
		if err := j.store.link(sum, dir, f.Path); err != nil {
			return err
		}
		m.Files = append(m.Files, levelrail.WeightsFile{Path: f.Path, SHA256: sum, Bytes: f.Bytes, Role: f.Role})
		done += f.Bytes
	}
	m.Commit = repo.Commit
	return nil
}

// ensure puts a file into the store unless it is there, and returns its checksum. Whoever needs the same file at the same
// time waits for the one that brings it, and finds it there. bring makes dst, complete and verified or not at all, by way
// of its partial file.
func (j *job) ensure(ctx context.Context, key, sum string, bytes int64, tell func(phase string, n int64), bring func(dst string) (string, error)) (string, error) {
	if sum != "" && j.store.has(sum, bytes) {
		return sum, nil
	}
	unlock, err := j.store.lock(ctx, key, func() {
		if info, err := os.Stat(j.store.partial(key)); err == nil {
			tell("downloading", info.Size()) // as far as the one that brings it has come
		}
	})
	if err != nil {
		return "", err
	}
	defer unlock()
	if sum != "" && j.store.has(sum, bytes) {
		return sum, nil
	}
	j.rec.began(key)
	dst := j.store.brought(key)
	got, err := bring(dst)
	if err != nil {
		return "", err
	}
	if sum != "" && got != sum {
		return "", errors.Join(&Failure{Reason: levelrail.DownloadFailed, Message: fmt.Sprintf("the file has the checksum %s, not the expected %s; it was removed", got, sum),
			Next: "it is fetched again by itself; when the checksum was given by hand, check it"}, os.Remove(dst))
	}
	if err := j.store.keep(dst, got); err != nil {
		return "", fmt.Errorf("keep %s in the store of weights: %w", key, err)
	}
	j.rec.ended(key)
	return got, nil
}

// fromFiles copies files of the node: the operator may change or remove theirs later, so the store never shares a file
// with them.
func (j *job) fromFiles(ctx context.Context, files []engine.LocalFile, m *Manifest) error {
	locals := make([]Local, len(files))
	var total, done int64
	for i, f := range files {
		info, err := local(f.Path)
		if err != nil {
			return err
		}
		locals[i] = Local{Path: f.Path, Bytes: info.Size(), Modified: info.ModTime()}
		total += info.Size()
	}
	dir, err := j.store.begin(j.spec.Model)
	if err != nil {
		return err
	}
	for i, f := range files {
		want := ""
		if i == 0 {
			want = j.spec.Spec.SHA256
		}
		tell := func(phase string, n int64) {
			j.rec.tell(levelrail.Progress{Phase: phase, DoneBytes: done + n, TotalBytes: &total, File: filepath.Base(f.Path)})
		}
		sum, err := j.copyIn(ctx, locals[i], want, tell)
		if err != nil {
			return err
		}
		base := filepath.Base(f.Path)
		if err := j.store.link(sum, dir, base); err != nil {
			return err
		}
		m.Files = append(m.Files, levelrail.WeightsFile{Path: base, SHA256: sum, Bytes: locals[i].Bytes, Role: f.Role})
		done += locals[i].Bytes
	}
	m.Locals = locals
	return nil
}

// copyIn brings one file of the node into the store and returns its checksum.
func (j *job) copyIn(ctx context.Context, l Local, want string, tell func(phase string, n int64)) (string, error) {
	wrong := func(got string) error {
		return &Failure{Reason: levelrail.DownloadFailed, Message: fmt.Sprintf("%s has the checksum %s, not the expected %s", l.Path, got, want),
			Next: "put the right file there, or give its checksum with levelrail models update", RetryAfter: fileRetry}
	}
	k := key("", "file:"+l.Path)
	unlock, err := j.store.lock(ctx, k, func() { tell("copying", 0) })
	if err != nil {
		return "", err
	}
	defer unlock()
	// A file of the same size in the store may be this one: reading it costs less than storing it twice.
	if want == "" && j.store.hasSize(l.Bytes) || want != "" && j.store.has(want, l.Bytes) {
		got, err := sum(ctx, l.Path, func(n int64) { tell("verifying", n) })
		if err != nil {
			return "", fileError(l.Path, err)
		}
		if want != "" && got != want {
			return "", wrong(got)
		}
		if j.store.has(got, l.Bytes) {
			return got, nil
		}
	}
	if err := j.store.room(l.Bytes); err != nil {
		return "", err
	}
	j.rec.began(k)
	partial := j.store.partial(k)
	got, err := clone(ctx, l.Path, partial, func(n int64) { tell("copying", n) })
	if err == nil {
		var info fs.FileInfo
		if info, err = local(l.Path); err == nil && (info.Size() != l.Bytes || !info.ModTime().Equal(l.Modified)) {
			err = &Failure{Reason: levelrail.DownloadFailed, Message: l.Path + " was changed while it was copied", Next: "it is copied again by itself once it is finished", RetryAfter: fileRetry}
		}
	}
	if err == nil && want != "" && got != want {
		err = wrong(got)
	}
	if err == nil {
		err = j.store.keep(partial, got)
	}
	if err != nil {
		os.Remove(partial)
		j.rec.ended(k)
		return "", fileError(l.Path, err)
	}
	j.rec.ended(k)
	return got, nil
}

// clone copies a file and returns the checksum of the copy. Where the file system can share blocks it costs no space.
func clone(ctx context.Context, from, to string, progress func(done int64)) (string, error) {
	src, err := os.Open(from)
	if err != nil {
		return "", err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return "", err
	}
	defer dst.Close()
	if unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())) == nil {
		return sum(ctx, to, progress)
	}
	h := newHash()
	if _, err := copyTo(ctx, io.MultiWriter(dst, h), src, progress); err != nil {
		return "", err
	}
	return h.hex(), dst.Close()
}

// fileRetry is how soon a file of the node is looked for again: looking is cheap.
const fileRetry = levelrail.Duration(10 * time.Second)

// local looks at a file of the node.
func local(path string) (fs.FileInfo, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fileError(path, err)
	}
	if !info.Mode().IsRegular() {
		return nil, &Failure{Reason: levelrail.DownloadFailed, Message: path + " on this node is not a file", Next: "name the model's file itself, with levelrail models update --model", RetryAfter: fileRetry}
	}
	return info, nil
}

// fileError says what is wrong with a file of the node. Errors that already say so pass through.
func fileError(path string, err error) error {
	var f *Failure
	switch {
	case errors.As(err, &f), errors.Is(err, context.Canceled), errors.Is(err, unix.ENOSPC):
		return err
	case errors.Is(err, fs.ErrNotExist):
		return &Failure{Reason: levelrail.DownloadFailed, Message: "there is no file " + path + " on this node", Next: "copy it there; it is found by itself", RetryAfter: fileRetry}
	}
	return &Failure{Reason: levelrail.DownloadFailed, Message: fmt.Sprintf("copy %s: %v", path, err), Next: "check the file and the disk that it is on", RetryAfter: fileRetry}
}
