package parsers

import (
	"bytes"
	"strings"
)

// Part is one part of a form.
type Part struct {
	Name, Value string
	File        bool
}

// tokenBytes are those of a header's name (RFC 9110, tchar).
func tokenBytes(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9') && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}

// cutPrefix is bytes.CutPrefix with a text.
func cutPrefix(b []byte, prefix string) ([]byte, bool) { return bytes.CutPrefix(b, []byte(prefix)) }

// cut is bytes.Cut with a text.
func cut(b []byte, at string) (before, after []byte, found bool) { return bytes.Cut(b, []byte(at)) }
