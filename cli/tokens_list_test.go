package cli

import "testing"

// TestTokensList: prefixes and abilities, never a token.
func TestTokensList(t *testing.T) { runScript(t, "tokens_list") }
