package e2e

import (
	"testing"

	hosttest "github.com/levelrail/levelrail/test/host"
	"github.com/levelrail/levelrail/test/rig"
	"github.com/levelrail/levelrail/test/sdk"
)

// TestRealEngineThroughClients: the clients of others that package sdk holds against engine stubs also work with an engine
// that has real weights, as far as what they do does not depend on what exactly the model says.
func TestRealEngineThroughClients(t *testing.T) {
	root, err := rig.Root()
	if err != nil {
		t.Fatal(err)
	}
	h := Install(t, hosttest.Trixie, hosttest.WithEngine(hosttest.LlamaCpp), hosttest.WithWeights())
	env := []string{"LEVELRAIL_URL=" + outside(t, h), "LEVELRAIL_ENGINE=llamacpp", "LEVELRAIL_MODEL=chat", "LEVELRAIL_KEY=" + h.Deploy(deployChat)}
	for _, c := range sdk.Clients {
		if c.StubOnly || c.Heavy && !sdk.AllClients() {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			program, script, more, err := c.Install(t.Context(), root)
			if err != nil {
				t.Fatal(err)
			}
			checks, err := sdk.Suite(t.Context(), program, script, append(more, env...)...)
			if err != nil {
				t.Error(err)
			}
			for _, k := range checks {
				if k.Error != "" {
					t.Errorf("%s: %s", k.Name, k.Error)
				}
			}
			if len(checks) < 2 {
				t.Errorf("it made %d checks", len(checks))
			}
		})
	}
}
