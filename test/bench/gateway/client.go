package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"
)

// client is one kept HTTP/1.1 connection, as cheap as it can be made: a request is one write of bytes that are there, an
// answer is read into one buffer and looked at only for where it ends.
type client struct {
	network, address string
	nc               net.Conn
	buf              []byte
}

func newClient(network, address string) *client {
	return &client{network: network, address: address, buf: make([]byte, 160<<10)}
}

func (c *client) close() {
	if c.nc != nil {
		c.nc.Close()
		c.nc = nil
	}
}

// send writes a request, connecting first when there is no connection.
func (c *client) send(request []byte) error {
	if c.nc == nil {
		nc, err := net.Dial(c.network, c.address)
		if err != nil {
			return err
		}
		c.nc = nc
	}
	c.nc.SetDeadline(time.Now().Add(patience))
	_, err := c.nc.Write(request)
	return err
}

// patience is how long an answer or a stream may take in all.
const patience = 3 * time.Minute

var (
	headEnd   = []byte("\r\n\r\n")
	lengthIs  = []byte("\r\nContent-Length: ")
	chunked   = []byte("\r\nTransfer-Encoding: chunked\r\n")
	streamEnd = []byte("data: [DONE]\n\n\r\n0\r\n\r\n")
)

// head reads an answer's head. It returns the status, the bytes of the body that came with it, and the body's length,
// -1 for a chunked one.
func (c *client) head() (status int, rest []byte, length int, err error) {
	for n := 0; ; {
		m, err := c.nc.Read(c.buf[n:])
		if err != nil {
			return 0, nil, 0, err
		}
		n += m
		end := bytes.Index(c.buf[:n], headEnd)
		if end < 0 {
			if n == len(c.buf) {
				return 0, nil, 0, errors.New("an answer's head has no end")
			}
			continue
		}
		head := c.buf[:end+2]
		if len(head) < 12 {
			return 0, nil, 0, fmt.Errorf("an answer begins with %q", head)
		}
		if status, err = strconv.Atoi(string(head[9:12])); err != nil {
			return 0, nil, 0, fmt.Errorf("an answer begins with %.40q", head)
		}
		if i := bytes.Index(head, lengthIs); i >= 0 {
			digits, _, _ := bytes.Cut(head[i+len(lengthIs):], []byte("\r"))
			length, err = strconv.Atoi(string(digits))
		} else if length = -1; !bytes.Contains(head, chunked) {
			err = fmt.Errorf("an answer has neither a length nor chunks: %q", head)
		}
		return status, c.buf[end+4 : n], length, err
	}
}

// whole sends a request and reads its answer, which has to have that status and a body of that many bytes.
func (c *client) whole(request []byte, wantStatus, wantBytes int) error {
	if err := c.send(request); err != nil {
		return err
	}
	status, rest, length, err := c.head()
	if err != nil {
		return err
	}
	got := len(rest)
	for got < length {
		n, err := c.nc.Read(c.buf)
		if err != nil {
			return err
		}
		got += n
	}
	if status != wantStatus || wantBytes >= 0 && length != wantBytes || got > length {
		return fmt.Errorf("an answer with status %d and %d of %d bytes, want %d and %d: %.200q", status, got, length, wantStatus, wantBytes, rest)
	}
	return nil
}

// stream sends a request and reads an event stream to its end. each is called after every read with how many reads there
// were; when it returns false the rest is not read, and the connection ends.
func (c *client) stream(request []byte, each func(reads int) bool) error {
	if err := c.send(request); err != nil {
		return err
	}
	status, rest, length, err := c.head()
	if err != nil {
		return err
	}
	if status != 200 || length >= 0 {
		return fmt.Errorf("no stream but status %d: %.200q", status, rest)
	}
	tail := make([]byte, 0, 2*len(streamEnd)) // the end may come in two reads
	for reads := 1; ; reads++ {
		tail = append(tail, rest[max(0, len(rest)-len(streamEnd)):]...)
		if over := len(tail) - len(streamEnd); over > 0 {
			tail = append(tail[:0], tail[over:]...)
		}
		if bytes.Equal(tail, streamEnd) {
			return nil
		}
		if !each(reads) {
			c.close()
			return nil
		}
		n, err := c.nc.Read(c.buf)
		if err != nil {
			return fmt.Errorf("a stream was cut after %d reads: %w", reads, err)
		}
		rest = c.buf[:n]
	}
}
