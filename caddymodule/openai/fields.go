package openai

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/levelrail/levelrail/engine"
)

// ruleFields are the names of an engine's table, each with its rule.
type ruleFields struct {
	fields  []*engine.Field // by the names' places; nil: none
	refused []*engine.Refusal
	strict  bool // a name that is not in the set is refused
}

// NewTable makes the set of an engine's body table. Names that are in none of its lists are refused when strict.
func NewTable(b engine.BodyTable, strict bool) *Fields {
	f := NewFields("model", "stream", "stream_options", "prompt", "input", "documents")
	add := func(names ...string) {
		for _, n := range names {
			if _, there := f.index[n]; !there {
				f.index[n] = len(f.names)
				f.names = append(f.names, n)
			}
		}
	}
	add(b.Length...)
	add(b.Count...)
	for _, x := range b.Fields {
		add(x.Name)
	}
	for _, x := range b.Refuse {
		add(x.Name)
	}
	f.rules = &ruleFields{fields: make([]*engine.Field, len(f.names)), refused: make([]*engine.Refusal, len(f.names)), strict: strict}
	for i := range b.Fields {
		f.rules.fields[f.index[b.Fields[i].Name]] = &b.Fields[i]
	}
	for i := range b.Refuse {
		f.rules.refused[f.index[b.Refuse[i].Name]] = &b.Refuse[i]
	}
	return f
}

// UnknownSetting is the setting by which fields pass that no table knows.
const UnknownSetting = "APP_MODEL_GATEWAY_UNKNOWN_FIELDS"

// nameless is what a field's name may be to stand in a message: names are the client's own text.
func nameable(name []byte) bool {
	if len(name) == 0 || len(name) > 48 {
		return false
	}
	for _, c := range name {
		if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_' || c == '.') {
			return false
		}
	}
	return true
}

func unknownField(name []byte) *BodyError {
	if !nameable(name) {
		return &BodyError{Reason: "a field is none that the model's engine is known to read; the setting " + UnknownSetting + " decides"}
	}
	return &BodyError{Field: string(name), Reason: "the field " + string(name) + " is none that the model's engine is known to read; leave it out, or have " + UnknownSetting + " set to pass"}
}

// Check holds each member against its field's rule. The members are those of a Walk with a table's fields.
func (m Members) Check() *BodyError {
	if m.fields == nil || m.fields.rules == nil {
		return nil
	}
	for i, raw := range m.raw[:len(m.fields.names)] {
		if raw == nil || string(raw) == "null" {
			continue
		}
		if f := m.fields.rules.fields[i]; f != nil {
			if !fits(f, raw) {
				return &BodyError{Field: f.Name, Reason: "the field " + f.Name + " has to be " + f.Say()}
			}
			if err := inside(f, raw); err != nil {
				return &BodyError{Field: f.Name, Reason: "the field " + f.Name + " cannot be used: " + err.Error()}
			}
		} else if r := m.fields.rules.refused[i]; r != nil && !same(r, raw) {
			return &BodyError{Field: r.Name, Reason: "the field " + r.Name + " is not part of this API; " + r.Next}
		}
	}
	return nil
}

// same tells whether a value is one that changes nothing.
func same(r *engine.Refusal, raw []byte) bool {
	if slices.Contains(r.Same, string(raw)) {
		return true
	}
	for _, s := range r.Same { // with white space, or zeros behind a point
		if len(raw) < 64 && strings.Join(strings.Fields(string(raw)), "") == s {
			return true
		}
		if n, ok := Whole(raw); ok && strconv.FormatInt(n, 10) == s {
			return true
		}
	}
	return false
}

