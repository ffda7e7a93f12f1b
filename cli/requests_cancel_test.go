package cli

import "testing"

// TestRequestsCancel: one request ends; one that is not in flight is 3.
func TestRequestsCancel(t *testing.T) { runScript(t, "requests_cancel") }
