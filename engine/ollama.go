package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/levelrail/levelrail"
)

func init() { Register(&ollama{}) }

// ollama is `ollama serve`: a server that keeps models in a store of its own and loads them on request. It has no Unix
// socket, so it listens on loopback inside its unit's own network namespace and a door unit leads there. It has no key.
type ollama struct {
	mu    sync.Mutex
	loads map[string]*ollamaLoad // by socket
}

// ollamaLoad is one load that this process asked for.
type ollamaLoad struct {
	done bool
	err  string    // why it failed; empty while it runs and after it worked
	at   time.Time // when it failed
}

const (
	ollamaAddress = "127.0.0.1:11434"
	// ollamaRetry is how long a failed load is left alone: each attempt reads gigabytes.
	ollamaRetry = 15 * time.Second
)

func (*ollama) Name() string { return "ollama" }

var ollamaOptions = []option{
	number("parallel", 1, 256),                                             // OLLAMA_NUM_PARALLEL: the cache is this many times the context
	number("max-queue", 1, 1<<20),                                          // OLLAMA_MAX_QUEUE
	toggle("flash-attention"),                                              // OLLAMA_FLASH_ATTENTION
	word("kv-cache-type", "f16", "q8_0", "q4_0"),                           // OLLAMA_KV_CACHE_TYPE; needs flash-attention
	toggle("sched-spread"),                                                 // OLLAMA_SCHED_SPREAD: over all GPUs even when one would do
	number("gpu-overhead", 0, 1<<50),                                       // OLLAMA_GPU_OVERHEAD, bytes kept free on each GPU
	{name: "load-timeout", want: "a duration such as 10m", ok: isDuration}, // OLLAMA_LOAD_TIMEOUT, without progress
}

// ollamaVariables are the environment names of the options.
var ollamaVariables = map[string]string{
	"parallel": "OLLAMA_NUM_PARALLEL", "max-queue": "OLLAMA_MAX_QUEUE", "flash-attention": "OLLAMA_FLASH_ATTENTION",
	"kv-cache-type": "OLLAMA_KV_CACHE_TYPE", "sched-spread": "OLLAMA_SCHED_SPREAD", "gpu-overhead": "OLLAMA_GPU_OVERHEAD",
	"load-timeout": "OLLAMA_LOAD_TIMEOUT",
}

func isDuration(v string) bool {
	d, err := time.ParseDuration(v)
	return err == nil && d >= time.Second && d <= 24*time.Hour
}

// ollamaName is [host[:port]/][namespace/]model[:tag] with the characters that Ollama takes.
var ollamaName = regexp.MustCompile(`^(?:(?:[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}(?::\d{1,5})?/)?[A-Za-z0-9_][A-Za-z0-9_-]{0,79}/)?[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,79})?$`)

func (*ollama) Check(spec levelrail.ModelSpec) error {
	if err := checkCommon(spec); err != nil {
		return err
	}
	if err := noQuantization(spec, "ollama", "name it in the tag, as in --model llama3.1:8b-instruct-q4_K_M"); err != nil {
		return err
	}
	if err := checkOptions("ollama", ollamaOptions, spec.Options); err != nil {
		return err
	}
	if t := spec.Options["kv-cache-type"]; t != "" && t != "f16" && spec.Options["flash-attention"] != "true" {
		return &levelrail.Error{Kind: levelrail.ErrInvalid, Message: "ollama ignores kv-cache-type=" + t + " without flash attention", Next: "set flash-attention=true as well"}
	}
	for _, n := range spec.ServedNames {
		if !ollamaName.MatchString(n) {
			return &levelrail.Error{Kind: levelrail.ErrInvalid, Message: "ollama cannot serve under the name " + quote(n),
				Next: "write it like one of its tags: model, model:tag or namespace/model:tag"}
		}
	}
	if levelrail.IsPath(spec.Source) {
		if !isGGUF(spec.Source) {
			return badSource("ollama", spec.Source, "name a .gguf file of the node, or a tag such as llama3.1:8b")
		}
		if _, _, of := splitPath(spec.Source); of > 1 {
			return badSource("ollama", spec.Source, "it imports single GGUF files only: use --engine llamacpp for a split one, or merge the parts with llama-gguf-split --merge")
		}
		return nil
	}
	if spec.SHA256 != "" || spec.SourceCommit != "" {
		return &levelrail.Error{Kind: levelrail.ErrInvalid, Message: "ollama pulls a tag and checks it against the registry's own digests; a checksum or revision cannot be given for it",
			Next: "leave them out, or name a file of the node with its checksum"}
	}
	if !ollamaName.MatchString(spec.Source) {
		return badSource("ollama", spec.Source, "name a tag such as llama3.1:8b or hf.co/org/name-GGUF:Q4_K_M, or a file of the node, /path/to/model.gguf")
	}
	if isCloudTag(spec.Source) {
		return badSource("ollama", spec.Source, "a cloud tag has no weights: its requests would leave this machine. Choose a tag with weights")
	}
	return nil
}

