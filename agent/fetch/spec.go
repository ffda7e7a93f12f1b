package fetch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/levelrail/levelrail"
)

// The files of a fetch, in its own directory below the agent's runtime directory.
const (
	SpecName  = "spec.json"     // what to fetch: a Spec
	StateName = "progress.json" // how it stands: a State, replaced by rename
	TokenName = "token"         // the Hub token, there only until the unit has started
)

// Spec is what one fetch does. The agent writes it, readable by root alone: a proxy's address may hold a password.
type Spec struct {
	Key     string              `json:"key"` // names this order; the State repeats it
	Model   string              `json:"model"`
	Engine  string              `json:"engine"`
	Spec    levelrail.ModelSpec `json:"spec"`
	Names   []string            `json:"names"`           // served names, the model's own first
	Program string              `json:"program"`         // of the engine, for its own import
	Store   string              `json:"store"`           // /var/lib/levelrail/weights
	HubURL  string              `json:"hf_base_url"`     //
	Proxy   map[string]string   `json:"proxy,omitempty"` // HTTPS_PROXY, HTTP_PROXY, NO_PROXY
	// Partials are the keys of files that earlier orders for the model began: what this one does not use goes at its end.
	Partials []string `json:"partials,omitempty"`
}

// Want is the set of weights that the spec asks for.
func (s Spec) Want() Want { return Want{Engine: s.Engine, Spec: s.Spec, Names: s.Names} }

// State is how a fetch stands.
type State struct {
	Key      string              `json:"key"`
	Step     string              `json:"state"` // running, done, failed
	Progress *levelrail.Progress `json:"progress,omitempty"`
	Failure  *Failure            `json:"failure,omitempty"`
	Partials []string            `json:"partials,omitempty"` // keys of files begun and not finished
	At       time.Time           `json:"at"`
}

// The steps of a fetch.
const (
	Running = "running"
	Done    = "done"
	Failed  = "failed"
)

// Failure is why a fetch did not work.
type Failure struct {
	Reason  levelrail.Reason `json:"reason"` // DownloadFailed, InsufficientDisk, EngineFailed
	Message string           `json:"message"`
	Next    string           `json:"next,omitempty"`
	// RetryAfter is how long to wait before the next try; 0 leaves it to the agent.
	RetryAfter levelrail.Duration `json:"retry_after_seconds,omitempty"`
}

func (f *Failure) Error() string { return f.Message }

// ReadState reads a fetch's state from its directory. It fails with fs.ErrNotExist before the fetch has begun.
func ReadState(dir string) (State, error) {
	var s State
	b, err := os.ReadFile(filepath.Join(dir, StateName))
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("read %s: %w", filepath.Join(dir, StateName), err)
	}
	return s, nil
}

// every is the least time between two writes of the progress file.
const every = 300 * time.Millisecond

// recorder keeps the state file up to date.
type recorder struct {
	path string
	mu   sync.Mutex
	s    State
	last time.Time
	err  error
}

// tell notes progress; it reaches the file at most every 300 ms, and at once when the phase changes.
func (r *recorder) tell(p levelrail.Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	changed := r.s.Progress == nil || r.s.Progress.Phase != p.Phase
	r.s.Progress = &p
	if changed || time.Since(r.last) >= every {
		r.write()
	}
}

// began and ended note which partial files would be left over if the fetch were given up now.
func (r *recorder) began(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Contains(r.s.Partials, key) {
		r.s.Partials = append(r.s.Partials, key)
	}
	r.write()
}

func (r *recorder) ended(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.s.Partials = slices.DeleteFunc(slices.Clone(r.s.Partials), func(k string) bool { return k == key })
	r.write()
}

// end writes the outcome.
func (r *recorder) end(f *Failure) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.s.Step, r.s.Failure = Done, f
	if f != nil {
		r.s.Step = Failed
	}
	r.write()
	return r.err
}

func (r *recorder) write() {
	r.last = time.Now()
	r.s.At = r.last.UTC()
	b, err := json.Marshal(r.s)
	if err == nil {
		err = replaceFile(r.path, b)
	}
	r.err = err
}

// replaceFile is WriteFile without waiting for the disk: progress is worth nothing after a power cut.
func replaceFile(path string, b []byte) error {
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return errors.Join(err, ignoreMissing(os.Remove(tmp)))
	}
	return nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
