package openai

import (
	"bytes"
	"errors"
	"fmt"
	"regexp/syntax"
	"strings"
)

// Bounds of schemas. OpenAI takes ten levels of objects, 5,000 properties and 1,000 enum values; forty tools of a coding
// agent have about 3,000 values and 100 KiB.
const (
	mostSchema      = 1 << 20 // bytes
	mostSchemaDepth = 64      // levels of JSON
	mostSchemaNodes = 1 << 16 // values
	mostPattern     = 1024    // bytes
	mostLeast       = 10000   // minItems, minLength and so on: as many copies are made
	mostSchemaWork  = 1 << 18 // steps of the check
)

// CheckSchema refuses a value with JSON schemas in it, at whatever place, that an engine could read in too many ways at a
// time, or compile only with much memory or depth: engines make grammars of them. The value is one that Walk has passed.
func CheckSchema(raw []byte) error {
	if len(raw) > mostSchema {
		return errSchemaBytes
	}
	// Without references each way stands written out, with a comma or bracket of its own.
	if bytes.Count(raw, comma)+bytes.Count(raw, brace) < mostWays/4 && !bytes.Contains(raw, refKey) && !bytes.Contains(raw, escaped) && !bytes.Contains(raw, minKey) && !bytes.Contains(raw, patternKey) && !bytes.Contains(raw, grammarKey) && !bytes.Contains(raw, ebnfKey) && !bytes.Contains(raw, regexKey) && depth(raw) <= mostSchemaDepth {
		return nil
	}
	c := schemaCheck{}
	s := scanner{b: raw}
	s.space()
	root, err := c.read(&s, 1)
	if err != nil {
		return err
	}
	if err := c.schema(root); err != nil {
		return err
	}
	c.roots = append(c.roots, root)
	return c.walk(root)
}

