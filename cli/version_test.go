package cli

import "testing"

// TestVersion: both versions, and that they differ; a server that cannot be reached is no error.
func TestVersion(t *testing.T) { runScript(t, "version") }
