package cli

import "testing"

// TestModelsGet: the facts of one model, why it is not ready, and a curl line.
func TestModelsGet(t *testing.T) { runScript(t, "models_get") }