var (
	comma, brace, bracket, escaped         = []byte(","), []byte("{"), []byte("["), []byte(`\`) // an escape may write any name
	refKey, minKey, patternKey, grammarKey = []byte("$ref"), []byte(`"min`), []byte(`"pattern"`), []byte(`"grammar"`)
	ebnfKey, regexKey                      = []byte(`"ebnf"`), []byte(`"regex"`)
)

// depth is how deeply a value is nested, at most: brackets in strings count as well.
func depth(raw []byte) int {
	d, most := 0, 0
	for _, b := range raw {
		switch b {
		case '{', '[':
			d++
			most = max(most, d)
		case '}', ']':
			d--
		}
	}
	return most
}

// value is a JSON value. Names that stand twice are there twice.
type value struct {
	kind  byte // { [ " 0 t n
	raw   []byte
	names []string
	of    []*value
	state int // of reference targets
	found ways
}

func (v *value) get(name string) *value {
	if v.kind != '{' {
		return nil
	}
	for i := len(v.names) - 1; i >= 0; i-- {
		if v.names[i] == name {
			return v.of[i]
		}
	}
	return nil
}

func (v *value) text() string {
	if v == nil || v.kind != '"' {
		return ""
	}
	t, _ := Text(v.raw)
	return t
}

type schemaCheck struct {
	nodes int
	work  int
	roots []*value // what references are resolved in, the innermost last
	level int      // how many references are followed now
}

var (
	errSchemaBytes = fmt.Errorf("it has more than %d bytes", mostSchema)
	errSchemaText  = errors.New("a schema that is given as text is no JSON object")
	errSchemaBig   = fmt.Errorf("it has more than %d values", mostSchemaNodes)
	errSchemaDeep  = fmt.Errorf("it is nested more than %d levels deep", mostSchemaDepth)
	errSchemaWork  = errors.New("its references lead to each other in too many ways")
	errSchemaWays  = fmt.Errorf("a schema in it allows more than %d alternatives at one place", mostWays)
	errSchemaLoop  = errors.New("a schema in it is ambiguous where it refers to itself, which would take more time and memory with each token: let the alternatives that lead back begin with differently named, required properties")
)

func (c *schemaCheck) read(s *scanner, level int) (*value, error) {
	if c.nodes++; c.nodes > mostSchemaNodes {
		return nil, errSchemaBig
	}
	if level > mostSchemaDepth {
		return nil, errSchemaDeep
	}
	v := &value{kind: s.peek()}
	from := s.i
	switch v.kind {
	case '{', '[':
		open := v.kind
		s.i++
		if s.peek() == open+2 {
			s.i++
			break
		}
		for {
			if open == '{' {
				name, esc, err := s.str()
				if err != nil {
					return nil, err
				}
				if esc {
					if name, err = unescape(name); err != nil {
						return nil, err
					}
				}
				v.names = append(v.names, string(name))
				if s.peek() != ':' {
					return nil, s.unexpected()
				}
				s.i++
				s.space()
			}
			one, err := c.read(s, level+1)
			if err != nil {
				return nil, err
			}
			v.of = append(v.of, one)
			if end := s.peek(); end == ',' {
				s.i++
				s.space()
				continue
			} else if end != open+2 {
				return nil, s.unexpected()
			}
			s.i++
			break
		}
	default:
		if v.kind == '-' || v.kind >= '0' && v.kind <= '9' {
			v.kind = '0'
		}
		if err := s.skip(); err != nil {
			return nil, err
		}
	}
	v.raw = s.b[from:s.i]
	return v, nil
}

// walk finds the schemas in a value and checks each with itself as the root of its references.
func (c *schemaCheck) walk(v *value) error {
	if v.kind != '{' && v.kind != '[' {
		return nil
	}
	for i, o := range v.of {
		named := ""
		if v.kind == '{' {
			named = v.names[i]
		}
		switch named {
		case "schema", "parameters", "json_schema", "json", "input_schema":
			if o.kind == '"' { // vLLM takes a schema as text as well
				if err := c.inText(o); err != nil {
					return err
				}
				continue
			}
			if err := c.schema(o); err != nil {
				return err
			}
			if o.get("schema") == nil && o.get("parameters") == nil { // else it only wraps one
				continue
			}
		case "grammar", "ebnf":
			if err := CheckGrammar(o.text()); err != nil {
				return err
			}
		case "regex":
			if err := CheckPattern(o.text()); err != nil {
				return err
			}
		case "choice":
			if o.kind == '[' && len(o.of) > mostWays {
				return errSchemaWays
			}
		}
		if err := c.walk(o); err != nil {
			return err
		}
	}
	return nil
}

func (c *schemaCheck) inText(v *value) error {
	text := v.text()
	if _, err := Walk([]byte(text), modelFields); err != nil {
		return errSchemaText
	}
	return CheckSchema([]byte(text))
}

var modelFields = NewFields()

func (c *schemaCheck) schema(v *value) error {
	if v.kind != '{' || v.state == done {
		return nil
	}
	c.roots = append(c.roots, v)
	w, err := c.ways(v)
	c.roots = c.roots[:len(c.roots)-1]
	if err == nil && w.most > mostWays {
		err = errSchemaWays
	}
	return err
}

// ways is in how many ways a value can be read at a time.
type ways struct {
	most, starts int
	first        leads
	back         int // the outermost reference that it leads back to, or none
}

const none = 1 << 30

// one is a value that is read in one way.
func one(texts ...string) ways {
	return ways{most: 1, starts: 1, first: leads{texts: texts, any: len(texts) == 0}, back: none}
}

func (w *ways) inside(o ways) {
	w.most, w.back = max(w.most, o.most), min(w.back, o.back)
}

func (c *schemaCheck) ways(v *value) (ways, error) {
	if c.work++; c.work > mostSchemaWork {
		return ways{}, errSchemaWork
	}
	if v.kind != '{' {
		return one(), nil
	}
	if r := v.get("$ref"); r != nil && r.kind == '"' {
		if to := c.resolve(r.text()); to != nil {
			return c.follow(to)
		}
	}
	out := one()
	typed := ""
	if t := v.get("type"); t != nil {
		if typed = t.text(); typed != "" {
			out = one(firstOfType[typed]...)
		} else if t.kind == '[' {
			out.starts, out.most = len(t.of), len(t.of)
		}
	}
	required := names(v.get("required"))
	for i, o := range v.of {
		var w ways
		var err error
		switch name := v.names[i]; {
		case (name == "anyOf" || name == "oneOf") && o.kind == '[':
			if w, err = c.alternatives(o.of); err == nil {
				out.starts, out.first = max(out.starts, w.starts), w.first
			}
		case name == "enum" && o.kind == '[':
			w = ways{most: len(o.of), starts: len(o.of), back: none}
			for _, e := range o.of {
				w.first = w.first.with(leads{texts: []string{string(e.raw)}})
			}
			out.starts, out.first = max(out.starts, w.starts), w.first
		case name == "const":
			w = one(string(o.raw))
			out.first = w.first
		case name == "allOf" && o.kind == '[':
			w = ways{back: none}
			for _, a := range o.of {
				one, err := c.ways(a)
				if err != nil {
					return ways{}, err
				}
				w.most, w.back = min(w.most+one.most, manyWays), min(w.back, one.back)
			}
			out.first = leads{any: true}
		case (name == "properties" || name == "patternProperties") && o.kind == '{':
			first, optional := "", 0
			w = ways{back: none}
			for j, p := range o.of {
				one, err := c.ways(p)
				if err != nil {
					return ways{}, err
				}
				w.inside(one)
				if !required[o.names[j]] {
					optional++
				} else if first == "" {
					first = `{"` + o.names[j] + `":`
					if out.first = (leads{texts: []string{first}}); !one.first.any {
						out.first = leads{}
						for _, t := range one.first.texts {
							out.first = out.first.with(leads{texts: []string{first + t}})
						}
					}
				}
			}
			w.most = min(w.most+optional, manyWays)
			if first == "" {
				out.first = leads{texts: []string{"{"}}
			}
		case name == "pattern" && o.kind == '"':
			n, err := patternWays(o.text())
			if err != nil {
				return ways{}, err
			}
			w = ways{most: n, back: none}
		case strings.HasPrefix(name, "min") && o.kind == '0':
			if n, ok := Integer(o.raw); name != "minimum" && (!ok && !zeroes(o.raw) || n > mostLeast) {
				return ways{}, fmt.Errorf("%s of a schema in it is not a whole number from 0 to %d", name, mostLeast)
			}
			continue
		case name == "$defs" || name == "definitions": // where they are referred to
			continue
		case o.kind == '{':
			w, err = c.ways(o)
		case o.kind == '[':
			w = ways{back: none}
			for _, e := range o.of {
				one, err := c.ways(e)
				if err != nil {
					return ways{}, err
				}
				w.inside(one)
			}
		default:
			continue
		}
		if err != nil {
			return ways{}, err
		}
		out.inside(w)
	}
	return out, nil
}

func zeroes(raw []byte) bool { return strings.Trim(string(raw), "-0.") == "" }

var firstOfType = map[string][]string{"object": {"{"}, "array": {"["}, "string": {`"`}, "integer": {"0"}, "number": {"0"}, "boolean": {"true", "false"}, "null": {"null"}}

// names is the set of the texts of a list.
func names(v *value) map[string]bool {
	if v == nil || v.kind != '[' || len(v.of) == 0 {
		return nil
	}
	out := make(map[string]bool, len(v.of))
	for _, o := range v.of {
		out[o.text()] = true
	}
	return out
}

// alternatives are schemas of which one holds.
func (c *schemaCheck) alternatives(of []*value) (ways, error) {
	out := ways{back: none}
	if len(of) > mostWays {
		return out, errSchemaWays
	}
	sum := 0
	all := make([]ways, 0, len(of))
	begin := make([]leads, 0, len(of))
	for _, o := range of {
		w, err := c.ways(o)
		if err != nil {
			return out, err
		}
		out.inside(w)
		out.starts, sum = min(out.starts+w.starts, manyWays), min(sum+w.most, manyWays)
		out.first = out.first.with(w.first)
		all, begin = append(all, w), append(begin, w.first)
		c.work += len(w.first.texts)
	}
	if len(of) == 0 {
		out.first.any = true
	}
	out.most = max(out.most, out.starts)
	if apart(begin) {
		return out, nil
	}
	out.most = max(out.most, sum)
	for i, w := range all {
		if w.back == none {
			continue
		}
		for j := range all {
			if c.work += len(begin[i].texts) + len(begin[j].texts); i != j && !apart([]leads{begin[i], begin[j]}) {
				return out, errSchemaLoop
			}
		}
	}
	return out, nil
}

// follow is what a reference's target may be. One that is being followed already leads back to itself.
func (c *schemaCheck) follow(to *value) (ways, error) {
	switch to.state {
	case done:
		return to.found, nil
	case fresh:
		c.level++
		level := c.level
		to.state = done + level
		w, err := c.ways(to)
		c.level--
		if err != nil {
			return w, err
		}
		if w.back >= level { // whatever it leads back to is itself, or within it
			w.back = none
			to.state, to.found = done, w
		} else {
			to.state = fresh
		}
		return w, nil
	}
	return ways{most: 1, starts: 1, first: c.firstOf(to), back: to.state - done}, nil
}

// firstOf is what a target begins with that is being followed: by its type alone.
func (c *schemaCheck) firstOf(v *value) leads {
	if t := firstOfType[v.get("type").text()]; t != nil {
		return leads{texts: t}
	}
	return leads{any: true}
}

// resolve finds what a reference of the form #/a/b means, from the innermost root outwards.
func (c *schemaCheck) resolve(ref string) *value {
	pointer, ok := strings.CutPrefix(ref, "#")
	if !ok {
		return nil
	}
	for i := len(c.roots) - 1; i >= 0; i-- {
		v := c.roots[i]
		for step := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
			if step == "" && pointer == "" {
				break
			}
			if v = v.get(strings.NewReplacer("~1", "/", "~0", "~").Replace(step)); v == nil {
				break
			}
		}
		if v != nil {
			return v
		}
	}
	return nil
}

