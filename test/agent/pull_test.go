package agent_test

import (
	"crypto/tls"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/test/engines/faults"
	"github.com/levelrail/levelrail/test/engines/registrystub"
	"github.com/levelrail/levelrail/test/engines/testca"
	"github.com/levelrail/levelrail/test/fixtures"
	hosttest "github.com/levelrail/levelrail/test/host"
)

// TestOllamaPull: a tag comes by Ollama's own pull inside the fetch unit, with progress, goes on after a kill, and is
// served from a store that the engine cannot change; a tag that is not there is a reason, and nothing of the importing
// server stays behind.
func TestOllamaPull(t *testing.T) {
	weights, err := fixtures.WeightsPath(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stub, err := registrystub.New(t.TempDir(), registrystub.Model{Name: "smollm2:135m", GGUF: weights})
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, hosttest.Bookworm, hosttest.WithEngine(hosttest.Ollama))
	ca, err := testca.New()
	if err != nil {
		t.Fatal(err)
	}
	config, err := ca.Config("registry.ollama.ai")
	if err != nil {
		t.Fatal(err)
	}
	r.TrustCA(ca.PEM())
	r.Resolve("127.0.0.1", "registry.ollama.ai")
	const storage = "127.0.0.2:5000"
	stub.SetStorage("http://" + storage)
	l, err := r.Listen("tcp", "127.0.0.1:443")
	if err != nil {
		t.Fatal(err)
	}
	r.run(tls.NewListener(l, config), stub.Registry())
	if l, err = r.Listen("tcp", storage); err != nil {
		t.Fatal(err)
	}
	r.run(l, stub.Storage())

	tag := func(source string) func(*wire.Assignment) {
		return func(a *wire.Assignment) { a.Spec.Engine, a.Spec.Source = "ollama", source }
	}
	r.server.Assign(r.assignment("gone", tag("nothing:here")))
	c := r.reason("gone", levelrail.DownloadFailed)
	if !strings.Contains(c.Message, "nothing:here") || c.Next == "" {
		t.Errorf("condition %+v", c)
	}
	if out := strings.TrimSpace(r.Run("pgrep -a ollama || true")); out != "" {
		t.Errorf("processes of the import stayed: %s", out)
	}
	r.server.Withdraw("gone")

	stub.StorageFaults.Set(faults.Settings{Rate: 8 << 20})
	r.server.Assign(r.assignment("small", tag("smollm2:135m")))
	r.until("small", "pulling with progress", time.Minute, func(s *wire.ReplicaStatus) bool {
		p := s.Condition.Progress
		return p != nil && p.Phase == "downloading" && p.TotalBytes != nil && *p.TotalBytes > 90<<20 && p.DoneBytes > 8<<20
	})
	r.Run("systemctl kill --signal=KILL levelrail-fetch-small.service")
	stub.StorageFaults.Set(faults.Settings{})
	r.serving("small", 1)
	if answer := r.must("small", "small"); answer != r.must("small", "smollm2:135m") {
		t.Error("by its tag it gives another answer")
	}
	if links := strings.TrimSpace(r.Run("find /var/lib/levelrail/weights -name 'sha256-b179c9523d0e*' -printf '%n\\n' | sort -u")); links != "2" {
		t.Errorf("the pulled file has %q links, want one file in the set and in the store", links)
	}
	if bad := strings.TrimSpace(r.Run("cd /var/lib/levelrail/weights/small && find . -type d ! -perm 755 -o -type f ! -perm 644")); bad != "" {
		t.Errorf("modes that the engine's user may not be able to read:\n%s", bad)
	}
	before := len(stub.Requests())
	r.server.Assign(r.assignment("twin", tag("smollm2:135m")))
	r.serving("twin", 1)
	for _, q := range stub.Requests()[before:] {
		if q.Storage && strings.Contains(q.Path, "b179c9523d0e") {
			t.Errorf("the second model of the tag pulled it again: %s %s", q.Method, q.Path)
		}
	}
	if links := strings.TrimSpace(r.Run("find /var/lib/levelrail/weights -name 'sha256-b179c9523d0e*' -printf '%n\\n' | sort -u")); links != "3" {
		t.Errorf("stored with %q links after a second model, want one file with 3", links)
	}
}
