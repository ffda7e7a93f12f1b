package cli

import "testing"

// TestUsage: who mistypes is led on, and who types nothing is shown how to begin.
func TestUsage(t *testing.T) { runScript(t, "usage") }
