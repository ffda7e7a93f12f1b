// Package openai is the shape of the API that clients see: its errors, the parts of a request body that the gateway has
// to understand, and the usage in an answer.
//
// It works on bytes that others have read and writes only errors; a body that it has checked goes on unchanged. Which
// fields matter is the engine's table, which routes there are is caddymodule/route, and what is done with a request is
// caddymodule/gateway. The scanner accepts only what every engine reads alike, so a check made here cannot be undone by
// an engine's parser (duplicate keys, other spellings of a key, other encodings, text after the value).
package openai

import (
	"encoding/json"
	"net/http"
	"strconv"
)

// Error is a refusal in OpenAI's shape. Its texts are the gateway's own: they never hold a key, a body or a path.
type Error struct {
	Status     int
	Type       string // invalid_request_error, rate_limit_error, server_error
	Code       string // stable, such as model_not_found
	Param      string // the body's field, where one is to blame
	Message    string
	RetryAfter int64                      // seconds; 0: no such header
	Allow      string                     // for 405
	Retry      string                     // true or false: what clients of OpenAI's make of it, whatever the status; empty: they go by that
	More       map[string]json.RawMessage // further members of an engine's error
}

func (e *Error) Error() string { return e.Message }

// The types of error.
const (
	typeRequest = "invalid_request_error"
	typeLimit   = "rate_limit_error"
	typeServer  = "server_error"
)

// The codes of refusals, as clients and the log see them.
const (
	CodeInvalidKey       = "invalid_api_key"
	CodeUnknownRoute     = "unknown_url"
	CodeMethod           = "method_not_allowed"
	CodeModelNotFound    = "model_not_found"
	CodePathNotAllowed   = "path_not_allowed"
	CodeModelNotAllowed  = "model_not_allowed"
	CodeTooLarge         = "request_too_large"
	CodeMediaType        = "unsupported_media_type"
	CodeInvalidBody      = "invalid_body"
	CodeMissing          = "missing_required_parameter"
	CodeBodyTimeout      = "request_timeout"
	CodeRateLimit        = "rate_limit_exceeded"
	CodeStarting         = "gateway_starting"
	CodeStale            = "gateway_stale"
	CodeModelLoading     = "model_loading"
	CodeModelWaking      = "model_waking"
	CodeModelUnavailable = "model_unavailable"
	CodeCancelled        = "request_cancelled"
	CodeEngineTimeout    = "engine_timeout"
	CodeEngineFailed     = "engine_error"
	CodeInternal         = "internal_error"
)

// Refuse makes an error about the request.
func Refuse(status int, code, param, message string) *Error {
	return &Error{Status: status, Type: typeRequest, Code: code, Param: param, Message: message}
}

// Limited makes the one answer that every limit gives, so that a client cannot tell which it was.
func Limited(retryAfter int64) *Error {
	return &Error{Status: http.StatusTooManyRequests, Type: typeLimit, Code: CodeRateLimit, RetryAfter: retryAfter,
		Message: "Too many requests: a limit is reached, of the API key or of the model (APP_MODEL_GATEWAY_MAX_INFLIGHT). Try again later."}
}

// Failed makes an error about the gateway or the engine behind it.
func Failed(status int, code string, retryAfter int64, message string) *Error {
	return &Error{Status: status, Type: typeServer, Code: code, RetryAfter: retryAfter, Message: message}
}

// Senseless makes clients not try again by themselves: the same would happen, after as long a time.
func (e *Error) Senseless() *Error {
	e.Retry = "false"
	return e
}

// Body is the error's JSON.
func (e *Error) Body() []byte {
	type inner struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    *string `json:"code"`
	}
	in := inner{Message: e.Message, Type: e.Type}
	if e.Param != "" {
		in.Param = &e.Param
	}
	if e.Code != "" {
		in.Code = &e.Code
	}
	b, err := json.Marshal(in)
	if len(e.More) > 0 && err == nil {
		var more []byte
		if more, err = json.Marshal(e.More); err == nil {
			b = append(append(b[:len(b)-1], ','), more[1:]...)
		}
	}
	if err != nil { // strings, and JSON that was read: it cannot
		return []byte(`{"error":{"message":"internal error","type":"server_error","param":null,"code":null}}`)
	}
	return append(append([]byte(`{"error":`), b...), '}')
}

// Write sends the error as the whole answer and returns how many bytes its body has.
func (e *Error) Write(w http.ResponseWriter) int {
	h := w.Header()
	body := e.Body()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if e.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="levelrail"`)
	}
	if e.Allow != "" {
		h.Set("Allow", e.Allow)
	}
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(e.RetryAfter, 10))
	}
	if e.Retry != "" {
		h.Set("X-Should-Retry", e.Retry)
	}
	w.WriteHeader(e.Status)
	n, _ := w.Write(body) // a client that left is noticed by its context
	return n
}

// Event is the error as the last event of a stream whose headers are long gone.
func (e *Error) Event() []byte {
	return append(append([]byte("data: "), e.Body()...), "\n\n"...)
}
