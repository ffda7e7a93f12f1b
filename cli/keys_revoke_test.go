package cli

import "testing"

// TestKeysRevoke: by id, and an unknown one is 3.
func TestKeysRevoke(t *testing.T) { runScript(t, "keys_revoke") }
