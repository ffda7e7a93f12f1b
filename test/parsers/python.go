package parsers

import (
	"encoding/binary"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// The bounds of CPython 3.11: digits of a whole number, and levels of nesting, of which the program around the parser takes
// some away.
const (
	pythonDigits = 4300
	pythonDepth  = 990
)

// PythonJSON parses a body as vLLM does, with json.loads of Python's standard library, which gets the bytes. Its
// peculiarities: UTF-16 and UTF-32 are found out from the first bytes, lone surrogates pass, NaN and Infinity are numbers,
// and a floating number beyond its range is infinite.
func PythonJSON(body []byte) (any, error) {
	text, ok := pythonDecode(body)
	if !ok {
		return nil, ErrRefused
	}
	p := &python{r: text}
	v, ok := p.value(0)
	if p.space(); !ok || p.i != len(p.r) {
		return nil, ErrRefused
	}
	return v, nil
}

// pythonDecode is json.detect_encoding and bytes.decode with surrogatepass. It gives code points, surrogates among them.
func pythonDecode(b []byte) ([]rune, bool) {
	has := func(prefix string) bool { return strings.HasPrefix(string(b[:min(len(b), 4)]), prefix) }
	var big, little binary.ByteOrder = binary.BigEndian, binary.LittleEndian
	switch {
	case has("\x00\x00\xfe\xff"):
		return pythonWide(b[4:], big)
	case has("\xff\xfe\x00\x00"):
		return pythonWide(b[4:], little)
	case has("\xfe\xff"):
		return pythonPairs(b[2:], big)
	case has("\xff\xfe"):
		return pythonPairs(b[2:], little)
	case has("\xef\xbb\xbf"):
		return pythonBytes(b[3:])
	}
	switch {
	case len(b) >= 4 && b[0] == 0 && b[1] == 0:
		return pythonWide(b, big)
	case len(b) >= 4 && b[0] == 0, len(b) == 2 && b[0] == 0:
		return pythonPairs(b, big)
	case len(b) >= 4 && b[1] == 0 && b[2] == 0 && b[3] == 0:
		return pythonWide(b, little)
	case len(b) >= 4 && b[1] == 0, len(b) == 2 && b[1] == 0:
		return pythonPairs(b, little)
	}
	return pythonBytes(b)
}

func pythonBytes(b []byte) (out []rune, ok bool) {
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n == 1 {
			if len(b) < 3 || b[0] != 0xed || b[1] < 0xa0 || b[1] > 0xbf || b[2] < 0x80 || b[2] > 0xbf {
				return nil, false
			}
			r, n = rune(b[0]&0xf)<<12|rune(b[1]&0x3f)<<6|rune(b[2]&0x3f), 3
		}
		out, b = append(out, r), b[n:]
	}
	return out, true
}

func pythonPairs(b []byte, order binary.ByteOrder) (out []rune, ok bool) {
	if len(b)%2 != 0 {
		return nil, false
	}
	for i := 0; i < len(b); i += 2 {
		r := rune(order.Uint16(b[i:]))
		if i+4 <= len(b) && utf16.IsSurrogate(r) {
			if whole := utf16.DecodeRune(r, rune(order.Uint16(b[i+2:]))); whole != utf8.RuneError {
				r = whole
				i += 2
			}
		}
		out = append(out, r)
	}
	return out, true
}

func pythonWide(b []byte, order binary.ByteOrder) (out []rune, ok bool) {
	if len(b)%4 != 0 {
		return nil, false
	}
	for i := 0; i < len(b); i += 4 {
		u := order.Uint32(b[i:])
		if u > utf8.MaxRune {
			return nil, false
		}
		out = append(out, rune(u))
	}
	return out, true
}

type python struct {
	r []rune
	i int
}

func (p *python) at() rune {
	if p.i < len(p.r) {
		return p.r[p.i]
	}
	return -1
}

func (p *python) space() {
	for p.at() == ' ' || p.at() == '\t' || p.at() == '\n' || p.at() == '\r' {
		p.i++
	}
}

func (p *python) word(w string) bool {
	if len(p.r)-p.i < len(w) || string(p.r[p.i:p.i+len(w)]) != w {
		return false
	}
	p.i += len(w)
	return true
}

