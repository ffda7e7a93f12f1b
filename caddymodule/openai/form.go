package openai

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// Bounds of what is read of a form to find its model: uploads are large in one part, and few otherwise. Eight headers are
// what python-multipart takes.
const (
	maxParts       = 64
	maxModelName   = 512
	maxPartHeaders = 8
	maxPartHeader  = 4096
	maxBoundary    = 70 // RFC 2046
)

// FormModel finds the model that a multipart form asks for. A form may say it once, as a plain text part; "" means that it
// does not.
//
// Parsers of forms differ in nearly everything that RFC 7578 does not need: what stands before the first boundary and after
// the last, lines that end with LF, what quotes, backslashes, semicolons and equals signs mean in parameters, parts and
// parameters that stand twice. So only what HTTP libraries write is read, and everything else is refused: an engine that
// takes such a form reads the same parts.
func FormModel(contentType string, body []byte) (string, error) {
	boundary, ok := formBoundary(contentType)
	if !ok {
		return "", &BodyError{Reason: "the Content-Type is not multipart/form-data with a plain boundary alone"}
	}
	delimiter := []byte("--" + boundary)
	rest, ok := bytes.CutPrefix(body, delimiter)
	if !ok {
		return "", errForm
	}
	model, found := "", false
	for range maxParts {
		if end, ok := bytes.CutPrefix(rest, []byte("--")); ok && (len(end) == 0 || string(end) == "\r\n") {
			return model, nil
		}
		if rest, ok = bytes.CutPrefix(rest, []byte("\r\n")); !ok {
			return "", errForm
		}
		// A boundary is random: wherever its text stands it is one, or somebody wants two parsers to disagree.
		at := bytes.Index(rest, delimiter)
		if at < 0 {
			return "", errForm
		}
		part, whole := bytes.CutSuffix(rest[:at], []byte("\r\n"))
		head, text, split := bytes.Cut(part, []byte("\r\n\r\n"))
		rest = rest[at+len(delimiter):]
		name, file, ok := partName(string(head))
		if !whole || !split || !ok || !file && !utf8.Valid(text) { // Starlette falls back to Latin-1
			return "", errForm
		}
		if !strings.EqualFold(name, "model") {
			continue
		}
		if found || file || name != "model" {
			return "", &BodyError{Field: "model", Reason: "the form's model has to stand once, as text"}
		}
		if len(text) > maxModelName || !printable(text) {
			return "", &BodyError{Field: "model", Reason: "the form's model cannot be read"}
		}
		model, found = string(text), true
	}
	return "", &BodyError{Reason: "the form has too many parts"}
}

var errForm = &BodyError{Reason: "the form is not written as HTTP libraries write forms"}

// formBoundary reads a Content-Type whose one parameter is the boundary, of letters, digits and - _ . + ' : /, in quotes or
// not. A charset would change how text is read.
func formBoundary(contentType string) (string, bool) {
	kind, b, _ := strings.Cut(contentType, ";")
	b, ok := strings.CutPrefix(strings.Trim(b, " \t"), "boundary=")
	if kind != "multipart/form-data" || !ok {
		return "", false
	}
	if q, quoted := strings.CutPrefix(b, `"`); quoted {
		if b, ok = strings.CutSuffix(q, `"`); !ok {
			return "", false
		}
	}
	return b, b != "" && len(b) <= maxBoundary && only(b, "-_.+':/")
}

// partName reads a part's headers, of which one is its Content-Disposition.
func partName(head string) (name string, file, ok bool) {
	lines := strings.Split(head, "\r\n")
	if len(lines) > maxPartHeaders {
		return "", false, false
	}
	found := false
	for _, line := range lines {
		header, value, ok := strings.Cut(line, ":")
		if value = strings.TrimPrefix(value, " "); !ok || len(line) > maxPartHeader || header == "" || !only(header, "-_") || value == "" || value != strings.Trim(value, " \t") || !printable([]byte(value)) {
			return "", false, false
		}
		switch {
		case strings.EqualFold(header, "Content-Disposition"):
			if found {
				return "", false, false
			}
			found = true
			if name, file, ok = disposition(value); !ok {
				return "", false, false
			}
		case strings.EqualFold(header, "Content-Transfer-Encoding"): // some decode it
			if v := strings.ToLower(value); v != "binary" && v != "8bit" && v != "7bit" {
				return "", false, false
			}
		}
	}
	return name, file, found
}

// disposition reads form-data with a name, which comes first, and of a file its name in one or two spellings. Names of fields
// are letters, digits and - _ . [ ], with which no parser does anything; a file's may hold all but quotes and backslashes.
// cpp-httplib takes semicolons and equals signs in it for what they are outside, but keeps the name that came first.
func disposition(value string) (name string, file, ok bool) {
	rest, ok := strings.CutPrefix(value, "form-data")
	seen := map[string]bool{}
	for ok && rest != "" {
		var key, v string
		var quoted bool
		if key, v, quoted, rest, ok = parameter(rest); !ok || seen[key] || len(seen) == 0 && key != "name" {
			return "", false, false
		}
		seen[key] = true
		switch key {
		case "name":
			marks := "-_."
			if quoted {
				marks = "-_.[]"
			}
			name, ok = v, v != "" && only(v, marks)
		case "filename":
			file = true
		case "filename*":
			// Of another charset, or without one, parsers drop the part or refuse the form.
			const utf = "utf-8''"
			file, ok = true, !quoted && len(v) > len(utf) && strings.EqualFold(v[:len(utf)], utf) && only(v[len(utf):], tokenMarks)
		default:
			ok = false
		}
	}
	return name, file, ok && seen["name"]
}

// parameter takes the first one off a header's parameters: a semicolon, blanks or none, a name, an equals sign, and a token or
// text in quotes.
func parameter(s string) (key, value string, quoted bool, rest string, ok bool) {
	if s, ok = strings.CutPrefix(s, ";"); !ok {
		return "", "", false, "", false
	}
	if key, s, ok = strings.Cut(strings.TrimLeft(s, " "), "="); !ok {
		return "", "", false, "", false
	}
	if s, quoted = strings.CutPrefix(s, `"`); quoted {
		value, rest, ok = strings.Cut(s, `"`)
		return key, value, true, rest, ok && !strings.Contains(value, `\`)
	}
	end := strings.IndexByte(s, ';')
	if end < 0 {
		end = len(s)
	}
	return key, s[:end], false, s[end:], end > 0 && only(s[:end], tokenMarks)
}

// tokenMarks are what a token may hold beside letters and digits, but the asterisk.
const tokenMarks = "!#$%&'+-.^_`|~"

// only tells whether a text has but ASCII letters, digits and those given.
func only(s, more string) bool {
	for i := range len(s) {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9') && strings.IndexByte(more, c) < 0 {
			return false
		}
	}
	return true
}

// printable tells whether bytes are UTF-8 without control characters, but tabs.
func printable(b []byte) bool {
	for _, c := range b {
		if c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return utf8.Valid(b)
}
