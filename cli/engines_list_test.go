package cli

import "testing"

// TestEnginesList: what each node has, and how to install what it lacks.
func TestEnginesList(t *testing.T) { runScript(t, "engines_list") }
