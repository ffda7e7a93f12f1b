package engine

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/levelrail/levelrail"
)

// TestCheck: what cannot work on any node is refused with what to write instead; what can is let through.
func TestCheck(t *testing.T) {
	type spec = levelrail.ModelSpec
	opt := func(kv ...string) levelrail.Options {
		o := levelrail.Options{}
		for i := 0; i+1 < len(kv); i += 2 {
			o[kv[i]] = kv[i+1]
		}
		return o
	}
	sum := strings.Repeat("a", 64)
	for _, c := range []struct {
		engine string
		spec   spec
		says   string // "" is accepted
	}{
		{"llamacpp", spec{Source: "org/name-GGUF"}, ""},
		{"llamacpp", spec{Source: "org/name-GGUF:q4_k_m", Context: 8192, SourceCommit: "main"}, ""},
		{"llamacpp", spec{Source: "/srv/models/x.gguf", SHA256: sum}, ""},
		{"llamacpp", spec{Source: "/srv/models/x.gguf", Options: opt("mmproj", "/srv/models/mmproj.gguf")}, ""},
		{"llamacpp", spec{Source: "llama3.1:8b"}, "ollama"},
		{"llamacpp", spec{Source: ""}, "--model"},
		{"llamacpp", spec{Source: "https://huggingface.co/org/name"}, "org/name-GGUF:Q4_K_M"},
		{"llamacpp", spec{Source: "org/na..me"}, "org/name-GGUF:Q4_K_M"},
		{"llamacpp", spec{Source: "org/name:Q4 K"}, "org/name-GGUF:Q4_K_M"},
		{"llamacpp", spec{Source: "./x.gguf"}, "absolute path"},
		{"llamacpp", spec{Source: "/srv/../etc/x.gguf"}, "absolute path"},
		{"llamacpp", spec{Source: "/srv/x.gguf", SourceCommit: "main"}, "no revision"},
		{"llamacpp", spec{Source: "org/name", SHA256: sum}, "checksum"},
		{"llamacpp", spec{Source: "/srv/x.gguf", SHA256: "ABC"}, "64 lower-case hex"},
		{"llamacpp", spec{Source: "org/name", SourceCommit: "a/../b"}, "revision"},
		{"llamacpp", spec{Source: "org/name", Quantization: "awq"}, "org/name-GGUF:Q4_K_M"},
		{"llamacpp", spec{Source: "org/name", Context: 100}, "256"},
		{"llamacpp", spec{Source: "org/name", Context: -1}, "256"},
		{"llamacpp", spec{Source: "org/name", Context: 1 << 24, Options: opt("parallel", "256")}, "lower --context"},
		{"llamacpp", spec{Source: "org/name", Options: opt("tools", "all")}, `no option "tools"`},
		{"llamacpp", spec{Source: "org/name", Options: opt("slot-save-path", "/")}, "cache-type-k"},
		{"llamacpp", spec{Source: "org/name", Options: opt("parallel", "0")}, "from 1 to 256"},
		{"llamacpp", spec{Source: "org/name", Options: opt("parallel", "+4")}, "from 1 to 256"},
		{"llamacpp", spec{Source: "org/name", Options: opt("cache-type-k", "int8")}, "q8_0"},
		{"llamacpp", spec{Source: "org/name", Options: opt("embeddings", "yes")}, "true or false"},
		{"llamacpp", spec{Source: "org/name", Options: opt("embeddings", "true", "reranking", "true")}, "one model for each"},
		{"llamacpp", spec{Source: "org/name", Options: opt("mmproj", "../x.gguf")}, "mmproj"},
		{"llamacpp", spec{Source: "org/name", Options: opt("mmproj", "/x.gguf")}, "mmproj=auto"},
		{"llamacpp", spec{Source: "/x.gguf", Options: opt("mmproj", "auto")}, "mmproj=/path"},
		{"llamacpp", spec{Source: "org/name", Options: opt("chat-template", "--tools")}, "chatml"},
		{"llamacpp", spec{Source: "org/name", Options: opt("chat-template-kwargs", "[1]")}, "JSON object"},
		{"llamacpp", spec{Source: "org/name", Options: opt("tensor-split", "3,x")}, "3,1"},
		{"llamacpp", spec{Source: "org/name", Options: opt("gpu-layers", "some")}, "all, auto"},
		{"llamacpp", spec{Source: "org/name", Options: opt("gpu-layers", "12", "tensor-split", "3,1", "rope-scale", "2.5")}, ""},
		{"llamacpp", spec{Source: "org/name", ServedNames: []string{"a,b"}}, "served name"},
		{"llamacpp", spec{Source: "org/name", ServedNames: []string{"--api-key"}}, "served name"},

		{"ollama", spec{Source: "llama3.1:8b"}, ""},
		{"ollama", spec{Source: "hf.co/org/name-GGUF:Q4_K_M"}, ""},
		{"ollama", spec{Source: "127.0.0.1:5000/library/x:tag"}, ""},
		{"ollama", spec{Source: "/srv/x.gguf", SHA256: sum}, ""},
		{"ollama", spec{Source: "gpt-oss:120b-cloud"}, "leave this machine"},
		{"ollama", spec{Source: "kimi-k2:CLOUD"}, "leave this machine"},
		{"ollama", spec{Source: "cloudy:7b"}, ""},
		{"ollama", spec{Source: "llama3.1:8b", SHA256: sum}, "registry's own digests"},
		{"ollama", spec{Source: "a b"}, "llama3.1:8b"},
		{"ollama", spec{Source: "/srv/x.bin"}, ".gguf"},
		{"ollama", spec{Source: "/srv/x-00001-of-00002.gguf"}, "--merge"},
		{"ollama", spec{Source: "x", Quantization: "awq"}, "in the tag"},
		{"ollama", spec{Source: "x", Options: opt("kv-cache-type", "q8_0")}, "flash-attention=true"},
		{"ollama", spec{Source: "x", Options: opt("load-timeout", "10")}, "10m"},
		{"ollama", spec{Source: "x", Options: opt("host", "0.0.0.0")}, "parallel"},
		{"ollama", spec{Source: "x", ServedNames: []string{"a/b/c/d"}}, "namespace/model:tag"},

		{"vllm", spec{Source: "org/name", Quantization: "awq"}, ""},
		{"vllm", spec{Source: "org/name", GPUs: levelrail.GPURequest{Mode: levelrail.GPUCount, Count: 4}, Options: opt("pipeline-parallel-size", "2")}, ""},
		{"vllm", spec{Source: "org/name", GPUs: levelrail.GPURequest{Mode: levelrail.GPUCount, Count: 3}, Options: opt("pipeline-parallel-size", "2")}, "multiply"},
		{"vllm", spec{Source: "org/name:Q4_K_M"}, "--quantization"},
		{"vllm", spec{Source: "llama3.1:8b"}, "repository of the Hub"},
		{"vllm", spec{Source: "/srv/x.gguf"}, "--engine llamacpp"},
		{"vllm", spec{Source: "org/name", Quantization: "a b"}, "awq"},
		{"vllm", spec{Source: "org/name", Options: opt("trust-remote-code", "true")}, "no option"},
		{"vllm", spec{Source: "org/name", Options: opt("gpu-memory-utilization", "1.5")}, "up to 1"},
		{"vllm", spec{Source: "org/name", Options: opt("gpu-memory-utilization", "NaN")}, "up to 1"},
		{"vllm", spec{Source: "org/name", Options: opt("enable-auto-tool-choice", "true")}, "tool-call-parser"},
	} {
		err := get(t, c.engine).Check(c.spec)
		name := fmt.Sprintf("%s %+v", c.engine, c.spec)
		if c.says == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		var e *levelrail.Error
		if !errors.As(err, &e) || e.Kind != levelrail.ErrInvalid || e.Next == "" || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want an invalid error with a next step that says %q", name, err, c.says)
		}
		if _, err := get(t, c.engine).Weights(c.spec); err == nil {
			t.Errorf("%s: Weights took what Check refuses", name)
		}
	}
}

// TestNeverPassed: no option opens a further door of llama-server or vLLM.
func TestNeverPassed(t *testing.T) {
	for _, name := range []string{"tools", "agent", "ui-mcp-proxy", "slot-save-path", "media-path", "rpc", "host", "port", "api-key", "hf-repo", "model-url", "lora", "props", "models-dir", "log-file", "mcp-servers-json", "api-prefix"} {
		if err := checkOptions("llamacpp", llamacppOptions, levelrail.Options{name: "1"}); err == nil || !strings.Contains(err.Error(), "has no option") {
			t.Errorf("llamacpp %s: %v", name, err)
		}
	}
	for _, name := range []string{"trust-remote-code", "allowed-local-media-path", "host", "uds", "api-key", "enable-lora", "config", "download-dir", "chat-template"} {
		if err := checkOptions("vllm", vllmOptions, levelrail.Options{name: "1"}); err == nil || !strings.Contains(err.Error(), "has no option") {
			t.Errorf("vllm %s: %v", name, err)
		}
	}
}
