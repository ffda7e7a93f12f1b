package cli

import "testing"

// TestModelsSetHubToken: the token comes from the environment only.
func TestModelsSetHubToken(t *testing.T) { runScript(t, "models_set_hf_token") }
