// Package baddays plays the days on which things come back, get lost or stand still, on booted hosts with the packages as
// they ship: restores, emptied stores, full and frozen disks, true power cuts.
package baddays

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail/test/e2e"
	hosttest "github.com/levelrail/levelrail/test/host"
)

const chat = "--name chat --engine llamacpp --gpus none --context 2048 --model " + hosttest.WeightsPath

// report is what is read of `levelrail-server restore --json`.
type report struct {
	Replaces       string `json:"replaces_cluster"`
	Models, Keys   int
	ReturnedKeys   []struct{ ID, Name string } `json:"returned_keys"`
	GoneKeys       []struct{ ID, Name string } `json:"gone_keys"`
	ReturnedModels []string                    `json:"returned_models"`
	GoneModels     []string                    `json:"gone_models"`
	UsageRows      int                         `json:"usage_rows"`
}

func newKey(h *e2e.Host, name string) (id, secret string) {
	var k struct{ ID, Secret string }
	h.JSON(&k, "models keys create chat --name "+name)
	h.Eventually("the gateway to know the key "+name, 5*time.Second, func() error { return answers(h, k.Secret, http.StatusOK) })
	return k.ID, k.Secret
}

func answers(h *e2e.Host, key string, status int) error {
	if res, body := h.Ask("POST", "/v1/completions", key, `{"model":"chat","prompt":"one","max_tokens":1}`); res.StatusCode != status {
		return fmt.Errorf("answered with %s %s", res.Status, body)
	}
	return nil
}

// TestRestore: by the book, a restored backup is followed by agent and gateway without a restart of either; the engine
// keeps its process; what the backup has works, what it has not is refused, and the command has named each.
func TestRestore(t *testing.T) {
	t.Parallel()
	h := e2e.Install(t, hosttest.Trixie, hosttest.WithEngine(hosttest.LlamaCpp), hosttest.WithWeights())
	first := h.Deploy(chat)
	revokedID, revoked := newKey(h, "revoked-later")
	h.CLI("backups create --output /root/one.backup")
	h.Run("cp /var/lib/levelrail/server/master.key /root/")
	h.Run("systemctl restart levelrail-server.service && systemctl restart levelrail-server.service") // a term each
	madeID, made := newKey(h, "made-later")
	h.CLI("models keys revoke chat " + revokedID + " --yes")
	h.Deploy(strings.Replace(chat, "chat", "extra", 1))
	engine := h.WaitActive("levelrail-model-chat.service").MainPID

	h.Run("systemctl stop 'levelrail-server*'")
	// Without a terminal nothing is replaced without --yes, and the report says what would be.
	out, errs, err := h.Exec(t.Context(), "levelrail-server restore /root/one.backup")
	if err == nil || !strings.Contains(errs, "--yes") || !strings.Contains(out, revokedID) || !strings.Contains(out, madeID) || !strings.Contains(out, "extra") {
		t.Errorf("without --yes: %v\n%s\n%s", err, out, errs)
	}
	out = h.Run("levelrail-server restore --yes /root/one.backup")
	for _, want := range []string{"1 keys open their models AGAIN", revokedID, "keys open NOTHING any more", madeID, "1 models are GONE: extra"} {
		if !strings.Contains(out, want) {
			t.Errorf("the report does not say %q:\n%s", want, out)
		}
	}
	if left := h.Run("ls -A /var/lib/levelrail"); strings.Contains(left, ".restore") {
		t.Errorf("the restore left %s", left)
	}
	h.Run("systemctl start levelrail-server.service")

	h.Eventually("the gateway to follow the restored history", 15*time.Second, func() error {
		if err := answers(h, made, http.StatusUnauthorized); err != nil {
			return fmt.Errorf("the key made after the backup: %w", err)
		}
		if err := answers(h, first, http.StatusOK); err != nil {
			return fmt.Errorf("the first key: %w", err)
		}
		return answers(h, revoked, http.StatusOK) // as the report said
	})
	h.Eventually("the agent to follow the restored history", 30*time.Second, func() error {
		if m := h.Get("chat"); !m.Condition.Ready {
			return fmt.Errorf("chat is %s: %s", m.Condition.Reason, m.Condition.Message)
		}
		if u, err := h.Show(t.Context(), "levelrail-model-extra.service"); err != nil || u.ActiveState == "active" {
			return fmt.Errorf("the engine that the backup does not have is %s, %v", u.ActiveState, err)
		}
		return nil
	})
	if pid := h.WaitActive("levelrail-model-chat.service").MainPID; pid != engine {
		t.Errorf("the engine was restarted: process %d, then %d", engine, pid)
	}
	if _, errs, code := h.Try("models keys revoke chat " + revokedID + " --yes"); code != 0 {
		t.Errorf("the key that came back cannot be revoked: %d %s", code, errs)
	}
	if err := answers(h, revoked, http.StatusUnauthorized); err != nil {
		t.Errorf("the key that came back and was revoked: %v", err)
	}

	// The server's disk comes back empty. The store alone: the server does not start. All of it: the server cannot know, and
	// agent and gateway keep what they have.
	h.Run("systemctl stop 'levelrail-server*' && rm -rf /var/lib/levelrail/server/store && systemctl start --no-block levelrail-server.service")
	h.Eventually("the server to say that its store is gone", 20*time.Second, func() error {
		if log := h.Journal("-u", "levelrail-server", "-n", "20"); !strings.Contains(log, "levelrail-server begin-anew") {
			return fmt.Errorf("it says\n%s", log)
		}
		return nil
	})
	h.Run("systemctl stop 'levelrail-server*' && rm -rf /var/lib/levelrail/server/* && systemctl start levelrail-server.service")
	h.Eventually("the status to name both peers of the old cluster", 20*time.Second, func() error {
		out, errs := h.CLI("status")
		if out += errs; !strings.Contains(out, "the agent of trixie belongs to") || !strings.Contains(out, "the gateway gw_") {
			return fmt.Errorf("it says\n%s", out)
		}
		return nil
	})
	if err := answers(h, first, http.StatusOK); err != nil {
		t.Errorf("the gateway beside an emptied server: %v", err)
	}
	if _, errs, code := h.Try("models deploy " + strings.Replace(chat, "chat", "extra", 1)); code != 4 || !strings.Contains(errs, "levelrail-server restore") {
		t.Errorf("a deploy on an emptied server: %d %s", code, errs)
	}
	h.Run("systemctl stop 'levelrail-server*' && levelrail-server restore --yes --master-key-file /root/master.key /root/one.backup && systemctl start levelrail-server.service")
	h.Eventually("the restored cluster to be whole", 30*time.Second, func() error {
		if out, errs := h.CLI("status"); strings.Contains(out+errs, "belongs to") {
			return fmt.Errorf("status says\n%s%s", out, errs)
		}
		if m := h.Get("chat"); !m.Condition.Ready {
			return fmt.Errorf("chat is %s: %s", m.Condition.Reason, m.Condition.Message)
		}
		return answers(h, first, http.StatusOK)
	})
	if pid := h.WaitActive("levelrail-model-chat.service").MainPID; pid != engine {
		t.Errorf("the engine was restarted: process %d, then %d", engine, pid)
	}
}

