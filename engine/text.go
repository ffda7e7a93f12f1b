package engine

import (
	"strconv"
	"strings"
)

func quote(s string) string {
	if len(s) > 80 {
		s = s[:80] + "…"
	}
	return strconv.Quote(s)
}

func join(names []string) string { return strings.Join(names, ", ") }
