package hostile

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestForgedJournal: lines that a user of the host writes in the name of a model, its unit or systemd are in the journal, and
// are neither shown as the model's log nor taken for the cause of its failures.
func TestForgedJournal(t *testing.T) {
	t.Parallel()
	w := New(t)
	const mark = "forged-line"
	forge := func(what, fields string) {
		t.Helper()
		if output, err := w.As("mallory", "printf %b "+quote(fmt.Sprintf(`MESSAGE=%s %s\nPRIORITY=3\n%s\n`, mark, what, fields))+" | logger --journald"); err != nil {
			t.Fatalf("write a line to the journal: %v: %s", err, output)
		}
	}
	forge("by the model's field", `LEVELRAIL_MODEL=chat\nLEVELRAIL_ENGINE=llamacpp\nLEVELRAIL_REPLICA=chat`)
	forge("by the unit's field", `LEVELRAIL_MODEL=chat\nUNIT=levelrail-model-chat.service`)
	forge("by a trusted field", `LEVELRAIL_MODEL=chat\n_SYSTEMD_UNIT=levelrail-model-chat.service\n_PID=1\n_UID=0`)
	forge("about an object", `LEVELRAIL_MODEL=chat\nOBJECT_SYSTEMD_UNIT=levelrail-model-chat.service\nCOREDUMP_UNIT=levelrail-model-chat.service`)
	if output, err := w.As("mallory", "systemd-cat --identifier=llama-server echo "+mark+" by a stream"); err != nil {
		t.Fatalf("write to the journal: %v: %s", err, output)
	}
	w.Eventually("the forged lines to be in the journal", 10*time.Second, func() error {
		if n := strings.Count(w.Run("journalctl --no-pager -o cat"), mark); n < 5 {
			return fmt.Errorf("%d of 5", n)
		}
		return nil
	})
	if n := strings.Count(w.Run("journalctl --no-pager -o cat LEVELRAIL_MODEL=chat"), mark); n < 4 {
		t.Fatalf("only %d forged lines carry the field that they were written for", n)
	}

	log, _ := w.CLI("models logs chat --lines 100000")
	for _, line := range []string{"Started", "llama"} { // systemd's own words and the engine's: the log is not empty
		if !strings.Contains(log, line) {
			t.Errorf("the model's log has no line with %q:\n%.2000s", line, log)
		}
	}
	reached := ""
	for line := range strings.Lines(log) {
		if strings.Contains(line, mark) {
			reached += fmt.Sprintf("a line of its own: %q; ", line)
		}
	}
	w.Attempt(LocalUser, "write a line into a model's log", reached)

	// The cause of a failure is looked for in the engine's own last run.
	forge("fatal", `LEVELRAIL_MODEL=chat\nUNIT=levelrail-model-chat.service\nINVOCATION_ID=`+strings.TrimSpace(w.Run("systemctl show -p InvocationID --value levelrail-model-chat")))
	forge("error: failed to load model, unknown model architecture: "+mark, `UNIT=levelrail-model-chat.service`)
	w.Run("systemctl kill --signal=SEGV levelrail-model-chat")
	m := w.WaitReason("chat", "ModelLoaded", time.Minute)
	reached = ""
	if strings.Contains(m.Condition.Message, mark) {
		reached = m.Condition.Message
	}
	w.Attempt(LocalUser, "write the reason of a failure", reached)
}
