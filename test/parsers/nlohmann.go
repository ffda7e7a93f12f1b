package parsers

import (
	"math"
	"math/big"
	"strconv"
	"unicode/utf8"
)

// NlohmannJSON parses a body as llama.cpp does, with nlohmann::ordered_json::parse. Its peculiarities: a UTF-8 byte order
// mark is skipped, a NUL byte where a token could begin is the end, whole numbers beyond 64 bits become floating ones, and
// floating ones beyond their range are refused, as are lone surrogates. Nesting is not bounded.
func NlohmannJSON(body []byte) (any, error) {
	p := &nlohmann{b: body}
	if len(body) > 0 && body[0] == 0xef {
		if len(body) < 3 || body[1] != 0xbb || body[2] != 0xbf {
			return nil, ErrRefused
		}
		p.i = 3
	}
	v, ok := p.value()
	if !ok || !p.end() {
		return nil, ErrRefused
	}
	return v, nil
}

type nlohmann struct {
	b []byte
	i int
}

// next is the byte at which the next token begins, or 0 at the end.
func (p *nlohmann) next() byte {
	for p.i < len(p.b) {
		switch c := p.b[p.i]; c {
		case ' ', '\t', '\n', '\r':
			p.i++
		default:
			return c
		}
	}
	return 0
}

func (p *nlohmann) end() bool { return p.next() == 0 }

func (p *nlohmann) take(c byte) bool {
	if p.next() != c || p.i >= len(p.b) {
		return false
	}
	p.i++
	return true
}

func (p *nlohmann) value() (any, bool) {
	switch c := p.next(); {
	case c == '{':
		return p.object()
	case c == '[':
		return p.array()
	case c == '"':
		return p.text()
	case c == '-' || c >= '0' && c <= '9':
		return p.number()
	case c == 't':
		return true, p.word("true")
	case c == 'f':
		return false, p.word("false")
	case c == 'n':
		return nil, p.word("null")
	}
	return nil, false
}

func (p *nlohmann) word(w string) bool {
	if len(p.b)-p.i < len(w) || string(p.b[p.i:p.i+len(w)]) != w {
		return false
	}
	p.i += len(w)
	return true
}

func (p *nlohmann) object() (any, bool) {
	o := &Object{}
	p.i++
	if p.take('}') {
		return o, true
	}
	for {
		if p.next() != '"' {
			return nil, false
		}
		name, ok := p.text()
		if !ok || !p.take(':') {
			return nil, false
		}
		v, ok := p.value()
		if !ok {
			return nil, false
		}
		o.put(name.(string), v)
		if p.take('}') {
			return o, true
		}
		if !p.take(',') {
			return nil, false
		}
	}
}

func (p *nlohmann) array() (any, bool) {
	a := []any{}
	p.i++
	if p.take(']') {
		return a, true
	}
	for {
		v, ok := p.value()
		if !ok {
			return nil, false
		}
		a = append(a, v)
		if p.take(']') {
			return a, true
		}
		if !p.take(',') {
			return nil, false
		}
	}
}

func (p *nlohmann) text() (any, bool) {
	p.i++
	var out []byte
	for p.i < len(p.b) {
		switch c := p.b[p.i]; {
		case c == '"':
			p.i++
			return string(out), true
		case c < 0x20:
			return nil, false
		case c == '\\':
			r, ok := p.escape()
			if !ok {
				return nil, false
			}
			out = utf8.AppendRune(out, r)
		default:
			r, n := utf8.DecodeRune(p.b[p.i:])
			if r == utf8.RuneError && n < 2 {
				return nil, false
			}
			out = append(out, p.b[p.i:p.i+n]...)
			p.i += n
		}
	}
	return nil, false
}