// isCloudTag tells the tags that Ollama answers by sending the request away: model:cloud and model:size-cloud.
func isCloudTag(source string) bool {
	_, tag, _ := strings.Cut(source[strings.LastIndex(source, "/")+1:], ":")
	tag = strings.ToLower(tag)
	return tag == "cloud" || strings.HasSuffix(tag, "-cloud")
}

func (*ollama) Programs() []string {
	return []string{"ollama", "/usr/local/bin/ollama", "/opt/ollama/bin/ollama"}
}

func (o *ollama) Weights(spec levelrail.ModelSpec) (WeightsPlan, error) {
	if err := o.Check(spec); err != nil {
		return WeightsPlan{}, err
	}
	plan := WeightsPlan{From: FromEngine, Import: ollamaImport, Serve: ollamaServe, Identity: ".ollama-home/.ollama/id_ed25519"}
	if levelrail.IsPath(spec.Source) {
		plan.Path = spec.Source
	} else {
		plan.Tag = spec.Source
	}
	return plan, nil
}

// ollamaServe is the short-lived server of a fetch. Its home, where it makes a key pair for registries, is beside the
// stores of all models: that pair shall stay the same from fetch to fetch and be no part of what an engine can read.
func ollamaServe(program, dir, address string) Launch {
	return Launch{
		Args: []string{program, "serve"},
		Env: []string{
			"OLLAMA_HOST=" + address, "OLLAMA_MODELS=" + dir, "HOME=" + filepath.Join(filepath.Dir(dir), ".ollama-home"),
			"OLLAMA_NO_CLOUD=1", "OLLAMA_NOPRUNE=1", "OLLAMA_NOHISTORY=1", "NO_COLOR=1", "TERM=dumb",
			"CUDA_VISIBLE_DEVICES=-1", "HIP_VISIBLE_DEVICES=-1", "ROCR_VISIBLE_DEVICES=-1", // it imports, it computes nothing
		},
		InetFamilies: true, Resources: true, StopSeconds: 10, KillMode: "control-group",
	}
}

// Launch has no key and no name: the store holds the model under each of its names, and the store is all it can serve.
func (*ollama) Launch(p Params) (Launch, error) {
	context := p.Spec.Context
	if context == 0 {
		context = defaultContext
	}
	env := []string{
		"OLLAMA_HOST=" + ollamaAddress,
		"OLLAMA_MODELS=" + p.WeightsDir,
		"OLLAMA_CONTEXT_LENGTH=" + strconv.Itoa(context),
		"OLLAMA_KEEP_ALIVE=-1", // an idle model is stopped with its unit, not by the engine
		"OLLAMA_MAX_LOADED_MODELS=1",
		"OLLAMA_NOPRUNE=1", // the store is read-only
		"OLLAMA_NO_CLOUD=1",
		"HOME=" + p.CacheDir, "XDG_CACHE_HOME=" + p.CacheDir, "TMPDIR=" + p.CacheDir,
		"NO_COLOR=1", "TERM=dumb",
	}
	for _, o := range ollamaOptions {
		if v, set := p.Spec.Options[o.name]; set {
			env = append(env, ollamaVariables[o.name]+"="+v)
		}
	}
	env = append(env, gpuEnv(p.Devices)...)
	if len(p.Devices) > 0 {
		env = append(env, "CUDA_CACHE_PATH="+filepath.Join(p.CacheDir, "cuda"))
	}
	return Launch{Args: []string{p.Program, "serve"}, Env: env, Door: ollamaAddress, InetFamilies: true, Resources: len(p.Devices) > 0, StopSeconds: 30, KillMode: "control-group"}, nil
}

