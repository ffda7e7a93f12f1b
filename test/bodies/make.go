package bodies

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/levelrail/levelrail/engine"
)

// maker makes bodies from an engine's table: a plain question, and some of the fields, each at or near its bounds.
type maker struct {
	*rand.Rand
	table engine.BodyTable
	model string
}

var kinds = []struct{ kind, path string }{{"chat", "/v1/chat/completions"}, {"completions", "/v1/completions"}, {"responses", "/v1/responses"}, {"embeddings", "/v1/embeddings"}}

// body makes one, and says for which path.
func (m *maker) body() (path string, body []byte) {
	at := m.IntN(8)
	if at >= len(kinds) {
		at %= 2 // the two that generate with all that there is
	}
	k := kinds[at]
	out := []string{fmt.Sprintf(`"model":%q`, m.model)}
	has := map[string]bool{"model": true}
	add := func(name, value string) {
		if !has[name] {
			has[name] = true
			out = append(out, fmt.Sprintf("%q:%s", name, value))
		}
	}
	for range 1 + m.IntN(5) {
		f := m.table.Fields[m.IntN(len(m.table.Fields))]
		if m.IntN(3) == 0 { // the small ones that nobody reads are many
			for f.Forms == engine.Anything {
				f = m.table.Fields[m.IntN(len(m.table.Fields))]
			}
		}
		switch f.Name {
		case "stream", "messages", "prompt", "input":
			continue
		}
		add(f.Name, m.value(f))
	}
	if m.IntN(4) == 0 {
		add("stream", "true")
	}
	switch k.kind {
	case "chat":
		add("messages", m.pick(`[{"role":"user","content":"Write a list."}]`, `[{"role":"system","content":""},{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[{"id":"x","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"x","content":"1"}]`,
			`[{"role":"user","content":[{"type":"text","text":"x"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]`, `[]`, `[`+strings.Repeat(`{"role":"user","content":"a"},`, 60)+`{"role":"user","content":"b"}]`,
			`[{"role":"user","content":`+m.text(1<<uint(m.IntN(17)))+`}]`, `[{"role":{"a":1},"content":7}]`, `[{"content":[[]]}]`, `[{"role":"user"},null,1]`))
	case "completions":
		add("prompt", m.pick(`"Once"`, `["a","b"]`, `[1,2,3]`, `[[1,2],[3]]`, `[]`, `""`, `[[]]`, `[999999]`, `[-1]`, `{"prompt_string":"a"}`, m.text(1<<uint(m.IntN(17))), `[1,"a",2]`))
	default:
		add("input", m.pick(`"Once"`, `["a","b"]`, `[1,2,3]`, `[]`, `""`, `[{"role":"user","content":"x"}]`, `[{"type":"message","role":"user","content":[{"type":"input_text","text":"x"}]}]`, m.text(1<<uint(m.IntN(14))), `[{"type":"function_call_output","call_id":"x","output":"y"}]`))
	}
	if k.kind != "embeddings" { // few, so that a slot is never held for long by what is allowed
		for _, name := range m.table.Reads[k.kind] {
			add(name, m.pick("1", "8", "24"))
			break
		}
	}
	return k.path, []byte("{" + strings.Join(out, ",") + "}")
}

func (m *maker) pick(values ...string) string { return values[m.IntN(len(values))] }

// text is a string of about n bytes.
func (m *maker) text(n int) string {
	unit := m.pick("a", "word ", " ", "é", "\n", "0", "<|im_start|>", "日本", ",", "\x01")
	b, _ := json.Marshal(strings.Repeat(unit, n/len(unit)+1))
	if len(b) > n+2 && n > 0 && unit[0] < 0x80 && unit[0] >= ' ' && unit[0] != '<' {
		b, _ = json.Marshal(strings.Repeat(unit, n/len(unit)))
	}
	return string(b)
}

