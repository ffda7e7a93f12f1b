// Package engine says what each engine is: its program, command line, environment, probes, progress, failure texts,
// metric names and served routes. It is an open registry: an engine's name stands in a branch nowhere else.
//
// It is pure data and functions. The only I/O is HTTP over the client that a caller hands in (readiness, import); it
// starts no process and writes no file. The agent turns a Launch into a unit, runs fetches, and reads the journal; the
// gateway reads Routes; the control plane calls Check before it accepts a spec.
package engine

import (
	"context"
	"io"
	"net/http"
	"sort"

	"github.com/levelrail/levelrail"
)

// Engine is one kind of inference server.
type Engine interface {
	// Name is the registry's name, as in --engine and APP_MODEL_ENGINE_<NAME>.
	Name() string

	// Check returns an *levelrail.Error of kind invalid when the spec cannot work whatever the node has: an option
	// this engine does not know, a source of the wrong form. It says what to write instead.
	Check(spec levelrail.ModelSpec) error

	// Programs are the executables to look for, in order: bare names for PATH, or absolute paths.
	Programs() []string

	// InstallHint is the command or page that installs the engine on a distribution ("debian", "14"), and the setting
	// that points to an own build.
	InstallHint(distribution, version string) string

	// Weights says how the weights of a spec come to the node.
	Weights(spec levelrail.ModelSpec) (WeightsPlan, error)

	// Launch is the engine's process for a replica whose weights lie in p.WeightsDir.
	Launch(p Params) (Launch, error)

	// Ready asks the running engine whether the model is loaded, by the engine's own rule. It returns quickly and may be
	// called every 250 ms. For an engine that loads on first use it also makes it load.
	Ready(ctx context.Context, c *http.Client, p Params) Readiness

	// Diagnose reads the journal lines of the engine's last run, oldest first, and returns what went wrong: the reason
	// and one sentence with the first cause, or "" when the lines do not tell.
	Diagnose(lines []string) (levelrail.Reason, string)

	// Compute reads the journal lines of a start-up and returns what the engine computes on: "cpu", "CUDA0", … or "".
	Compute(lines []string) string

	// Slots is how many requests an engine of the spec works on at a time, where those that are more would wait inside it in
	// silence, first come first served; 0: it takes in as many as come.
	Slots(spec levelrail.ModelSpec) int

	// Routes are the OpenAI-compatible routes that this engine serves and the gateway lets through: exact paths. The
	// listing (/v1/models and /v1/models/{id}) is not among them: the gateway answers it itself, for every engine.
	Routes() []Route

	// Body says which body fields the gateway has to look at for this engine.
	Body() BodyTable

	// Repairs are what the gateway mends in this engine's answers.
	Repairs() Repairs
}

// Params is everything that decides an engine's process.
type Params struct {
	Name        string              // the replica's id, which is the unit's stem
	Model       string              // the model's name
	Spec        levelrail.ModelSpec //
	ServedNames []string            // the model's own name first
	Program     string              // absolute path of the executable
	WeightsDir  string              // /var/lib/levelrail/weights/NAME
	Files       []levelrail.WeightsFile
	Socket      string   // /run/levelrail/engines/NAME/engine.sock
	CacheDir    string   // writable and executable, kept over restarts
	Devices     []string // UUIDs; none: CPU
	KeyFile     string   // the engine key as the process sees it, such as %d/engine-key
	Key         string   // the engine key's text, for probes only; never in a command line
}

// Launch is an engine's process, for systemd.Render.
type Launch struct {
	Args []string // argv[0] is the program
	Env  []string // NAME=value, no secrets
	// KeyVariable is the environment variable that the engine takes its key from: the agent writes it to a root-only
	// file for EnvironmentFile=. Empty when the engine reads Params.KeyFile or has no key.
	KeyVariable string
	// Door is the TCP address inside the unit's own network namespace when the engine cannot serve a Unix socket; a
	// door unit then leads from the socket to it.
	Door string
	// InetFamilies: the process talks TCP or UDP within itself, so AF_INET, AF_INET6 and AF_NETLINK stay allowed.
	InetFamilies bool
	// Resources: the process needs the system calls of @resources (mbind, sched_setaffinity).
	Resources bool
	// WriteExec: memory may be made executable (just-in-time compilers).
	WriteExec bool
	// SystemCalls are allowed beyond @system-service.
	SystemCalls []string
	// StopSeconds is how long an orderly stop may take.
	StopSeconds int
	// KillMode is systemd's: control-group or mixed.
	KillMode string
}

