package hub

import (
	"strings"

	"github.com/levelrail/levelrail"
)

// CleanToken takes the white space around a token away, as it comes from files and pastes; nothing left means no token.
// What cannot stand in a header is refused with an invalid error that says what is wrong and never holds the value.
func CleanToken(raw string) (string, error) {
	t := strings.TrimSpace(raw)
	bad := func(why string) error {
		return &levelrail.Error{Kind: levelrail.ErrInvalid, Message: why, Next: "give the token exactly as huggingface.co/settings/tokens shows it"}
	}
	if len(t) > 1024 {
		return "", bad("it is longer than any token")
	}
	for _, r := range t {
		switch {
		case r == '"' || r == '\'' || r == '`':
			return "", bad("it has quotes in it; they are no part of a token")
		case r == ' ' || r == '\t' || r == '\r' || r == '\n':
			return "", bad("it has white space inside")
		case r < 0x21 || r == 0x7f:
			return "", bad("it has control characters in it")
		case r > 0x7e:
			return "", bad("it has characters outside ASCII")
		}
	}
	return t, nil
}
