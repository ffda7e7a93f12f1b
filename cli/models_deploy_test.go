package cli

import "testing"

// TestModelsDeploy: the key once, a curl line, progress, and every way that following ends.
func TestModelsDeploy(t *testing.T) { runScript(t, "models_deploy") }
