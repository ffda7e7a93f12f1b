package parsers

import (
	"strings"
	"unicode/utf8"
)

// The bounds of python-multipart 0.0.34 and Starlette 1.10.
const (
	pythonPartHeaders = 8
	pythonHeaderSize  = 4096 + 128
	pythonBoundary    = 256
	pythonPart        = 1 << 20
)

// PythonForm reads a form as vLLM does, with Starlette's form parser over python-multipart. Its peculiarities: the
// disposition's kind does not matter, of several the last counts, a form that is cut short is one of the parts before the
// cut, what follows the end is ignored, and text that is not of the form's charset is read as Latin-1.
func PythonForm(contentType string, body []byte) ([]Part, error) {
	kind, params := pythonOptions(contentType)
	boundary, ok := params["boundary"]
	if kind != "multipart/form-data" || !ok || len(boundary) > pythonBoundary {
		return nil, ErrRefused
	}
	charset := "utf-8"
	if c, said := params["charset"]; said {
		if charset = strings.ToLower(c); charset != "utf-8" && charset != "utf8" && charset != "latin-1" {
			return nil, ErrRefused // the model knows no others
		}
	}
	p := &pythonForm{b: body, delimiter: "\r\n--" + boundary, utf8: charset != "latin-1"}
	if !p.read() {
		return nil, ErrRefused
	}
	return p.parts, nil
}

// pythonOptions is python-multipart's parse_options_header.
func pythonOptions(header string) (kind string, params map[string]string) {
	params = map[string]string{}
	segments := pythonSegments(header)
	if len(segments) == 0 {
		return "", params
	}
	for _, s := range segments[1:] {
		key, value, _ := strings.Cut(s, "=")
		if strings.Contains(key, "*") {
			continue
		}
		if len(value) >= 2 && value[0] == '"' && value[len(value)-1] == '"' {
			value = strings.ReplaceAll(strings.ReplaceAll(value[1:len(value)-1], `\\`, `\`), `\"`, `"`)
		}
		if key == "filename" && (len(value) > 2 && value[1:3] == `:\` || strings.HasPrefix(value, `\\`)) {
			value = value[strings.LastIndexByte(value, '\\')+1:]
		}
		params[key] = value
	}
	return strings.ToLower(segments[0]), params
}

// pythonSegments takes a header apart at each semicolon before which the quotes that are not escaped are even in number.
func pythonSegments(s string) (out []string) {
	if s == "" {
		return nil
	}
	for from := 0; from <= len(s); {
		end := len(s)
		for i := from; i < len(s); i++ {
			if s[i] == ';' && (strings.Count(s[from:i], `"`)-strings.Count(s[from:i], `\"`))%2 == 0 {
				end = i
				break
			}
		}
		segment := s[from:end]
		if key, value, has := strings.Cut(segment, "="); has {
			segment = strings.ToLower(strings.TrimRight(key, " \t")) + "=" + strings.TrimLeft(value, " \t")
		}
		out = append(out, strings.Trim(segment, " \t"))
		from = end + 1
	}
	return out
}

type pythonForm struct {
	b         []byte
	delimiter string
	utf8      bool
	parts     []Part
}

// read takes the body apart. What has begun when the bytes end is dropped.
func (p *pythonForm) read() bool {
	if len(p.b) > 0 && (p.b[0] == '\r' || p.b[0] == '\n') {
		_, rest, found := cut(p.b, "-")
		if !found {
			return true
		}
		p.b = p.b[len(p.b)-len(rest)-1:]
	}
	first := p.delimiter[2:]
	if n := min(len(first), len(p.b)); string(p.b[:n]) != first[:n] {
		return false
	} else if n < len(first) {
		return true
	}
	p.b = p.b[len(first):]
	switch more, ok := p.after("\r\n", "--"); {
	case !ok:
		return false
	case !more:
		return true
	}
	for {
		part, more, ok := p.headers()
		if !more || !ok {
			return ok
		}
		if more, ok := p.data(part); !more || !ok {
			return ok
		}
	}
}

// after passes one of the two. more is false at the end of the bytes and after the second.
func (p *pythonForm) after(next, last string) (more, ok bool) {
	for i := range 2 {
		if i == len(p.b) {
			return false, true
		}
		if p.b[i] == last[i] && (i == 0 || p.b[0] == last[0]) {
			continue
		}
		if p.b[i] != next[i] || i == 1 && p.b[0] != next[0] {
			return false, false
		}
	}
	more = p.b[0] == next[0]
	p.b = p.b[2:]
	return more, true
}

func (p *pythonForm) headers() (part Part, more, ok bool) {
	disposition := ""
	for n := 0; ; n++ {
		if rest, end := cutPrefix(p.b, "\r\n"); end {
			p.b = rest
			break
		}
		if len(p.b) > 0 && p.b[0] == '\r' {
			return part, false, len(p.b) == 1
		}
		if len(p.b) > 0 && n == pythonPartHeaders {
			return part, false, false
		}
		name, rest, found := cut(p.b, ":")
		if len(name) > 0 && !tokenBytes(string(name)) || found && len(name) == 0 {
			return part, false, false
		}
		size := len(name)
		if found {
			size++
		}
		if !found {
			return part, false, size <= pythonHeaderSize
		}
		value, line, found := cut(rest, "\r")
		if size += len(value); size > pythonHeaderSize {
			return part, false, false
		}
		if !found || len(line) == 0 {
			return part, false, true
		}
		if line[0] != '\n' {
			return part, false, false
		}
		p.b = line[1:]
		if strings.EqualFold(string(name), "content-disposition") {
			disposition = strings.TrimLeft(string(value), " ")
		}
	}
	_, params := pythonOptions(disposition)
	name, named := params["name"]
	_, part.File = params["filename"]
	part.Name = p.decode(name)
	return part, true, named
}

func (p *pythonForm) data(part Part) (more, ok bool) {
	var value []byte
	for rest := p.b; ; {
		before, after, found := cut(rest, p.delimiter)
		value = p.b[:len(p.b)-len(rest)+len(before)]
		if !found {
			return false, part.File || len(p.b) <= pythonPart
		}
		p2 := &pythonForm{b: after}
		if len(after) > 0 && (after[0] == ' ' || after[0] == '\t') {
			for len(p2.b) > 0 && (p2.b[0] == ' ' || p2.b[0] == '\t') {
				p2.b = p2.b[1:]
			}
			if p2.b, found = cutPrefix(p2.b, "\r\n"); !found {
				return false, len(p2.b) == 0 || len(p2.b) == 1 && p2.b[0] == '\r'
			}
			p.b, more = p2.b, true
			break
		}
		if more, ok = p2.after("\r\n", "--"); ok && len(after) < 2 {
			return false, part.File || len(value) <= pythonPart
		}
		if ok {
			p.b = p2.b
			break
		}
		rest = after
	}
	if part.Value = string(value); !part.File {
		if len(value) > pythonPart {
			return false, false
		}
		part.Value = p.decode(part.Value)
	}
	p.parts = append(p.parts, part)
	return more, true
}

func (p *pythonForm) decode(s string) string {
	if p.utf8 && utf8.ValidString(s) {
		return s
	}
	var out []rune
	for i := range len(s) {
		out = append(out, rune(s[i]))
	}
	return string(out)
}
