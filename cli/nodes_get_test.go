package cli

import "testing"

// TestNodesGet: one node's GPUs, engines, disk and models.
func TestNodesGet(t *testing.T) { runScript(t, "nodes_get") }
