package cli

import "testing"

// TestComplete: commands, flags, values, and names from the server; silence where nothing is known.
func TestComplete(t *testing.T) { runScript(t, "complete") }
