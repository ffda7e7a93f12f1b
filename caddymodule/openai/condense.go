package openai

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// condenser reads a JSON object of any length as it passes and keeps a short one with the members that say what an answer
// cost: usage and timings as they stand, of response and message their usage, of choices whether there are any and the index
// of the first, of error whether it is null. It holds no more than mostCondensed, wherever in the text these members stand.
//
// It does not check what it skips, only where strings and brackets end: its text comes from an engine, goes on to the client
// as it is, and what is kept is walked strictly afterwards. A text that breaks off has said what came before.
type condenser struct {
	out   []byte // the short object; nil until the first Write
	open  [4]place
	n     int // how many of open are
	next  expectation
	name  [8]byte // of the member that comes, as far as it fits
	named int     // its length; more than name has room: none that is looked for
	depth int     // brackets open within the value that is passed over
	kept  int     // where in out the member begins whose value is copied; 0: none is
	mode  mode
	slash bool // within a string: an odd number of backslashes is just before
	first bool // no element of choices has begun
	over  bool // the object has ended, or what follows cannot be read
}

type (
	place       byte // an object or array that is looked into
	expectation byte
	mode        byte
)

const (
	atTop     place = iota // the object itself
	inInner                // response or message
	inChoices              // the array
	inChoice               // its first object
)

const (
	wantName  expectation = iota // or the object's end
	wantColon                    //
	wantValue                    // in choices also the array's end
	wantComma                    // or the end
)

const (
	between  mode = iota // tokens: white space may stand here
	inName               // within a name that may matter
	inString             // within a string that does not, or is copied whole
	inNested             // within brackets that are passed over
	inScalar             // within a number or a word
)

// mostCondensed bounds what is kept of one text. A usage object has about 300 bytes.
const mostCondensed = 16 << 10

// begin makes ready for a text, with memory for what is kept.
func (c *condenser) begin(room []byte) { *c = condenser{out: room[:0]} }

// write takes the next piece of the text.
func (c *condenser) write(p []byte) {
	for i := 0; i < len(p) && !c.over; {
		from := i
		switch c.mode {
		case between:
			i = c.token(p, i)
			continue // what it keeps it has kept
		case inName:
			i = c.passString(p, i)
			part := p[from:i]
			if c.mode != inName {
				part = part[:len(part)-1]
			}
			if c.named <= len(c.name) {
				if room := c.name[c.named:]; len(part) <= len(room) {
					copy(room, part)
				}
				c.named += len(part)
			}
			continue
		case inString:
			i = c.passString(p, i)
		case inNested:
			i = c.passNested(p, i)
		case inScalar:
			for i < len(p) && scalar[p[i]] {
				i++
			}
			if i < len(p) {
				c.mode = between
			}
		}
		c.copy(p[from:i])
		if c.mode == between {
			c.kept, c.next = 0, wantComma
		}
	}
}

// scalar are the bytes of numbers and of true, false and null.
var scalar = func() (t [256]bool) {
	for _, b := range []byte("0123456789+-.eEtrufalsn") {
		t[b] = true
	}
	return t
}()

// copy keeps a piece of a value that is wanted. A value that is too long is as good as none.
func (c *condenser) copy(piece []byte) {
	if c.kept == 0 {
		return
	}
	if c.out = append(c.out, piece...); len(c.out) > mostCondensed {
		c.out, c.kept, c.over = c.out[:c.kept], 0, true
	}
}

// passString passes over a string up to behind its closing quote.
func (c *condenser) passString(p []byte, i int) int {
	for {
		end := bytes.IndexByte(p[i:], '"')
		at := i + end
		if end < 0 {
			at = len(p)
		}
		back := at
		for back > i && p[back-1] == '\\' {
			back--
		}
		odd := (at-back)%2 == 1
		if back == i { // the run goes on from the piece before
			odd = odd != c.slash
		}
		if end < 0 {
			c.slash = odd
			return at
		}
		c.slash = false
		if i = at + 1; odd {
			continue
		}
		if c.mode = between; c.depth > 0 {
			c.mode = inNested
		}
		return i
	}
}

// Both brackets of both kinds are this byte with 0x20 set and 0x06 taken out. Four others are, too, and none of them
// stands outside of strings.
const (
	folded  = lows * ('{' &^ 0x06)
	capital = lows * 0x20
	which   = lows * 0x06
)

// nested marks with its high bit each byte of a word that may be a quote or a bracket; as with special, only the lowest mark
// is sure.
func nested(w uint64) uint64 {
	q, b := w^quotes, (w|capital)&^which^folded
	return ((q-lows)&^q | (b-lows)&^b) & highs
}

