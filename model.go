package levelrail

import (
	"path"
	"regexp"
	"strings"
	"time"
)

// Model is what an operator deploys. What it runs is in its revisions, which never change; the model says which one is
// wanted. Its name is also a host name label and the stem of its units.
type Model struct {
	Name     string    `json:"name"`     // ^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$
	Revision int       `json:"revision"` // the wanted revision, 1 or more
	Restarts int       `json:"restarts"` // counts `models restart`; replicas with a lower count are restarted
	Domain   string    `json:"domain,omitempty"`
	NodeID   string    `json:"node_id,omitempty"` // wished placement; empty: the control plane's own host
	Routes   []Target  `json:"routes,omitempty"`  // targets besides the model's replicas: external endpoints, peers
	Fallback []string  `json:"fallback,omitempty"`
	HubToken SecretRef `json:"hub_token,omitzero"`
	// Residency is "always" or "on_demand"; how long an idle model stays loaded is IdleTTL (0: the cluster's default).
	Residency ResidencyMode     `json:"residency"`
	IdleTTL   Duration          `json:"idle_ttl_seconds,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Deleting  bool              `json:"deleting,omitempty"` // being taken down; gone when its replicas are
	Owner     Owner             `json:"owner"`
	Stamp     Stamp             `json:"stamp"`
}

func (Model) ObjectKind() Kind   { return KindModel }
func (m Model) ObjectID() string { return m.Name }

// ModelSpec is what a revision fixes: everything that decides which process runs with which weights.
type ModelSpec struct {
	Engine       string     `json:"engine"`                 // a name of the engine registry: ollama, vllm, llamacpp
	Source       string     `json:"source"`                 // org/name, org/name-GGUF:Q4_K_M, llama3.1:8b or /path/to/file.gguf
	SourceCommit string     `json:"source_commit,omitzero"` // pins a Hub revision; empty: the newest at fetch time
	SHA256       string     `json:"sha256,omitempty"`       // expected checksum of a single weights file, lower-case hex
	GPUs         GPURequest `json:"gpus"`
	Context      int        `json:"context,omitempty"`      // tokens; 0: the engine's own rule
	Quantization string     `json:"quantization,omitempty"` // vLLM only
	Replicas     int        `json:"replicas"`               // 1 in this release
	Options      Options    `json:"options,omitempty"`      // further engine options by name
	ServedNames  []string   `json:"served_names,omitempty"` // names beside the model's own and its source's
}

// Options are engine options by their own names, such as parallel=4. The engine's adapter says which it knows.
type Options map[string]string

// Revision is one immutable, numbered spec of a model.
type Revision struct {
	Model     string    `json:"model"`
	Number    int       `json:"number"` // 1, 2, 3…
	Spec      ModelSpec `json:"spec"`
	CreatedAt time.Time `json:"created_at"`
	CreatedBy Principal `json:"created_by"`
}

func (Revision) ObjectKind() Kind { return KindRevision }

// ObjectID is MODEL/NUMBER with the number in ten digits, so that revisions sort.
func (r Revision) ObjectID() string { return RevisionID(r.Model, r.Number) }

// RevisionID is the id of a model's numbered revision.
func RevisionID(model string, number int) string { return model + "/" + padded(uint64(number))[10:] }

// ResidencyMode says whether an idle model stays loaded.
type ResidencyMode string

// The modes of residency.
const (
	ResidencyAlways   ResidencyMode = "always"
	ResidencyOnDemand ResidencyMode = "on_demand"
)

// Residency is where an on-demand model stands. It changes seldom, so it is stored; the time of last use is not.
type Residency struct {
	Model string    `json:"model"`
	State string    `json:"state"` // asleep, waking, awake
	Since time.Time `json:"since"`
}

func (Residency) ObjectKind() Kind   { return KindResidency }
func (r Residency) ObjectID() string { return r.Model }

// Target is where requests of a model may go.
type Target struct {
	Kind    string    `json:"kind"` // replica, external, peer
	Replica string    `json:"replica,omitempty"`
	URL     string    `json:"url,omitempty"`  // external: the base address
	Peer    string    `json:"peer,omitempty"` // peer: the cluster's name
	Weight  int       `json:"weight"`         // share of requests among the targets, 0: only as a fallback
	Key     SecretRef `json:"key,omitzero"`   // credential towards the target
}

// Weights are the files that models run from. They are an object of their own and outlive the models that use them.
type Weights struct {
	ID       string        `json:"id"`     // SOURCE@COMMIT, or sha256:… for a file of a node
	Source   string        `json:"source"` // as in ModelSpec
	Commit   string        `json:"commit,omitempty"`
	Files    []WeightsFile `json:"files"`
	Nodes    []WeightsNode `json:"nodes"` // where they lie
	LastUsed time.Time     `json:"last_used"`
	Owner    Owner         `json:"owner"`
}

func (Weights) ObjectKind() Kind   { return KindWeights }
func (w Weights) ObjectID() string { return w.ID }

// WeightsFile is one file of a set of weights.
type WeightsFile struct {
	Path   string `json:"path"`   // relative to the set's directory
	SHA256 string `json:"sha256"` // lower-case hex
	Bytes  int64  `json:"size_bytes"`
	Role   string `json:"role"` // model, projector, tokenizer, config, manifest
}

// The roles of a weights file.
const (
	RoleModel     = "model"
	RoleProjector = "projector"
	RoleConfig    = "config"
	RoleManifest  = "manifest"
)

// WeightsNode says that a node holds the set, for which model's directory.
type WeightsNode struct {
	NodeID string `json:"node_id"`
	Model  string `json:"model"`
}

var modelName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`)

// CheckModelName returns an invalid error that says what a name may hold, or nil.
func CheckModelName(name string) error {
	if modelName.MatchString(name) {
		return nil
	}
	return &Error{Kind: ErrInvalid, Message: "the name " + quoted(name) + " is not usable: a model's name has 1 to 40 characters of a-z, 0-9 and -, " +
		"and begins and ends with a letter or digit (it is a host name label and part of a unit's name)",
		Next: "choose a name such as " + suggestName(name)}
}

func suggestName(name string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(path.Base(name)) {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			b.WriteRune(r)
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
		if b.Len() >= 40 {
			break
		}
	}
	s := strings.Trim(b.String(), "-")
	if len(s) > 40 {
		s = strings.Trim(s[:40], "-")
	}
	if s == "" {
		return "chat"
	}
	return s
}

// IsPath tells whether a source is a file of the node rather than something to download.
func IsPath(source string) bool {
	return strings.HasPrefix(source, "/") || strings.HasPrefix(source, "./") || strings.HasPrefix(source, "../")
}

// ServedNames lists the names by which clients may call a model: its own first, then its source unless that is a path,
// then the spec's further names; each once.
func ServedNames(name string, spec ModelSpec) []string {
	names := []string{name}
	if spec.Source != "" && !IsPath(spec.Source) {
		names = append(names, spec.Source)
	}
	names = append(names, spec.ServedNames...)
	seen := make(map[string]bool, len(names))
	out := names[:0]
	for _, n := range names {
		if !seen[n] {
			seen[n] = true
			out = append(out, n)
		}
	}
	return out
}
