package openai

import (
	"fmt"
	"strings"
	"testing"
)

const jsonGrammar = `root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
`

// TestGrammarsPass: the grammars that people write pass.
func TestGrammarsPass(t *testing.T) {
	for name, g := range map[string]string{
		"JSON":       jsonGrammar,
		"arithmetic": "root ::= (expr \"=\" ws term \"\\n\")+\nexpr ::= term ([-+*/] term)*\nterm ::= ident | num | \"(\" ws expr \")\" ws\nident ::= [a-z] [a-z0-9_]* ws\nnum ::= [0-9]+ ws\nws ::= [ \\t\\n]*\n",
		"list":       "root ::= item+\n\n# bullets\nitem ::= \"- \" [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ \"\\n\"\n",
		"chess":      "root ::= \"1. \" move \" \" move \"\\n\" ([1-9] [0-9]? \". \" move \" \" move \"\\n\")+\nmove ::= (pawn | nonpawn | castle) [+#]?\nnonpawn ::= [NBKQR] [a-h]? [1-8]? \"x\"? [a-h] [1-8]\npawn ::= ([a-h] \"x\")? [a-h] [1-8] (\"=\" [NBKQR])?\ncastle ::= \"O-O\" \"-O\"?\n",
		"japanese":   "root ::= jp-char+ ([ \\t\\n] jp-char+)*\njp-char ::= hiragana | katakana | punctuation | cjk\nhiragana ::= [ぁ-ゟ]\nkatakana ::= [ァ-ヿ]\npunctuation ::= [、-〾]\ncjk ::= [一-鿿]\n",
		"words":      `root ::= "yes" | "no" | "maybe"`,
		"hundred":    "root ::= " + alternatives(200),
		"tail":       "root ::= [a-z] root | [a-z]",
		"tokens":     "root ::= <think> (!</think>)* </think> [a-z]+",
	} {
		if err := CheckGrammar(g); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func alternatives(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(`"%d-%d"`, i, i))
	}
	return strings.Join(all, " | ")
}

// attackGrammars have each made a llama-server of build 11669 crash, or serve nobody for seconds.
var attackGrammars = map[string]string{
	"30,000 brackets":     "root ::= " + strings.Repeat("(", 30000),
	"brackets":            "root ::= " + strings.Repeat("(", 100) + `"a"` + strings.Repeat(")", 100),
	"stars":               `root ::= "a"` + strings.Repeat("*", 30000),
	"ambiguous recursion": `root ::= "x" root "y" | "x" root "z" | "x" root "w"`,
	"ambiguous chain":     "root ::= a0\n" + chain(14) + "a14 ::= \"q\"",
	"by two rules":        "root ::= a | b | \"q\"\na ::= \"x\" root \"y\"\nb ::= \"x\" root \"z\"",
	"linear":              `root ::= "x" root "y" | [a-z]*`,
	"many alternatives":   "root ::= " + alternatives(2000),
	"many loops":          "root ::= " + loops(300),
	"many optional parts": "root ::= " + strings.Repeat("[a-z]? ", 2000),
	"repeated optional":   `root ::= ([a-z]*){2000}`,
	"large count":         `root ::= "a"{100000}`,
	"too long":            "root ::= [a-z] # " + strings.Repeat("x", mostGrammar),
	"many rules":          manyRules(2000),
	// Of these the check itself has to be spared.
	"many references":   "root ::= " + strings.Repeat("a ", 20000) + "\na ::= " + loops(300),
	"many optional":     "root ::= " + strings.Repeat(`"a"? `, 12000),
	"a web of rules":    web(60),
	"many begin alike":  "root ::= " + strings.Repeat("[a-z0-9] root | ", 600) + `"-"`,
	"each within all":   "root ::= " + strings.Repeat(`"x" root "y" | `, 500) + `"-"`,
	"optional in loops": "root ::= (((([a-z]? [a-z]? [a-z]?)* [a-z]? )* [a-z]?)* [a-z]?){500}",
}

func chain(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "a%d ::= a%d \"x\" | a%d \"y\"\n", i, i+1, i+1)
	}
	return b.String()
}

func loops(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(`[a-z]* "%d"`, i))
	}
	return strings.Join(all, " | ")
}

// web is of rules that each refer to all the others.
func web(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "r%d ::= ", i)
		for j := range n {
			fmt.Fprintf(&b, "r%d? ", (i+j+1)%n)
		}
		b.WriteString("[a-z]*\n")
	}
	return b.String()
}

func manyRules(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "r%d ::= \"a\"\n", i)
	}
	return b.String()
}

// TestGrammarsRefused: those that engines do not survive, or not in time, are refused, quickly.
func TestGrammarsRefused(t *testing.T) {
	for name, g := range attackGrammars {
		if err := CheckGrammar(g); err == nil {
			t.Errorf("%s passes", name)
		}
	}
	for _, g := range []string{"root", "root ::= (", `root ::= "a`, "root ::= [a", "root ::= a{", "root ::= *", "root = a", "root ::= )", `root ::= "\x1"`, "root ::= a{1,x}", "\x00"} {
		if err := CheckGrammar(g); err == nil {
			t.Errorf("%q passes", g)
		}
	}
}

// FuzzGrammar: no text makes the check take long, or break.
func FuzzGrammar(f *testing.F) {
	f.Add(jsonGrammar)
	for _, g := range attackGrammars {
		f.Add(g)
	}
	f.Fuzz(func(t *testing.T, text string) { CheckGrammar(text) })
}
