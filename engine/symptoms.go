package engine

import "github.com/levelrail/levelrail"

// What the engines print when they fail, and what it means. The fragments are their own words; where a text has changed
// over releases, both stand here.

// llamaCauses are llama.cpp's, which Ollama's runner prints too.
var llamaCauses = []symptom{
	on(`error: invalid argument: (\S+)`, levelrail.EngineFailed,
		"this llama-server does not know the option $1: install a newer llama.cpp, or point APP_MODEL_ENGINE_LLAMACPP to one"),
	on(`error while handling argument "([^"]+)": (?:error: )?(.+)`, levelrail.EngineFailed, "llama-server refused the value of $1: $2"),
	on(`cudaMalloc failed: out of memory|unable to allocate (?:CUDA|ROCm|Vulkan)\S* buffer|CUDA error: out of memory`, levelrail.EngineFailed,
		"the model does not fit into the GPU's memory: lower --context, choose a smaller quantization, or give it more GPUs"),
	on(`failed to allocate buffer for kv cache|failed to allocate compute \S* ?buffers?`, levelrail.EngineFailed,
		"the weights fit, the memory for the context does not: lower --context, or set cache-type-k and cache-type-v to q8_0"),
	on(`failed to fit params to free device memory`, levelrail.EngineFailed, "the model does not fit into the GPU's memory: lower --context or choose a smaller quantization"),
	on(`(?:unable|failed) to allocate CPU\S* buffer|std::bad_alloc|failed to allocate memory|Cannot allocate memory`, levelrail.EngineFailed,
		"the machine's memory does not suffice: lower --context or choose a smaller quantization"),
	on(`failed to initialize CUDA: (.+)`, levelrail.GPURuntimeMissing, "CUDA does not start: $1"),
	on(`no CUDA-capable device is detected`, levelrail.GPURuntimeMissing, "CUDA sees no device: the driver or a device node is missing"),
	on(`CUDA driver version is insufficient for CUDA runtime version`, levelrail.GPURuntimeMissing, "the NVIDIA driver is older than this engine's CUDA needs"),
	on(`warning: no usable GPU found, --gpu-layers option will be ignored`, levelrail.GPURuntimeMissing,
		"the engine found no GPU that it can use: its build has no CUDA, or the driver does not answer"),
	on(`invalid magic characters:? '?([^',]{0,8})'?`, levelrail.EngineFailed, "the weights are no GGUF file: they begin with “$1”"),
	on(`gguf_init_from_file: failed to open GGUF file '([^']+)' \((.+)\)`, levelrail.EngineFailed, "the weights cannot be opened: $1: $2"),
	on(`data is not within the file bounds, model is corrupted or incomplete|tensor data is out of bounds`, levelrail.EngineFailed, "the weights are incomplete: the file ends before its data does"),
	on(`unknown model architecture: '([^']+)'`, levelrail.EngineFailed, "this release of the engine does not know the architecture $1: install a newer one"),
	on(`failed to open (\S+\.gguf): (.+)`, levelrail.EngineFailed, "the weights cannot be opened: $1: $2"),
	on(`couldn't bind HTTP server socket, hostname: (\S+?),`, levelrail.EngineFailed, "the engine could not make its socket $1"),
	on(`no GGUF files found in repository|required file is not available in cache`, levelrail.DownloadFailed, ""),
	on(`GET failed \((40[134])\)(.*)`, levelrail.DownloadFailed, "the Hub answered $1$2"),
	on(`error writing to file|No space left on device`, levelrail.InsufficientDisk, "the disk is full"),
	on(`GGML_ASSERT\((.+)\) failed`, levelrail.EngineFailed, "llama.cpp gave up on its own check: $1"),
	on(`CUDA error: (.+)`, levelrail.EngineFailed, "CUDA failed: $1"),
}

// llamaTails say that something failed, and not what.
var llamaTails = []symptom{
	on(`error loading model: (.+)`, levelrail.EngineFailed, "the weights could not be loaded: $1"),
	on(`failed to load model, '([^']+)'`, levelrail.EngineFailed, "the weights could not be loaded: $1"),
	on(`exiting due to model loading error`, levelrail.EngineFailed, "the weights could not be loaded"),
	on(`terminate called after throwing an instance of '([^']+)'`, levelrail.EngineFailed, "the engine crashed: $1"),
	on(`^(?:\d+\.\d\d\.\d{3}\.\d{3} )?E .+`, levelrail.EngineFailed, ""),
	on(`^error: .+`, levelrail.EngineFailed, ""),
	on(`error while loading shared libraries: (.+)`, levelrail.EngineFailed, "the program lacks a library: $1"),
}

func (llamacpp) Diagnose(lines []string) (levelrail.Reason, string) {
	return firstCause(lines, llamaCauses, llamaTails)
}

var ollamaCauses = []symptom{
	on(`NVIDIA driver too old`, levelrail.GPURuntimeMissing, "the NVIDIA driver is older than this release of ollama needs"),
	on(`model requires more system memory \(([^)]+)\) than is available \(([^)]+)\)`, levelrail.EngineFailed,
		"the model needs $1 of memory and $2 is free: lower --context or choose a smaller model"),
	on(`model is too large for system memory`, levelrail.EngineFailed, "the machine's memory does not suffice: lower --context or choose a smaller model"),
	on(`[Ee]rror: listen tcp (\S+): bind: (.+)`, levelrail.EngineFailed, "ollama could not listen at $1: $2"),
	on(`could not connect to ollama|\$HOME is not defined`, levelrail.EngineFailed, ""),
	on(`permission denied: ensure path elements are traversable|open (\S+): permission denied`, levelrail.EngineFailed, ""),
	on(`unsupported model architecture|unknown model architecture`, levelrail.EngineFailed, "this release of ollama does not know the model's architecture: install a newer one"),
	on(`timed out waiting for (?:llama runner|llama-server) to start`, levelrail.EngineFailed,
		"loading made no progress for too long: set the option load-timeout, or look at the node's disk"),
}

var ollamaTails = []symptom{
	on(`(?:llama runner|llama-server) process has terminated: (.+)`, levelrail.EngineFailed, "ollama's runner ended while it loaded the model: $1"),
	on(`model runner has unexpectedly stopped`, levelrail.EngineFailed, "ollama's runner stopped while it served"),
	on(`^Error: (.+)`, levelrail.EngineFailed, "$1"),
	on(`level=ERROR .*?(?:msg="([^"]+)")`, levelrail.EngineFailed, "$1"),
}

func (*ollama) Diagnose(lines []string) (levelrail.Reason, string) {
	return firstCause(lines, append(ollamaCauses[:len(ollamaCauses):len(ollamaCauses)], llamaCauses[2:]...), append(ollamaTails[:len(ollamaTails):len(ollamaTails)], llamaTails...))
}
