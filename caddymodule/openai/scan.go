package openai

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// What a scan refuses. The texts name a place, never what stands there.
var (
	errDepth  = errors.New("the JSON is nested too deeply")
	errNumber = errors.New("a number is not written as JSON writes numbers")
	errEnd    = errors.New("the JSON ends too early")
)

// maxDepth bounds nesting: tools with schemas reach 20; Python gives up at about 1000, llama.cpp's parser recurses.
const maxDepth = 100

// scanner walks over one JSON text. It skips what it is not asked for, yet checks that all of it is JSON by the strict
// grammar (RFC 8259), because an engine that reads a broken part otherwise would also read the rest otherwise.
type scanner struct {
	b []byte
	i int
}

func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\n', '\r':
			s.i++
		default:
			return
		}
	}
}

// peek is the next byte that is not white space, or 0 at the end.
func (s *scanner) peek() byte {
	s.space()
	if s.i == len(s.b) {
		return 0
	}
	return s.b[s.i]
}

func (s *scanner) unexpected() error {
	if s.i >= len(s.b) {
		return errEnd
	}
	return fmt.Errorf("the JSON is broken at byte %d", s.i)
}

// The low bit, the high bit and the quote, backslash and blank of every byte of a word.
const (
	lows   = 0x0101010101010101
	highs  = 0x8080808080808080
	quotes = lows * '"'
	slash  = lows * '\\'
	blanks = lows * ' '
)

// special marks with its high bit each byte of a word that ends the plain run of a string: a quote, a backslash or a
// control character. Marks above the lowest one may be false (borrows run upwards); only the lowest is used.
func special(w uint64) uint64 {
	q, b := w^quotes, w^slash
	return ((q-lows)&^q | (b-lows)&^b | (w-blanks)&^w) & highs
}

// simple are the letters that make an escape of two characters.
var simple = [256]bool{'"': true, '\\': true, '/': true, 'b': true, 'f': true, 'n': true, 'r': true, 't': true}

// str skips a string and returns its inside, still escaped, and whether there are escapes in it.
func (s *scanner) str() (inside []byte, escaped bool, err error) {
	b := s.b
	i := s.i + 1 // after the opening quote
	start := i
	for {
		for i+8 <= len(b) {
			m := special(binary.LittleEndian.Uint64(b[i:]))
			if m != 0 {
				i += bits.TrailingZeros64(m) / 8
				break
			}
			i += 8
		}
		if i >= len(b) {
			s.i = i
			return nil, false, errEnd
		}
		switch c := b[i]; {
		case c == '"':
			s.i = i + 1
			return b[start:i], escaped, nil
		case c == '\\':
			escaped = true
			if i+1 < len(b) && simple[b[i+1]] {
				i += 2
				continue
			}
			s.i = i
			if err := s.escape(); err != nil {
				return nil, false, err
			}
			i = s.i
		case c < ' ':
			s.i = i
			return nil, false, s.unexpected()
		default:
			i++
		}
	}
}

// escape passes over an escape that is not one of the simple ones.
func (s *scanner) escape() error {
	if s.i+1 >= len(s.b) {
		return errEnd
	}
	if s.b[s.i+1] != 'u' {
		return s.unexpected()
	}
	if s.i+6 > len(s.b) {
		return errEnd
	}
	for _, c := range s.b[s.i+2 : s.i+6] {
		if hexDigit(c) < 0 {
			return s.unexpected()
		}
	}
	s.i += 6
	return nil
}

func hexDigit(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

func (s *scanner) digits() bool {
	start := s.i
	for s.i < len(s.b) && s.b[s.i] >= '0' && s.b[s.i] <= '9' {
		s.i++
	}
	return s.i > start
}

func (s *scanner) number() error {
	if s.b[s.i] == '-' {
		s.i++
	}
	switch {
	case s.i < len(s.b) && s.b[s.i] == '0':
		s.i++
	case !s.digits():
		return errNumber
	}
	if s.i < len(s.b) && s.b[s.i] == '.' {
		s.i++
		if !s.digits() {
			return errNumber
		}
	}
	if s.i < len(s.b) && s.b[s.i]|0x20 == 'e' {
		s.i++
		if s.i < len(s.b) && (s.b[s.i] == '+' || s.b[s.i] == '-') {
			s.i++
		}
		if !s.digits() {
			return errNumber
		}
	}
	return nil
}

func (s *scanner) literal(word string) error {
	if len(s.b)-s.i < len(word) || string(s.b[s.i:s.i+len(word)]) != word {
		return s.unexpected()
	}
	s.i += len(word)
	return nil
}

// skip passes over one value of any kind, without recursion: levels is the stack of what is open.
func (s *scanner) skip() error {
	var levels [maxDepth]byte
	depth := 0
	for {
		// A value begins here.
		switch c := s.peek(); {
		case c == '{' || c == '[':
			if depth == maxDepth-1 { // the caller's object is one level more
				return errDepth
			}
			levels[depth] = c
			depth++
			s.i++
			if end := s.peek(); end == c+2 { // '{'+2 is '}', '['+2 is ']'
				s.i++
				depth--
				break
			}
			if c == '{' {
				if err := s.name(); err != nil {
					return err
				}
			}
			continue
		case c == '"':
			if _, _, err := s.str(); err != nil {
				return err
			}
		case c == '-' || c >= '0' && c <= '9':
			if err := s.number(); err != nil {
				return err
			}
		case c == 't':
			if err := s.literal("true"); err != nil {
				return err
			}
		case c == 'f':
			if err := s.literal("false"); err != nil {
				return err
			}
		case c == 'n':
			if err := s.literal("null"); err != nil {
				return err
			}
		default:
			return s.unexpected()
		}
		// A value has ended: close what it closes.
		for {
			if depth == 0 {
				return nil
			}
			open := levels[depth-1]
			c := s.peek()
			if c == open+2 {
				s.i++
				depth--
				continue
			}
			if c != ',' {
				return s.unexpected()
			}
			s.i++
			if open == '{' {
				if err := s.name(); err != nil {
					return err
				}
			}
			break
		}
	}
}

// name skips a member's name and the colon after it.
func (s *scanner) name() error {
	if s.peek() != '"' {
		return s.unexpected()
	}
	if _, _, err := s.str(); err != nil {
		return err
	}
	if s.peek() != ':' {
		return s.unexpected()
	}
	s.i++
	return nil
}
