package cli

import "testing"

// TestModelsWait: the command that takes a wait up again.
func TestModelsWait(t *testing.T) { runScript(t, "models_wait") }
