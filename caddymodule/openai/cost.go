package openai

import "strconv"

// Integer reads a value as a whole number of at most nine digits, written in digits and nothing else. Every engine reads
// that as the same number, and nothing else: others take 16.0, "16", 1e3 or true for one, or wrap what is larger around.
func Integer(raw []byte) (n int64, ok bool) {
	if len(raw) == 0 || len(raw) > 9 {
		return 0, false
	}
	for _, c := range raw {
		if c < '0' || c > '9' {
			return 0, false
		}
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	return n, err == nil
}

// Prompts is how many prompts a value of the field prompt is at most: a string or a list of token numbers is one, and each
// other element of a list may be one by itself. The value is one that Walk has passed.
func Prompts(raw []byte) int64 {
	if len(raw) == 0 || raw[0] != '[' {
		return 1
	}
	n := int64(0)
	s := scanner{b: raw, i: 1}
	for {
		c := s.peek()
		if c == ']' {
			return max(n, 1)
		}
		if c != '-' && (c < '0' || c > '9') {
			n++
		}
		if s.skip() != nil || s.peek() == 0 { // it cannot be: Walk has passed it
			return max(n, 1)
		}
		if s.peek() == ',' {
			s.i++
		}
	}
}
