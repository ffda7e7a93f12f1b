package gateway

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/levelrail/levelrail/caddymodule/meter"
	"github.com/levelrail/levelrail/caddymodule/openai"
)

// statusGone is logged for a client that left before an answer began; nobody receives it.
const statusGone = 499

// lingerTime is how long a connection is read on after an early answer. Closing it while the client still sends would
// reset it, and the client could lose the answer.
const lingerTime = 500 * time.Millisecond

func clientGone() *openai.Error { return &openai.Error{Status: statusGone} }

// refuse answers with an error.
func (x *exchange) refuse(e *openai.Error) {
	x.record.Status, x.record.Code = e.Status, e.Code
	begun := x.patience.end()
	if e.Status == statusGone {
		x.record.End, x.answered = meter.ClientGone, true
		panic(http.ErrAbortHandler) // returning would send an empty 200 to whoever is still there
	}
	if x.record.End == meter.Complete {
		x.record.End = meter.Refused
		x.record.Client = x.client()
	}
	if begun { // the client has been told to wait, and gets the same words as an event
		x.answered = true
		x.lateEvent(e.Event())
		x.letGo()
		return
	}
	x.unread()
	x.answered = true
	x.record.Bytes = int64(e.Write(x.w))
	x.letGo() // a slow client must not hold a slot to be told no
	x.linger()
}

// unread makes an HTTP/1.1 connection end with this answer when the request's body has not been read. Without it the
// server first tries to read that body, so a client that waits for the answer and a server that waits for the body stand
// still until one gives up.
func (x *exchange) unread() {
	if !x.whole && x.r.ProtoMajor == 1 {
		x.w.Header().Set("Connection", "close")
	}
}

// linger sends the early answer off and reads on for a moment, so that a client in the middle of sending gets it. One that
// waits for "100 Continue" has sent nothing and need not be waited for.
func (x *exchange) linger() {
	if x.whole || x.r.ProtoMajor != 1 || x.r.Header.Get("Expect") != "" {
		return
	}
	rc := http.NewResponseController(x.w)
	if rc.Flush() != nil || rc.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	io.Copy(io.Discard, x.r.Body) // until the client stops, closes, or the time is over
}

// cutOff resets a connection of HTTP/1.0, where the end of the connection is the proper end of an answer without a length:
// closed in the usual way, half an answer would look whole to a proxy in front that speaks it.
func (x *exchange) cutOff() {
	if x.r.ProtoMajor != 1 || x.r.ProtoMinor != 0 {
		return
	}
	conn, _, err := http.NewResponseController(x.w).Hijack()
	if err != nil {
		return
	}
	under := conn
	if c, ok := conn.(interface{ NetConn() net.Conn }); ok {
		under = c.NetConn()
	}
	if c, ok := under.(interface{ SetLinger(sec int) error }); ok {
		c.SetLinger(0)
	}
	under.Close()
}

// panicked logs a mistake by its type and place. Its text may quote the request.
func (x *exchange) panicked(v any) {
	x.Log.Error("the gateway made a mistake while serving a request", "request_id", x.record.RequestID, "route", x.record.Route,
		"type", fmt.Sprintf("%T", v), "stack", string(debug.Stack()))
}

// requestID takes the client's id of the request if it is a plain one, else makes one.
func requestID(h http.Header) string {
	if v := h["X-Request-Id"]; len(v) == 1 && plainID(v[0]) {
		return v[0]
	}
	return newRequestID()
}

// newRequestID makes an id that nothing else has: 96 random bits. It opens nothing, so the runtime's own generator is good
// enough for it, and costs no call into the kernel.
func newRequestID() string {
	var random [12]byte
	binary.LittleEndian.PutUint64(random[:], rand.Uint64())
	binary.LittleEndian.PutUint32(random[8:], rand.Uint32())
	text := [4 + 2*len(random)]byte{'r', 'e', 'q', '_'}
	hex.Encode(text[4:], random[:])
	return string(text[:])
}

func plainID(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.') {
			return false
		}
	}
	return true
}

// method bounds what a record can say.
func method(m string) string {
	switch m {
	case http.MethodGet, http.MethodPost, http.MethodHead, http.MethodOptions, http.MethodPut, http.MethodPatch, http.MethodDelete:
		return m
	}
	return "other"
}
