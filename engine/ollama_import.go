package engine

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/levelrail/levelrail"
)

// ImportError is why an engine's own import did not work: the reason, one sentence, and what mends it.
type ImportError struct {
	Why     levelrail.Reason // DownloadFailed, InsufficientDisk or EngineFailed
	Message string
	Next    string
}

// Error is the sentence; the next step stands apart, so that whoever shows both does not show one twice.
func (e *ImportError) Error() string { return e.Message }

// Reason is what a model's condition says.
func (e *ImportError) Reason() levelrail.Reason { return e.Why }

// NextStep is what mends it; empty when nothing but time does.
func (e *ImportError) NextStep() string { return e.Next }

// startTime is how long the fetch's own server may take to answer.
const startTime = 60 * time.Second

// ollamaImport pulls a tag or imports a file, and then gives the model all its names. A pull that was cut off goes on
// where it stopped: Ollama keeps its partial blobs in the store.
func ollamaImport(ctx context.Context, c *http.Client, w ImportWant, progress func(levelrail.Progress)) error {
	if len(w.Names) == 0 || w.Tag == "" == (w.Path == "") {
		return fmt.Errorf("import into ollama: needs a tag or a path, and at least one name")
	}
	long := *c // a pull takes as long as it takes; ctx ends it
	long.Timeout = 0
	if err := ollamaUp(ctx, c); err != nil {
		return err
	}
	have := w.Tag
	if w.Path != "" {
		have = w.Names[0]
		if err := ollamaCreate(ctx, &long, w, progress); err != nil {
			return err
		}
	} else if err := ollamaPull(ctx, &long, w.Tag, progress); err != nil {
		return err
	}
	for _, n := range w.Names {
		if sameTag(n, have) {
			continue
		}
		a := ask(ctx, &long, http.MethodPost, "/api/copy", "", map[string]any{"source": have, "destination": n})
		if a.err != nil {
			return fmt.Errorf("name the model %s in ollama's store: %w", n, a.err)
		}
		if a.status != http.StatusOK {
			return &ImportError{Why: levelrail.EngineFailed, Message: fmt.Sprintf("ollama did not name the model %s: %s", n, a.message())}
		}
	}
	return nil
}

// ollamaUp waits until the server answers as Ollama.
func ollamaUp(ctx context.Context, c *http.Client) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		a := probe(ctx, c, http.MethodGet, "/api/version", "", nil)
		if a.err == nil && a.status == http.StatusOK && strings.Contains(string(a.body), `"version"`) {
			return nil
		}
		select {
		case <-ctx.Done():
			if a.err == nil {
				return fmt.Errorf("start ollama for the fetch: GET /api/version answered %d: %s", a.status, a.message())
			}
			return fmt.Errorf("start ollama for the fetch: %w", a.err)
		case <-tick.C:
		}
	}
}

func ollamaPull(ctx context.Context, c *http.Client, tag string, progress func(levelrail.Progress)) error {
	type layer struct{ total, done int64 }
	layers := map[string]layer{}
	err := ollamaStream(ctx, c, "/api/pull", map[string]any{"model": tag, "stream": true, "insecure": loopbackRegistry(tag)}, func(l ollamaLine) {
		switch {
		case l.Digest != "" && l.Total > 0:
			layers[l.Digest] = layer{l.Total, l.Completed}
			var p = levelrail.Progress{Phase: "downloading"}
			var total int64
			for _, y := range layers {
				total += y.total
				p.DoneBytes += y.done
			}
			p.TotalBytes = &total
			progress(p)
		case strings.HasPrefix(l.Status, "verifying"):
			progress(levelrail.Progress{Phase: "verifying"})
		case strings.HasPrefix(l.Status, "writing"):
			progress(levelrail.Progress{Phase: "importing"})
		}
	})
	return ollamaFailed(tag, err)
}

// ollamaCreate hands a file over by its checksum and makes a model of it. The blob keeps the file's own checksum, so
// when the caller has linked it into the store under that name, no byte is copied.
func ollamaCreate(ctx context.Context, c *http.Client, w ImportWant, progress func(levelrail.Progress)) error {
	digest := "sha256:" + w.SHA256
	head := ask(ctx, c, http.MethodHead, "/api/blobs/"+digest, "", nil)
	if head.err != nil {
		return fmt.Errorf("ask ollama for the blob of %s: %w", w.Path, head.err)
	}
	if head.status != http.StatusOK {
		if err := ollamaBlob(ctx, c, w, digest, progress); err != nil {
			return err
		}
	}
	progress(levelrail.Progress{Phase: "importing", File: filepath.Base(w.Path)})
	err := ollamaStream(ctx, c, "/api/create", map[string]any{"model": w.Names[0], "files": map[string]string{filepath.Base(w.Path): digest}, "stream": true}, func(ollamaLine) {})
	return ollamaFailed(w.Path, err)
}

