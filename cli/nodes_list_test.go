package cli

import "testing"

// TestNodesList: one line a node; what is unknown is a dash.
func TestNodesList(t *testing.T) { runScript(t, "nodes_list") }