// Whole reads a whole number of at most sixteen digits, with or without a sign, and with or without zeros behind a point:
// an engine that takes that for a whole number at all takes it for the same one.
func Whole(raw []byte) (int64, bool) {
	digits, zeros, point := bytes.Cut(raw, []byte("."))
	if point && (len(zeros) == 0 || len(zeros) > 16 || len(bytes.Trim(zeros, "0")) > 0) {
		return 0, false
	}
	unsigned := bytes.TrimPrefix(digits, []byte("-"))
	if len(unsigned) == 0 || len(unsigned) > 16 {
		return 0, false
	}
	n := int64(0)
	for _, c := range unsigned {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	if len(unsigned) < len(digits) {
		n = -n
	}
	return n, true
}

// fits tells whether a value has a form and a size that a field takes.
func fits(f *engine.Field, raw []byte) bool {
	if f.Bytes > 0 && len(raw) > f.Bytes {
		return false
	}
	switch c := raw[0]; c {
	case 't', 'f':
		return f.Forms&engine.Switch != 0
	case '"':
		return f.Forms&engine.Text != 0
	case '[':
		return f.Forms&engine.List != 0 && sized(f, raw)
	case '{':
		return f.Forms&engine.Object != 0 && sized(f, raw)
	}
	if f.Forms&engine.Whole != 0 {
		n, ok := Whole(raw)
		return ok && float64(n) >= f.Min && float64(n) <= f.Max
	}
	if f.Forms&engine.Real == 0 || len(raw) > 64 {
		return false
	}
	n, err := strconv.ParseFloat(string(raw), 64)
	return err == nil && (f.Max == 0 && f.Min == 0 || n >= f.Min && n <= f.Max)
}

// sized counts what is in a list or an object, where it can be too much at all.
func sized(f *engine.Field, raw []byte) bool {
	items := bytes.Count(raw, comma) + 1
	nodes := items + bytes.Count(raw, brace) + bytes.Count(raw, bracket)
	if (f.Each == 0 || len(raw) <= f.Each) && (f.Items == 0 || items <= f.Items) && (f.Nodes == 0 || nodes <= f.Nodes) {
		return true // whatever of it stands within strings
	}
	items, nodes = 1, 1
	level := 0
	s := scanner{b: raw}
	for s.i < len(raw) {
		switch c := raw[s.i]; c {
		case '"':
			text, _, err := s.str()
			if err != nil || f.Each > 0 && len(text) > f.Each {
				return false
			}
			continue
		case '[', '{':
			level++
			nodes++
		case ']', '}':
			level--
		case ',':
			nodes++
			if level == 1 {
				items++
			}
		}
		s.i++
	}
	return (f.Items == 0 || items <= f.Items) && (f.Nodes == 0 || nodes <= f.Nodes)
}

// inside looks into what an engine compiles.
func inside(f *engine.Field, raw []byte) error {
	if f.Inside == engine.Plain {
		return nil
	}
	if raw[0] != '"' {
		if f.Inside == engine.Schema {
			return CheckSchema(raw)
		}
		return nil
	}
	if len(raw) > mostSchema {
		return errSchemaBytes
	}
	text, err := Text(raw)
	if err != nil {
		return err
	}
	switch f.Inside {
	case engine.Grammar:
		if text == "" {
			return nil
		}
		return CheckGrammar(text)
	case engine.Regex:
		return CheckPattern(text)
	}
	if !strings.HasPrefix(strings.TrimSpace(text), "{") { // a text in place of a schema's object
		return nil
	}
	if _, err := Walk([]byte(text), modelFields); err != nil {
		return errSchemaText
	}
	return CheckSchema([]byte(text))
}

// mostMedia are the names of members under which pictures and sounds stand, which no engine reads as text.
var mediaNames = []string{"url", "image_url", "video_url", "audio_url", "data", "file_data", "b64_json"}

// TextBytes is how many bytes of a body are text that an engine makes tokens of, at most: all but pictures and sounds as
// data: URLs or base64 under the names that the API has for them. It stops counting above most.
func TextBytes(body []byte, most int64) int64 {
	if int64(len(body)) <= most {
		return int64(len(body))
	}
	n := int64(len(body))
	s := scanner{b: body}
	name := []byte(nil)
	for s.i < len(body) && n > most {
		if body[s.i] != '"' {
			if body[s.i] == ',' {
				name = nil
			}
			s.i++
			continue
		}
		text, _, err := s.str()
		if err != nil {
			return n
		}
		if s.peek() == ':' {
			name = text
			s.i++
			continue
		}
		if len(text) > 1024 && slices.Contains(mediaNames, string(name)) {
			n -= int64(len(text))
		}
		name = nil
	}
	return n
}
