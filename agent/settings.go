package agent

import (
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/agent/fetch"
)

// EnvironmentFile is where an operator sets what Settings lists.
const EnvironmentFile = "/etc/default/levelrail-agent"

// Settings are the agent's. Each comes from its environment, else from what the server hands to agents, else it is the
// default. docs/reference/settings-agent.md is made from this struct.
type Settings struct {
	EngineLlamaCpp string `env:"APP_MODEL_ENGINE_LLAMACPP" doc:"Program of the engine llamacpp (llama-server), as an absolute path. Empty: looked for in PATH, /opt/llama.cpp/bin and the like. Engines cannot see /home."`
	EngineOllama   string `env:"APP_MODEL_ENGINE_OLLAMA" doc:"Program of the engine ollama, as an absolute path. Empty: looked for in PATH."`
	EngineVLLM     string `env:"APP_MODEL_ENGINE_VLLM" doc:"Program of the engine vllm, as an absolute path, such as /opt/vllm/bin/vllm. Empty: looked for in PATH."`

	EngineMemoryMax string `env:"APP_MODEL_ENGINE_MEMORY_MAX" default:"90%" doc:"How much memory of the machine one engine may use before the kernel ends it, as MemoryMax= of systemd takes it: 90%, 48G, infinity. Weights that are mapped from disk give way and do not count. It holds for engines that are started from then on; all engines together have the bound of levelrail-engines.slice."`

	GPUAttach          string        `env:"APP_GPU_ATTACH" default:"auto" doc:"How a model gets its cards. auto: it can open the cards it was given and no others. legacy: it can open every card, and an environment variable selects; for drivers or engines that need it."`
	GPUCollectInterval time.Duration `env:"APP_GPU_COLLECT_INTERVAL" default:"1m" doc:"How often the cards are read."`

	ImportDirs string `env:"APP_MODEL_IMPORT_DIRS" default:"/srv:/home:/mnt:/media:/opt:/data:/models" doc:"Directories below which a file of this node may be named as a model (--model /path/file.gguf), separated by colons. The agent reads it as root for whoever may deploy: below these directories no symbolic link is followed, and only GGUF files are taken. A listed directory may itself be a link. Empty: no files of this node."`

	HFBaseURL  string `env:"APP_HF_BASE_URL" doc:"Address of the Hugging Face Hub or of a mirror. Set here it wins on this node; empty: what the control plane says."`
	HTTPSProxy string `env:"HTTPS_PROXY" secret:"true" doc:"Proxy for downloads over https. It may hold a password, so it is shown nowhere."`
	HTTPProxy  string `env:"HTTP_PROXY" secret:"true" doc:"Proxy for downloads over http."`
	NoProxy    string `env:"NO_PROXY" doc:"Hosts that are reached without the proxy, separated by commas."`

	Socket string `env:"LEVELRAIL_AGENT_SOCKET" default:"/run/levelrail/agent.sock" doc:"Where the control plane of this machine listens for its agent."`
}

var memoryMax = regexp.MustCompile(`^(infinity|[1-9][0-9]?%|100%|[1-9][0-9]*[KMGT]?)$`)

// check refuses values that mean nothing.
func (s Settings) check() error {
	bad := func(name, value, next string) error {
		return &levelrail.Error{Kind: levelrail.ErrInvalid, Message: EnvironmentFile + ": " + name + "=" + value + " is not usable", Next: next}
	}
	switch s.GPUAttach {
	case "auto", "legacy":
	case "cdi":
		return bad("APP_GPU_ATTACH", s.GPUAttach, "write auto: each model is kept to its own cards by device rules, without a CDI specification")
	default:
		return bad("APP_GPU_ATTACH", s.GPUAttach, "write auto or legacy")
	}
	if s.EngineMemoryMax != "" && !memoryMax.MatchString(s.EngineMemoryMax) {
		return bad("APP_MODEL_ENGINE_MEMORY_MAX", s.EngineMemoryMax, "write a part of the machine such as 90%, a size such as 48G, or infinity")
	}
	for _, d := range s.importDirs() {
		if !filepath.IsAbs(d) {
			return bad("APP_MODEL_IMPORT_DIRS", s.ImportDirs, "write absolute paths, separated by colons")
		}
	}
	if s.GPUCollectInterval < time.Second {
		return bad("APP_GPU_COLLECT_INTERVAL", s.GPUCollectInterval.String(), "write a second or more, such as 1m")
	}
	return nil
}

// program is the setting for an engine's program and its value.
func (s Settings) program(engine string) (name, value string) {
	name = "APP_MODEL_ENGINE_" + strings.ToUpper(engine)
	v := reflect.ValueOf(s)
	for i := range v.NumField() {
		if v.Type().Field(i).Tag.Get("env") == name {
			return name, v.Field(i).String()
		}
	}
	return name, ""
}

// importDirs are the directories that files of the node are taken from.
func (s Settings) importDirs() (dirs fetch.Dirs) {
	for d := range strings.SplitSeq(s.ImportDirs, ":") {
		if d != "" {
			dirs = append(dirs, filepath.Clean(d))
		}
	}
	return dirs
}

// proxy is what a download's process gets in its environment.
func (s Settings) proxy() map[string]string {
	all := map[string]string{}
	for name, value := range map[string]string{"HTTPS_PROXY": s.HTTPSProxy, "HTTP_PROXY": s.HTTPProxy, "NO_PROXY": s.NoProxy} {
		if value != "" {
			all[name] = value
		}
	}
	return all
}
