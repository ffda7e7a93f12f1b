package fetch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/engine"
)

// ManifestName is the file in a set's directory that says what the set is. It is written last.
const ManifestName = ".levelrail.json"

// Manifest says what a set of weights is and where it came from.
type Manifest struct {
	Engine    string                  `json:"engine"`
	Source    string                  `json:"source"`           // as in the model's spec
	From      string                  `json:"from"`             // hub, file, engine
	Asked     string                  `json:"asked,omitempty"`  // the Hub revision that the spec pins, empty: the newest
	Commit    string                  `json:"commit,omitempty"` // the Hub commit that was fetched
	Tag       string                  `json:"tag,omitempty"`    // of an engine's own pull
	SHA256    string                  `json:"sha256,omitempty"` // of the source, as the spec expected it
	Names     []string                `json:"names,omitempty"`  // by which the engine's own store knows the model
	Files     []levelrail.WeightsFile `json:"files"`
	Listing   []engine.HubFile        `json:"listing,omitempty"` // the Hub's whole listing at Commit
	Locals    []Local                 `json:"locals,omitempty"`  // the files of the node that were taken
	FetchedAt time.Time               `json:"fetched_at"`
}

// Local is a file of the node as it was when it was copied.
type Local struct {
	Path     string    `json:"path"`
	Bytes    int64     `json:"size_bytes"`
	Modified time.Time `json:"modified"`
}

// Want is a set of weights as a model asks for it.
type Want struct {
	Engine string
	Spec   levelrail.ModelSpec
	Names  []string // served names, the model's own first
}

// ReadManifest reads a set's manifest. It fails with fs.ErrNotExist when there is no finished set in dir.
func ReadManifest(dir string) (Manifest, error) {
	var m Manifest
	b, err := os.ReadFile(filepath.Join(dir, ManifestName))
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return m, fmt.Errorf("read %s: %w", filepath.Join(dir, ManifestName), err)
	}
	return m, nil
}

// Missing tells whether the finished set in dir is the one that w asks for: "" when it is, else what is amiss, for the
// log. It needs no network: which files a repository would give is decided from the listing that the manifest kept.
func Missing(dir string, w Want) (Manifest, string) {
	m, err := ReadManifest(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return m, "there are no weights yet"
	case err != nil:
		return m, err.Error()
	}
	if why := m.differs(w); why != "" {
		return m, why
	}
	for _, f := range m.Files {
		info, err := os.Stat(filepath.Join(dir, f.Path))
		switch {
		case err != nil:
			return m, "the file " + f.Path + " is gone"
		case info.Size() != f.Bytes:
			return m, fmt.Sprintf("the file %s has %d bytes instead of %d", f.Path, info.Size(), f.Bytes)
		}
	}
	return m, ""
}

func (m Manifest) differs(w Want) string {
	e, err := engine.Get(w.Engine)
	if err != nil {
		return err.Error()
	}
	plan, err := e.Weights(w.Spec)
	if err != nil {
		return err.Error()
	}
	switch {
	case m.Engine != w.Engine:
		return fmt.Sprintf("the weights are for %s, not %s", m.Engine, w.Engine)
	case m.Source != w.Spec.Source || m.From != plan.From || m.Asked != w.Spec.SourceCommit || m.Tag != plan.Tag && plan.From == engine.FromEngine:
		return fmt.Sprintf("the weights are of %s, not %s", name(m.Source, m.Asked), name(w.Spec.Source, w.Spec.SourceCommit))
	case w.Spec.SHA256 != "" && m.SHA256 != w.Spec.SHA256:
		return "another checksum is expected"
	}
	switch plan.From {
	case engine.FromHub:
		chosen, err := plan.Choose(m.Listing)
		if err != nil {
			return err.Error()
		}
		if !slices.EqualFunc(chosen, m.Files, func(a engine.HubFile, b levelrail.WeightsFile) bool { return a.Path == b.Path }) {
			return "other files of the repository are asked for"
		}
	case engine.FromFile:
		if !slices.EqualFunc(plan.Files, m.Locals, func(a engine.LocalFile, b Local) bool { return a.Path == b.Path }) {
			return "other files of the node are asked for"
		}
	case engine.FromEngine:
		for _, n := range w.Names {
			if !slices.Contains(m.Names, n) {
				return "the engine's store does not know the name " + n
			}
		}
	}
	return ""
}

// Outdated names a file of the node that has changed since it was copied; "" when none has, or the files are gone, which
// is no reason to stop serving from the copy.
func (m Manifest) Outdated(dirs Dirs) string {
	for _, l := range m.Locals {
		now, ok := dirs.Stat(l.Path)
		if ok && (now.Bytes != l.Bytes || !now.Modified.Equal(l.Modified)) {
			return l.Path
		}
	}
	return ""
}

// Weights is the set as the agent reports it.
func (m Manifest) Weights(node, model string) levelrail.Weights {
	id := m.Source
	switch {
	case m.Commit != "":
		id += "@" + m.Commit
	case m.From == engine.FromFile && len(m.Files) > 0:
		id = "sha256:" + m.Files[0].SHA256
	}
	return levelrail.Weights{ID: id, Source: m.Source, Commit: m.Commit, Files: m.Files, LastUsed: m.FetchedAt,
		Nodes: []levelrail.WeightsNode{{NodeID: node, Model: model}}, Owner: levelrail.DefaultOwner}
}

func name(source, revision string) string {
	if revision == "" {
		return source
	}
	return source + " at " + revision
}
