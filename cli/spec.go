package cli

import (
	"path/filepath"
	"strings"

	ucli "github.com/urfave/cli/v2"

	"github.com/levelrail/levelrail"
)

// specFlags are the flags that say what a model runs; deploy and update share them.
func specFlags() []ucli.Flag {
	return []ucli.Flag{
		&ucli.StringFlag{Name: "engine", Usage: "llamacpp, ollama or vllm"},
		&ucli.StringFlag{Name: "model", Usage: "a Hugging Face repository (org/name), one with GGUF files and a quantization or a file (org/name-GGUF:Q4_K_M, org/name-GGUF:file.gguf), an Ollama tag " +
			"(llama3.1:8b), or a GGUF file of the node (/path/to/file.gguf)"},
		&ucli.StringFlag{Name: "gpus", Usage: "how many GPUs: a count, all, or none to run on the CPU"},
		&ucli.StringFlag{Name: "gpu-devices", Usage: "these GPUs, by index or UUID, separated by commas"},
		&ucli.IntFlag{Name: "context", Usage: "tokens that each request may use, prompt and answer together; without it 8192, with vLLM what the model was trained for"},
		&ucli.StringFlag{Name: "quantization", Usage: "for vLLM, such as awq; elsewhere it is part of --model"},
		&ucli.StringFlag{Name: "domain", Usage: "host name of the model's own endpoint"},
		&ucli.StringSliceFlag{Name: "served-name", Usage: "a further name that clients may call the model by; may be repeated"},
		&ucli.StringFlag{Name: "commit", Usage: "pin a Hugging Face repository to this commit"},
		&ucli.StringFlag{Name: "sha256", Usage: "what the checksum of a single weights file must be"},
		&ucli.StringSliceFlag{Name: "option", Usage: "an engine's own option as name=value, such as parallel=4; may be repeated"},
	}
}

// gpuRequest reads --gpus and --gpu-devices.
func gpuRequest(c *ucli.Context) (levelrail.GPURequest, error) {
	r, err := levelrail.ParseGPUs(c.String("gpus"), c.String("gpu-devices"))
	if err != nil {
		return r, usagef(helpOf(c), "%s", asError(err).Message+next(err))
	}
	return r, nil
}

func next(err error) string {
	if n := asError(err).Next; n != "" {
		return "; " + n
	}
	return ""
}

// options reads --option name=value.
func options(c *ucli.Context) (levelrail.Options, error) {
	given := c.StringSlice("option")
	if len(given) == 0 {
		return nil, nil
	}
	opts := levelrail.Options{}
	for _, o := range given {
		name, value, ok := strings.Cut(o, "=")
		if !ok || name == "" {
			return nil, usagef(helpOf(c), "--option %q is not name=value; write it like --option parallel=4", o)
		}
		if _, twice := opts[name]; twice {
			return nil, usagef(helpOf(c), "--option %s is given twice", name)
		}
		opts[name] = value
	}
	return opts, nil
}

// source reads --model. A path is one of the node; a relative one is made absolute where the node is this machine.
func (s *session) source(c *ucli.Context) (string, error) {
	src := c.String("model")
	if !levelrail.IsPath(src) || filepath.IsAbs(src) {
		return src, nil
	}
	if s.getenv("LEVELRAIL_URL") != "" || given(c, "node") {
		return "", usagef(helpOf(c), "--model %s is a path of the node, which is not this machine; write it from the root: /path/to/file.gguf", src)
	}
	abs, err := filepath.Abs(src)
	if err != nil {
		return "", levelrail.Errorf(levelrail.ErrInvalid, "--model %s cannot be made absolute: %v", src, err).WithNext("write the path from the root")
	}
	return abs, nil
}

// specWords writes the flags of a command line that say what a model runs, so that another command can be suggested.
func specWords(c *ucli.Context) string {
	var b strings.Builder
	for _, f := range specFlags() {
		name := f.Names()[0]
		if !given(c, name) {
			continue
		}
		values := c.StringSlice(name)
		if _, many := f.(*ucli.StringSliceFlag); !many {
			values = []string{c.String(name)}
			if _, number := f.(*ucli.IntFlag); number {
				values = []string{itoa(c.Int(name))}
			}
		}
		for _, v := range values {
			b.WriteString(" --" + name + " " + shellQuote(v))
		}
	}
	return b.String()
}
