package cli

import "testing"

// TestRequestsList: what is in flight, with and without the verb.
func TestRequestsList(t *testing.T) { runScript(t, "requests_list") }
