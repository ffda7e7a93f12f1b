package cli

import "testing"

// TestModelsRotateKey: the new key once, and the old one revoked.
func TestModelsRotateKey(t *testing.T) { runScript(t, "models_rotate_key") }
