package engine

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/levelrail/levelrail"
)

func init() { Register(vllm{}) }

// vllm is `vllm serve`: a repository's directory, several processes, a Unix socket of its own. Its server guards only a
// part of its routes with its key, so nothing but the gateway may reach the socket.
type vllm struct{}

func (vllm) Name() string { return "vllm" }

var vllmOptions = []option{
	number("tensor-parallel-size", 1, 1024).noArgs(),
	number("pipeline-parallel-size", 1, 1024).noArgs(),
	fraction("gpu-memory-utilization", 0, 1),
	number("kv-cache-memory-bytes", 1, math.MaxInt64),
	number("cpu-kvcache-gib", 1, 1<<20).noArgs(), // VLLM_CPU_KVCACHE_SPACE
	number("max-num-seqs", 1, 65536),
	number("max-num-batched-tokens", 1, mostContext),
	number("max-logprobs", 0, 1<<20),
	word("block-size", "8", "16", "32", "64", "128"),
	word("kv-cache-dtype", "auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"),
	word("dtype", "auto", "half", "float16", "bfloat16", "float", "float32"),
	fraction("cpu-offload-gb", 0, 1<<20),
	number("seed", 0, math.MaxInt32),
	toggle("enforce-eager"),
	toggle("enable-prefix-caching"),
	toggle("enable-chunked-prefill"),
	toggle("enable-prompt-tokens-details"),
	toggle("enable-force-include-usage"),
	toggle("enable-auto-tool-choice"),
	toggle("enable-expert-parallel"),
	identifier("tool-call-parser", "the name of a parser that vLLM knows, such as hermes"),
	identifier("reasoning-parser", "the name of a parser that vLLM knows, such as qwen3"),
	word("tokenizer-mode", "auto", "slow", "mistral"),
	word("load-format", "auto", "safetensors", "pt", "mistral"),
	word("runner", "auto", "generate", "pooling"),
	word("convert", "auto", "none", "embed", "classify"),
	word("generation-config", "auto", "vllm"),
	object("override-generation-config"),
	object("limit-mm-per-prompt"),
	object("hf-overrides"),
	number("shutdown-timeout", 0, 600),
}

func (vllm) Check(spec levelrail.ModelSpec) error {
	if err := checkCommon(spec); err != nil {
		return err
	}
	if err := checkOptions("vllm", vllmOptions, spec.Options); err != nil {
		return err
	}
	if q := spec.Quantization; q != "" && !identifier("", "").ok(q) {
		return &levelrail.Error{Kind: levelrail.ErrInvalid, Message: "the quantization " + quote(q) + " is not usable", Next: "write a name that vLLM knows, such as awq, gptq or fp8, or leave it out: it is read from the model"}
	}
	if spec.Options["enable-auto-tool-choice"] == "true" && spec.Options["tool-call-parser"] == "" {
		return &levelrail.Error{Kind: levelrail.ErrInvalid, Message: "enable-auto-tool-choice needs a tool-call-parser", Next: "set the option tool-call-parser as well, such as tool-call-parser=hermes"}
	}
	if levelrail.IsPath(spec.Source) {
		return badSource("vllm", spec.Source, "name a repository of the Hub, org/name; files of the node are for --engine llamacpp (GGUF)")
	}
	repo, tag, ok := splitHub(spec.Source)
	switch {
	case !ok:
		return badSource("vllm", spec.Source, "name a repository of the Hub, such as Qwen/Qwen3-8B")
	case tag != "":
		return badSource("vllm", spec.Source, "write the repository alone, "+repo+": a :quant suffix is for --engine llamacpp, --quantization for vllm")
	case spec.SHA256 != "":
		return &levelrail.Error{Kind: levelrail.ErrInvalid, Message: "a checksum goes with a file of the node; files of a repository are checked against the repository's own", Next: "leave the checksum out; a revision pins the files"}
	}
	_, _, err := vllmParallel(spec, devicesWanted(spec.GPUs))
	return err
}

// devicesWanted is the number of devices that a request names, 0 when it leaves it to the node.
func devicesWanted(g levelrail.GPURequest) int {
	switch g.Mode {
	case levelrail.GPUCount:
		return g.Count
	case levelrail.GPUDevices:
		return len(g.Devices)
	}
	return 0
}

// vllmParallel shares devices out: tensor times pipeline parallel is the number of devices. With neither given all of
// them split each layer. devices 0 is the CPU, or not known yet.
func vllmParallel(spec levelrail.ModelSpec, devices int) (tensor, pipeline int, err error) {
	tensor, _ = strconv.Atoi(spec.Options["tensor-parallel-size"])
	pipeline, _ = strconv.Atoi(spec.Options["pipeline-parallel-size"])
	if devices == 0 {
		return max(tensor, 1), max(pipeline, 1), nil
	}
	switch {
	case tensor == 0 && pipeline == 0:
		tensor, pipeline = devices, 1
	case tensor == 0:
		tensor = devices / pipeline
	case pipeline == 0:
		pipeline = devices / tensor
	}
	if tensor*pipeline != devices {
		return 0, 0, &levelrail.Error{Kind: levelrail.ErrInvalid, Message: fmt.Sprintf("tensor-parallel-size %d times pipeline-parallel-size %d does not give the %d GPUs asked for", tensor, pipeline, devices),
			Next: "make the two multiply to the number of GPUs, or leave both out"}
	}
	return tensor, pipeline, nil
}

