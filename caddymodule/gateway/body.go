package gateway

import (
	"bytes"
	"errors"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/levelrail/levelrail/caddymodule/limit"
	"github.com/levelrail/levelrail/caddymodule/openai"
	"github.com/levelrail/levelrail/caddymodule/proxy"
	"github.com/levelrail/levelrail/caddymodule/route"
	"github.com/levelrail/levelrail/client/wire"
)

// takeSlot takes one of the model's slots and one of the key's, or neither. While the model is not known (a key of
// several), the key's models share slots, as many as the most generous has, which bound the bodies in memory until
// checkBody takes the model's.
func (x *exchange) takeSlot() *openai.Error {
	var next *limit.Gate
	if x.model != nil {
		next = x.Slots.Gate(x.model.Name)
	} else {
		next = x.Slots.Gate("key " + x.key.ID)
	}
	enter := func() (ok bool) {
		x.counter, ok = x.Keys.Enter(x.key.ID, x.key.Limits, next, x.limits().MaxInflight, x.Now())
		return ok
	}
	if !enter() && !x.more(enter) {
		return x.limited(0)
	}
	x.gate = next
	return nil
}

// limits are the model's, or those of the key's most generous model while the model is not known.
func (x *exchange) limits() (most wire.Limits) {
	if x.model != nil {
		return x.model.Limits
	}
	for i, m := range x.models() {
		if i == 0 || m.Limits.MaxInflight > most.MaxInflight {
			most = m.Limits
		}
	}
	return most
}

// moveSlot takes a slot of the model, now that it is known, and gives back the one that was held.
func (x *exchange) moveSlot() *openai.Error {
	next := x.Slots.Gate(x.model.Name)
	if !next.Take(x.model.Limits.MaxInflight) {
		next.Refuse(x.Now())
		return x.limited(0)
	}
	x.gate.Give()
	x.gate = next
	return nil
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
	body, err := proxy.ReadBody(x.r.Body, most)
	if err != nil {
		return x.noBody(err, most)
	}
	x.body, x.whole = body, true
	return nil
}

// noBody is the answer when the body could not be read.
func (x *exchange) noBody(err error, most int64) *openai.Error {
	var timeout net.Error
	switch {
	case errors.Is(err, proxy.ErrTooLarge):
		return bodyTooLarge(most)
	case errors.As(err, &timeout) && timeout.Timeout():
		return openai.Refuse(http.StatusRequestTimeout, openai.CodeBodyTimeout, "", "The request's body did not come in time.")
	case x.r.Context().Err() != nil:
		return clientGone()
	}
	return openai.Refuse(http.StatusBadRequest, openai.CodeInvalidBody, "", "The request's body ended early or is framed wrongly.")
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
	if len(x.key.AllowNames) > 0 && !slices.Contains(x.key.AllowNames, name) {
		return openai.Refuse(http.StatusForbidden, openai.CodeModelNotAllowed, "model", "The API key does not open this model.")
	}
	return nil
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
			if refusal := x.moveSlot(); refusal != nil {
				return refusal
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
