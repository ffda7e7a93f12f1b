package engine

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/levelrail/levelrail"
)

func init() { Register(llamacpp{}) }

// llamacpp is llama.cpp's llama-server: one GGUF a process, served on a Unix socket that it makes itself. The command
// line was tried on build 11669 (Debian 14).
type llamacpp struct{}

func (llamacpp) Name() string { return "llamacpp" }

// cacheTypes are what a key-value cache may be stored as.
var cacheTypes = []string{"f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"}

// llamacppOptions are the options that change how a model runs. What opens a further door is none of them: tools, agent,
// MCP, slot files, media paths, remote workers, other sources of weights, the server's own address and key.
var llamacppOptions = []option{
	number("parallel", 1, 256).noArgs(),
	toggle("kv-unified"),
	number("threads", 1, 1024),
	number("threads-batch", 1, 1024),
	number("batch-size", 1, 65536),
	number("ubatch-size", 1, 65536),
	word("flash-attn", "on", "off", "auto"),
	word("cache-type-k", cacheTypes...),
	word("cache-type-v", cacheTypes...),
	toggle("swa-full"),
	number("cache-ram", 0, 1<<24),
	number("cache-reuse", 0, 1<<20),
	word("gpu-layers", "all", "auto").orNumber(0, 10000).noArgs(),
	word("split-mode", "none", "layer", "row"),
	ratios("tensor-split"),
	number("main-gpu", 0, 63),
	toggle("cpu-moe"),
	number("n-cpu-moe", 0, 10000),
	word("load-mode", "auto", "none", "mmap", "mlock", "dio"),
	word("numa", "distribute", "isolate", "numactl"),
	toggle("embeddings"),
	toggle("reranking"),
	word("pooling", "none", "mean", "cls", "last", "rank"),
	{name: "mmproj", want: "none, auto, or the name of a projector file (with a file of the node: its absolute path)", ok: isProjectorChoice},
	identifier("chat-template", "the name of a template that llama-server knows, such as chatml"),
	object("chat-template-kwargs"),
	word("reasoning-format", "none", "auto", "deepseek", "deepseek-legacy"),
	number("reasoning-budget", -1, math.MaxInt32),
	number("predict", -1, math.MaxInt32),
	word("rope-scaling", "none", "linear", "yarn"),
	fraction("rope-scale", 0, 1000),
	fraction("rope-freq-base", 0, 1e9),
	number("yarn-orig-ctx", 0, mostContext),
	number("image-max-tokens", 1, 65536),
}

func isProjectorChoice(v string) bool {
	return v == "none" || v == "auto" || isGGUF(v) && len(v) <= 255 && path.Clean(v) == v && !strings.HasPrefix(v, "../")
}

