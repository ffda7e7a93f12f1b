package httpapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/engine"
)

// constraint is what the document says of a field beside its type. The handlers check these themselves, because they can
// say what to write instead; huma checks only that fields are known and of the right type.
type constraint map[string]any

func constraints() map[string]constraint {
	abilities := []any{}
	for _, a := range levelrail.Abilities {
		abilities = append(abilities, string(a))
	}
	name := constraint{"pattern": "^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$", "examples": []any{"chat"}}
	engineName := constraint{"enum": toAny(engine.Names())}
	source := constraint{"minLength": 1, "maxLength": 512, "examples": []any{"bartowski/SmolLM2-135M-Instruct-GGUF:Q4_K_M"},
		"description": "org/name, org/name-GGUF:QUANT, org/name-GGUF:FILE.gguf, an Ollama tag such as llama3.1:8b, or /path/to/file.gguf on the node; which of them is the engine's to say"}
	commit := constraint{"pattern": "^([0-9A-Za-z][0-9A-Za-z._/-]{0,127})?$", "description": "pins a revision of the repository"}
	sum := constraint{"pattern": "^([0-9A-Fa-f]{64})?$", "description": "SHA-256 of a single weights file"}
	domain := constraint{"maxLength": 254, "examples": []any{"llm.example.com"}}
	tokens := constraint{"minimum": 0, "maximum": 16777216, "description": "tokens that each request may use; 0: the engine's default"}
	labelled := constraint{"pattern": label.String(), "examples": []any{"ci"}}
	until := constraint{"minimum": 0, "maximum": int64(longest.Seconds()), "description": "0: never"}
	options := constraint{"description": "engine options by their own names"}
	return map[string]constraint{
		"Deploy.name": name, "Deploy.engine": engineName, "Deploy.model": source, "Deploy.source_commit": commit, "Deploy.sha256": sum, "Deploy.domain": domain, "Deploy.context": tokens,
		"Deploy.node":             {"maxLength": 256, "description": "id or name; absent: the control plane's own host"},
		"Deploy.residency":        {"enum": []any{"", string(levelrail.ResidencyAlways)}},
		"Deploy.idle_ttl_seconds": {"const": 0},
		"Deploy.hf_token":         {"maxLength": 4096, "pattern": `^[\x21-\x7e]*$`, "writeOnly": true, "description": "sealed at once and never returned"},
		"Deploy.idempotency_key":  {"maxLength": 128, "description": "as the header Idempotency-Key, which wins"},
		"Deploy.served_names":     {"maxItems": maxServedNames, "description": "further names by which clients may call the model"},
		"Deploy.options":          options, "Update.options": options,
		"Update.engine": engineName, "Update.model": source, "Update.source_commit": commit, "Update.sha256": sum, "Update.domain": domain, "Update.context": tokens,
		"Update.served_names": {"maxItems": maxServedNames},
		"CreateKey.name":      labelled, "CreateKey.expires_in_seconds": until, "CreateToken.name": labelled, "CreateToken.expires_in_seconds": until,
		"CreateToken.abilities": {"type": "array", "minItems": 1, "items": map[string]any{"type": "string", "enum": abilities}},
		"HubToken.hf_token":     {"maxLength": 4096, "pattern": `^[\x21-\x7e]*$`, "writeOnly": true, "description": "empty: take the old one away"},
		"GPURequest.mode":       {"enum": []any{"", "all", "count", "devices", "none"}, "description": "absent or empty: all, which is NoGPUOnNode on a node without GPUs"},
		"GPURequest.count":      {"minimum": 0, "maximum": 1024, "description": "with the mode count: 1 or more"},
		"GPURequest.devices":    {"description": "with the mode devices: indexes or UUIDs"},
		"NewKey.secret":         {"description": "lr-…: shown this once"},
		"NewToken.secret":       {"description": "lrt-…: shown this once"},
	}
}

func toAny(s []string) []any {
	out := make([]any, len(s))
	for i := range s {
		out[i] = s[i]
	}
	return out
}

// OpenAPI returns the OpenAPI 3.1 document, indented.
func OpenAPI() ([]byte, error) { return New(Options{}).openAPI() }

// document is what the handlers say, with the constraints, and without the shapes that only agents and gateways use.
func (s *Server) document() ([]byte, error) {
	text, err := json.Marshal(s.api.OpenAPI())
	if err != nil {
		return nil, err
	}
	var doc map[string]any
	if err := json.Unmarshal(text, &doc); err != nil {
		return nil, err
	}
	schemas := doc["components"].(map[string]any)["schemas"].(map[string]any)
	all := constraints()
	for _, at := range slices.Sorted(maps.Keys(all)) {
		name, field, _ := strings.Cut(at, ".")
		schema, _ := schemas[name].(map[string]any)
		properties, _ := schema["properties"].(map[string]any)
		property, ok := properties[field].(map[string]any)
		if !ok {
			return nil, fmt.Errorf("the OpenAPI document has no field %s to say something about", at)
		}
		maps.Copy(property, all[at])
	}
	for dropped := true; dropped; {
		dropped = false
		used, err := json.Marshal(doc)
		if err != nil {
			return nil, err
		}
		for name := range schemas {
			if !strings.Contains(string(used), `"#/components/schemas/`+name+`"`) {
				delete(schemas, name)
				dropped = true
			}
		}
	}
	out, err := json.MarshalIndent(doc, "", "  ")
	return append(out, '\n'), err
}
