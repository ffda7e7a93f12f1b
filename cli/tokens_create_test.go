package cli

import "testing"

// TestTokensCreate: the token once, and how to use it.
func TestTokensCreate(t *testing.T) { runScript(t, "tokens_create") }