// passNested passes over what stands in brackets, up to behind the last one or into a string.
func (c *condenser) passNested(p []byte, i int) int {
	for {
		for i+8 <= len(p) {
			if m := nested(binary.LittleEndian.Uint64(p[i:])); m != 0 {
				i += bits.TrailingZeros64(m) / 8
				break
			}
			i += 8
		}
		if i == len(p) {
			return i
		}
		b := p[i]
		i++
		switch b {
		case '"':
			c.mode = inString
			if i = c.passString(p, i); c.mode == inString {
				return i
			}
		case '{', '[':
			c.depth++
		case '}', ']':
			if c.depth--; c.depth == 0 {
				c.mode = between
				return i
			}
		}
	}
}

// token takes white space, or one byte that begins something.
func (c *condenser) token(p []byte, i int) int {
	b := p[i]
	switch b {
	case ' ', '\t', '\n', '\r':
		return i + 1
	}
	if c.n == 0 {
		if c.over = b != '{'; !c.over {
			c.push(atTop, '{')
		}
		return i + 1
	}
	in := c.open[c.n-1]
	switch {
	case c.next == wantName && b == '"':
		c.mode, c.named = inName, 0
		c.next = wantColon
	case c.next == wantColon && b == ':':
		c.next = wantValue
	case c.next == wantComma && b == ',':
		if c.next = wantName; in == inChoices {
			c.next = wantValue
		}
	case b == '}' && in != inChoices && (c.next == wantComma || c.next == wantName), b == ']' && in == inChoices && (c.next == wantComma || c.next == wantValue):
		c.out = append(c.out, b)
		c.n--
		c.next, c.over = wantComma, c.n == 0
	case c.next == wantValue:
		return c.value(p, i)
	default:
		c.over = true
	}
	return i + 1
}

// push opens what is looked into.
func (c *condenser) push(in place, bracket byte) {
	c.out = append(c.out, bracket)
	c.open[c.n] = in
	c.n++
	if c.next = wantName; in == inChoices {
		c.next, c.first = wantValue, true
	}
}

// value begins a value: what its place says is to be done with it.
func (c *condenser) value(p []byte, i int) int {
	b := p[i]
	name := c.name[:min(c.named, len(c.name))]
	if c.named > len(c.name) {
		name = nil
	}
	switch in := c.open[c.n-1]; {
	case in == inChoices && c.first:
		if c.first = false; b == '{' {
			c.push(inChoice, b)
			return i + 1
		}
		c.out = append(c.out, '0')
	case in == inChoices:
	case in == inChoice:
		if string(name) == "index" {
			c.keep(name)
		}
	case string(name) == "usage", in == atTop && string(name) == "timings":
		c.keep(name)
	case in != atTop:
	case string(name) == "error":
		if c.member(name); b == 'n' {
			c.out = append(c.out, "null"...)
		} else {
			c.out = append(c.out, '0')
		}
	case string(name) == "choices":
		if c.member(name); b == '[' {
			c.push(inChoices, b)
			return i + 1
		}
		c.out = append(c.out, '0')
	case b == '{' && (string(name) == "response" || string(name) == "message"):
		c.member(name)
		c.push(inInner, b)
		return i + 1
	}
	if len(c.out) > mostCondensed {
		c.over = true
		return i + 1
	}
	switch {
	case b == '"':
		c.mode = inString
	case b == '{' || b == '[':
		c.mode, c.depth = inNested, 1
	case scalar[b]:
		c.mode = inScalar
		return i // it is the first of its bytes
	default:
		c.over = true
	}
	c.copy(p[i : i+1])
	return i + 1
}

// keep begins a member whose value is copied.
func (c *condenser) keep(name []byte) {
	c.kept = len(c.out)
	c.member(name)
}

// member writes a member's name.
func (c *condenser) member(name []byte) {
	if last := c.out[len(c.out)-1]; last != '{' {
		c.out = append(c.out, ',')
	}
	c.out = append(append(append(c.out, '"'), name...), '"', ':')
}

// end is the short object. Of a text that broke off it has what came before; a value that was not whole is not there.
func (c *condenser) end() []byte {
	if c.kept > 0 {
		c.out, c.kept = c.out[:c.kept], 0
	}
	for ; c.n > 0; c.n-- {
		closing := byte('}')
		if c.open[c.n-1] == inChoices {
			closing = ']'
		}
		c.out = append(c.out, closing)
	}
	return c.out
}
