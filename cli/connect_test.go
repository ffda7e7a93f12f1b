package cli

import "testing"

// TestConnect: where the server is said to be, and what is missing.
func TestConnect(t *testing.T) { runScript(t, "connect") }
