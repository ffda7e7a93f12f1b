package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	hosttest "github.com/levelrail/levelrail/test/host"
)

// TestNotIsolated: a drop-in that takes isolation away is told by status, models list and models get, with the directive and
// what undoes it; after that it is not.
func TestNotIsolated(t *testing.T) {
	t.Parallel()
	h := Install(t, hosttest.Trixie, hosttest.WithEngine(hosttest.LlamaCpp), hosttest.WithWeights())
	h.Deploy("--name chat --engine llamacpp --gpus none --context 512 --model " + hosttest.WeightsPath)
	const unit = "levelrail-model-chat.service"
	for _, args := range []string{"status", "models list", "models get chat"} {
		if out, _ := h.CLI(args); strings.Contains(out, "NOT ISOLATED") {
			t.Errorf("%s before: %s", args, out)
		}
	}
	h.Run("mkdir -p /etc/systemd/system/" + unit + ".d && printf '[Service]\\nPrivateNetwork=no\\nCPUWeight=50\\n' >/etc/systemd/system/" + unit + ".d/open.conf && systemctl daemon-reload")
	for _, args := range []string{"status", "models list", "models get chat"} {
		h.Eventually(args+" to say so", 20*time.Second, func() error {
			out, _ := h.CLI(args)
			if !strings.Contains(out, "NOT ISOLATED") || !strings.Contains(out, "chat") || args != "models list" && !strings.Contains(out, "PrivateNetwork=no") || strings.Contains(out, "CPUWeight") {
				return fmt.Errorf("it says %s", out)
			}
			return nil
		})
	}
	h.Run("systemctl revert " + unit)
	h.Eventually("it to be undone", 20*time.Second, func() error {
		if out, _ := h.CLI("status"); strings.Contains(out, "NOT ISOLATED") {
			return fmt.Errorf("it says %s", out)
		}
		return nil
	})
	if !h.Get("chat").Condition.Ready {
		t.Error("the model is gone after systemctl revert")
	}
}