// CheckPattern refuses a regular expression that can be read in too many ways at a time.
func CheckPattern(pattern string) error {
	n, err := patternWays(pattern)
	if err == nil && n > mostWays {
		err = fmt.Errorf("a regular expression can be read in more than %d ways at a time", mostWays)
	}
	return err
}

func patternWays(pattern string) (int, error) {
	if len(pattern) > mostPattern {
		return 0, fmt.Errorf("a regular expression has more than %d bytes", mostPattern)
	}
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		if e := new(syntax.Error); errors.As(err, &e) && (e.Code == syntax.ErrNestingDepth || e.Code == syntax.ErrLarge || e.Code == syntax.ErrInvalidRepeatSize) {
			return 0, errors.New("a regular expression is nested or repeated too much")
		}
		if d := strings.Count(pattern, "("); d > mostNesting {
			return 0, errors.New("a regular expression has too many brackets")
		}
		return 1, nil // look-arounds and what else an engine refuses, or does not compile
	}
	p, err := regexPart(re, 0)
	if err != nil {
		return 0, err
	}
	g := grammar{ways: []int{0, 0}}
	n, err := g.waysOf(p, &rule{number: 1})
	if g.work > mostWork {
		err = errors.New("a regular expression has too many parts that may follow each other")
	}
	return n, err
}

