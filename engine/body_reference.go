package engine

import (
	"fmt"
	"strings"
)

// BodyReference is the page of docs/reference about request bodies.
func BodyReference() string {
	var b strings.Builder
	b.WriteString(`# What a request body may hold

Made from the tables in package engine; do not edit. [Decision 0021](../decisions/0021-known-fields.md) has the reasons. What a
table does not admit gets 400 with the field's name in ` + "`param`" + `. A value of null is as good as none. Lengths and counts are bounded by
settings ([settings-server.md](settings-server.md)): ` + "`APP_MODEL_GATEWAY_MAX_GEN_LEN`, `_OVER_GEN_LEN`, `_MAX_N`, `_MAX_PROMPTS`, `_MAX_TEXT_BYTES`, `_MAX_BODY_BYTES`" + `.

Schemas and tools: up to 1 MiB, 65,536 values, 64 levels of JSON, 512 alternatives at one place, patterns of 1,024 bytes, minimum counts of
10,000; alternatives that lead back to themselves have to begin differently. Grammars: up to 64 KiB, 1,024 rules, 48 levels, counts of 2,000,
512 alternatives at one place, and the same for recursion.
`)
	for _, name := range Names() {
		e, _ := Get(name)
		t := e.Body()
		fmt.Fprintf(&b, "\n## %s\n\nFields that are not listed: %s, where `APP_MODEL_GATEWAY_UNKNOWN_FIELDS` does not say otherwise.\n\n", name, map[string]string{Pass: "passed", Deny: "refused"}[t.Unknown])
		fmt.Fprintf(&b, "Lengths: `%s`. What the engine reads of them, the winning one first:", strings.Join(t.Length, "`, `"))
		for _, kind := range []string{"chat", "completions", "responses"} {
			fmt.Fprintf(&b, " on %s `%s`;", kind, strings.Join(t.Reads[kind], "`, `"))
		}
		fmt.Fprintf(&b, " another one is written there. Counts: `%s`.\n\n| field | value |\n|---|---|\n", strings.Join(t.Count, "`, `"))
		for _, f := range t.Fields {
			fmt.Fprintf(&b, "| `%s` | %s%s |\n", f.Name, f.Say(), [...]string{"", "; schemas in it are bounded", "; a grammar", "; a regular expression"}[f.Inside])
		}
		b.WriteString("\n| refused | but for | instead |\n|---|---|---|\n")
		for _, r := range t.Refuse {
			but := ""
			if len(r.Same) > 0 {
				but = "`" + strings.Join(r.Same, "`, `") + "`"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", r.Name, but, r.Next)
		}
	}
	return b.String()
}
