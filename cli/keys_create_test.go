package cli

import "testing"

// TestKeysCreate: a further key, shown once.
func TestKeysCreate(t *testing.T) { runScript(t, "keys_create") }
