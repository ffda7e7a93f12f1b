package cli

import "testing"

// TestWeightsList: what lies on disks is listed with whether a model uses it.
func TestWeightsList(t *testing.T) { runScript(t, "weights_list") }
