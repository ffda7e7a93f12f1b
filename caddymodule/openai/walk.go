package openai

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// maxMembers bounds the top-level members of a body. OpenAI's largest request type has about forty.
const maxMembers = 256

// Fields is a set of top-level names that a Walk reports. It is made once.
type Fields struct {
	names []string
	index map[string]int
	rules *ruleFields // of a table
}

// NewFields makes the set. The names are lower-case ASCII; one given twice counts once.
func NewFields(names ...string) *Fields {
	f := &Fields{index: map[string]int{}}
	for _, n := range names {
		if _, twice := f.index[n]; !twice {
			f.index[n] = len(f.names)
			f.names = append(f.names, n)
		}
	}
	return f
}

// Len is how many names the set has.
func (f *Fields) Len() int { return len(f.names) }

// Members is what a Walk found: the raw JSON of each field of the set, by name.
type Members struct {
	fields *Fields
	raw    [][]byte
}

// Get is the field's value as it stands in the body, and whether the field is there.
func (m Members) Get(name string) ([]byte, bool) {
	if m.fields == nil { // no body was read
		return nil, false
	}
	i, known := m.fields.index[name]
	if !known || m.raw[i] == nil {
		return nil, false
	}
	return m.raw[i], true
}

// BodyError says what is wrong with a body, and with which field where one is to blame.
type BodyError struct {
	Field  string
	Reason string
}

func (e *BodyError) Error() string { return e.Reason }

// Walk reads a request body: one JSON object in UTF-8, without a byte order mark and with nothing after it. It returns
// the members of the set, or a *BodyError. Each name of the top level stands once, and a name that differs from one of the
// set only in letter case is refused, because engines disagree on whether it counts.
func Walk(body []byte, fields *Fields) (Members, error) { return walk(body, fields, nil) }

// WalkInto is Walk for who walks often: the members' places are room, when it is large enough, until room is used again.
func WalkInto(body []byte, fields *Fields, room [][]byte) (Members, error) {
	return walk(body, fields, room)
}

func walk(body []byte, fields *Fields, room [][]byte) (Members, error) {
	if len(room) < len(fields.names) {
		room = make([][]byte, len(fields.names))
	}
	room = room[:len(fields.names)]
	clear(room)
	m := Members{fields: fields, raw: room}
	if bytes.HasPrefix(body, []byte("\xef\xbb\xbf")) {
		return m, &BodyError{Reason: "the body begins with a byte order mark"}
	}
	if !utf8.Valid(body) {
		return m, &BodyError{Reason: "the body is not valid UTF-8"}
	}
	s := scanner{b: body}
	if s.peek() != '{' {
		if s.i == len(body) {
			return m, &BodyError{Reason: "the body is empty: a JSON object is needed"}
		}
		return m, &BodyError{Reason: "the body is not a JSON object"}
	}
	s.i++
	if err := m.members(&s); err != nil {
		var b *BodyError
		if errors.As(err, &b) {
			return m, b
		}
		return m, &BodyError{Reason: err.Error()}
	}
	if s.space(); s.i != len(body) {
		return m, &BodyError{Reason: fmt.Sprintf("something follows the JSON object at byte %d", s.i)}
	}
	return m, nil
}

func (m *Members) members(s *scanner) error {
	if s.peek() == '}' {
		s.i++
		return nil
	}
	var few [24][]byte
	seen := few[:0]
	for {
		if s.peek() != '"' {
			return s.unexpected()
		}
		name, escaped, err := s.str()
		if err != nil {
			return err
		}
		if escaped {
			if name, err = unescape(name); err != nil {
				return err
			}
		}
		for _, other := range seen {
			if bytes.Equal(other, name) {
				return &BodyError{Field: m.show(name), Reason: "a field stands twice in the body" + m.called(name)}
			}
		}
		if seen = append(seen, name); len(seen) > maxMembers {
			return &BodyError{Reason: fmt.Sprintf("the body has more than %d fields", maxMembers)}
		}
		at := m.find(name)
		if at == unknown && m.fields.rules != nil && m.fields.rules.strict {
			return unknownField(name)
		}
		if at == misspelt {
			return &BodyError{Reason: "a field's name is spelled in other letters than the API has it; names are lower-case"}
		}
		if s.peek() != ':' {
			return s.unexpected()
		}
		s.i++
		s.space()
		start := s.i
		if err := s.skip(); err != nil {
			return err
		}
		if at >= 0 {
			m.raw[at] = s.b[start:s.i:s.i]
		}
		switch s.peek() {
		case ',':
			s.i++
		case '}':
			s.i++
			return nil
		default:
			return s.unexpected()
		}
	}
}

const (
	unknown  = -1
	misspelt = -2
)

// find is the name's place in the set, unknown, or misspelt.
func (m *Members) find(name []byte) int {
	if i, ok := m.fields.index[string(name)]; ok {
		return i
	}
	plain := true
	for _, c := range name {
		if c >= 'A' && c <= 'Z' || c >= utf8.RuneSelf {
			plain = false
			break
		}
	}
	if plain { // lower-case ASCII folds to nothing but itself
		return unknown
	}
	for _, n := range m.fields.names {
		if strings.EqualFold(n, string(name)) {
			return misspelt
		}
	}
	return unknown
}

// show names a field of the set; other names are the client's own text, which no message repeats.
func (m *Members) show(name []byte) string {
	if _, ok := m.fields.index[string(name)]; ok {
		return string(name)
	}
	return ""
}

func (m *Members) called(name []byte) string {
	if n := m.show(name); n != "" {
		return ": " + n
	}
	return ""
}

// Text is the string that a raw value holds. It fails when the value is no string, or has half of a surrogate pair, which
// engines read differently.
func Text(raw []byte) (string, error) {
	if len(raw) < 2 || raw[0] != '"' {
		return "", errors.New("it is not a string")
	}
	inside := raw[1 : len(raw)-1]
	if bytes.IndexByte(inside, '\\') < 0 {
		return string(inside), nil
	}
	b, err := unescape(inside)
	return string(b), err
}

var errSurrogate = errors.New(`a \u escape is half of a pair`)

// unescape decodes the escapes of a string that a scanner has passed.
func unescape(in []byte) ([]byte, error) {
	out := make([]byte, 0, len(in))
	for i := 0; i < len(in); {
		c := in[i]
		if c != '\\' {
			out = append(out, c)
			i++
			continue
		}
		switch c := in[i+1]; c {
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			r := unit(in[i+2:])
			i += 6
			if utf16.IsSurrogate(r) {
				if i+6 > len(in) || in[i] != '\\' || in[i+1] != 'u' {
					return nil, errSurrogate
				}
				if r = utf16.DecodeRune(r, unit(in[i+2:])); r == utf8.RuneError {
					return nil, errSurrogate
				}
				i += 6
			}
			out = utf8.AppendRune(out, r)
			continue
		default: // " \ /
			out = append(out, c)
		}
		i += 2
	}
	return out, nil
}

func unit(in []byte) rune {
	var r rune
	for _, c := range in[:4] {
		r = r<<4 | rune(hexDigit(c))
	}
	return r
}