// Where weights come from.
const (
	FromHub    = "hub"    // files of a repository
	FromFile   = "file"   // files of the node, taken as they are
	FromEngine = "engine" // the engine's own pull, or a file of the node that the engine has to import
)

// WeightsPlan is how weights come to a node.
type WeightsPlan struct {
	From   string // FromHub, FromFile or FromEngine
	Repo   string // hub: org/name
	Commit string // hub: the revision asked for; empty: the newest
	Tag    string // hub: the quantization asked for; engine: the tag to pull
	Path   string // file, or engine with a file to import; absolute
	// Files are all files of the node that a FromFile plan takes, Path first: the further parts of a split GGUF and the
	// projector are named by Path and the options alone. They go into the weights directory under their base names.
	Files []LocalFile
	// Choose picks the files of a repository's listing, or fails with what the repository has.
	Choose func(files []HubFile) ([]HubFile, error)
	// Import makes the engine's own store inside dir: it drives a server of the engine that the fetch unit started with
	// Serve on a writable dir, through a client that dials that server whatever the host of the request. It waits for the
	// server to be up. An error that carries a reason is an *ImportError. Nil unless From is "engine".
	Import func(ctx context.Context, c *http.Client, w ImportWant, progress func(levelrail.Progress)) error
	// Serve is that server's process, listening at address (host:port).
	Serve func(program, dir, address string) Launch
	// Identity is where that server keeps the key pair by which registries know it, relative to the parent of dir; the
	// public half has the same name and .pub. It stays the same from fetch to fetch. Empty: there is none.
	Identity string
}

// LocalFile is one file of the node that becomes a weights file.
type LocalFile struct {
	Path string // absolute
	Role string // levelrail.RoleModel or RoleProjector
}

// ImportWant is what an import shall leave in the engine's store.
type ImportWant struct {
	Tag    string // to pull, when Path is empty
	Path   string // a GGUF file to import
	SHA256 string // of that file, lower-case hex
	// Open opens that file and says its size in bytes; the caller closes it.
	Open  func() (io.ReadCloser, int64, error)
	Names []string // every name that the engine shall know it by, the model's own first
}

// HubFile is one file of a repository's listing.
type HubFile struct {
	Path   string
	Bytes  int64
	SHA256 string // of LFS files; empty for small ones
	Role   string // set by Choose
}

// Readiness is what a probe found.
type Readiness struct {
	State   State
	Message string // what the engine said, when it said something
}

// State is where a starting engine stands.
type State string

// The states of an engine, in order.
const (
	Down    State = "down"    // nobody answers: starting, or dead (the unit's state tells)
	Load    State = "loading" // up, not yet serving the model
	Serving State = "serving"
	Broken  State = "broken" // answers, and will not serve by itself
)

// Route is one exact path that the gateway serves for an engine.
type Route struct {
	Path      string // /v1/chat/completions
	Method    string // GET or POST
	Kind      string // chat, completions, embeddings, rerank, responses, transcriptions, translations
	Multipart bool   // the body is a form, capped and not parsed as JSON
	AskUsage  bool   // a stream tells its usage only to who asks with stream_options.include_usage
	FirstOnly bool   // an answer that is no stream tells the usage of the first of several choices only
}

var registry = map[string]Engine{}

// Register adds an engine. It is called from init functions and panics on a name given twice.
func Register(e Engine) {
	if _, twice := registry[e.Name()]; twice {
		panic("engine " + e.Name() + " is registered twice")
	}
	registry[e.Name()] = e
}

// Get returns the engine of that name, or an *levelrail.Error of kind invalid that lists those there are.
func Get(name string) (Engine, error) {
	if e, ok := registry[name]; ok {
		return e, nil
	}
	return nil, &levelrail.Error{Kind: levelrail.ErrInvalid, Message: "there is no engine " + quote(name), Next: "use one of " + join(Names())}
}

// Names lists the registered engines in order.
func Names() []string {
	names := make([]string, 0, len(registry))
	for n := range registry {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}
