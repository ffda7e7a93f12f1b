package e2e

import (
	"strings"
	"testing"
	"time"

	hosttest "github.com/levelrail/levelrail/test/host"
)

// TestDeploysThatCannotWork: what can never work is refused at once, with exit code 4, what to do, and nothing left
// behind.
func TestDeploysThatCannotWork(t *testing.T) {
	h := Install(t, hosttest.Trixie)
	for _, c := range []struct{ flags, says string }{
		{"--name chat --engine lamacpp --model org/x-GGUF", "llamacpp"},
		{"--name chat --engine llamacpp --model org/x-GGUF --option paralel=2", "paralel"},
		{"--name Chat_1 --engine llamacpp --model org/x-GGUF", "chat-1"},
		{"--name chat --engine llamacpp --model org/x-GGUF --quantization awq", "quant"},
		{"--name chat --engine llamacpp --model org/x-GGUF --gpus two", "--gpus"},
		{"--name chat --engine ollama --model gpt-oss:120b-cloud", "cloud"},
		{"--name chat --engine llamacpp --model org/x-GGUF --context=-1", "context"},
	} {
		stdout, stderr, code := h.Try("models deploy --no-wait " + c.flags)
		if code != 4 && code != 2 || !strings.Contains(stderr, c.says) || stdout != "" {
			t.Errorf("deploy %s ended with %d\nstdout: %s\nstderr: %s\nwant 4 or 2 and %q in stderr", c.flags, code, stdout, stderr, c.says)
		}
	}
	var list struct{ Items []Model }
	h.JSON(&list, "models list")
	if len(list.Items) != 0 {
		t.Errorf("refused deploys left %+v", list.Items)
	}
	if units := h.Run("ls /etc/systemd/system | grep levelrail-model || true; ls /var/lib/levelrail/weights"); units != "" {
		t.Errorf("refused deploys left %s", units)
	}
}

// TestDeploysThatAreMended: a model whose node lacks something stands with its reason and next step, --wait ends with 4,
// and it starts by itself when the node has it.
func TestDeploysThatAreMended(t *testing.T) {
	h := Install(t, hosttest.Bookworm, hosttest.WithWeights(), hosttest.WithBind(llamaCpp(t), "/srv/llama.cpp"))

	t.Run("no GPU", func(t *testing.T) {
		_, stderr, code := h.Try("models deploy --wait --timeout 1m --name gpu --engine llamacpp --model " + hosttest.WeightsPath)
		if code != 4 || !strings.Contains(stderr, "NoGPUOnNode") || !strings.Contains(stderr, "--gpus none") {
			t.Errorf("ended with %d and\n%s", code, stderr)
		}
		h.CLI("models delete gpu --yes")
	})

	t.Run("no program", func(t *testing.T) {
		_, stderr, code := h.Try("models deploy --wait --timeout 1m " + deployChat)
		if code != 4 || !strings.Contains(stderr, "EngineNotInstalled") || !strings.Contains(stderr, "APP_MODEL_ENGINE_LLAMACPP") {
			t.Fatalf("ended with %d and\n%s", code, stderr)
		}
		h.Run("ln -s /srv/llama.cpp /opt/llama.cpp")
		h.WaitReason("chat", "ModelLoaded", time.Minute)
	})

	t.Run("no such file", func(t *testing.T) {
		_, stderr, code := h.Try("models deploy --wait --timeout 1m --name late --engine llamacpp --gpus none --context 512 --model /srv/late.gguf")
		if code != 4 || !strings.Contains(stderr, "/srv/late.gguf") {
			t.Fatalf("ended with %d and\n%s", code, stderr)
		}
		h.Run("cp " + hosttest.WeightsPath + " /srv/late.gguf")
		h.WaitReason("late", "ModelLoaded", 2*time.Minute)
		h.CLI("models delete late --yes")
	})

	t.Run("wrong checksum", func(t *testing.T) {
		wrong := strings.Repeat("0", 64)
		_, stderr, code := h.Try("models deploy --wait --timeout 1m --name sum --engine llamacpp --gpus none --context 512 --sha256 " + wrong + " --model /srv/late.gguf")
		if code != 4 || !strings.Contains(stderr, "DownloadFailed") || !strings.Contains(stderr, wrong) {
			t.Fatalf("ended with %d and\n%s", code, stderr)
		}
		if left := h.Run("find /var/lib/levelrail/weights -name '*000000000000*' -o -path '*/sum/*' -name '*.gguf'"); left != "" {
			t.Errorf("a file of the wrong checksum was left: %s", left)
		}
		h.CLI("models update sum --sha256 " + smolSHA256)
		h.WaitReason("sum", "ModelLoaded", 2*time.Minute)
		h.CLI("models delete sum --yes")
	})
}
