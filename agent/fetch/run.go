package fetch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/engine"
	"github.com/levelrail/levelrail/hub"
)

// Hub is what a fetch asks of the Hugging Face Hub; *hub.Client meets it.
type Hub interface {
	Resolve(ctx context.Context, repo, revision string) (hub.Repo, error)
	Download(ctx context.Context, repo, commit string, f hub.File, dst string, progress func(done int64)) (hub.Got, error)
}

// Main is the fetch process: it reads the order, brings the weights into its stage, and leaves the outcome there. It has
// no rights: what it brings counts for nothing until Store.Take, in the agent, has checked it. The error is for the
// journal; the agent reads the stage.
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
	return Run(ctx, spec, &hub.Client{BaseURL: spec.HubURL, Token: token})
}

// Run brings the weights of spec into its stage and keeps the state file there up to date. It returns nil when all is
// there, and the *Failure that the state file has otherwise. When ctx ends it returns ctx's error, and what was brought so
// far stays for the next run.
func Run(ctx context.Context, spec Spec, h Hub) error {
	r := &recorder{path: filepath.Join(spec.Stage, StateName), s: State{Key: spec.Key, Step: Running}}
	j := &job{spec: spec, hub: h, rec: r}
	started := time.Now()
	err := j.run(ctx)
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		f := AsFailure(err)
		slog.Error("weights not fetched", "model", spec.Model, "source", spec.Spec.Source, "reason", f.Reason, "error", f.Message)
		return errors.Join(f, r.end(f))
	}
	slog.Info("weights fetched", "model", spec.Model, "source", spec.Spec.Source, "took", time.Since(started).Round(time.Millisecond))
	return r.end(nil)
}

// job is one fetch on its way.
type job struct {
	spec Spec
	hub  Hub
	rec  *recorder
}

func (j *job) run(ctx context.Context) error {
	plan, err := j.spec.plan()
	if err != nil {
		return err
	}
	if err := spare(j.spec.Stage); err != nil {
		return err
	}
	res := result{Key: j.spec.Key}
	switch plan.From {
	case engine.FromHub:
		err = j.fromHub(ctx, plan, &res)
	case engine.FromEngine:
		err = j.fromEngine(ctx, plan)
	default:
		err = fmt.Errorf("weights from %q are no work for a fetch", plan.From)
	}
	if err != nil {
		return err
	}
	b, err := json.Marshal(res)
	if err != nil {
		return err
	}
	return replaceFile(filepath.Join(j.spec.Stage, resultName), b)
}

// spare puts a few blocks aside.
func spare(stage string) error {
	f, err := os.OpenFile(filepath.Join(stage, spareName), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o666)
	if err != nil {
		return fmt.Errorf("begin the fetch: %w", err)
	}
	_, err = f.Write(make([]byte, 64<<10))
	return errors.Join(err, f.Close())
}

// fromHub brings the chosen files of a repository, those that the store does not have yet.
func (j *job) fromHub(ctx context.Context, plan engine.WeightsPlan, res *result) error {
	j.rec.tell(levelrail.Progress{Phase: "downloading"})
	repo, err := j.hub.Resolve(ctx, plan.Repo, plan.Commit)
	if err != nil {
		return err
	}
	files := make(map[string]hub.File, len(repo.Files))
	for _, f := range repo.Files {
		files[f.Path] = f
		res.Listing = append(res.Listing, engine.HubFile{Path: f.Path, Bytes: f.Bytes, SHA256: f.SHA256})
	}
	chosen, err := plan.Choose(res.Listing)
	if err != nil {
		return err
	}
	path := func(f engine.HubFile) string { return staged(j.spec.Stage, plan, repo.Commit, f) }
	there := func(f engine.HubFile) bool {
		bytes, ok := j.spec.Have[f.SHA256]
		return ok && bytes == f.Bytes
	}
	var missing, total, done int64
	for _, f := range chosen {
		total += f.Bytes
		if there(f) {
			continue
		}
		missing += f.Bytes
		for _, p := range []string{path(f), path(f) + hub.PartialSuffix} {
			if info, err := os.Stat(p); err == nil {
				missing -= min(info.Size(), f.Bytes)
				break
			}
		}
	}
	if err := room(j.spec.Stage, missing); err != nil {
		return err
	}
	for _, f := range chosen {
		if !there(f) {
			tell := func(n int64) {
				j.rec.tell(levelrail.Progress{Phase: "downloading", DoneBytes: done + n, TotalBytes: &total, File: f.Path})
			}
			if _, err := j.hub.Download(ctx, plan.Repo, repo.Commit, files[f.Path], path(f), tell); err != nil {
				return err
			}
		}
		done += f.Bytes
	}
	res.Commit = repo.Commit
	return nil
}

// staged is where a repository's file is brought to in a stage: by checksum where the Hub says one, else by where it comes
// from. The same file keeps its place when the repository moves on.
func staged(stage string, plan engine.WeightsPlan, commit string, f engine.HubFile) string {
	return filepath.Join(stage, filesDir, key(f.SHA256, plan.Repo+"@"+commit+"/"+f.Path))
}