func regexPart(re *syntax.Regexp, level int) (*part, error) {
	if level > mostNesting {
		return nil, errors.New("a regular expression is nested too deeply")
	}
	out := &part{kind: sequence}
	for _, sub := range re.Sub {
		p, err := regexPart(sub, level+1)
		if err != nil {
			return nil, err
		}
		out.of = append(out.of, p)
	}
	switch re.Op {
	case syntax.OpLiteral:
		return &part{kind: literal, leads: []string{string(re.Rune)}}, nil
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return &part{kind: class, any: true}, nil
	case syntax.OpCharClass:
		p := &part{kind: class}
		for i := 0; i+1 < len(re.Rune); i += 2 {
			if re.Rune[i+1]-re.Rune[i] > mostLeads || len(p.leads) > mostLeads {
				return &part{kind: class, any: true}, nil
			}
			for r := re.Rune[i]; r <= re.Rune[i+1]; r++ {
				p.leads = append(p.leads, string(r))
			}
		}
		return p, nil
	case syntax.OpAlternate:
		out.kind = choice
	case syntax.OpStar, syntax.OpPlus, syntax.OpQuest, syntax.OpRepeat:
		out.kind, out.least, out.most = repeat, re.Min, re.Max
		switch re.Op {
		case syntax.OpStar:
			out.least, out.most = 0, -1
		case syntax.OpPlus:
			out.least, out.most = 1, -1
		case syntax.OpQuest:
			out.least, out.most = 0, 1
		}
	}
	return out, nil
}