// Ready: the server is up at once, with no model. /api/ps lists a model that is loaded and one that is being loaded
// alike, and an empty request is answered as soon as it is loaded, so the two together tell.
//
// A load belongs to the request that began it: when that request goes away before the end, Ollama gives the load up. So
// the first call starts one request that lives until the model is loaded, and later calls, every 250 ms, see that one
// and start no other. The agent's end cuts it; the next agent's first call begins again. A load that failed is left
// alone for a while and its text is the answer meanwhile.
func (o *ollama) Ready(ctx context.Context, c *http.Client, p Params) Readiness {
	ps := probe(ctx, c, http.MethodGet, "/api/ps", "", nil)
	switch {
	case ps.err != nil:
		return Readiness{State: Down, Message: ps.err.Error()}
	case ps.status != http.StatusOK:
		return Readiness{State: Broken, Message: fmt.Sprintf("GET /api/ps answered %d: %s", ps.status, ps.message())}
	}
	var running struct {
		Models *[]struct {
			Name string `json:"name"`
		} `json:"models"`
	}
	if err := json.Unmarshal(ps.body, &running); err != nil || running.Models == nil {
		return Readiness{State: Broken, Message: "GET /api/ps did not answer as Ollama does: " + clip(string(ps.body))}
	}
	listed := false
	for _, m := range *running.Models {
		listed = listed || slices.ContainsFunc(append([]string{p.Model}, p.ServedNames...), func(n string) bool { return sameTag(n, m.Name) })
	}

	o.mu.Lock()
	load := o.loads[p.Socket]
	switch {
	case load != nil && !load.done:
		o.mu.Unlock()
		return Readiness{State: Load}
	case load != nil && load.err != "" && time.Since(load.at) < ollamaRetry && !listed:
		defer o.mu.Unlock()
		return Readiness{State: Broken, Message: load.err}
	}
	if listed {
		delete(o.loads, p.Socket)
		o.mu.Unlock()
		// Loaded, or being loaded by another's request, which this one, being no more than a guest, does not end by leaving.
		switch a, ok := ollamaTouch(ctx, c, p.Model, probe); {
		case ok:
			return Readiness{State: Serving}
		case a.err != nil:
			return Readiness{State: Load}
		default:
			return Readiness{State: Broken, Message: a.message()}
		}
	}
	if o.loads == nil {
		o.loads = map[string]*ollamaLoad{}
	}
	load = &ollamaLoad{}
	o.loads[p.Socket] = load
	o.mu.Unlock()
	go o.load(*c, p.Model, load)
	return Readiness{State: Load}
}

// load holds the one loading request. How long a load may take is the engine's to judge (OLLAMA_LOAD_TIMEOUT, without
// progress), and it ends with the connection when the engine does; the day is for an engine that hangs for ever.
func (o *ollama) load(c http.Client, model string, l *ollamaLoad) {
	c.Timeout = 0
	ctx, cancel := context.WithTimeout(context.Background(), 24*time.Hour)
	defer cancel()
	a, ok := ollamaTouch(ctx, &c, model, ask)
	o.mu.Lock()
	defer o.mu.Unlock()
	l.done, l.at = true, time.Now()
	if !ok && a.err == nil { // a broken connection is the engine's end: the next one starts afresh
		l.err = a.message()
	}
}