// TestFilesPutBack: files that were copied back while the server was stopped are found out by agent and gateway, which keep
// what they have; status says what to do, and doing it makes all of them peers again.
func TestFilesPutBack(t *testing.T) {
	t.Parallel()
	h := e2e.Install(t, hosttest.Trixie, hosttest.WithEngine(hosttest.LlamaCpp), hosttest.WithWeights())
	first := h.Deploy(chat)
	revokedID, revoked := newKey(h, "revoked-later")
	h.Run("systemctl stop 'levelrail-server*' && cp -a /var/lib/levelrail/server /root/copy && systemctl start levelrail-server.service")
	h.CLI("models keys revoke chat " + revokedID + " --yes")
	h.Run("systemctl restart levelrail-server.service")
	h.Run(`systemctl stop 'levelrail-server*' && rm -rf /var/lib/levelrail/server && cp -a /root/copy /var/lib/levelrail/server && systemctl start levelrail-server.service`)

	h.Eventually("the status to say it", 20*time.Second, func() error {
		out, errs := h.CLI("status")
		if !strings.Contains(out+errs, "levelrail-server restore /var/lib/levelrail/server") {
			return fmt.Errorf("it says\n%s%s", out, errs)
		}
		return nil
	})
	if err := answers(h, first, http.StatusOK); err != nil {
		t.Errorf("the gateway does not serve on: %v", err)
	}
	if err := answers(h, revoked, http.StatusUnauthorized); err != nil {
		t.Errorf("the revoked key, while the server is refused: %v", err)
	}
	h.Run("systemctl stop 'levelrail-server*' && levelrail-server restore --yes --revoke-returned /var/lib/levelrail/server && systemctl start levelrail-server.service")
	h.Eventually("all to be peers again", 30*time.Second, func() error {
		if err := answers(h, first, http.StatusOK); err != nil {
			return err
		}
		if err := answers(h, revoked, http.StatusUnauthorized); err != nil {
			return err
		}
		if out, errs := h.CLI("status"); strings.Contains(out+errs, "put back") {
			return fmt.Errorf("status says\n%s%s", out, errs)
		}
		if m := h.Get("chat"); !m.Condition.Ready {
			return fmt.Errorf("chat is %s", m.Condition.Reason)
		}
		return nil
	})
}
