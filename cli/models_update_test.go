package cli

import "testing"

// TestModelsUpdate: what is given changes, the rest stays, and the wait is for the new revision.
func TestModelsUpdate(t *testing.T) { runScript(t, "models_update") }