// ollamaTouch asks for the model without a prompt: the answer comes when it is loaded, and it stays so. Models that only
// embed refuse to generate, and load for an embedding of nothing.
func ollamaTouch(ctx context.Context, c *http.Client, model string, do func(context.Context, *http.Client, string, string, string, any) answer) (answer, bool) {
	a := do(ctx, c, http.MethodPost, "/api/generate", "", map[string]any{"model": model, "keep_alive": -1, "stream": false})
	if a.err == nil && a.status == http.StatusBadRequest && strings.Contains(a.message(), "does not support generate") {
		a = do(ctx, c, http.MethodPost, "/api/embed", "", map[string]any{"model": model, "keep_alive": -1, "input": []string{}})
	}
	return a, a.err == nil && a.status == http.StatusOK
}

// sameTag compares names as Ollama does: without a tag it is latest, without a host and namespace its own library, and
// case does not count.
func sameTag(a, b string) bool { return strings.EqualFold(fullTag(a), fullTag(b)) }

func fullTag(n string) string {
	if !strings.Contains(path.Base(n), ":") {
		n += ":latest"
	}
	n = strings.TrimPrefix(n, "registry.ollama.ai/")
	return strings.TrimPrefix(n, "library/")
}

// loopbackRegistry tells whether a tag names a registry on this machine, which is spoken to without TLS. No other is.
func loopbackRegistry(tag string) bool {
	parts := strings.Split(tag, "/")
	if len(parts) < 3 {
		return false
	}
	host := parts[0]
	if at, err := netip.ParseAddrPort(host); err == nil {
		return at.Addr().IsLoopback()
	}
	name, _, _ := strings.Cut(host, ":")
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return name == "localhost" || err == nil && ip.IsLoopback()
}

var ollamaCompute = regexp.MustCompile(`msg="inference compute".*\blibrary=(\S+)`)

// Compute reads what the server found at its start, and what its runner then put there: a node with a GPU whose model
// went to the CPU all the same computes on the CPU.
func (o *ollama) Compute(lines []string) string {
	found := ""
	for _, l := range lines {
		if m := ollamaCompute.FindStringSubmatch(l); m != nil && (found == "" || found == "cpu") {
			found = m[1]
		}
	}
	if strings.EqualFold(found, "cpu") {
		return "cpu"
	}
	var devices []string
	buffers := false
	for _, l := range lines {
		for _, re := range []*regexp.Regexp{llamaBuffer, ollamaWeights} {
			if m := re.FindStringSubmatch(l); m != nil {
				buffers = true
				if onGPU(m[1]) && !slices.Contains(devices, m[1]) {
					devices = append(devices, m[1])
				}
			}
		}
	}
	switch {
	case len(devices) > 0:
		slices.Sort(devices)
		return strings.Join(devices, ",")
	case buffers:
		return "cpu"
	}
	return found
}

// ollamaWeights is how the engine's own runner says it.
var ollamaWeights = regexp.MustCompile(`msg="model weights" device=(\S+) size=`)

// Slots: Ollama works on one request at a time unless it is told otherwise, and keeps the others waiting.
func (*ollama) Slots(spec levelrail.ModelSpec) int { return slotsOf(spec, "parallel", 1) }

func (*ollama) Routes() []Route { return textRoutes(Route{AskUsage: true}) }

// Body: Ollama decodes the body into a struct of about twenty fields, all of which are here, and drops the rest unread. So
// what is not known passes. Of the names for a length it reads one on each route. It ignores n and best_of; they are
// checked all the same, so that a client sees one rule.
func (*ollama) Body() BodyTable {
	b := BodyTable{
		Length: []string{"max_tokens", "max_completion_tokens", "max_output_tokens"},
		Reads:  map[string][]string{"chat": {"max_tokens"}, "completions": {"max_tokens"}, "responses": {"max_output_tokens"}},
		Count:  []string{"n", "best_of"},
		Refuse: append(nativeRefusals(),
			Refusal{Name: "_debug_render_only", Same: []string{"false"}, Next: "leave it out: the template is not the client's to see"}),
		Unknown:       Pass,
		ZeroUnlimited: true,
	}
	return b.table(wholes(0, 20, "top_logprobs"), switches("ignore_eos"))
}
