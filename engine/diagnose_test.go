package engine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/levelrail/levelrail"
)

// TestDiagnoseRealRuns: what the engines printed in real failing runs (only the paths are changed) leads to the first
// cause, and what they printed in good runs to none.
func TestDiagnoseRealRuns(t *testing.T) {
	for _, c := range []struct {
		file   string
		reason levelrail.Reason
		says   string
	}{
		{"llamacpp-missing-file", levelrail.EngineFailed, "/var/lib/levelrail/weights/chat/model.gguf: No such file or directory"},
		{"llamacpp-not-gguf", levelrail.EngineFailed, "no GGUF file: they begin with “XXXX”"},
		{"llamacpp-truncated", levelrail.EngineFailed, "incomplete"},
		{"llamacpp-unknown-option", levelrail.EngineFailed, "does not know the option --nonsense"},
		{"llamacpp-no-such-device", levelrail.EngineFailed, "--device: invalid device: CUDA0"},
		{"llamacpp-no-key-file", levelrail.EngineFailed, "--api-key-file: failed to open file"},
		{"llamacpp-no-socket", levelrail.EngineFailed, "could not make its socket /nonexistent/e.sock"},
		{"llamacpp-ready", "", ""},
		{"ollama-address-taken", levelrail.EngineFailed, "could not listen at 127.0.0.1:11497: address already in use"},
		{"ollama-no-home", levelrail.EngineFailed, "$HOME is not defined"},
		{"ollama-ready", "", ""},
	} {
		name, _, _ := strings.Cut(c.file, "-")
		reason, says := get(t, name).Diagnose(journal(t, c.file))
		if reason != c.reason || !strings.Contains(says, c.says) || (c.says == "") != (says == "") {
			t.Errorf("%s: got %s %q, want %s %q", c.file, reason, says, c.reason, c.says)
		}
	}
}

func journal(t *testing.T, name string) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "journal", name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}

// TestDiagnose: texts that need a card, a full disk or another release to be seen, in the words of the engines' sources.
// The cause is found above what it led to.
func TestDiagnose(t *testing.T) {
	for _, c := range []struct {
		engine string
		lines  string
		reason levelrail.Reason
		says   string
	}{
		{"llamacpp", "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 7168.00 MiB on device 0: cudaMalloc failed: out of memory\nalloc_tensor_range: failed to allocate CUDA0 buffer of size 7516192768\nllama_model_load: error loading model: unable to allocate CUDA0 buffer\nsrv  llama_server: exiting due to model loading error",
			levelrail.EngineFailed, "does not fit into the GPU's memory"},
		{"llamacpp", "llama_kv_cache: failed to allocate buffer for kv cache\nsrv  llama_server: exiting due to model loading error", levelrail.EngineFailed, "the memory for the context does not"},
		{"llamacpp", "ggml_cuda_init: failed to initialize CUDA: CUDA driver version is insufficient for CUDA runtime version", levelrail.GPURuntimeMissing, "CUDA does not start"},
		{"llamacpp", "warning: no usable GPU found, --gpu-layers option will be ignored", levelrail.GPURuntimeMissing, "no GPU that it can use"},
		{"llamacpp", "warning: no usable GPU found, --gpu-layers option will be ignored\nE gguf_init_from_reader: invalid magic characters: 'XXXX', expected 'GGUF'", levelrail.EngineFailed, "XXXX"},
		{"llamacpp", "llama_model_load: error loading model: error loading model architecture: unknown model architecture: 'qwen9'", levelrail.EngineFailed, "architecture qwen9"},
		{"llamacpp", "llama-server: error while loading shared libraries: libcudart.so.13: cannot open shared object file: No such file or directory", levelrail.EngineFailed, "lacks the library libcudart.so.13"},
		{"llamacpp", "/src/ggml.c:123: GGML_ASSERT(x > 0) failed", levelrail.EngineFailed, "x > 0"},
		{"llamacpp", "0.00.021.109 E srv         start: something new went wrong", levelrail.EngineFailed, "something new went wrong"},
		{"llamacpp", "0.00.021.109 I srv  update_slots: all slots are idle", "", ""},
		{"ollama", `time=2026-11-30T04:07:09.866Z level=INFO source=sched.go:510 msg="Load failed" model=x error="model requires more system memory (12.0 GiB) than is available (7.1 GiB)"`, levelrail.EngineFailed, "needs 12.0 GiB of memory and 7.1 GiB is free"},
		{"ollama", `level=WARN msg="NVIDIA driver too old" version=470`, levelrail.GPURuntimeMissing, "driver is older"},
		{"ollama", "cudaMalloc failed: out of memory\nlevel=ERROR source=sched.go msg=\"error loading llama server\" error=\"llama runner process has terminated: exit status 2\"", levelrail.EngineFailed, "GPU's memory"},
		{"ollama", "level=ERROR source=sched.go msg=\"error loading llama server\" error=\"llama runner process has terminated: exit status 2\"", levelrail.EngineFailed, "exit status 2"},
		{"vllm", "(EngineCore) ERROR torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n(APIServer) RuntimeError: Engine core initialization failed. See root cause above.", levelrail.EngineFailed, "does not fit into the GPU's memory"},
		{"vllm", "ValueError: Free memory on device cuda:0 (3.1/79.2 GiB) on startup is less than desired GPU memory utilization (0.92, 72.9 GiB). Decrease GPU memory utilization.\nRuntimeError: Engine core initialization failed.", levelrail.EngineFailed, "3.1/79.2 GiB is free"},
		{"vllm", "RuntimeError: Failed to infer device type", levelrail.GPURuntimeMissing, "no GPU"},
		{"vllm", "ImportError: libnuma.so.1: cannot open shared object file: No such file or directory\nAttributeError: '_OpNamespace' '_C' object has no attribute 'init_cpu_memory_env'\nRuntimeError: Engine core initialization failed.", levelrail.EngineFailed, "lacks the library libnuma.so.1"},
		{"vllm", "importlib.metadata.PackageNotFoundError: No package metadata was found for vllm", levelrail.EngineFailed, "the package vllm is not there"},
		{"vllm", "ValueError: User-specified max_model_len (99999) is greater than the derived max_model_len (max_position_embeddings=8192).\nRuntimeError: Engine core initialization failed.", levelrail.EngineFailed, "99999 tokens is more than the model's own"},
		{"vllm", "OSError: [Errno 28] No space left on device", levelrail.InsufficientDisk, "disk is full"},
		{"vllm", "  File \"x.py\", line 1\nSomethingNewError: it broke\nRuntimeError: Engine core initialization failed.", levelrail.EngineFailed, "SomethingNewError: it broke"},
		{"vllm", "INFO Application startup complete.", "", ""},
	} {
		reason, says := get(t, c.engine).Diagnose(strings.Split(c.lines, "\n"))
		if reason != c.reason || !strings.Contains(says, c.says) || (c.says == "") != (says == "") {
			t.Errorf("%s %q: got %s %q, want %s %q", c.engine, c.lines, reason, says, c.reason, c.says)
		}
	}
}

