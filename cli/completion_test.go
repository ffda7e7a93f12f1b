package cli

import "testing"

// TestCompletion: a script for each shell, and a hint for anything else.
func TestCompletion(t *testing.T) { runScript(t, "completion") }
