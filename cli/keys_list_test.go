package cli

import "testing"

// TestKeysList: prefixes and states, never a key.
func TestKeysList(t *testing.T) { runScript(t, "keys_list") }