func (llamacpp) Check(spec levelrail.ModelSpec) error {
	if err := checkCommon(spec); err != nil {
		return err
	}
	if err := noQuantization(spec, "llamacpp", "name it behind the repository, as in --model org/name-GGUF:Q4_K_M"); err != nil {
		return err
	}
	if err := checkOptions("llamacpp", llamacppOptions, spec.Options); err != nil {
		return err
	}
	context, slots := llamacppContext(spec)
	if total := context * max(slots, 1); total > math.MaxInt32 {
		return &levelrail.Error{Kind: levelrail.ErrInvalid, Message: fmt.Sprintf("a context of %d tokens for each of %d requests is %d in all, more than llama-server can count", context, slots, total),
			Next: "lower --context or the option parallel"}
	}
	for _, name := range []string{"batch-size", "ubatch-size"} {
		if n, err := strconv.Atoi(spec.Options[name]); err == nil && n < context && embeds(spec) {
			return &levelrail.Error{Kind: levelrail.ErrInvalid, Message: fmt.Sprintf("a text to embed or rank is computed in one piece, so %s=%d would refuse what a context of %d tokens promises", name, n, context),
				Next: fmt.Sprintf("leave %s out, or lower --context to %d", name, n)}
		}
	}
	if spec.Options["embeddings"] == "true" && spec.Options["reranking"] == "true" {
		return &levelrail.Error{Kind: levelrail.ErrInvalid, Message: "the options embeddings and reranking exclude each other", Next: "deploy one model for each"}
	}
	if levelrail.IsPath(spec.Source) {
		if strings.HasSuffix(spec.Source, "/") {
			return badSource("llamacpp", spec.Source, "name the .gguf file itself")
		}
		// The fetch reads as root: a name that is no model's must not bring any other file of the node before an engine.
		if !isGGUF(spec.Source) {
			return badSource("llamacpp", spec.Source, "name a file that ends in .gguf; other formats are converted first (convert_hf_to_gguf.py of llama.cpp)")
		}
		if m := spec.Options["mmproj"]; m != "" && m != "none" && !filepath.IsAbs(m) {
			return &levelrail.Error{Kind: levelrail.ErrInvalid, Message: "with a file of the node the option mmproj needs a file as well, not " + quote(m), Next: "write mmproj=/path/to/mmproj.gguf"}
		}
		return nil
	}
	if _, _, ok := splitHub(spec.Source); !ok {
		next := "name a repository with GGUF files and perhaps a quantization, org/name-GGUF:Q4_K_M, or a file of the node, /path/to/model.gguf"
		if !strings.Contains(spec.Source, "/") {
			next += "; tags such as llama3.1:8b are for --engine ollama"
		}
		return badSource("llamacpp", spec.Source, next)
	}
	if filepath.IsAbs(spec.Options["mmproj"]) {
		return &levelrail.Error{Kind: levelrail.ErrInvalid, Message: "with a repository the option mmproj names a file of that repository", Next: "write mmproj=auto, or a file name without a leading /"}
	}
	if spec.SHA256 != "" {
		return &levelrail.Error{Kind: levelrail.ErrInvalid, Message: "a checksum goes with a file of the node; files of a repository are checked against the repository's own", Next: "leave the checksum out; a revision pins the files"}
	}
	return nil
}

func (llamacpp) Programs() []string {
	return []string{"llama-server", "/opt/llama.cpp/bin/llama-server", "/usr/local/llama.cpp/bin/llama-server"}
}

func (l llamacpp) Weights(spec levelrail.ModelSpec) (WeightsPlan, error) {
	if err := l.Check(spec); err != nil {
		return WeightsPlan{}, err
	}
	if levelrail.IsPath(spec.Source) {
		plan := WeightsPlan{From: FromFile}
		for _, p := range splitSiblings(spec.Source) {
			plan.Files = append(plan.Files, LocalFile{Path: p, Role: levelrail.RoleModel})
		}
		plan.Path = plan.Files[0].Path
		if m := spec.Options["mmproj"]; filepath.IsAbs(m) {
			plan.Files = append(plan.Files, LocalFile{Path: m, Role: levelrail.RoleProjector})
		}
		return plan, nil
	}
	repo, quant, _ := splitHub(spec.Source)
	return WeightsPlan{From: FromHub, Repo: repo, Commit: spec.SourceCommit, Tag: quant, Choose: chooseGGUF(repo, quant, spec.Options["mmproj"])}, nil
}

