package cli

import "testing"

// TestModelsList: a table for people, {"items": …} for programs, and a first step for who has none.
func TestModelsList(t *testing.T) { runScript(t, "models_list") }
