package cli

import "testing"

// TestTokensRevoke: by id, and an unknown one is 3.
func TestTokensRevoke(t *testing.T) { runScript(t, "tokens_revoke") }
