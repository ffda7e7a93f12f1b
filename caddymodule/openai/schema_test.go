package openai

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// agentTools are tools as a coding agent with several servers has them.
func agentTools(n int) string {
	var tools []string
	for i := range n {
		tools = append(tools, fmt.Sprintf(`{"type":"function","function":{"name":"tool_%d","description":"Reads a file, or a part of it, and says what stands there.","parameters":{"type":"object","properties":{
"path":{"type":"string","description":"The path, from the root of the workspace","minLength":1},"mode":{"enum":["text","hex","lines","json","auto"],"default":"auto"},
"range":{"type":"object","properties":{"from":{"type":"integer","minimum":0},"to":{"type":"integer"}},"required":["from"]},"pattern":{"type":"string","pattern":"^[a-z0-9_-]{1,64}$"},
"all":{"type":"array","items":{"anyOf":[{"type":"string"},{"type":"number"},{"type":"null"}]},"maxItems":100}},"required":["path"],"additionalProperties":false}}}`, i))
	}
	return "[" + strings.Join(tools, ",") + "]"
}

// TestSchemasPass: the schemas that people write pass.
func TestSchemasPass(t *testing.T) {
	var many []string
	for i := range 400 {
		many = append(many, fmt.Sprintf(`"value %d"`, i))
	}
	for name, s := range map[string]string{
		"plain object":             `{"type":"json_object"}`,
		"tools":                    agentTools(60),
		"an enum of 400":           `{"type":"json_schema","json_schema":{"name":"x","schema":{"enum":[` + strings.Join(many, ",") + `]}}}`,
		"a tree":                   `{"type":"json_schema","json_schema":{"name":"x","schema":{"$defs":{"node":{"type":"object","properties":{"v":{"type":"number"},"of":{"type":"array","items":{"$ref":"#/$defs/node"}}},"required":["v","of"]}},"$ref":"#/$defs/node"}}}`,
		"a linked list":            `{"type":"json_schema","json_schema":{"name":"x","schema":{"type":"object","properties":{"list":{"$ref":"#/$defs/n"}},"$defs":{"n":{"type":"object","properties":{"v":{"type":"number"},"next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},"required":["v","next"]}}}}}`,
		"a UI of components":       `{"type":"json_schema","json_schema":{"name":"ui","strict":true,"schema":{"type":"object","properties":{"type":{"type":"string","enum":["div","button"]},"label":{"type":"string"},"children":{"type":"array","items":{"$ref":"#"}}},"required":["type","label","children"],"additionalProperties":false}}}`,
		"expressions":              `{"schema":{"$defs":{"e":{"anyOf":[{"type":"number"},{"type":"object","properties":{"op":{"const":"add"},"l":{"$ref":"#/$defs/e"},"r":{"$ref":"#/$defs/e"}},"required":["op","l","r"]},{"type":"object","properties":{"op":{"const":"neg"},"x":{"$ref":"#/$defs/e"}},"required":["op","x"]}]}},"$ref":"#/$defs/e"}}`,
		"a property named pattern": `{"schema":{"type":"object","properties":{"pattern":{"type":"string"},"enum":{"type":"array"},"minItems":{"type":"integer"},"$ref":{"type":"string"}}}}`,
		"a look-ahead":             `{"schema":{"type":"string","pattern":"^(?=.*[a-z])(?!x).{3,}$"}}`,
		"a date":                   `{"schema":{"type":"string","pattern":"^[0-9]{4}-(0[1-9]|1[0-2])-([0-2][0-9]|3[01])$"}}`,
		"a mail address":           `{"schema":{"type":"string","pattern":"^[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+\\.[a-zA-Z]{2,}$"}}`,
	} {
		if !json.Valid([]byte(s)) {
			t.Fatalf("%s is no JSON", name)
		}
		if err := CheckSchema([]byte(s)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// attackSchemas make an engine follow more and more ways, or build what it has no room for.
func attackSchemas() map[string]string {
	var values, optional, defs []string
	for i := range 20000 {
		values = append(values, fmt.Sprintf(`"v%d"`, i))
	}
	for i := range 2000 {
		optional = append(optional, fmt.Sprintf(`"p%d":{"type":"string"}`, i))
	}
	for i := range 40 {
		defs = append(defs, fmt.Sprintf(`"a%d":{"anyOf":[{"type":"object","properties":{"a":{"$ref":"#/$defs/a%d"},"b":{"type":"null"}},"required":["a","b"]},{"type":"object","properties":{"a":{"$ref":"#/$defs/a%d"},"c":{"type":"null"}},"required":["a","c"]}]}`, i, i+1, i+1))
	}
	wrap := func(s string) string {
		return `{"type":"json_schema","json_schema":{"name":"x","schema":` + s + `}}`
	}
	return map[string]string{
		"ambiguous recursion": wrap(`{"$defs":{"a":{"anyOf":[{"type":"object","properties":{"a":{"$ref":"#/$defs/a"},"b":{"type":"null"}},"required":["a","b"]},{"type":"object","properties":{"a":{"$ref":"#/$defs/a"},"c":{"type":"null"}},"required":["a","c"]}]}},"$ref":"#/$defs/a"}`),
		"escaped reference":   wrap(`{"$defs":{"a":{"anyOf":[{"type":"object","properties":{"a":{"\u0024ref":"#/$defs/a"},"b":{"type":"null"}},"required":["a","b"]},{"type":"object","properties":{"a":{"\u0024ref":"#/$defs/a"},"c":{"type":"null"}},"required":["a","c"]}]}},"$ref":"#/$defs/a"}`),
		"ambiguous chain":     wrap(`{"$defs":{` + strings.Join(defs, ",") + `,"a40":{"type":"null"}},"$ref":"#/$defs/a0"}`),
		"20,000 values":       wrap(`{"enum":[` + strings.Join(values, ",") + `]}`),
		"2,000 properties":    wrap(`{"type":"object","properties":{` + strings.Join(optional, ",") + `}}`),
		"a million items":     wrap(`{"type":"array","items":{"type":"integer"},"minItems":1000000}`),
		"a million letters":   wrap(`{"type":"string","minLength":1e6}`),
		"deep":                wrap(strings.Repeat(`{"items":`, 80) + "{}" + strings.Repeat("}", 80)),
		"a long pattern":      wrap(`{"type":"string","pattern":"` + strings.Repeat("a", 2000) + `"}`),
		"a nested pattern":    wrap(`{"type":"string","pattern":"` + strings.Repeat("(", 200) + "a" + strings.Repeat(")", 200) + `"}`),
		"an open pattern":     wrap(`{"type":"string","pattern":"^([a-z]*){900}$"}`),
		"a tool of 20,000":    `[{"type":"function","function":{"name":"x","parameters":{"type":"object","properties":{"a":{"enum":[` + strings.Join(values, ",") + `]}}}}}]`,
		"as text":             `{"json":"{\"enum\":[` + strings.ReplaceAll(strings.Join(values, ","), `"`, `\"`) + `]}"}`,
		"a grammar":           `{"grammar":"root ::= \"x\" root \"y\" | \"x\" root \"z\""}`,
		"a choice":            `{"choice":[` + strings.Join(values, ",") + `]}`,
	}
}

// TestSchemasRefused: those that engines do not survive, or not in time, are refused.
func TestSchemasRefused(t *testing.T) {
	for name, s := range attackSchemas() {
		if !json.Valid([]byte(s)) {
			t.Fatalf("%s is no JSON", name)
		}
		if err := CheckSchema([]byte(s)); err == nil {
			t.Errorf("%s passes", name)
		}
	}
}

// FuzzSchema: no value makes the check take long, or break.
func FuzzSchema(f *testing.F) {
	f.Add([]byte(agentTools(2)))
	for _, s := range attackSchemas() {
		if len(s) < 4000 {
			f.Add([]byte(s))
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if s := (scanner{b: raw}); s.skip() == nil {
			CheckSchema(raw)
		}
	})
}

// BenchmarkSchema is the check of an agent's tools.
func BenchmarkSchema(b *testing.B) {
	for _, n := range []int{2, 40} {
		raw := []byte(agentTools(n))
		b.Run(fmt.Sprintf("%dtools", n), func(b *testing.B) {
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				if err := CheckSchema(raw); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