func (vllm) Programs() []string {
	return []string{"vllm", "/opt/vllm/bin/vllm", "/usr/local/bin/vllm"}
}

func (v vllm) Weights(spec levelrail.ModelSpec) (WeightsPlan, error) {
	if err := v.Check(spec); err != nil {
		return WeightsPlan{}, err
	}
	repo, _, _ := splitHub(spec.Source)
	return WeightsPlan{From: FromHub, Repo: repo, Commit: spec.SourceCommit, Choose: chooseSafetensors(repo)}, nil
}

// Launch serves the directory, offline. The engine's key is in a variable: on the command line everyone could read it.
func (vllm) Launch(p Params) (Launch, error) {
	args := []string{p.Program, "serve", p.WeightsDir, "--uds", p.Socket, "--served-model-name"}
	args = append(args, p.ServedNames...)
	if p.Spec.Context > 0 {
		args = append(args, "--max-model-len", strconv.Itoa(p.Spec.Context))
	}
	if p.Spec.Quantization != "" {
		args = append(args, "--quantization", p.Spec.Quantization)
	}
	tensor, pipeline, err := vllmParallel(p.Spec, len(p.Devices))
	if err != nil {
		return Launch{}, fmt.Errorf("start vllm for %s: %w", p.Name, err)
	}
	if tensor > 1 {
		args = append(args, "--tensor-parallel-size", strconv.Itoa(tensor))
	}
	if pipeline > 1 {
		args = append(args, "--pipeline-parallel-size", strconv.Itoa(pipeline))
	}
	args = append(args, "--disable-fastapi-docs", "--disable-uvicorn-access-log")
	args = append(args, optionArgs(vllmOptions, p.Spec.Options)...)

	in := func(parts ...string) string { return filepath.Join(append([]string{p.CacheDir}, parts...)...) }
	env := []string{
		"HOME=" + p.CacheDir, "XDG_CACHE_HOME=" + p.CacheDir, "XDG_CONFIG_HOME=" + p.CacheDir, "TMPDIR=" + p.CacheDir,
		"HF_HOME=" + in("huggingface"), "HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1",
		"VLLM_CACHE_ROOT=" + in("vllm"), "VLLM_CONFIG_ROOT=" + in("vllm", "config"), "TRITON_CACHE_DIR=" + in("triton"), "TORCHINDUCTOR_CACHE_DIR=" + in("inductor"),
		"VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1",
		"VLLM_MEDIA_URL_ALLOW_REDIRECTS=0",
		"VLLM_LOGGING_COLOR=0", "NO_COLOR=1", "TERM=dumb", "PYTHONUNBUFFERED=1",
	}
	if g := p.Spec.Options["cpu-kvcache-gib"]; g != "" {
		env = append(env, "VLLM_CPU_KVCACHE_SPACE="+g)
	}
	env = append(env, gpuEnv(p.Devices)...)
	l := Launch{Args: args, Env: env, KeyVariable: "VLLM_API_KEY", InetFamilies: true, Resources: true, WriteExec: true, StopSeconds: 60, KillMode: "mixed"}
	if len(p.Devices) > 0 {
		l.Env = append(l.Env, "CUDA_CACHE_PATH="+in("cuda"))
	}
	if len(p.Devices) > 1 {
		l.SystemCalls = []string{"pidfd_getfd"} // torch shares memory between its processes by it
	}
	if drain, _ := strconv.Atoi(p.Spec.Options["shutdown-timeout"]); drain > 0 {
		l.StopSeconds += drain
	}
	return l, nil
}

// Ready: the socket's file is there long before the engine and refuses until it serves; 503 comes when the engine behind
// the server has died, which ends the process within seconds.
func (vllm) Ready(ctx context.Context, c *http.Client, p Params) Readiness {
	health := probe(ctx, c, http.MethodGet, "/health", "", nil)
	switch {
	case health.err != nil:
		return Readiness{State: Down, Message: health.err.Error()}
	case health.status != http.StatusOK:
		return Readiness{State: Broken, Message: fmt.Sprintf("GET /health answered %d: %s", health.status, health.message())}
	}
	return listsModel(ctx, c, p)
}

var (
	vllmDevice = regexp.MustCompile(`\bdevice_config=(\w+)`)
	vllmTensor = regexp.MustCompile(`\btensor_parallel_size=(\d+)`)
)