func (m *maker) value(f engine.Field) string {
	forms := []engine.Forms{}
	for _, x := range []engine.Forms{engine.Switch, engine.Whole, engine.Real, engine.Text, engine.List, engine.Object} {
		if f.Forms&x != 0 {
			forms = append(forms, x)
		}
	}
	switch f.Inside {
	case engine.Grammar:
		return quote(m.grammar())
	case engine.Schema:
		if f.Forms&engine.List != 0 {
			return m.tools()
		}
		if f.Name == "json_schema" || f.Name == "guided_json" {
			return m.schema(0)
		}
		if f.Name == "text" {
			return `{"format":{"type":"json_schema","name":"x","schema":` + m.schema(0) + `}}`
		}
		if f.Name == "structured_outputs" {
			return m.pick(`{"json":`+m.schema(0)+`}`, `{"grammar":`+quote(m.grammar())+`}`, `{"regex":"[a-z]{1,9}"}`, `{"choice":["a","b"]}`)
		}
		return m.pick(`{"type":"json_object"}`, `{"type":"json_schema","json_schema":{"name":"x","schema":`+m.schema(0)+`}}`, `{"type":"json_schema","json_schema":{"name":"x","schema":`+m.schema(0)+`}}`)
	case engine.Regex:
		return quote(m.pick("[a-z]+", "(ab|cd){1,20}", "^[0-9]{4}$"))
	}
	switch forms[m.IntN(len(forms))] {
	case engine.Switch:
		return m.pick("true", "false")
	case engine.Whole:
		return fmt.Sprintf("%.0f", [...]float64{f.Min, f.Max, f.Min + 1, f.Max - 1, max(f.Min, 0), (f.Min + f.Max) / 2}[m.IntN(6)])
	case engine.Real:
		return m.pick(fmt.Sprint(f.Min), fmt.Sprint(f.Max), "0", "0.5", "1e-30", fmt.Sprint(-f.Max/3), "1", "-0.0")
	case engine.Text:
		most := f.Bytes - 2
		if most <= 0 {
			most = 1 << 15
		}
		return m.text(m.IntN(2) * most)
	case engine.List:
		return "[" + m.elements(f, func() string {
			return m.pick("1", `"a"`, `"top_k"`, `"temperature"`, "[1,2.5]", `["a",-100]`, "null", "{}", quote(strings.Repeat("x", max(f.Each-2, 1))), fmt.Sprint(m.IntN(50000)), `"\n"`)
		}) + "]"
	}
	n := 0
	return "{" + m.elements(f, func() string {
		n++
		return fmt.Sprintf("%q:%s", m.pick(fmt.Sprint(m.IntN(50000)), fmt.Sprint("name", n)), m.pick("1", "-100", "false", `"x"`, "null"))
	}) + "}"
}

