package hubstub

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"
)

// A Repo is a model repository of the stand-in. Its main branch is the only one.
type Repo struct {
	ID      string            // "org/name", or "name" for the oldest ones
	Files   map[string]string // path in the repository to path on this machine
	Gated   string            // "", "auto" or "manual"
	Private bool
	MovedTo string // the id that it was renamed to; the rest is unused then

	License  string         // default apache-2.0
	Pipeline string         // default text-generation
	Library  string         // default gguf when there is such a file, else transformers
	Extra    map[string]any // further members of the model information, for example "safetensors"
}

type repo struct {
	Repo
	files  map[string]*file
	paths  []string // sorted
	commit string   // 40 hexadecimal digits
	total  int64    // bytes of all files
	gguf   map[string]any
}

type file struct {
	path   string // on this machine
	size   int64
	sha256 string
	oid    string // of git: the content's, or for a large file its pointer's
	lfs    bool   // large: lives on the content network
	ptr    int    // size of the pointer
}

// largeKinds are the files that the Hub keeps outside git whatever their size.
var largeKinds = []string{".gguf", ".safetensors", ".bin", ".pt", ".onnx"}

const largeSize = 10 << 20

func load(r Repo) (*repo, error) {
	out := &repo{Repo: r, files: map[string]*file{}}
	tree := sha1.New()
	for path, local := range r.Files {
		f, err := loadFile(path, local)
		if err != nil {
			return nil, err
		}
		out.files[path] = f
		out.paths = append(out.paths, path)
		out.total += f.size
		if strings.HasSuffix(path, ".gguf") {
			if out.gguf, err = readGGUF(local); err != nil && !errors.Is(err, errNotGGUF) {
				return nil, fmt.Errorf("%s: %w", local, err)
			}
		}
	}
	sort.Strings(out.paths)
	for _, p := range out.paths {
		fmt.Fprintf(tree, "%s %s\n", out.files[p].oid, p)
	}
	out.commit = hex.EncodeToString(tree.Sum(nil))
	return out, nil
}

func loadFile(path, local string) (*file, error) {
	in, err := os.Open(local)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return nil, err
	}
	f := &file{path: local, size: info.Size()}
	f.lfs = slices.Contains(largeKinds, filepath.Ext(path)) || f.size > largeSize
	content, blob := sha256.New(), gitBlob(f.size)
	if _, err := io.Copy(io.MultiWriter(content, blob), in); err != nil {
		return nil, err
	}
	f.sha256 = hex.EncodeToString(content.Sum(nil))
	if f.lfs {
		pointer := fmt.Sprintf("version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n", f.sha256, f.size)
		f.ptr = len(pointer)
		blob = gitBlob(int64(f.ptr))
		io.WriteString(blob, pointer)
	}
	f.oid = hex.EncodeToString(blob.Sum(nil))
	return f, nil
}

// gitBlob starts the hash that git names a file's content with.
func gitBlob(size int64) hash.Hash {
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", size)
	return h
}

// has reports whether a revision exists: main, or the commit in full.
func (r *repo) has(rev string) bool { return rev == "main" || rev == r.commit }

// info is the answer to a question about the model.
func (r *repo) info(blobs bool) map[string]any {
	license, pipeline, library := r.License, r.Pipeline, r.Library
	if license == "" {
		license = "apache-2.0"
	}
	if pipeline == "" {
		pipeline = "text-generation"
	}
	if library == "" {
		library = "transformers"
		if r.gguf != nil {
			library = "gguf"
		}
	}
	siblings := []map[string]any{}
	for _, p := range r.paths {
		s := map[string]any{"rfilename": p}
		if f := r.files[p]; blobs {
			s["size"], s["blobId"] = f.size, f.oid
			if f.lfs {
				s["lfs"] = map[string]any{"sha256": f.sha256, "size": f.size, "pointerSize": f.ptr}
			}
		}
		siblings = append(siblings, s)
	}
	author, _, _ := strings.Cut(r.ID, "/")
	when := time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC).Format("2006-01-02T15:04:05.000Z")
	out := map[string]any{
		"_id": r.commit[:24], "id": r.ID, "modelId": r.ID, "author": author, "sha": r.commit,
		"private": r.Private, "gated": gatedValue(r.Gated), "disabled": false,
		"createdAt": when, "lastModified": when, "downloads": 1, "likes": 0,
		"tags":         []string{library, pipeline, "license:" + license},
		"pipeline_tag": pipeline, "library_name": library,
		"cardData": map[string]any{"license": license},
		"siblings": siblings, "usedStorage": r.total,
	}
	if r.gguf != nil {
		out["gguf"] = r.gguf
	}
	for k, v := range r.Extra {
		out[k] = v
	}
	return out
}

// gatedValue is false, or the kind of gate, as the Hub has it.
func gatedValue(gated string) any {
	if gated == "" {
		return false
	}
	return gated
}

// tree lists what lies below a directory, "" for the root; recursive goes into the directories too.
func (r *repo) tree(dir string, recursive bool) (entries []map[string]any, found bool) {
	prefix := ""
	if dir != "" {
		prefix = dir + "/"
	}
	seen := map[string]bool{}
	for _, p := range r.paths {
		rest, ok := strings.CutPrefix(p, prefix)
		if !ok {
			continue
		}
		found = true
		// Directories come before what is in them.
		parts := strings.Split(rest, "/")
		for i := 1; i < len(parts); i++ {
			d := prefix + strings.Join(parts[:i], "/")
			if (i == 1 || recursive) && !seen[d] {
				seen[d] = true
				oid := sha1.Sum([]byte(r.commit + d))
				entries = append(entries, map[string]any{"type": "directory", "path": d, "size": 0, "oid": hex.EncodeToString(oid[:])})
			}
		}
		if len(parts) > 1 && !recursive {
			continue
		}
		f := r.files[p]
		e := map[string]any{"type": "file", "path": p, "size": f.size, "oid": f.oid}
		if f.lfs {
			e["lfs"] = map[string]any{"oid": f.sha256, "size": f.size, "pointerSize": f.ptr}
		}
		entries = append(entries, e)
	}
	return entries, found || dir == ""
}