// TestCompute: what an engine computes on, from real runs on a CPU and from the lines that runs on cards print.
func TestCompute(t *testing.T) {
	gpu := []string{"ggml_cuda_init: found 2 CUDA devices (Total VRAM: 160000 MiB):", "load_tensors: offloading 32 repeating layers to GPU", "load_tensors: offloaded 33/33 layers to GPU",
		"load_tensors:   CPU_Mapped model buffer size =   281.81 MiB", "load_tensors:        CUDA1 model buffer size =  2100.00 MiB", "load_tensors:        CUDA0 model buffer size =  2403.84 MiB", "load_tensors:    CUDA_Host model buffer size =    10.00 MiB", "srv  llama_server: model loaded"}
	for _, c := range []struct {
		name, engine string
		lines        []string
		want         string
	}{
		{"quiet CPU", "llamacpp", journal(t, "llamacpp-ready"), "cpu"},
		{"verbose CPU", "llamacpp", journal(t, "llamacpp-ready-verbose"), "cpu"},
		{"two cards", "llamacpp", gpu, "CUDA0,CUDA1"},
		{"fell to the CPU", "llamacpp", []string{"load_tensors: offloaded 0/33 layers to GPU", "load_tensors: CPU_Mapped model buffer size = 281.81 MiB", "model loaded"}, "cpu"},
		{"not there yet", "llamacpp", []string{"srv  llama_server: initializing ..."}, ""},
		{"CPU", "ollama", journal(t, "ollama-ready"), "cpu"},
		{"card, nothing loaded", "ollama", []string{`msg="inference compute" id=GPU-x library=CUDA compute=9.0 name=CUDA0`}, "CUDA"},
		{"card", "ollama", append([]string{`msg="inference compute" id=GPU-x library=CUDA compute=9.0 name=CUDA0`}, gpu...), "CUDA0,CUDA1"},
		{"card, own runner", "ollama", []string{`msg="inference compute" id=GPU-x library=CUDA compute=9.0`, `msg="model weights" device=CUDA0 size="4.0 GiB"`, `msg="model weights" device=CPU size="200 MiB"`}, "CUDA0"},
		{"card, model on the CPU", "ollama", []string{`msg="inference compute" id=GPU-x library=CUDA compute=9.0`, `msg="model weights" device=CPU size="4.0 GiB"`}, "cpu"},
		{"cards", "vllm", []string{"Initializing a V1 LLM engine (v0.26.0) with config: model='x', tensor_parallel_size=2, device_config=cuda, seed=0"}, "CUDA0,CUDA1"},
		{"CPU", "vllm", []string{"Initializing a V1 LLM engine (v0.32.0) with config: model='x', tensor_parallel_size=1, device_config=cpu"}, "cpu"},
		{"nothing", "vllm", nil, ""},
	} {
		if got := get(t, c.engine).Compute(c.lines); got != c.want {
			t.Errorf("%s, %s: got %q, want %q", c.engine, c.name, got, c.want)
		}
	}
}

// TestRequestsAreNoCause: what a client asked for is not why an engine ended.
func TestRequestsAreNoCause(t *testing.T) {
	e, err := Get("llamacpp")
	if err != nil {
		t.Fatal(err)
	}
	lines := []string{
		"I srv  llama_server: listening on unix:///run/levelrail/engines/chat/engine.sock",
		"E srv    send_error: task id = 14, error: request (2500030 tokens) exceeds the available context size (8192 tokens), try increasing it",
		"W srv          stop: cancel task, id_task = 0",
	}
	if reason, message := e.Diagnose(lines); message != "" {
		t.Errorf("%s: %s", reason, message)
	}
}
