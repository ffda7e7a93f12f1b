package openai

import (
	"encoding/json"
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestInteger: plain digits only; every other way to write or mean a number is not one.
func TestInteger(t *testing.T) {
	for raw, want := range map[string]int64{"0": 0, "1": 1, "16": 16, "999999999": 999999999} {
		if n, ok := Integer([]byte(raw)); !ok || n != want {
			t.Errorf("%s is %d %v", raw, n, ok)
		}
	}
	for _, raw := range []string{"", "-1", "-0", "16.0", "16.5", "1e3", "1E0", `"16"`, `" 16"`, "true", "null", "[16]", "{}", "1000000000", "4294967295", "4294967297", "1e20", "NaN"} {
		if n, ok := Integer([]byte(raw)); ok {
			t.Errorf("%s is read as %d", raw, n)
		}
	}
}

// TestPrompts: a string or a list of tokens is one prompt, and whatever else a list holds may be one each.
func TestPrompts(t *testing.T) {
	for raw, want := range map[string]int64{`"one, two"`: 1, `null`: 1, `[]`: 1, `[1,2,3]`: 1, `["a"]`: 1, `["a","b"]`: 2, ` [ "a" , "b" ] `[1:]: 2, `[[1,2],[3]]`: 2,
		`[[1,2],"a",{"prompt_string":"x,y"}]`: 3, `[1,"a",2]`: 1, `["a,b","[c]"]`: 2, `[-1, -2]`: 1, `[null,true]`: 2} {
		if n := Prompts([]byte(raw)); n != want {
			t.Errorf("%s is %d prompts, want %d", raw, n, want)
		}
	}
}

// The three parsers, as engines.md's table of differences has them: how each reads a raw JSON value for a whole number.
// unset stands for a field that is not there; no number at all means that the engine refuses the request.
type reading struct {
	n     int64
	unset bool
	ok    bool
}

// nlohmann converts any number or boolean to a 32-bit integer, which wraps.
func nlohmann(raw string) reading {
	switch raw {
	case "null":
		return reading{unset: true, ok: true}
	case "true":
		return reading{n: 1, ok: true}
	case "false":
		return reading{ok: true}
	}
	f, _, err := big.ParseFloat(raw, 10, 256, big.ToZero)
	if err != nil {
		return reading{}
	}
	if f.IsInt() || !strings.ContainsAny(raw, ".eE") {
		i, _ := f.Int(nil)
		if !i.IsUint64() && !i.IsInt64() {
			return reading{}
		}
		if i.IsUint64() {
			return reading{n: int64(int32(uint32(i.Uint64()))), ok: true}
		}
		return reading{n: int64(int32(i.Int64())), ok: true}
	}
	v, _ := f.Float64()
	if math.Abs(v) > math.MaxInt32 {
		return reading{}
	}
	return reading{n: int64(v), ok: true}
}

var pythonInt = regexp.MustCompile(`^[+-]?[0-9]+(_[0-9]+)*$`)

// pydantic (lax) takes whole floats, booleans and strings of digits.
func pydantic(raw string) reading {
	switch raw {
	case "null":
		return reading{unset: true, ok: true}
	case "true":
		return reading{n: 1, ok: true}
	case "false":
		return reading{ok: true}
	}
	if strings.HasPrefix(raw, `"`) {
		var s string
		if json.Unmarshal([]byte(raw), &s) != nil {
			return reading{}
		}
		if s = strings.TrimSpace(s); !pythonInt.MatchString(s) {
			return reading{}
		}
		raw = strings.ReplaceAll(s, "_", "")
	}
	f, _, err := big.ParseFloat(raw, 10, 4096, big.ToZero)
	if err != nil || !f.IsInt() {
		return reading{}
	}
	i, _ := f.Int64()
	return reading{n: i, ok: true}
}

// golang decodes into *int with encoding/json.
func golang(raw string) reading {
	var n *int
	switch err := json.Unmarshal([]byte(raw), &n); {
	case err != nil:
		return reading{}
	case n == nil:
		return reading{unset: true, ok: true}
	}
	return reading{n: int64(*n), ok: true}
}

// TestParsers: the models of the three parsers say what the table of differences says, so that the fuzzer below means it.
func TestParsers(t *testing.T) {
	no, unset := reading{}, reading{unset: true, ok: true}
	is := func(n int64) reading { return reading{n: n, ok: true} }
	for _, c := range []struct {
		raw          string
		cpp, py, gos reading
	}{
		{"16", is(16), is(16), is(16)}, {"1e3", is(1000), is(1000), no}, {"1.0", is(1), is(1), no}, {"1.9", is(1), no, no}, {`"5"`, no, is(5), no}, {`" +1_000 "`, no, is(1000), no},
		{"true", is(1), is(1), no}, {"4294967295", is(-1), is(4294967295), is(4294967295)}, {"4294967297", is(1), is(4294967297), is(4294967297)}, {"null", unset, unset, unset}, {"-1", is(-1), is(-1), is(-1)},
	} {
		if cpp, py, gos := nlohmann(c.raw), pydantic(c.raw), golang(c.raw); cpp != c.cpp || py != c.py || gos != c.gos {
			t.Errorf("%s: %+v %+v %+v", c.raw, cpp, py, gos)
		}
	}
}

// FuzzInteger: whatever stands for a number in a body that Walk passes, the gateway either refuses it or reads the same
// number as each of the three parsers.
func FuzzInteger(f *testing.F) {
	for _, raw := range []string{"0", "1", "17", "-1", "-0", "16.0", `"16"`, `" 16 "`, `"1_6"`, "1e3", "1E+1", "0.1e1", "1.9", "true", "false", "null", "4294967295", "4294967297", "9007199254740993",
		"1e20", "[1]", "{}", "00", "+1", "0x10", "999999999", "1000000000", "NaN", "Infinity", "١"} {
		f.Add(raw)
	}
	fields := NewFields("n")
	f.Fuzz(func(t *testing.T, raw string) {
		m, err := Walk([]byte(`{"n":`+raw+`}`), fields)
		if err != nil {
			return
		}
		value, there := m.Get("n")
		if !there {
			return
		}
		n, ok := Integer(value)
		if !ok {
			return
		}
		if strconv.FormatInt(n, 10) != string(value) {
			t.Errorf("%q is read as %d", value, n)
		}
		for name, read := range map[string]func(string) reading{"nlohmann": nlohmann, "pydantic": pydantic, "encoding/json": golang} {
			if got := read(string(value)); !got.ok || got.unset || got.n != n {
				t.Errorf("%q: the gateway reads %d, %s %+v", value, n, name, got)
			}
		}
	})
}
