package cli

import "testing"

// TestModelsRotateEngineKey: a new key of the engine is a restart that can be followed, and no key is shown.
func TestModelsRotateEngineKey(t *testing.T) { runScript(t, "models_rotate_engine_key") }
