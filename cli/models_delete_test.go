package cli

import "testing"

// TestModelsDelete: it asks, or needs --yes, and says that weights stay.
func TestModelsDelete(t *testing.T) { runScript(t, "models_delete") }
