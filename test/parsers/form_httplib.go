package parsers

import "strings"

// The bounds of cpp-httplib 0.53.1.
const (
	httplibHeaders = 100
	httplibParts   = 1024
)

// HttplibForm reads a form as llama.cpp does, with cpp-httplib. Its peculiarities: parameters are taken apart at every
// semicolon and equals sign, quoted or not, and of several the first counts; of several dispositions the last counts, but
// one of another kind than form-data says nothing; what stands before the first boundary and after the last is ignored.
func HttplibForm(contentType string, body []byte) ([]Part, error) {
	_, params, _ := strings.Cut(contentType, ";")
	boundary, ok := httplibParams(params, false)["boundary"]
	if !strings.HasPrefix(contentType, "multipart/form-data") || !ok || boundary == "" {
		return nil, ErrRefused
	}
	_, b, found := cut(body, "--"+boundary+"\r\n")
	if !found {
		return nil, ErrRefused
	}
	var parts []Part
	for len(parts) < httplibParts {
		part, rest, ok := httplibPart(b)
		if !ok {
			return nil, ErrRefused
		}
		value, after, found := cut(rest, "\r\n--"+boundary)
		if !found {
			return nil, ErrRefused
		}
		part.Value = string(value)
		parts = append(parts, part)
		if b, found = cutPrefix(after, "\r\n"); found {
			continue
		}
		if _, end := cutPrefix(after, "--"); end {
			return parts, nil
		}
		return nil, ErrRefused
	}
	return nil, ErrRefused
}

// httplibPart reads the headers of a part.
func httplibPart(b []byte) (part Part, rest []byte, ok bool) {
	filename := ""
	for range httplibHeaders + 1 {
		line, rest, found := cut(b, "\r\n")
		if !found {
			return part, nil, false
		}
		if len(line) == 0 {
			part.File = filename != ""
			return part, rest, true
		}
		b = rest
		header := strings.TrimRight(string(line), " \t")
		name, value, found := strings.Cut(header, ":")
		if !found || !tokenBytes(name) || !httplibValue(strings.TrimLeft(value, " \t")) {
			return part, nil, false
		}
		if !strings.EqualFold(name, "Content-Disposition") {
			continue
		}
		// The line is read again as it stands.
		value = strings.TrimLeft(string(line)[len(name)+1:], " \t")
		if len(value) < len("form-data;") || !strings.EqualFold(value[:len("form-data;")], "form-data;") {
			continue
		}
		params := httplibParams(value[len("form-data;"):], true)
		if part.Name, ok = params["name"]; !ok {
			return part, nil, false
		}
		if f, ok := params["filename"]; ok {
			filename = f
		}
		if f, ok := params["filename*"]; ok {
			const utf = "UTF-8''"
			if len(f) <= len(utf) || !strings.EqualFold(f[:len(utf)], utf) {
				return part, nil, false
			}
			filename = f[len(utf):] // decoded, which leaves something
		}
	}
	return part, nil, false
}

// httplibParams takes parameters apart. A value is what follows the last equals sign. A part's names may stand in quotes.
func httplibParams(s string, quotedNames bool) map[string]string {
	params := map[string]string{}
	for segment := range strings.SplitSeq(s, ";") {
		key, value := "", ""
		for piece := range strings.SplitSeq(segment, "=") {
			switch piece = strings.Trim(piece, " \t"); {
			case piece == "":
			case key == "":
				key = piece
			default:
				value = piece
			}
		}
		if quotedNames {
			key = httplibUnquote(key)
		}
		if key == "" {
			continue
		}
		if _, again := params[key]; !again {
			params[key] = httplibUnquote(value)
		}
	}
	return params
}

func httplibUnquote(s string) string {
	if len(s) >= 2 && s[0] == '"' && s[len(s)-1] == '"' {
		return s[1 : len(s)-1]
	}
	return s
}

// httplibValue tells whether a header's value has no control characters but tabs within.
func httplibValue(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}
