package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	hosttest "github.com/levelrail/levelrail/test/host"
)

// TestWeightsDisk: a disk that is mounted on the store of weights is used from then on, without a restart by hand. When it is
// missing after a boot, nothing is fetched below its mount point and the model says which disk is missing; when it is mounted,
// the model serves by itself from what is there.
func TestWeightsDisk(t *testing.T) {
	h := Install(t, hosttest.Trixie, hosttest.WithEngine(hosttest.LlamaCpp), hosttest.WithWeights())
	const store = "/var/lib/levelrail/weights"
	mounted := func() { h.Run("mount --bind /disk " + store) }
	there := func(dir string) func() error {
		return func() error {
			_, _, err := h.Exec(t.Context(), "test -s "+dir+"/.levelrail-store")
			return err
		}
	}
	agent := h.WaitActive("levelrail-agent.service").MainPID
	h.Eventually("the agent to mark its store", time.Minute, there(store))
	h.Run("mkdir /disk && mount -t tmpfs -o size=1g disk /disk")
	mounted()
	h.Eventually("the agent to see the disk", time.Minute, there("/disk"))
	if now := h.WaitActive("levelrail-agent.service").MainPID; now == agent {
		t.Error("the agent is the same process, which cannot see a mount that came later")
	}
	key := h.Deploy(deployChat)
	h.Run("test -d /disk/chat")

	// What a boot without the disk leaves: the mount point is empty, and everything starts.
	h.Run("systemctl stop levelrail-agent levelrail-model-chat.service && umount " + store)
	below := h.Run("find " + store + " | sort")
	h.Run("systemctl start --no-block levelrail-model-chat.service; systemctl start levelrail-agent")
	m := h.WaitReason("chat", "WeightsNotMounted", time.Minute)
	if m.Condition.Ready || !strings.Contains(m.Condition.Next, "mount "+store) {
		t.Errorf("condition %+v", m.Condition)
	}
	if out, _ := h.CLI("status"); !strings.Contains(out, "WeightsNotMounted") {
		t.Errorf("status does not say it:\n%s", out)
	}
	if _, _, code := h.Try("models wait chat --timeout 30s"); code != 4 {
		t.Errorf("waiting for it ends with %d", code)
	}
	if now := h.Run("find " + store + " | sort"); now != below {
		t.Errorf("below the mount point there was\n%s and is\n%s", below, now)
	}
	began := time.Now()
	mounted()
	h.Eventually("the model to serve again", 3*time.Minute, func() error {
		if res, body := h.Ask("POST", "/v1/completions", key, `{"model":"chat","prompt":"one","max_tokens":1}`); res.StatusCode != http.StatusOK {
			return fmt.Errorf("answered with %s %s", res.Status, body)
		}
		return nil
	})
	t.Logf("it served %s after the disk was there", time.Since(began).Round(time.Second))
	if out := h.Run("journalctl -u levelrail-agent --since=-3min --no-pager | grep -c 'msg=fetch who=chat' || true"); strings.TrimSpace(out) > "1" {
		t.Errorf("it was fetched again: %s", out)
	}

	// What a deleted model leaves is listed, and its disk can be had back; what a model uses cannot.
	if _, errText, code := h.Try("weights delete chat --yes"); code != 4 || !strings.Contains(errText, "models delete chat") {
		t.Errorf("deleting what is used ends with %d: %s", code, errText)
	}
	h.CLI("models delete chat --yes")
	h.Eventually("the model to be gone", time.Minute, func() error {
		if out, _ := h.CLI("models list --json"); strings.Contains(out, `"chat"`) {
			return fmt.Errorf("it is listed")
		}
		return nil
	})
	if out, _ := h.CLI("weights list"); !strings.Contains(out, "chat") || !strings.Contains(out, " no ") {
		t.Errorf("the weights are listed as\n%s", out)
	}
	h.CLI("weights delete chat --yes")
	if left := strings.TrimSpace(h.Run("find /disk -size +1M")); left != "" {
		t.Errorf("left on the disk: %s", left)
	}
}
