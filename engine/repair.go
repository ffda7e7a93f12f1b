package engine

import (
	"bytes"
	"encoding/json"
	"sort"
	"strings"
)

// Repairs are what the gateway mends in an engine's answers, because clients with types cannot read them or would draw the
// wrong conclusion: a request that cannot succeed is no 500, which every client library tries again. Each repair is one
// function with a test against the real engine (test/repairs), and says when it can go.
type Repairs struct {
	// Fault says what an error response becomes. The gateway has given it OpenAI's shape; nil: it is good as it is.
	Fault func(ask Ask, f Fault) Fault
	// Events makes, for one answer, what mends the data of its events one after the other; nil: there is nothing to mend.
	Events func(ask Ask) func(data []byte) []byte
	// Whole mends a JSON answer; nil: there is nothing to mend.
	Whole func(ask Ask) func(body []byte) []byte
}

// Ask is the request whose answer is mended.
type Ask struct {
	Model string // the model's name
	Kind  string // of the route
	At    int64  // Unix seconds
}

// Fault is an error response in OpenAI's terms.
type Fault struct {
	Status  int
	Type    string
	Code    string // "": null
	Message string
}

// The codes of faults that engines tell in words only. Clients know the first one: it is OpenAI's.
const (
	codeContextLength = "context_length_exceeded"
	codeUnsupported   = "unsupported_by_model"
	codeInvalid       = "invalid_request"
)

// invalid is a fault that is the request's.
func (f Fault) invalid(code, message string) Fault {
	return Fault{Status: 400, Type: "invalid_request_error", Code: code, Message: message}
}

// notServed is the fault of a route that the model is not deployed for.
func (f Fault) notServed(ask Ask, what, how string) Fault {
	return f.invalid(codeUnsupported, ask.Model+" does not serve "+what+". Whoever runs this service can deploy a model for it"+how+".")
}

// member is a name and a value of a JSON object.
type member struct{ name, value string }

// completed is an object with those of the members that it lacks. What is no object stays as it is.
func completed(object []byte, members ...member) []byte {
	var have map[string]json.RawMessage
	if json.Unmarshal(object, &have) != nil || have == nil {
		return object
	}
	var add []byte
	for _, m := range members {
		if _, there := have[m.name]; !there && m.value != "" {
			add = append(append(append(append(append(add, '"'), m.name...), `":`...), m.value...), ',')
		}
	}
	at := bytes.IndexByte(object, '{') + 1
	if len(have) == 0 {
		add = bytes.TrimSuffix(add, []byte(","))
	}
	return append(append(append(make([]byte, 0, len(object)+len(add)), object[:at]...), add...), object[at:]...)
}

// within is an object whose member of that name is what mend makes of it.
func within(object []byte, name string, mend func([]byte) []byte) []byte {
	var have map[string]json.RawMessage
	if json.Unmarshal(object, &have) != nil || len(have[name]) == 0 || have[name][0] != '{' {
		return object
	}
	old := have[name]
	changed := mend(old)
	if bytes.Equal(changed, old) {
		return object
	}
	have[name] = changed
	names := make([]string, 0, len(have))
	for n := range have {
		names = append(names, n)
	}
	sort.Strings(names)
	out := []byte{'{'}
	for i, n := range names {
		if i > 0 {
			out = append(out, ',')
		}
		key, err := json.Marshal(n)
		if err != nil {
			return object
		}
		out = append(append(append(out, key...), ':'), have[n]...)
	}
	return append(out, '}')
}

// says tells whether a text holds one of some phrases.
func says(text string, phrases ...string) bool {
	for _, p := range phrases {
		if strings.Contains(text, p) {
			return true
		}
	}
	return false
}
