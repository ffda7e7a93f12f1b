package sdk

import (
	"testing"

	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/test/engines/stub"
	"github.com/levelrail/levelrail/test/rig"
)

// TestClients: what people build on OpenAI's libraries, or beside them, works through the gateway with the settings that
// docs/clients.md names: chat, streams, tools, structured output, batches of embeddings, and errors that it understands.
func TestClients(t *testing.T) {
	root, err := rig.Root()
	if err != nil {
		t.Fatal(err)
	}
	program, err := rig.Build(t.Context(), "./cmd/levelrail-gateway", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	engines := []string{stub.VLLM, stub.LlamaCpp, stub.Ollama}
	sites := map[string]*site{}
	for _, e := range engines {
		// As shipped: what no table of the engine's fields has is refused where that is the default.
		sites[e] = newSite(t, e, program, func(r *wire.Route) { r.Limits.UnknownFields, r.Limits.MaxPrompts = "", 256 })
	}
	for _, c := range Clients {
		if c.Heavy && !AllClients() {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel() // installing waits for the network, and loading for the disk
			run, script, env, err := c.Install(t.Context(), root)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range engines {
				t.Run(e, func(t *testing.T) {
					if checks := sites[e].suite(t, run, script, env...); len(checks) < 3 {
						t.Errorf("it made the checks %q", checks)
					}
				})
			}
		})
	}
}
