package fetch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/engine"
)

// The files of a fetch.
const (
	SpecName  = "spec.json"     // in the agent's runtime directory: what to fetch, a Spec; the process gets it as a credential
	TokenName = "token"         // beside it: the Hub token, there only until the unit has started
	StateName = "progress.json" // in the stage: how it stands, a State, replaced by rename
)

// Spec is what one fetch does. The agent writes it, readable by root alone: a proxy's address may hold a password.
type Spec struct {
	Key     string              `json:"key"` // names this order; the State repeats it
	Model   string              `json:"model"`
	Engine  string              `json:"engine"`
	Spec    levelrail.ModelSpec `json:"spec"`
	Names   []string            `json:"names"`           // served names, the model's own first
	Program string              `json:"program"`         // of the engine, for its own import
	HubURL  string              `json:"hf_base_url"`     //
	Proxy   map[string]string   `json:"proxy,omitempty"` // HTTPS_PROXY, HTTP_PROXY, NO_PROXY

	// What Store.Prepare adds.
	Stage       string           `json:"stage"`                  // the directory that the fetch works in
	Have        map[string]int64 `json:"have,omitempty"`         // files that the store has, by SHA-256, with their sizes: they are not brought
	Local       *Local           `json:"local,omitempty"`        // the file of the node that an engine imports
	LocalSHA256 string           `json:"local_sha256,omitempty"` // of its copy, which lies in the stage
}

func (s Spec) plan() (engine.WeightsPlan, error) {
	e, err := engine.Get(s.Engine)
	if err != nil {
		return engine.WeightsPlan{}, err
	}
	return e.Weights(s.Spec)
}

// Want is the set of weights that the spec asks for.
func (s Spec) Want() Want { return Want{Engine: s.Engine, Spec: s.Spec, Names: s.Names} }

// State is how a fetch stands.
type State struct {
	Key      string              `json:"key"`
	Step     string              `json:"state"` // running, done, failed
	Progress *levelrail.Progress `json:"progress,omitempty"`
	Failure  *Failure            `json:"failure,omitempty"`
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

// ReadState reads how a fetch stands from its stage. It fails with fs.ErrNotExist before the fetch has begun. The process
// that wrote it is not trusted: what it says is bounded, without control characters, and of the reasons that a fetch has.
func ReadState(stage string) (State, error) {
	var s State
	b, err := readStaged(stage, StateName, mostState)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("read %s: %w", filepath.Join(stage, StateName), err)
	}
	s.Key = printable(s.Key, 200)
	if p := s.Progress; p != nil {
		p.Phase, p.File = printable(p.Phase, 40), printable(p.File, 300)
		p.DoneBytes = max(p.DoneBytes, 0)
		if p.TotalBytes != nil {
			*p.TotalBytes = max(*p.TotalBytes, p.DoneBytes)
		}
	}
	if f := s.Failure; f != nil {
		f.Message, f.Next = printable(f.Message, 2000), printable(f.Next, 1000)
		f.RetryAfter = min(max(f.RetryAfter, 0), levelrail.Duration(24*time.Hour))
		if !slices.Contains(reasons, f.Reason) {
			f.Reason = levelrail.DownloadFailed
		}
	}
	return s, nil
}

// reasons are those that a fetch may give.
var reasons = []levelrail.Reason{levelrail.DownloadFailed, levelrail.InsufficientDisk, levelrail.EngineFailed, levelrail.EngineNotInstalled,
	levelrail.HFTokenUnavailable, levelrail.Downloading}

// printable is text that can do nothing to a terminal, cut to so many bytes.
func printable(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == 0x2028 || r == 0x2029 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
	for len(text) > most {
		_, n := utf8.DecodeLastRuneInString(text)
		text = text[:len(text)-n]
	}
	return text
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
		if err = replaceFile(r.path, b); isFull(err) {
			// The disk is full, and that is what has to be said: the spare blocks make room for it.
			os.Remove(filepath.Join(filepath.Dir(r.path), spareName))
			err = replaceFile(r.path, b)
		}
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
