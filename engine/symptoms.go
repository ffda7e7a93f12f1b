package engine

import (
	"slices"

	"github.com/levelrail/levelrail"
)

// What the engines print when they fail, and what it means. The fragments are their own words; where a text has changed
// over releases, both stand here.

// programCauses come from the loader and the system, for any engine.
var programCauses = []symptom{
	on(`error while loading shared libraries: (\S+): (.+)`, levelrail.EngineFailed, "the program lacks the library $1"),
	on(`(lib\S+\.so\S*): cannot open shared object file`, levelrail.EngineFailed, "the program lacks the library $1"),
	on(`(?:OSError|IOError|write|error writing to file).*No space left on device|No space left on device|error writing to file`, levelrail.InsufficientDisk, "the disk is full"),
}

// llamaCauses are llama.cpp's, which Ollama's runner prints too.
var llamaCauses = []symptom{
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
	on(`invalid magic characters:? '?([^',]{0,8})'?`, levelrail.EngineFailed, "the weights are no GGUF file: they begin with “$1”"),
	on(`gguf_init_from_file: failed to open GGUF file '([^']+)' \((.+)\)`, levelrail.EngineFailed, "the weights cannot be opened: $1: $2"),
	on(`data is not within the file bounds, model is corrupted or incomplete|tensor data is out of bounds`, levelrail.EngineFailed, "the weights are incomplete: the file ends before its data does"),
	on(`unknown model architecture: '([^']+)'`, levelrail.EngineFailed, "this release of the engine does not know the architecture $1: install a newer one"),
	on(`failed to open (\S+\.gguf): (.+)`, levelrail.EngineFailed, "the weights cannot be opened: $1: $2"),
	on(`couldn't bind HTTP server socket, hostname: (\S+?),`, levelrail.EngineFailed, "the engine could not make its socket $1"),
	on(`no GGUF files found in repository|required file is not available in cache`, levelrail.DownloadFailed, ""),
	on(`GET failed \((40[134])\)(.*)`, levelrail.DownloadFailed, "the Hub answered $1$2"),
	on(`GGML_ASSERT\((.+)\) failed`, levelrail.EngineFailed, "llama.cpp gave up on its own check: $1"),
	on(`CUDA error: (.+)`, levelrail.EngineFailed, "CUDA failed: $1"),
}

// llamaArguments are about llama-server's command line, which Ollama's own does not concern.
var llamaArguments = []symptom{
	on(`error: invalid argument: (\S+)`, levelrail.EngineFailed,
		"this llama-server does not know the option $1: install a newer llama.cpp, or point APP_MODEL_ENGINE_LLAMACPP to one"),
	on(`error while handling argument "([^"]+)": (?:error: )?(.+)`, levelrail.EngineFailed, "llama-server refused the value of $1: $2"),
}

// llamaTails say that something failed, and not what. That no GPU was found ends no process, and explains one that failed
// for nothing else.
var llamaTails = []symptom{
	on(`error loading model: (.+)`, levelrail.EngineFailed, "the weights could not be loaded: $1"),
	on(`failed to load model, '([^']+)'`, levelrail.EngineFailed, "the weights could not be loaded: $1"),
	on(`exiting due to model loading error`, levelrail.EngineFailed, "the weights could not be loaded"),
	on(`terminate called after throwing an instance of '([^']+)'`, levelrail.EngineFailed, "the engine crashed: $1"),
	on(`^(?:\d+\.\d\d\.\d{3}\.\d{3} )?E .+`, levelrail.EngineFailed, ""),
	on(`^error: .+`, levelrail.EngineFailed, ""),
	on(`warning: no usable GPU found, --gpu-layers option will be ignored`, levelrail.GPURuntimeMissing,
		"the engine found no GPU that it can use: its build has no CUDA, or the driver does not answer"),
}

func (llamacpp) Diagnose(lines []string) (levelrail.Reason, string) {
	return firstCause(lines, slices.Concat(llamaArguments, llamaCauses, programCauses), llamaTails)
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
	return firstCause(lines, slices.Concat(ollamaCauses, llamaCauses, programCauses), slices.Concat(ollamaTails, llamaTails))
}