// Launch passes every choice on the command line or in the environment, so that a configuration file of the machine
// (/etc/llama.cpp/config.ini, or one below XDG_CONFIG_HOME) cannot change it: both win over files.
func (llamacpp) Launch(p Params) (Launch, error) {
	model, projector := "", ""
	for _, f := range slices.SortedFunc(slices.Values(p.Files), func(a, b levelrail.WeightsFile) int { return strings.Compare(a.Path, b.Path) }) {
		switch {
		case f.Role == levelrail.RoleModel && model == "" && isFirstPart(f.Path):
			model = filepath.Join(p.WeightsDir, f.Path)
		case f.Role == levelrail.RoleProjector && projector == "":
			projector = filepath.Join(p.WeightsDir, f.Path)
		}
	}
	if model == "" {
		return Launch{}, fmt.Errorf("start llama-server for %s: no model file among the %d files of %s", p.Name, len(p.Files), p.WeightsDir)
	}
	args := []string{p.Program, "--host", p.Socket, "--model", model, "--alias", strings.Join(p.ServedNames, ",")}
	if projector != "" {
		args = append(args, "--mmproj", projector)
	}

	context, slots := llamacppContext(p.Spec)
	args = append(args, "--ctx-size", strconv.Itoa(context*max(slots, 1)))
	if slots > 0 {
		args = append(args, "--parallel", strconv.Itoa(slots))
	} else { // one pool, by wish
		if n := p.Spec.Options["parallel"]; n != "" {
			args = append(args, "--parallel", n)
		}
	}
	// A text to embed or to rank is computed in one piece, which the engine's own batch of 512 tokens would bound.
	if embeds(p.Spec) {
		for _, name := range []string{"batch-size", "ubatch-size"} {
			if p.Spec.Options[name] == "" {
				args = append(args, "--"+name, strconv.Itoa(context))
			}
		}
	}
	if p.KeyFile != "" {
		args = append(args, "--api-key-file", p.KeyFile)
	}
	args = append(args, "--metrics", "--no-slots", "--offline")

	// Without -fit off a model that does not fit is shrunk in silence. Verbosity 4 has the lines that say which device
	// holds which layers, which Compute reads; it also has a few lines a request, so the CPU stays at 3.
	verbosity := "3"
	if len(p.Devices) == 0 {
		args = append(args, "--device", "none")
	} else {
		layers := p.Spec.Options["gpu-layers"]
		if layers == "" {
			layers = "all"
		}
		args = append(args, "--gpu-layers", layers)
		verbosity = "4"
	}
	args = append(args, "--fit", "off", "--log-colors", "off", "--no-log-timestamps", "--log-verbosity", verbosity)
	args = append(args, optionArgs(llamacppOptions, p.Spec.Options)...)

	env := []string{
		// The page is switched off by a variable, not by --no-ui, which older builds call --no-webui: an unknown variable
		// stops nothing.
		"LLAMA_ARG_UI=0", "LLAMA_ARG_WEBUI=0",
		"HOME=" + p.CacheDir, "XDG_CONFIG_HOME=" + p.CacheDir, "XDG_CACHE_HOME=" + p.CacheDir,
		"NO_COLOR=1", "TERM=dumb",
	}
	env = append(env, gpuEnv(p.Devices)...)
	if len(p.Devices) > 0 {
		env = append(env, "CUDA_CACHE_PATH="+filepath.Join(p.CacheDir, "cuda"))
	}
	// Binding threads and pages to NUMA nodes takes system calls that the sandbox keeps back otherwise.
	_, numa := p.Spec.Options["numa"]
	return Launch{Args: args, Env: env, Resources: numa, StopSeconds: 20, KillMode: "control-group"}, nil
}

// How a context is shared out where a spec does not say it. llama-server's own rule, four slots over one pool, lets parallel
// requests that fit alone end one another's streams when the pool is full, so each slot has its own part.
const (
	llamacppSlots = 4     // slots, as many as fit into
	llamacppPool  = 32768 // tokens: a larger context would cost several times the memory without having been asked for
	embedContext  = 2048  // of texts to embed: what computes one grows with its square on some devices
)

// llamacppContext is the context in tokens of each request, and the number of slots. No slots: all requests share one
// pool of that context, as kv-unified asks for.
func llamacppContext(spec levelrail.ModelSpec) (context, slots int) {
	context = spec.Context
	switch {
	case context == 0 && embeds(spec):
		context = embedContext
	case context == 0:
		context = defaultContext
	}
	if spec.Options["kv-unified"] == "true" {
		return context, 0
	}
	if n, err := strconv.Atoi(spec.Options["parallel"]); err == nil && n > 0 { // Check has seen it
		return context, n
	}
	return context, min(max(llamacppPool/context, 1), llamacppSlots)
}

