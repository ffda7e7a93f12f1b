package cli

import "testing"

// TestWeightsDelete: it asks, or needs --yes; what a model uses stays.
func TestWeightsDelete(t *testing.T) { runScript(t, "weights_delete") }