// vllmCauses: a failure is a traceback of each process in turn, and the cause stands in the middle of the journal.
var vllmCauses = []symptom{
	on(`Failed to infer device type`, levelrail.GPURuntimeMissing, "vLLM finds no GPU that it can use: the driver does not answer, or this build is for another kind of device"),
	on(`World size \((\d+)\) is larger than the number of available GPUs(?: \((\d+)\))?`, levelrail.InsufficientGPUs, "vLLM was to use $1 GPUs and sees fewer"),
	on(`(?:torch\.)?(?:cuda\.)?OutOfMemoryError|CUDA out of memory`, levelrail.EngineFailed, "the model does not fit into the GPU's memory: lower --context or gpu-memory-utilization, or give it more GPUs"),
	on(`Free memory on device \S+ \(([^)]+)\) on startup is less than desired GPU memory utilization \(([^)]+)\)`, levelrail.EngineFailed,
		"others hold the GPU's memory: $1 is free, and gpu-memory-utilization asks for $2"),
	on(`is less than desired GPU memory utilization`, levelrail.EngineFailed, "others hold the GPU's memory: less is free than gpu-memory-utilization asks for"),
	on(`No available memory for the cache blocks`, levelrail.EngineFailed, "the weights fill the memory and leave none for the context: raise gpu-memory-utilization, or give it more GPUs"),
	on(`To serve at least one request with the model's max seq len \((\d+)\)`, levelrail.EngineFailed, "the memory does not hold one request of $1 tokens: lower --context"),
	on(`User-specified max_model_len \((\d+)\) is greater than the derived max_model_len \(([^)]*)\)`, levelrail.EngineFailed, "the context of $1 tokens is more than the model's own ($2): lower --context"),
	on(`Total number of attention heads \((\d+)\) must be divisible by tensor parallel size \((\d+)\)`, levelrail.EngineFailed,
		"the model's $1 attention heads cannot be shared among $2 GPUs: choose a number that divides them, or pipeline-parallel-size"),
	on(`Model architectures \[([^\]]+)\] (?:are not supported|failed to be inspected)`, levelrail.EngineFailed, "this release of vLLM does not know the architecture $1"),
	on(`Unknown quantization method: (\S+)`, levelrail.EngineFailed, "vLLM does not know the quantization $1"),
	on(`trust_remote_code=True|--trust-remote-code`, levelrail.EngineFailed, "the model wants to run code of its repository, which is not allowed here: choose a model that vLLM knows by itself"),
	on(`PackageNotFoundError: No package metadata was found for (\S+)`, levelrail.EngineFailed, "vLLM's installation is incomplete: the package $1 is not there"),
	on(`ModuleNotFoundError: (No module named .+)`, levelrail.EngineFailed, "vLLM's installation is incomplete: $1"),
	on(`vllm(?: serve)?: error: (.+)`, levelrail.EngineFailed, "vLLM refused its command line: $1"),
	on(`GatedRepoError|Cannot access gated repo for url`, levelrail.DownloadFailed, "the repository is gated"),
	on(`RepositoryNotFoundError|LocalEntryNotFoundError|Error retrieving file list|40[13] Client Error`, levelrail.DownloadFailed, "vLLM looked for files on the Hub that the model's directory lacks"),
	on(`Not enough free disk space`, levelrail.InsufficientDisk, "the disk is full"),
	on(`Not enough memory|DefaultCPUAllocator: can't allocate memory`, levelrail.EngineFailed, "the machine's memory does not suffice: lower --context, or choose a smaller model"),
}

var vllmTails = []symptom{
	on(`EngineCore encountered an issue|EngineDeadError`, levelrail.EngineFailed, "a process of the engine died while it served"),
	on(`((?:\w+\.)*\w*(?:Error|Exception): .+)`, levelrail.EngineFailed, "$1"),
	on(`Engine core initialization failed`, levelrail.EngineFailed, "the engine could not start; its journal has the traceback"),
}

func (vllm) Diagnose(lines []string) (levelrail.Reason, string) {
	return firstCause(lines, slices.Concat(vllmCauses, programCauses), vllmTails)
}