func (p *python) value(depth int) (any, bool) {
	if depth > pythonDepth {
		return nil, false
	}
	p.space()
	switch c := p.at(); {
	case c == '"':
		return p.text()
	case c == '{':
		return p.object(depth)
	case c == '[':
		return p.array(depth)
	case p.word("null"):
		return nil, true
	case p.word("true"):
		return true, true
	case p.word("false"):
		return false, true
	case p.word("NaN"):
		return math.NaN(), true
	case p.word("Infinity"):
		return math.Inf(1), true
	case p.word("-Infinity"):
		return math.Inf(-1), true
	}
	return p.number()
}

func (p *python) object(depth int) (any, bool) {
	o := &Object{}
	p.i++
	if p.space(); p.at() == '}' {
		p.i++
		return o, true
	}
	for {
		if p.space(); p.at() != '"' {
			return nil, false
		}
		name, ok := p.text()
		if p.space(); !ok || p.at() != ':' {
			return nil, false
		}
		p.i++
		v, ok := p.value(depth + 1)
		if !ok {
			return nil, false
		}
		o.put(name.(string), v)
		p.space()
		switch c := p.at(); {
		case c == '}':
			p.i++
			return o, true
		case c != ',':
			return nil, false
		}
		p.i++
	}
}

func (p *python) array(depth int) (any, bool) {
	a := []any{}
	p.i++
	if p.space(); p.at() == ']' {
		p.i++
		return a, true
	}
	for {
		v, ok := p.value(depth + 1)
		if !ok {
			return nil, false
		}
		a = append(a, v)
		p.space()
		switch c := p.at(); {
		case c == ']':
			p.i++
			return a, true
		case c != ',':
			return nil, false
		}
		p.i++
	}
}

var pythonEscapes = map[rune]rune{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

func (p *python) text() (any, bool) {
	p.i++
	var out []byte
	for ; ; p.i++ {
		c := p.at()
		switch {
		case c == '"':
			p.i++
			return string(out), true
		case c < ' ': // the end, too
			return nil, false
		case c != '\\':
			out = appendPoint(out, c)
			continue
		}
		p.i++
		if r, ok := pythonEscapes[p.at()]; ok {
			out = utf8.AppendRune(out, r)
			continue
		}
		if p.at() != 'u' {
			return nil, false
		}
		r, ok := p.hex(p.i + 1)
		if !ok {
			return nil, false
		}
		p.i += 4
		if utf16.IsSurrogate(r) && p.i+2 < len(p.r) && p.r[p.i+1] == '\\' && p.r[p.i+2] == 'u' {
			if low, ok := p.hex(p.i + 3); ok {
				if whole := utf16.DecodeRune(r, low); whole != utf8.RuneError {
					r = whole
					p.i += 6
				}
			}
		}
		out = appendPoint(out, r)
	}
}

func (p *python) hex(at int) (rune, bool) {
	if at+4 >= len(p.r) { // a closing quote follows, at least
		return 0, false
	}
	for _, c := range p.r[at : at+4] {
		if !strings.ContainsRune("0123456789abcdefABCDEF", c) {
			return 0, false
		}
	}
	n, err := strconv.ParseUint(string(p.r[at:at+4]), 16, 32)
	return rune(n), err == nil
}

// appendPoint encodes a code point, a surrogate as if it were any other.
func appendPoint(out []byte, r rune) []byte {
	if utf16.IsSurrogate(r) {
		return append(out, 0xe0|byte(r>>12), 0x80|byte(r>>6)&0x3f, 0x80|byte(r)&0x3f)
	}
	return utf8.AppendRune(out, r)
}

func (p *python) digits() int {
	from := p.i
	for p.at() >= '0' && p.at() <= '9' {
		p.i++
	}
	return p.i - from
}

// number reads as far as a number goes. What follows is for the caller to refuse.
func (p *python) number() (any, bool) {
	from, whole := p.i, true
	if p.at() == '-' {
		p.i++
	}
	if p.at() == '0' {
		p.i++
	} else if p.digits() == 0 {
		return nil, false
	}
	digits := p.i - from
	if p.at() == '.' {
		before := p.i
		p.i++
		if p.digits() == 0 {
			p.i = before
		} else {
			whole = false
		}
	}
	if p.at() == 'e' || p.at() == 'E' {
		before := p.i
		p.i++
		if p.at() == '+' || p.at() == '-' {
			p.i++
		}
		if p.digits() == 0 {
			p.i = before
		} else {
			whole = false
		}
	}
	text := string(p.r[from:p.i])
	if whole {
		if strings.HasPrefix(text, "-") {
			digits--
		}
		n, ok := new(big.Int).SetString(text, 10)
		return n, ok && digits <= pythonDigits
	}
	f, _ := strconv.ParseFloat(text, 64) // infinite beyond the range
	return f, true
}