// escape reads what follows a backslash. Half of a surrogate pair is an error.
func (p *nlohmann) escape() (rune, bool) {
	if p.i+1 >= len(p.b) {
		return 0, false
	}
	c := p.b[p.i+1]
	p.i += 2
	switch c {
	case '"', '\\', '/':
		return rune(c), true
	case 'b':
		return '\b', true
	case 'f':
		return '\f', true
	case 'n':
		return '\n', true
	case 'r':
		return '\r', true
	case 't':
		return '\t', true
	case 'u':
		high, ok := p.hex()
		switch {
		case !ok || high >= 0xdc00 && high <= 0xdfff:
			return 0, false
		case high < 0xd800 || high > 0xdbff:
			return high, true
		}
		if !p.word(`\u`) {
			return 0, false
		}
		low, ok := p.hex()
		return 0x10000 + (high-0xd800)<<10 + (low - 0xdc00), ok && low >= 0xdc00 && low <= 0xdfff
	}
	return 0, false
}

func (p *nlohmann) hex() (rune, bool) {
	if p.i+4 > len(p.b) {
		return 0, false
	}
	for _, c := range p.b[p.i : p.i+4] {
		if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F') {
			return 0, false
		}
	}
	n, err := strconv.ParseUint(string(p.b[p.i:p.i+4]), 16, 32)
	p.i += 4
	return rune(n), err == nil
}

func (p *nlohmann) digits() int {
	from := p.i
	for p.i < len(p.b) && p.b[p.i] >= '0' && p.b[p.i] <= '9' {
		p.i++
	}
	return p.i - from
}

func (p *nlohmann) number() (any, bool) {
	from, whole := p.i, true
	if p.b[p.i] == '-' {
		p.i++
	}
	if p.i < len(p.b) && p.b[p.i] == '0' {
		p.i++
	} else if p.digits() == 0 {
		return nil, false
	}
	if p.i < len(p.b) && p.b[p.i] == '.' {
		p.i++
		whole = false
		if p.digits() == 0 {
			return nil, false
		}
	}
	if p.i < len(p.b) && (p.b[p.i] == 'e' || p.b[p.i] == 'E') {
		p.i++
		whole = false
		if p.i < len(p.b) && (p.b[p.i] == '+' || p.b[p.i] == '-') {
			p.i++
		}
		if p.digits() == 0 {
			return nil, false
		}
	}
	text := string(p.b[from:p.i])
	if whole {
		if n, ok := new(big.Int).SetString(text, 10); ok && (n.IsInt64() || n.IsUint64()) {
			return n, true
		}
	}
	f, err := strconv.ParseFloat(text, 64)
	return f, err == nil && !math.IsInf(f, 0)
}

// NlohmannInt reads a value for a 32-bit whole number: any number, cut and wrapped as C++ casts, or a boolean. set is false
// for null, which llama.cpp takes for absent. A floating number out of range is refused: llama.cpp checks its bounds.
func NlohmannInt(v any) (n int64, set bool, err error) {
	switch v := v.(type) {
	case nil:
		return 0, false, nil
	case bool:
		if v {
			return 1, true, nil
		}
		return 0, true, nil
	case *big.Int:
		low := new(big.Int).And(v, big.NewInt(math.MaxUint32)) // of the two's complement
		return int64(int32(uint32(low.Uint64()))), true, nil
	case float64:
		if t := math.Trunc(v); t >= math.MinInt32 && t <= math.MaxInt32 {
			return int64(t), true, nil
		}
	}
	return 0, false, ErrRefused
}

// NlohmannBool reads a value for a boolean, which nothing but a boolean is. set is false for null.
func NlohmannBool(v any) (b, set bool, err error) {
	switch v := v.(type) {
	case nil:
		return false, false, nil
	case bool:
		return v, true, nil
	}
	return false, false, ErrRefused
}

// NlohmannText reads a value for a string, which nothing but a string is. set is false for null.
func NlohmannText(v any) (s string, set bool, err error) {
	switch v := v.(type) {
	case nil:
		return "", false, nil
	case string:
		return v, true, nil
	}
	return "", false, ErrRefused
}
