package cli

import "testing"

// TestModelsRestart: the wait is over when the node tells of one more restart, not while the old engine is ready.
func TestModelsRestart(t *testing.T) { runScript(t, "models_restart") }
