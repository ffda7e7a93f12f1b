package engine

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/levelrail/levelrail"
)

var update = flag.Bool("update", false, "rewrite the goldens in testdata/launch")

// engines are all that this release has.
var engines = []string{"llamacpp", "ollama", "vllm"}

// TestRegistry: the three engines are there, and an unknown one is refused with their names.
func TestRegistry(t *testing.T) {
	if got := Names(); !slices.Equal(got, engines) {
		t.Errorf("engines %v, want %v", got, engines)
	}
	for _, name := range engines {
		e, err := Get(name)
		if err != nil || e.Name() != name {
			t.Errorf("%s: %v, %v", name, e, err)
		}
	}
	_, err := Get("llama.cpp")
	if levelrail.KindOf(err) != levelrail.ErrInvalid || !strings.Contains(err.Error(), "llamacpp, ollama, vllm") {
		t.Errorf("got %v", err)
	}
}

func get(t *testing.T, name string) Engine {
	t.Helper()
	e, err := Get(name)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

const (
	gpu0 = "GPU-aaaaaaaa-0000-4000-8000-000000000000"
	gpu1 = "GPU-bbbbbbbb-0000-4000-8000-000000000001"
)

// params is a replica named chat of a source, with its weights in place.
func params(source string, devices []string, options levelrail.Options) Params {
	spec := levelrail.ModelSpec{Source: source, Options: options}
	return Params{
		Name: "chat", Model: "chat", Spec: spec, ServedNames: levelrail.ServedNames("chat", spec), Program: "/usr/bin/engine",
		WeightsDir: "/var/lib/levelrail/weights/chat", Socket: "/run/levelrail/engines/chat/engine.sock",
		Files: []levelrail.WeightsFile{
			{Path: "mmproj-F16.gguf", Role: levelrail.RoleProjector},
			{Path: "q/model-00002-of-00002.gguf", Role: levelrail.RoleModel},
			{Path: "q/model-00001-of-00002.gguf", Role: levelrail.RoleModel},
		},
		CacheDir: "/var/cache/levelrail/engines/chat", Devices: devices, KeyFile: "%d/engine-key", Key: "SECRET",
	}
}

// TestLaunch holds every engine's process against its golden: on the CPU, on two GPUs, and with options.
func TestLaunch(t *testing.T) {
	for _, c := range []struct {
		golden, engine, source string
		devices                []string
		context                int
		quantization           string
		files                  []levelrail.WeightsFile
		options                levelrail.Options
	}{
		{golden: "llamacpp-cpu", engine: "llamacpp", source: "org/name-GGUF:Q4_K_M", context: 8192, files: []levelrail.WeightsFile{{Path: "model.gguf", Role: levelrail.RoleModel}}},
		{golden: "llamacpp-gpus", engine: "llamacpp", source: "/srv/model-00001-of-00002.gguf", devices: []string{gpu0, gpu1}},
		{golden: "llamacpp-options", engine: "llamacpp", source: "org/name-GGUF", devices: []string{gpu1}, context: 4096, options: levelrail.Options{
			"parallel": "4", "cache-type-k": "q8_0", "cache-type-v": "q8_0", "flash-attn": "on", "gpu-layers": "20", "mmproj": "auto", "embeddings": "true", "pooling": "mean", "reasoning-budget": "-1", "swa-full": "false"}},
		{golden: "llamacpp-unified", engine: "llamacpp", source: "org/name-GGUF", context: 4096, options: levelrail.Options{"parallel": "4", "kv-unified": "true", "numa": "distribute"}},
		{golden: "ollama-cpu", engine: "ollama", source: "llama3.1:8b"},
		{golden: "ollama-gpus", engine: "ollama", source: "llama3.1:8b", devices: []string{gpu0, gpu1}, context: 32768},
		{golden: "ollama-options", engine: "ollama", source: "llama3.1:8b", devices: []string{gpu1}, options: levelrail.Options{"parallel": "4", "flash-attention": "true", "kv-cache-type": "q8_0", "load-timeout": "20m"}},
		{golden: "vllm-cpu", engine: "vllm", source: "org/name", context: 1024, options: levelrail.Options{"cpu-kvcache-gib": "1", "enforce-eager": "true", "max-num-seqs": "4"}},
		{golden: "vllm-gpus", engine: "vllm", source: "org/name", devices: []string{gpu0, gpu1}},
		{golden: "vllm-options", engine: "vllm", source: "org/name", devices: []string{gpu0, gpu1}, context: 131072, quantization: "awq", options: levelrail.Options{
			"pipeline-parallel-size": "2", "gpu-memory-utilization": "0.85", "enable-auto-tool-choice": "true", "tool-call-parser": "hermes", "shutdown-timeout": "30"}},
	} {
		t.Run(c.golden, func(t *testing.T) {
			e := get(t, c.engine)
			p := params(c.source, c.devices, c.options)
			p.Spec.Context, p.Spec.Quantization = c.context, c.quantization
			if c.files != nil {
				p.Files = c.files
			}
			if err := e.Check(p.Spec); err != nil {
				t.Fatal(err)
			}
			l, err := e.Launch(p)
			if err != nil {
				t.Fatal(err)
			}
			got := render(l)
			if strings.Contains(got, p.Key) {
				t.Error("the key's text is in the process's arguments or environment")
			}
			file := filepath.Join("testdata", "launch", c.golden+".txt")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got\n%swant\n%s", got, want)
			}
		})
	}
}

