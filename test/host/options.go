package hosttest

import (
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/levelrail/levelrail/test/fixtures"
)

// A Suite is the Debian release that a host runs.
type Suite string

const (
	Bookworm Suite = "bookworm" // Debian 12, systemd 252
	Trixie   Suite = "trixie"   // Debian 13, systemd 257
	Forky    Suite = "forky"    // Debian 14, systemd 262, with Debian's own llama.cpp-tools installed
)

// Suites are all releases that Levelrail supports, oldest first.
var Suites = []Suite{Bookworm, Trixie, Forky}

func (s Suite) root() fixtures.Piece { return fixtures.Piece("root-" + string(s)) }

// An Engine is a program that WithEngine brings into a host.
type Engine string

const (
	LlamaCpp Engine = "llamacpp" // /opt/llama.cpp, program /opt/llama.cpp/bin/llama-server
	Ollama   Engine = "ollama"   // program /usr/local/bin/ollama
)

// Where WithEngine and WithWeights put things.
const (
	LlamaCppProgram = "/opt/llama.cpp/bin/llama-server"
	OllamaProgram   = "/usr/local/bin/ollama"
	WeightsPath     = "/srv/weights/" + fixtures.WeightsFile
)

// An Option shapes a host before it boots.
type Option func(*config)

type config struct {
	name    string
	pieces  []pieceBind
	binds   []bind
	files   []file
	logf    func(format string, args ...any)
	timeout time.Duration
}

type bind struct{ source, target string }

type pieceBind struct {
	piece       fixtures.Piece
	sub, target string
}

type file struct {
	path    string
	content []byte
	mode    fs.FileMode
}

// WithName sets the host name; the default is the suite's name.
func WithName(name string) Option { return func(c *config) { c.name = name } }

// WithEngine binds an engine read-only into the host, making it first if this machine has none yet. Forky needs none for
// llama.cpp: it has Debian's package.
func WithEngine(e Engine) Option {
	return func(c *config) {
		switch e {
		case LlamaCpp:
			c.pieces = append(c.pieces, pieceBind{fixtures.LlamaCpp, "", "/opt/llama.cpp"})
		case Ollama:
			c.pieces = append(c.pieces, pieceBind{fixtures.Ollama, "bin/ollama", OllamaProgram})
		default:
			panic(fmt.Sprintf("hosttest: no engine %q", e))
		}
	}
}

// WithWeights binds the test weights read-only at WeightsPath.
func WithWeights() Option {
	return func(c *config) {
		c.pieces = append(c.pieces, pieceBind{fixtures.Weights, fixtures.WeightsFile, WeightsPath})
	}
}

// WithFile puts a file into the host before it boots. Missing directories are made with mode 0755.
func WithFile(path, content string, mode os.FileMode) Option {
	return func(c *config) { c.files = append(c.files, file{path, []byte(content), mode}) }
}

// WithBind shows source, a file or directory of this machine, read-only at target in the host.
func WithBind(source, target string) Option {
	return func(c *config) { c.binds = append(c.binds, bind{source, target}) }
}

// WithLog sends what the harness says (boot times, reasons) to logf. New uses the test's log, Boot standard error.
func WithLog(logf func(format string, args ...any)) Option { return func(c *config) { c.logf = logf } }

// WithBootTimeout bounds one boot; the default is a minute, since a machine may be building something beside.
func WithBootTimeout(d time.Duration) Option { return func(c *config) { c.timeout = d } }
