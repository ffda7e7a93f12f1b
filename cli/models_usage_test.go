package cli

import "testing"

// TestModelsUsage: sums by key or hour, and what is missing in them.
func TestModelsUsage(t *testing.T) { runScript(t, "models_usage") }