// render writes a Launch one item a line.
func render(l Launch) string {
	var b strings.Builder
	for _, a := range l.Args {
		b.WriteString("arg " + a + "\n")
	}
	for _, e := range l.Env {
		b.WriteString("env " + e + "\n")
	}
	if l.InetFamilies {
		b.WriteString("inet\n")
	}
	if l.Resources {
		b.WriteString("resources\n")
	}
	if l.WriteExec {
		b.WriteString("write-exec\n")
	}
	if l.KeyVariable != "" {
		b.WriteString("key variable " + l.KeyVariable + "\n")
	}
	if l.Door != "" {
		b.WriteString("door " + l.Door + "\n")
	}
	for _, s := range l.SystemCalls {
		b.WriteString("system call " + s + "\n")
	}
	b.WriteString("stop " + l.KillMode + " within " + strconv.Itoa(l.StopSeconds) + " s\n")
	return b.String()
}

// TestLaunchRefuses: a replica that cannot be started says why.
func TestLaunchRefuses(t *testing.T) {
	p := params("org/name", nil, nil)
	p.Files = nil
	if _, err := get(t, "llamacpp").Launch(p); err == nil || !strings.Contains(err.Error(), "no model file") {
		t.Errorf("without weights: %v", err)
	}
	p = params("org/name", []string{gpu0, gpu1}, levelrail.Options{"tensor-parallel-size": "3"})
	if _, err := get(t, "vllm").Launch(p); err == nil {
		t.Error("three-way parallel on two GPUs was taken")
	}
}

// TestServe: the fetch's server of Ollama writes the given store at the given address, keeps its key pair outside of it,
// and never touches a GPU or the cloud.
func TestServe(t *testing.T) {
	plan, err := get(t, "ollama").Weights(levelrail.ModelSpec{Source: "llama3.1:8b"})
	if err != nil {
		t.Fatal(err)
	}
	l := plan.Serve("/usr/bin/ollama", "/var/lib/levelrail/weights/.chat.new", "127.0.0.1:40000")
	for _, want := range []string{"OLLAMA_HOST=127.0.0.1:40000", "OLLAMA_MODELS=/var/lib/levelrail/weights/.chat.new", "HOME=/var/lib/levelrail/weights/.ollama-home", "OLLAMA_NO_CLOUD=1", "CUDA_VISIBLE_DEVICES=-1"} {
		if !slices.Contains(l.Env, want) {
			t.Errorf("no %s in %q", want, l.Env)
		}
	}
}

