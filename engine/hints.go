package engine

// installHint says how to get an engine: the distribution's own package where it has one, else a page; and always the
// setting that points to an own build.
func installHint(packages map[string]string, page, variable, example, distribution, version string) string {
	own := ", or set " + variable + "=" + example + " in /etc/default/levelrail-agent and restart levelrail-agent"
	for _, key := range []string{distribution + " " + version, distribution} {
		if p, ok := packages[key]; ok {
			return "apt install " + p + own
		}
	}
	return "install it from " + page + own
}

func (llamacpp) InstallHint(distribution, version string) string {
	debian := map[string]string{"debian 14": "llama.cpp-tools", "debian sid": "llama.cpp-tools", "debian forky": "llama.cpp-tools"}
	return installHint(debian, "https://github.com/ggml-org/llama.cpp/releases (a release archive or a build with CUDA)",
		"APP_MODEL_ENGINE_LLAMACPP", "/path/to/llama-server", distribution, version)
}

func (*ollama) InstallHint(distribution, version string) string {
	return installHint(nil, "https://ollama.com/download/linux", "APP_MODEL_ENGINE_OLLAMA", "/path/to/ollama", distribution, version)
}

func (vllm) InstallHint(distribution, version string) string {
	return installHint(nil, "https://docs.vllm.ai/en/latest/getting_started/installation/ into an environment of its own, such as /opt/vllm",
		"APP_MODEL_ENGINE_VLLM", "/opt/vllm/bin/vllm", distribution, version)
}
