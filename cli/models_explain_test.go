package cli

import "testing"

// TestModelsExplain: the limit that refused, and when it passes, in words.
func TestModelsExplain(t *testing.T) { runScript(t, "models_explain") }