// elements makes none, one, some or as many as the field takes.
func (m *maker) elements(f engine.Field, one func() string) string {
	most := f.Items
	if most == 0 {
		most = 64
	}
	n := [...]int{0, 1, 3, most}[m.IntN(4)]
	room := f.Bytes
	if room == 0 {
		room = 32 << 10
	}
	var b strings.Builder
	for i := range n {
		e := one()
		if b.Len()+len(e)+4 > room {
			break
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(e)
	}
	return b.String()
}

func quote(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

// grammar makes one of a few rules that refer to each other.
func (m *maker) grammar() string {
	names := []string{"root", "a", "b", "c"}[:1+m.IntN(4)]
	var b strings.Builder
	for _, n := range names {
		fmt.Fprintf(&b, "%s ::= %s\n", n, m.part(0, names))
	}
	return b.String()
}

func (m *maker) part(level int, names []string) string {
	if level > 5 {
		return `"x"`
	}
	sub := func() string { return m.part(level+1, names) }
	switch m.IntN(9) {
	case 0:
		return m.pick(`"x"`, `"y"`, `"the "`, `""`, `"\n"`)
	case 1:
		return m.pick("[a-z]", "[^x]", "[0-9]", ".", "[ \\t\\n]")
	case 2:
		return sub() + " " + sub()
	case 3:
		return "(" + sub() + " | " + sub() + ")"
	case 4:
		return "(" + sub() + ")" + m.pick("*", "+", "?", "{2}", "{1,9}", "{0,500}", "{3,}")
	case 5:
		return names[m.IntN(len(names))]
	case 6:
		var all []string
		for i := range 1 << m.IntN(10) {
			all = append(all, fmt.Sprintf("\"%c%d\"", 'a'+i%26, i))
		}
		return "(" + strings.Join(all, " | ") + ")"
	case 7:
		n := m.IntN(40)
		return strings.Repeat("(", n) + sub() + strings.Repeat(")", n)
	}
	return strings.Repeat(m.pick("[a-z]? ", "[a-z]* ", `"x"? `), 1+m.IntN(60))
}

func (m *maker) schema(level int) string {
	if level > 5 {
		return `{"type":"string"}`
	}
	sub := func() string { return m.schema(level + 1) }
	switch m.IntN(10) {
	case 0:
		return m.pick(`{"type":"string"}`, `{"type":"integer","minimum":-999999999,"maximum":77777777}`, `{"type":"boolean"}`, `{}`, `true`, `{"type":["string","null","number"]}`, `{"type":"string","format":"date-time"}`, `{"type":"string","minLength":500,"maxLength":2000}`)
	case 1:
		return `{"type":"array","items":` + sub() + m.pick("", `,"minItems":3`, `,"maxItems":1999`, `,"minItems":200,"maxItems":300`) + `}`
	case 2:
		return `{"` + m.pick("anyOf", "oneOf", "allOf") + `":[` + sub() + "," + sub() + `]}`
	case 3, 4, 5:
		var props, required []string
		for i := range 1 << m.IntN(6) {
			props = append(props, fmt.Sprintf(`"p%d":%s`, i, m.pick(`{"type":"string"}`, sub(), sub())))
			if m.IntN(2) == 0 {
				required = append(required, fmt.Sprintf(`"p%d"`, i))
			}
			if i > 3 && level > 1 {
				break
			}
		}
		return `{"type":"object","properties":{` + strings.Join(props, ",") + `},"required":[` + strings.Join(required, ",") + `]` + m.pick("", `,"additionalProperties":false`, `,"additionalProperties":{"type":"string"}`) + `}`
	case 6:
		var all []string
		for i := range 1 << m.IntN(10) {
			all = append(all, fmt.Sprintf(`"value %d"`, i))
		}
		return `{"enum":[` + strings.Join(all, ",") + `]}`
	case 7:
		return `{"type":"string","pattern":` + quote(m.pick("^[a-z]+$", "^([a-z]*x){3}$", "^(a|b|c){1,50}$", "^"+strings.Repeat("(", m.IntN(40))+"a", "^[^\\s@]+@[^\\s@]+$", "^.*$", "^(a?){30}$")) + `}`
	case 8:
		return `{"$defs":{"n":{"type":"object","properties":{"v":` + sub() + `,"next":{"anyOf":[{"type":"null"},{"$ref":"#/$defs/n"}]}},"required":["v","next"]}},"$ref":"#/$defs/n"}`
	}
	return m.pick(`{"const":"x"}`, `{"const":{"a":[1]}}`, `{"$ref":"#"}`, `{"$ref":"#/nowhere"}`, `{"type":"nothing"}`, `{"enum":[]}`, `{"anyOf":[]}`, `{"type":"object","patternProperties":{"^x":`+sub()+`}}`, `{"prefixItems":[`+sub()+`]}`, `{"items":[`+sub()+`,{}]}`, `{"not":{}}`)
}

func (m *maker) tools() string {
	var all []string
	for i := range 1 << m.IntN(6) {
		all = append(all, fmt.Sprintf(`{"type":"function","function":{"name":"f%d","description":"x","parameters":%s}}`, i, m.schema(1)))
	}
	return "[" + strings.Join(all, ",") + "]"
}
