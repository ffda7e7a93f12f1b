package cli

import "testing"

// TestStatus: the whole at a glance, with what to do next.
func TestStatus(t *testing.T) { runScript(t, "status") }
