package cli

import "testing"

// TestModelsLogs: the journal, free of what could steer a terminal.
func TestModelsLogs(t *testing.T) { runScript(t, "models_logs") }