func ollamaBlob(ctx context.Context, c *http.Client, w ImportWant, digest string, progress func(levelrail.Progress)) error {
	file := w.Path
	f, total, err := w.Open()
	if err != nil {
		return &ImportError{Why: levelrail.DownloadFailed, Message: fmt.Sprintf("the file cannot be read: %v", err), Next: "check that it is on this node and readable"}
	}
	defer f.Close()
	body := &counted{r: f, tell: func(done int64) {
		progress(levelrail.Progress{Phase: "importing", DoneBytes: done, TotalBytes: &total, File: filepath.Base(file)})
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/api/blobs/"+digest, body)
	if err != nil {
		return fmt.Errorf("import %s: %w", file, err)
	}
	req.ContentLength = total
	resp, err := c.Do(req)
	if err != nil {
		return fmt.Errorf("import %s into ollama: %w", file, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return fmt.Errorf("import %s into ollama: %w", file, err)
	}
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusCreated {
		return ollamaFailed(file, errors.New(answer{body: text}.message()))
	}
	return nil
}

// counted tells how much was read, at most every 200 ms.
type counted struct {
	r    io.Reader
	n    int64
	last time.Time
	tell func(int64)
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	if now := time.Now(); now.Sub(c.last) >= 200*time.Millisecond || err == io.EOF {
		c.last = now
		c.tell(c.n)
	}
	return n, err
}

// ollamaLine is one line of a long answer.
type ollamaLine struct {
	Status    string `json:"status"`
	Digest    string `json:"digest"`
	Total     int64  `json:"total"`
	Completed int64  `json:"completed"` // absent: 0
	Error     string `json:"error"`
}

// ollamaStream reads an answer line by line. Only "success" means done: an error may stand in the stream of a 200, and a
// stream may just end.
func ollamaStream(ctx context.Context, c *http.Client, path string, body any, each func(ollamaLine)) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost"+path, strings.NewReader(string(b)))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	done := false
	for lines.Scan() {
		var l ollamaLine
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return fmt.Errorf("POST %s answered %d with %s", path, resp.StatusCode, quote(lines.Text()))
		}
		if l.Error != "" {
			return errors.New(clip(l.Error))
		}
		done = done || l.Status == "success"
		each(l)
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("POST %s: %w", path, err)
	}
	if !done {
		return fmt.Errorf("POST %s ended (status %d) without saying success", path, resp.StatusCode)
	}
	return nil
}

// ollamaFailed gives a pull's or a create's error text its reason.
func ollamaFailed(what string, err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	text := strings.ToLower(err.Error())
	has := func(parts ...string) bool {
		for _, p := range parts {
			if strings.Contains(text, p) {
				return true
			}
		}
		return false
	}
	e := &ImportError{Why: levelrail.DownloadFailed, Message: fmt.Sprintf("ollama could not get %s: %v", what, err)}
	switch {
	case has("no space left on device"):
		e.Why, e.Message, e.Next = levelrail.InsufficientDisk, "the disk is full: "+err.Error(), "free space below /var/lib/levelrail, for example of weights that no model uses: levelrail weights list"
	case has("file does not exist", "not found") && has("manifest"):
		e.Message, e.Next = fmt.Sprintf("the registry has no %s", what), "check the tag's spelling; ollama.com/library lists the tags there are"
	case has("unauthorized", "access denied", "401", "403"):
		e.Next = "the registry wants a login for it: choose a public tag, or register this node's public key (/var/lib/levelrail/weights/.ollama-home/.ollama/id_ed25519.pub) there"
	case has("digest mismatch"):
		e.Next = "it is tried again with a fresh download"
	case has("invalid file magic", "not in gguf format", "exceeds file size", "unsupported architecture", "unknown type", "invalid gguf", "unsupported content type", "no modelfile", "unsupported model"):
		e.Why, e.Message, e.Next = levelrail.EngineFailed, fmt.Sprintf("ollama does not take %s as a model: %v", what, err), "give it a complete GGUF file of an architecture that this release of ollama knows"
	case has("no such host", "connection refused", "i/o timeout", "tls", "network is unreachable", "certificate"):
		e.Next = "check this node's way to the registry, and HTTPS_PROXY in /etc/default/levelrail-agent"
	}
	return e
}
