package proxy

import (
	"bytes"
	"io"
	"net/http"
)

// The parts of a body, as far as they are told apart while it is read.
const (
	bodyKnown   = iota // left bytes are to come
	bodyToClose        // everything until the engine closes
	chunkSize          // the line that begins a chunk
	chunkData          // left bytes of it are to come
	chunkEnd           // the line end after them
	trailer            // the fields after the last chunk; nobody wants them
	bodyDone           //
)

const (
	maxChunkLine = 1 << 10  // of a chunk's first line, with its extensions
	maxWaste     = 16 << 10 // of what is not data, beyond what chunks of any size need
	maxTrailer   = 2 << 10  // of the fields after the last chunk
)

// body is where reading an answer's body stands.
type body struct {
	part  int
	left  uint64
	waste int64 // chunks: what was not data, beyond the allowance
}

// begin says how the body is framed. keeps tells whether the connection can be used again after it.
func (b *body) begin(h *head, method string) (keeps bool) {
	keeps = !h.close && (!h.old || h.keep)
	switch {
	case h.status == http.StatusSwitchingProtocols: // nobody asked for another protocol
		b.part = bodyDone
		return false
	case method == http.MethodHead || h.status == http.StatusNoContent || h.status == http.StatusNotModified:
		b.part = bodyDone
	case h.chunked: // llama.cpp closes after a stream without a word, on the heels of its end: a request sent then is lost
		b.part = chunkSize
		return false
	case h.length == 0:
		b.part = bodyDone
	case h.length > 0:
		b.part, b.left = bodyKnown, uint64(h.length)
	default:
		b.part = bodyToClose
		return false
	}
	return keeps
}

// buffered returns what has come of the body and not been returned, joined to one piece, without waiting for more. io.EOF
// says that the body ends with it. The piece is valid until the connection is read from again.
func (b *body) buffered(c *conn) ([]byte, error) {
	start, end := c.r, c.r
	for {
		got := c.b[c.r:c.w]
		switch b.part {
		case bodyDone:
			return c.b[start:end], io.EOF
		case bodyToClose:
			c.r = c.w
			return got, nil
		case bodyKnown, chunkData:
			n := int(min(uint64(len(got)), b.left))
			if start == end {
				start, end = c.r, c.r
			}
			if end != c.r {
				copy(c.b[end:], got[:n])
			}
			end += n
			c.r += n
			if b.left -= uint64(n); b.left > 0 {
				return c.b[start:end], nil
			}
			if b.part == bodyKnown {
				b.part = bodyDone
			} else {
				b.part = chunkEnd
			}
		case chunkEnd:
			if len(got) > 0 && got[0] != '\r' || len(got) > 1 && got[1] != '\n' {
				return c.b[start:end], malformed("a chunk is longer than it said")
			}
			if len(got) < 2 {
				return c.b[start:end], nil
			}
			c.r += 2
			b.part = chunkSize
		case chunkSize:
			line, err := c.whole(maxChunkLine)
			if line == nil || err != nil {
				return c.b[start:end], err
			}
			if b.left, err = size(line); err != nil {
				return c.b[start:end], err
			}
			// A byte a chunk is a stream's right; what costs more than that, again and again, carries something else.
			b.waste = max(0, b.waste+int64(len(line))+2-16-2*int64(min(b.left, maxWaste)))
			if b.waste > maxWaste {
				return c.b[start:end], malformed("its chunks hold little but their lengths")
			}
			if b.part = chunkData; b.left == 0 {
				b.part = trailer
			}
		case trailer:
			line, err := c.whole(maxTrailer)
			if line == nil || err != nil {
				return c.b[start:end], err
			}
			if len(line) == 0 {
				b.part = bodyDone
				continue
			}
			if b.left += uint64(len(line) + 2); b.left > maxTrailer {
				return c.b[start:end], malformed("its trailer is too long")
			}
			if _, _, err := field(line); err != nil {
				return c.b[start:end], err
			}
		}
	}
}

// whole takes a line that has come, without its end; nil: it has not come whole. Between chunks a line ends with CR LF, and
// has no other CR: what an LF alone means there, programs do not agree on.
func (c *conn) whole(most int) ([]byte, error) {
	got := c.b[c.r:c.w]
	i := bytes.IndexByte(got, '\n')
	if i > most || i < 0 && len(got) > most {
		return nil, malformed("a line between its chunks is too long")
	}
	if i < 0 {
		return nil, nil
	}
	if i == 0 || bytes.IndexByte(got[:i], '\r') != i-1 {
		return nil, malformed("a line between its chunks does not end with CR LF")
	}
	c.r += i + 1
	return got[:i-1], nil
}

// size reads the length that a chunk's line begins with.
func size(line []byte) (n uint64, err error) {
	digits := 0
	for _, d := range line {
		var v byte
		switch {
		case d >= '0' && d <= '9':
			v = d - '0'
		case d|0x20 >= 'a' && d|0x20 <= 'f':
			v = d | 0x20 - 'a' + 10
		default:
			v = 16
		}
		if v == 16 {
			break
		}
		n = n<<4 | uint64(v)
		digits++
	}
	rest := line[digits:]
	if digits == 0 || digits > 15 || len(rest) > 0 && rest[0] != ';' && len(bytes.Trim(rest, " \t")) > 0 {
		return 0, malformed("a chunk does not say its length")
	}
	return n, nil
}
