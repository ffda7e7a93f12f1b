package openai

import (
	"encoding/json"
	"net/http"
	"strings"
	"unicode/utf8"
)

// mostWords bounds what is taken from an error response that is no JSON.
const mostWords = 300

// ReadFault reads an engine's error response of any shape: OpenAI's, with numbers for codes, which clients with types cannot read,
// FastAPI's detail, a bare text, or none. A code that only says the status again is left out. Further members of the error
// are kept, such as llama.cpp's n_ctx. JSON that says nothing of an error is none of these shapes: nil.
func ReadFault(status int, body []byte) *Error {
	e := &Error{Status: status}
	var outer struct {
		Error   json.RawMessage `json:"error"`
		Detail  json.RawMessage `json:"detail"`
		Message string          `json:"message"`
	}
	var inner map[string]json.RawMessage
	switch err := json.Unmarshal(body, &outer); {
	case err != nil:
		if text := strings.TrimSpace(string(body)); utf8.ValidString(text) && !strings.HasPrefix(text, "<") && len(text) <= mostWords {
			e.Message = text
		}
	case json.Unmarshal(outer.Error, &inner) == nil && inner != nil:
		e.Message, e.Type, e.Param, e.Code = textOf(inner["message"]), textOf(inner["type"]), textOf(inner["param"]), textOf(inner["code"])
		for _, known := range []string{"message", "type", "param", "code"} {
			delete(inner, known)
		}
		if len(inner) > 0 {
			e.More = inner
		}
	case textOf(outer.Error) != "":
		e.Message = textOf(outer.Error)
	case textOf(outer.Detail) != "":
		e.Message = textOf(outer.Detail)
	case len(outer.Detail) > 0 && string(outer.Detail) != "null":
		e.Message = string(outer.Detail)
	case outer.Message != "":
		e.Message = outer.Message
	case len(outer.Error) == 0 && len(outer.Detail) == 0:
		return nil
	}
	if e.Message == "" {
		e.Message = "The model's engine answered " + http.StatusText(status) + " without saying why."
	}
	if e.Type == "" {
		if e.Type = typeServer; status < 500 {
			e.Type = typeRequest
		}
	}
	return e
}

// textOf is a JSON string's text, or "".
func textOf(raw json.RawMessage) (s string) {
	if json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}