// embeds tells whether a model computes one vector or rank of a text and generates nothing.
func embeds(spec levelrail.ModelSpec) bool {
	return spec.Options["embeddings"] == "true" || spec.Options["reranking"] == "true"
}

func isFirstPart(p string) bool {
	_, n, _ := splitPath(p)
	return n == 1
}

// Ready: the socket refuses while the process starts, every route answers 503 while it loads, and /health answers 200
// when it serves. That some server is healthy does not say which: the listing, which needs the engine's key, must name
// this model.
func (llamacpp) Ready(ctx context.Context, c *http.Client, p Params) Readiness {
	health := probe(ctx, c, http.MethodGet, "/health", "", nil)
	switch {
	case health.err != nil:
		return Readiness{State: Down, Message: health.err.Error()}
	case health.status == http.StatusServiceUnavailable:
		return Readiness{State: Load, Message: health.message()}
	case health.status != http.StatusOK:
		return Readiness{State: Broken, Message: fmt.Sprintf("GET /health answered %d: %s", health.status, health.message())}
	}
	return listsModel(ctx, c, p)
}

var (
	llamaBuffer = regexp.MustCompile(`(\S+) model buffer size\s*=\s*([\d.]+) MiB`)
	llamaLayers = regexp.MustCompile(`offloaded\s+(\d+)/(\d+)\s+layers to GPU`)
)

// Compute reads where the weights lie. The lines come at verbosity 4 only, which Launch asks for when there are
// devices; a start without them that reaches "model loaded" was one on the CPU.
func (llamacpp) Compute(lines []string) string {
	var devices []string
	loaded, layers := false, -1
	for _, l := range lines {
		if m := llamaBuffer.FindStringSubmatch(l); m != nil {
			size, _ := strconv.ParseFloat(m[2], 64)
			if d := m[1]; size > 0 && onGPU(d) && !slices.Contains(devices, d) {
				devices = append(devices, d)
			}
		}
		if m := llamaLayers.FindStringSubmatch(l); m != nil {
			layers, _ = strconv.Atoi(m[1]) // probes of the automatic fit print it too: the last one counts
		}
		loaded = loaded || strings.Contains(l, "model loaded") || strings.Contains(l, "listening on ")
	}
	switch {
	case len(devices) > 0 && layers != 0:
		slices.Sort(devices)
		return strings.Join(devices, ",")
	case loaded:
		return "cpu"
	}
	return ""
}

// onGPU tells a buffer of a GPU backend (CUDA0, ROCm0, Vulkan0) from the host's own (CPU, CPU_Mapped, AMX, CUDA_Host).
func onGPU(buffer string) bool {
	if strings.HasSuffix(buffer, "_Host") {
		return false
	}
	for _, p := range []string{"CUDA", "ROCm", "Vulkan", "SYCL", "MTL"} {
		if strings.HasPrefix(buffer, p) {
			return true
		}
	}
	return false
}

// Routes are those of the reference. Under /v1 llama-server also has routes that end, read or stop another caller's
// request (/v1/chat/completions/control, /v1/stream, /v1/streams/lookup), so a prefix would not do.
// Routes: a stream's last event has timings without being asked, which say what usage would; asked for usage, they move.
func (llamacpp) Routes() []Route {
	return append(textRoutes(Route{FirstOnly: true}), rerankRoutes("/v1/rerank", "/v1/reranking")...)
}

// llamaSlots is how many slots llama-server takes where no number is given.
const llamaSlots = 4

// Slots: what finds no slot free is deferred, without a word and without a bound.
func (llamacpp) Slots(spec levelrail.ModelSpec) int {
	if _, slots := llamacppContext(spec); slots > 0 {
		return slots
	}
	return slotsOf(spec, "parallel", llamaSlots)
}

