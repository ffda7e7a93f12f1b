package cli

import "testing"

// TestKeysRotate: the new key is shown once, the old one ends when its grace is over.
func TestKeysRotate(t *testing.T) { runScript(t, "keys_rotate") }
