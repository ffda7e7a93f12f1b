// Package parsers has models of the parsers that stand behind the gateway: of JSON, nlohmann::json (llama.cpp) and Python's
// json with pydantic (vLLM); of forms, python-multipart with Starlette (vLLM) and cpp-httplib (llama.cpp). Ollama's are Go's
// own and need no model.
//
// Each model takes what its original takes, refuses what it refuses and reads what it reads, on whole bodies. Fuzzers hold
// the gateway's own scanners against them: no body may exist on which the gateway checks one thing and an engine runs
// another. The goldens in testdata hold the models against the originals; golden makes them anew. The models share no code
// with what they are held against.
package parsers

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strings"
)

// ErrRefused says that the parser does not take the body, or does not take a value for what it is wanted to be.
var ErrRefused = errors.New("refused")

// Object is a JSON object: each name once, in the order in which it first came, as Python and nlohmann's ordered_json have
// it. A name that came again has replaced the value.
type Object struct {
	Names  []string
	Values map[string]any
}

func (o *Object) put(name string, v any) {
	if o.Values == nil {
		o.Values = map[string]any{}
	}
	if _, again := o.Values[name]; !again {
		o.Names = append(o.Names, name)
	}
	o.Values[name] = v
}

// Show writes a value in the one way that the goldens have: null, true, i and the digits of a whole number, f and the bits of
// a floating one (fnan for each NaN), s and a string's bytes in hexadecimal. Values are nil, bool, *big.Int, float64, string
// (UTF-8, in which Python's lone surrogates are three bytes each), []any and *Object.
func Show(v any) string {
	var b strings.Builder
	show(&b, v)
	return b.String()
}

func show(b *strings.Builder, v any) {
	switch v := v.(type) {
	case nil:
		b.WriteString("null")
	case bool:
		fmt.Fprint(b, v)
	case *big.Int:
		b.WriteString("i" + v.String())
	case float64:
		if math.IsNaN(v) {
			b.WriteString("fnan")
			return
		}
		fmt.Fprintf(b, "f%016x", math.Float64bits(v))
	case string:
		fmt.Fprintf(b, "s%x", v)
	case []any:
		b.WriteByte('[')
		for i, e := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			show(b, e)
		}
		b.WriteByte(']')
	case *Object:
		b.WriteByte('{')
		for i, name := range v.Names {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(b, "s%x:", name)
			show(b, v.Values[name])
		}
		b.WriteByte('}')
	default:
		panic(fmt.Sprintf("a value of type %T", v))
	}
}