// slotsOf is an option that says how many requests are worked on at a time, or what the engine takes without it.
func slotsOf(spec levelrail.ModelSpec, option string, otherwise int) int {
	if n, err := strconv.Atoi(spec.Options[option]); err == nil && n > 0 {
		return n
	}
	return otherwise
}

// Body: llama-server copies every field that it does not know from the request into what it generates by, and later reads
// its own names there: chat_parser, chat_format, generation_prompt, grammar_triggers, preserved_tokens and more are the
// server's inside, and each release has others. So what is not known is refused.
func (llamacpp) Body() BodyTable {
	lengths := []string{"max_completion_tokens", "max_tokens"} // n_predict would win over both
	b := BodyTable{
		Length: []string{"max_completion_tokens", "max_tokens", "max_output_tokens"},
		Reads:  map[string][]string{"chat": lengths, "completions": lengths, "responses": {"max_completion_tokens", "max_output_tokens", "max_tokens"}},
		Count:  []string{"n", "best_of"},
		Refuse: append(nativeRefusals(),
			Refusal{Name: "n_keep", Same: []string{"0", "-1"}, Next: "leave it out: the context is not shifted"},
			Refusal{Name: "n_discard", Same: []string{"0"}, Next: "leave it out: the context is not shifted"},
			Refusal{Name: "id_slot", Same: []string{"-1"}, Next: "leave it out: a slot holds another client's cache"},
			Refusal{Name: "lora", Same: []string{"[]"}, Next: "adapters are the operator's to load"},
			Refusal{Name: "response_fields", Same: []string{"[]"}, Next: "leave it out: the usage has to stay in the response"},
			Refusal{Name: "sse_ping_interval", Next: "leave it out"},
			Refusal{Name: "speculative.n_max", Next: "leave it out"}, Refusal{Name: "speculative.n_min", Next: "leave it out"},
			Refusal{Name: "speculative.p_min", Next: "leave it out"}, Refusal{Name: "speculative.type", Next: "leave it out"},
		),
		Unknown: Deny,
	}
	return b.table(
		switches("ignore_eos", "cache_prompt", "timings_per_token", "return_progress", "return_tokens", "post_sampling_probs", "backend_sampling", "add_generation_prompt", "parse_tool_calls"),
		// The window of a penalty is looked through for each token that is generated, and allocated beforehand.
		wholes(-1, 32768, "repeat_last_n", "dry_penalty_last_n"),
		wholes(0, 32768, "dry_allowed_length", "n_indent", "min_keep", "n_cache_reuse"),
		wholes(0, 100, "n_probs"),
		wholes(-1, 1<<31-1, "top_k", "reasoning_budget_tokens", "thinking_budget_tokens"),
		wholes(0, 2, "mirostat"),
		wholes(-1, mostWhole, "t_max_predict_ms", "t_max_prompt_ms"),
		reals(-1000, 1000, "min_p", "typical_p", "top_n_sigma", "xtc_probability", "xtc_threshold", "dynatemp_range", "dynatemp_exponent", "repeat_penalty", "repetition_penalty", "dry_multiplier", "dry_base",
			"mirostat_tau", "mirostat_eta", "adaptive_target", "adaptive_decay"),
		texts(64, "reasoning_format"),
		[]Field{
			{Name: "samplers", Forms: Text | List, Bytes: 1024, Items: 32, Each: 64},
			{Name: "dry_sequence_breakers", Forms: Text | List, Bytes: 4096, Items: 32, Each: 128},
			{Name: "grammar", Forms: Text, Inside: Grammar},
			{Name: "json_schema", Forms: Object | Switch, Inside: Schema},
			{Name: "chat_template_kwargs", Forms: Object, Bytes: 16 << 10, Nodes: 512},
			{Name: "continue_final_message", Forms: Switch | Text, Bytes: 64},
		})
}