// TestInstallHint: each engine names what to do on this distribution and the setting for an own build.
func TestInstallHint(t *testing.T) {
	for _, c := range []struct{ engine, distribution, version, want, own string }{
		{"llamacpp", "debian", "14", "apt install llama.cpp-tools", "APP_MODEL_ENGINE_LLAMACPP="},
		{"llamacpp", "debian", "12", "github.com/ggml-org/llama.cpp/releases", "APP_MODEL_ENGINE_LLAMACPP="},
		{"llamacpp", "ubuntu", "24.04", "github.com/ggml-org/llama.cpp/releases", "APP_MODEL_ENGINE_LLAMACPP="},
		{"ollama", "debian", "14", "ollama.com/download", "APP_MODEL_ENGINE_OLLAMA="},
		{"vllm", "ubuntu", "24.04", "docs.vllm.ai", "APP_MODEL_ENGINE_VLLM="},
	} {
		got := get(t, c.engine).InstallHint(c.distribution, c.version)
		if !strings.Contains(got, c.want) || !strings.Contains(got, c.own) || !strings.Contains(got, "/etc/default/levelrail-agent") {
			t.Errorf("%s on %s %s: %s", c.engine, c.distribution, c.version, got)
		}
	}
}

// TestRoutes: exactly the routes of the reference, and none of those that are unsafe though they lie under /v1.
func TestRoutes(t *testing.T) {
	text := "/v1/chat/completions /v1/completions /v1/embeddings /v1/responses"
	for name, want := range map[string]string{
		"llamacpp": text + " /v1/rerank /v1/reranking", "ollama": text, "vllm": text + " /v1/rerank /v2/rerank /v1/audio/transcriptions /v1/audio/translations",
	} {
		var got []string
		for _, r := range get(t, name).Routes() {
			got = append(got, r.Path)
			if r.Method != "POST" || r.Kind == "" || r.Multipart != strings.HasPrefix(r.Path, "/v1/audio/") {
				t.Errorf("%s: %+v", name, r)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s serves %v, want %s", name, got, want)
		}
	}
}

// TestSlots: what is said of the requests that an engine works on at a time is what it is started with.
func TestSlots(t *testing.T) {
	for _, c := range []struct {
		engine  string
		context int
		options levelrail.Options
		want    int
	}{
		{"llamacpp", 0, nil, 4}, {"llamacpp", 1024, nil, 4}, {"llamacpp", 16384, nil, 2}, {"llamacpp", 32768, nil, 1}, {"llamacpp", 131072, nil, 1},
		{"llamacpp", 131072, levelrail.Options{"parallel": "8"}, 8}, {"llamacpp", 131072, levelrail.Options{"kv-unified": "true"}, 4},
		{"ollama", 0, nil, 1}, {"ollama", 0, levelrail.Options{"parallel": "3"}, 3}, {"vllm", 0, nil, 0}, {"vllm", 0, levelrail.Options{"max-num-seqs": "16"}, 16},
	} {
		e, err := Get(c.engine)
		if err != nil {
			t.Fatal(err)
		}
		p := params("org/name", nil, c.options)
		p.Spec.Context = c.context
		if got := e.Slots(p.Spec); got != c.want {
			t.Errorf("%s, context %d, %v: %d, want %d", c.engine, c.context, c.options, got, c.want)
		}
		if c.engine != "llamacpp" {
			continue
		}
		launch, err := e.Launch(p)
		if err != nil {
			t.Fatal(err)
		}
		if at := slices.Index(launch.Args, "--parallel"); at >= 0 && launch.Args[at+1] != strconv.Itoa(c.want) {
			t.Errorf("context %d, %v: started with %s slots, and %d are said", c.context, c.options, launch.Args[at+1], c.want)
		}
	}
}