// Compute reads the line in which the engine says its configuration.
func (vllm) Compute(lines []string) string {
	for _, l := range lines {
		m := vllmDevice.FindStringSubmatch(l)
		if m == nil {
			continue
		}
		if m[1] != "cuda" {
			return m[1]
		}
		n := 1
		if t := vllmTensor.FindStringSubmatch(l); t != nil {
			n, _ = strconv.Atoi(t[1])
		}
		devices := make([]string, 0, n)
		for i := range max(n, 1) {
			devices = append(devices, "CUDA"+strconv.Itoa(i))
		}
		return strings.Join(devices, ",")
	}
	return ""
}

// Slots: vLLM takes in what comes and shares its time among as many as the memory holds, hundreds where nobody says.
func (vllm) Slots(spec levelrail.ModelSpec) int { return slotsOf(spec, "max-num-seqs", 0) }

func (vllm) Routes() []Route {
	return append(append(textRoutes(Route{AskUsage: true}), rerankRoutes("/v1/rerank", "/v2/rerank")...),
		Route{Path: "/v1/audio/transcriptions", Method: http.MethodPost, Kind: "transcriptions", Multipart: true},
		Route{Path: "/v1/audio/translations", Method: http.MethodPost, Kind: "translations", Multipart: true},
	)
}

// Body: what vLLM does not know it ignores, but each release knows more, some of it the engine's inside (cache transfer,
// priorities, arguments of plugins), and nothing here has looked at those. So what is not known is refused.
func (vllm) Body() BodyTable {
	b := BodyTable{
		Length: []string{"max_completion_tokens", "max_tokens", "max_output_tokens"},
		Reads:  map[string][]string{"chat": {"max_completion_tokens", "max_tokens"}, "completions": {"max_tokens"}, "responses": {"max_output_tokens"}},
		Count:  []string{"n", "best_of"},
		Refuse: append(nativeRefusals(),
			Refusal{Name: "use_beam_search", Same: []string{"false"}, Next: "leave it out: n would be the width of a beam"},
			Refusal{Name: "prompt_logprobs", Next: "leave it out: it makes a table for each token of the prompt"},
			Refusal{Name: "priority", Same: []string{"0"}, Next: "leave it out: requests of all clients are served alike"},
			Refusal{Name: "request_id", Next: "send the header X-Request-Id"},
			Refusal{Name: "session_id", Next: "leave it out"}, Refusal{Name: "cache_salt", Next: "leave it out"},
			Refusal{Name: "kv_transfer_params", Next: "leave it out"}, Refusal{Name: "vllm_xargs", Same: []string{"{}"}, Next: "leave it out"},
			Refusal{Name: "mm_processor_kwargs", Same: []string{"{}"}, Next: "leave it out"},
			Refusal{Name: "logits_processors", Same: []string{"[]"}, Next: "leave it out"},
			Refusal{Name: "chat_template", Next: "the template is the operator's to set"},
			Refusal{Name: "prompt_embeds", Next: "send the prompt as text or tokens"},
		),
		Unknown:       Deny,
		NullUnlimited: []string{"completions"},
	}
	return b.table(
		switches("ignore_eos", "add_generation_prompt", "continue_final_message", "add_special_tokens", "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output",
			"return_tokens_as_token_ids", "return_token_ids", "enable_response_messages", "stream_include_usage", "stream_continuous_usage_stats", "normalize", "use_activation", "detokenize"),
		wholes(-1, 1<<31-1, "top_k", "thinking_token_budget"),
		wholes(0, 1<<30, "min_tokens"),
		wholes(-1, 1<<30, "truncate_prompt_tokens"),
		reals(0, 1, "min_p"),
		reals(-100, 100, "repetition_penalty", "length_penalty"),
		texts(256, "guided_decoding_backend", "guided_whitespace_pattern", "truncation_side"),
		small("chat_template_kwargs"),
		[]Field{
			{Name: "stop", Forms: Text | List, Bytes: 16 << 10, Items: 64, Each: 1024},
			{Name: "stop_token_ids", Forms: List, Bytes: 16 << 10, Items: 256},
			{Name: "allowed_token_ids", Forms: List, Bytes: 64 << 10, Items: 4096},
			{Name: "logprob_token_ids", Forms: List, Bytes: 4096, Items: 128},
			{Name: "bad_words", Forms: List, Bytes: 16 << 10, Items: 128, Each: 256},
			{Name: "structured_outputs", Forms: Object, Inside: Schema},
			{Name: "guided_json", Forms: Object | Text, Inside: Schema},
			{Name: "guided_choice", Forms: List, Bytes: 64 << 10, Items: 512, Each: 1024},
			{Name: "guided_regex", Forms: Text, Inside: Regex},
			{Name: "guided_grammar", Forms: Text, Inside: Grammar},
			{Name: "repetition_detection", Forms: Object, Bytes: 1024, Nodes: 32},
		})
}
