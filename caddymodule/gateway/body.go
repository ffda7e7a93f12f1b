package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/levelrail/levelrail/caddymodule/openai"
	"github.com/levelrail/levelrail/caddymodule/proxy"
	"github.com/levelrail/levelrail/caddymodule/route"
	"github.com/levelrail/levelrail/client/wire"
)

// limits are the model's, or those of the key's first model while the model is not known: every model has the same.
func (x *exchange) limits() *wire.Limits {
	if x.model != nil {
		return &x.model.Limits
	}
	if m, n := x.oneModel(); n > 0 {
		return &m.Limits
	}
	return new(wire.Limits)
}

// readBody reads the whole body: the checks need it, the engine then gets it with its length, and only after its end does
// HTTP/1.1 notice a client that leaves.
func (x *exchange) readBody() *openai.Error {
	if x.match.Method != http.MethodPost {
		return nil
	}
	if refusal := x.checkType(); refusal != nil {
		return refusal
	}
	most := x.maxBody()
	if most > 0 && x.r.ContentLength > most {
		return bodyTooLarge(most)
	}
	if x.r.Body == nil {
		x.r.Body = http.NoBody
	}
	x.began = x.Now()
	body, err := proxy.ReadBody(x.r.Body, most, x)
	if !x.due.IsZero() && err == nil {
		x.readUntil(time.Time{})
	}
	if err != nil {
		return x.noBody(err, most)
	}
	x.body, x.whole = body, true
	return nil
}

// errNoMemory says that the bodies of a key, or all, hold as much memory as they may.
var errNoMemory = errors.New("there is no memory for the body")

// Room is proxy.Reading's: it counts the memory of the body.
func (x *exchange) Room(bytes int64) error {
	if !x.countBody(bytes) {
		return errNoMemory
	}
	return nil
}

// countBody counts so much memory for the body in place of what was counted before, if there is room. From when the request
// has a slot on, 0 is: the slots bound what their bodies hold.
func (x *exchange) countBody(bytes int64) bool {
	more := bytes - x.memory
	switch {
	case more < 0:
		x.Bodies.Give(x.who, -more)
	case more > 0:
		l := x.limits()
		if !x.Bodies.Take(x.who, more, l.BodyMemoryKey, l.BodyMemory) {
			return false
		}
	}
	x.memory = bytes
	return true
}

// More is proxy.Reading's: it holds the body to its pace. A body has a while, and the longer the more has come. Bodies that come
// at once, nearly all, never get here.
func (x *exchange) More(got int64) error {
	x.flight.received.Store(got)
	l := x.limits()
	if l.BodyTimeoutSeconds <= 0 {
		return nil
	}
	allowed := time.Duration(l.BodyTimeoutSeconds) * time.Second
	if l.BodyMinRate > 0 {
		allowed += time.Duration(float64(got) / float64(l.BodyMinRate) * float64(time.Second))
	}
	due := x.began.Add(allowed)
	if !x.Now().Before(due) {
		return os.ErrDeadlineExceeded
	}
	if x.due.IsZero() || due.Sub(x.due) >= time.Second {
		x.due = due
		x.readUntil(due)
	}
	return nil
}

// readUntil sets when a read of the body gives up. Where that cannot be set, More still ends a trickle.
func (x *exchange) readUntil(due time.Time) { http.NewResponseController(x.w).SetReadDeadline(due) }

// noBody is the answer when the body could not be read.
func (x *exchange) noBody(err error, most int64) *openai.Error {
	var timeout net.Error
	switch {
	case errors.Is(err, proxy.ErrTooLarge):
		return bodyTooLarge(most)
	case errors.Is(err, errNoMemory):
		x.Bodies.Refuse(x.Now())
		return x.limited(0)
	case x.wasCancelled():
		return x.left()
	case errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout():
		return openai.Refuse(http.StatusRequestTimeout, openai.CodeBodyTimeout, "", x.slowBody())
	case x.r.Context().Err() != nil:
		return clientGone()
	}
	return openai.Refuse(http.StatusBadRequest, openai.CodeInvalidBody, "", "The request's body ended early or is framed wrongly.")
}

func (x *exchange) slowBody() string {
	l := x.limits()
	if l.BodyTimeoutSeconds <= 0 || l.BodyMinRate <= 0 {
		return "The request's body did not come in time."
	}
	return fmt.Sprintf("The request's body did not come in time. It may not stand still, and has %d seconds and one more for each %d bytes (APP_MODEL_GATEWAY_BODY_TIMEOUT, APP_MODEL_GATEWAY_BODY_MIN_RATE).", l.BodyTimeoutSeconds, l.BodyMinRate)
}

func (x *exchange) maxBody() int64 {
	if x.model != nil {
		return x.model.Limits.MaxBodyBytes
	}
	var most int64
	for _, m := range x.models() {
		if m.Limits.MaxBodyBytes <= 0 {
			return 0
		}
		most = max(most, m.Limits.MaxBodyBytes)
	}
	return most
}

func tooLarge(what string, most int64, setting string) *openai.Error {
	return openai.Refuse(http.StatusRequestEntityTooLarge, openai.CodeTooLarge, "", "The "+what+" is larger than "+strconv.FormatInt(most, 10)+" bytes ("+setting+").")
}

func bodyTooLarge(most int64) *openai.Error {
	return tooLarge("request's body", most, "APP_MODEL_GATEWAY_MAX_BODY_BYTES")
}

