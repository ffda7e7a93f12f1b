package main

import (
	"strings"
	"testing"
)

// TestCommandsThatReplaceTheProgram: Caddy's commands that would put something else in the place of the packaged program are
// refused, with what to do instead; others pass.
func TestCommandsThatReplaceTheProgram(t *testing.T) {
	for _, command := range []string{"upgrade", "add-package", "remove-package"} {
		if why := refused([]string{command, "x"}); !strings.HasPrefix(why, command) || !strings.Contains(why, "apt install") {
			t.Errorf("%s: %q", command, why)
		}
	}
	for _, args := range [][]string{nil, {"run"}, {"validate"}, {"list-modules", "upgrade"}} {
		if why := refused(args); why != "" {
			t.Errorf("%q: %s", args, why)
		}
	}
}