// checkType holds the Content-Type against the route, and refuses encodings: a compressed body can be neither checked nor
// bounded. What goes to the engine is a type of the gateway's own, because engines read a body by it.
func (x *exchange) checkType() *openai.Error {
	if e := x.r.Header["Content-Encoding"]; len(e) > 0 && !(len(e) == 1 && strings.EqualFold(e[0], "identity")) {
		return mediaType("Send the body without Content-Encoding.")
	}
	given := ""
	if all := x.r.Header["Content-Type"]; len(all) > 0 {
		given = all[0]
	}
	if given == jsonType && !x.match.Multipart { // what nearly everybody sends
		x.sentAs = jsonType
		return nil
	}
	if x.match.Multipart {
		if openai.MediaType(given) != "multipart/form-data" {
			return mediaType("Send the body as multipart/form-data.")
		}
		x.sentAs = given
		return nil
	}
	if t := openai.MediaType(given); t != jsonType && given != "" || !utf8Charset(given) {
		return mediaType("Send the body as JSON in UTF-8, with Content-Type: application/json.")
	}
	x.sentAs = jsonType
	return nil
}

const jsonType = "application/json"

func mediaType(message string) *openai.Error {
	return openai.Refuse(http.StatusUnsupportedMediaType, openai.CodeMediaType, "", message)
}

// utf8Charset tells whether a JSON Content-Type leaves UTF-8 as the encoding. Other parameters do not matter.
func utf8Charset(contentType string) bool {
	_, params, _ := strings.Cut(strings.ToLower(contentType), ";")
	_, charset, said := strings.Cut(params, "charset=")
	charset, _, _ = strings.Cut(charset, ";")
	charset = strings.Trim(charset, ` "`)
	return !said || charset == "utf-8" || charset == "utf8"
}

// checkBody reads from the body what decides: the model, and fields that no client may send.
func (x *exchange) checkBody() *openai.Error {
	if x.body == nil {
		return nil
	}
	name, said, refusal := x.bodyModel()
	if refusal != nil {
		return refusal
	}
	if x.site == nil { // on a model's own domain the name is the engine's business
		if !said {
			return openai.Refuse(http.StatusBadRequest, openai.CodeMissing, "model", "The body has to name a model. GET /v1/models lists those that the API key opens.")
		}
		if refusal := x.chooseModel(name); refusal != nil {
			return refusal
		}
	}
	return x.keyOpensName(name)
}

// chooseModel finds the model that a name on the shared address means, among those of the key.
func (x *exchange) chooseModel(name string) *openai.Error {
	if x.model != nil {
		if !x.model.Serves(name) {
			return modelNotFound()
		}
		return nil
	}
	for _, m := range x.models() {
		if m.Serves(name) {
			x.model = m
			if refusal := x.lookUp(m.Paths); refusal != nil {
				return refusal
			}
			if m.Limits.MaxBodyBytes > 0 && int64(len(x.body.Bytes())) > m.Limits.MaxBodyBytes {
				return bodyTooLarge(m.Limits.MaxBodyBytes)
			}
			_, _, refusal := x.bodyModel() // by this engine's table of fields
			return refusal
		}
	}
	return modelNotFound()
}

// bodyModel checks the body's form and returns the model it names. Forms are read only where their model decides: on the
// shared address, and for a key with allow_models.
func (x *exchange) bodyModel() (name string, said bool, refusal *openai.Error) {
	if x.match.Multipart {
		if x.site != nil && len(x.key.AllowNames) == 0 {
			return "", false, nil
		}
		name, err := openai.FormModel(x.sentAs, x.body.Bytes())
		return name, name != "", badBody(err)
	}
	fields := fieldsOf(x.model)
	if n := fields.Len(); len(x.room) < n {
		x.room = make([][]byte, n)
	}
	members, err := openai.WalkInto(x.body.Bytes(), fields, x.room)
	if err != nil {
		return "", false, badBody(err)
	}
	x.members = members
	if err := members.Check(); err != nil {
		return "", false, badBody(err)
	}
	raw, said := members.Get("model")
	if !said || string(raw) == "null" {
		return "", false, nil
	}
	if name, said = x.ownName(raw); said {
		return name, true, nil
	}
	if name, err = openai.Text(raw); err != nil {
		return "", false, openai.Refuse(http.StatusBadRequest, openai.CodeInvalidBody, "model", "The model's name has to be a string.")
	}
	return name, true, nil
}

// ownName is the name of the request's model that a raw value holds, if it is one: then its text need not be made anew.
func (x *exchange) ownName(raw []byte) (string, bool) {
	if x.model == nil || len(raw) < 2 || raw[0] != '"' || bytes.IndexByte(raw, '\\') >= 0 {
		return "", false
	}
	for _, n := range x.model.Names {
		if string(raw[1:len(raw)-1]) == n {
			return n, true
		}
	}
	return "", false
}

func badBody(err error) *openai.Error {
	if err == nil {
		return nil
	}
	e := openai.Refuse(http.StatusBadRequest, openai.CodeInvalidBody, "", "The request's body cannot be used: "+err.Error()+".")
	if b := new(openai.BodyError); errors.As(err, &b) {
		e.Param = b.Field
	}
	return e
}

// fieldsOf is the set of body fields that an engine's table names, with their rules; model alone before the model is known.
func fieldsOf(m *route.Model) *openai.Fields {
	if m == nil {
		return modelOnly
	}
	return m.Fields
}

var modelOnly = openai.NewFields("model")
