package engine

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/levelrail/levelrail"
)

// option is one engine option that an operator may set, by the engine's own name for it.
type option struct {
	name string
	want string            // what a value looks like, for the message: "a whole number from 1 to 256"
	ok   func(string) bool // whether a value has that look
	args func(string) []string
}

// known lists the options of a table for a message.
func known(table []option) string {
	names := make([]string, 0, len(table))
	for _, o := range table {
		names = append(names, o.name)
	}
	slices.Sort(names)
	return join(names)
}

// longestOption is how many bytes a value may have: it becomes a word of a command line.
const longestOption = 4096

// checkOptions refuses an option that is not in the table, and a value that does not look as it should. It goes by name
// order, so the same spec always gets the same answer.
func checkOptions(engine string, table []option, options levelrail.Options) error {
	for _, name := range sortedKeys(options) {
		i := slices.IndexFunc(table, func(o option) bool { return o.name == name })
		if i < 0 {
			return &levelrail.Error{Kind: levelrail.ErrInvalid,
				Message: fmt.Sprintf("%s has no option %s that can be set here", engine, quote(name)),
				Next:    "use one of " + known(table)}
		}
		if o := table[i]; len(options[name]) > longestOption || !o.ok(options[name]) {
			return &levelrail.Error{Kind: levelrail.ErrInvalid,
				Message: fmt.Sprintf("the option %s=%s of %s is not usable", name, quote(options[name]), engine),
				Next:    fmt.Sprintf("write %s=VALUE with %s", name, o.want)}
		}
	}
	return nil
}

// optionArgs turns the options that have arguments of their own into a command line's, in the table's order.
func optionArgs(table []option, options levelrail.Options) []string {
	var out []string
	for _, o := range table {
		if v, set := options[o.name]; set && o.args != nil {
			out = append(out, o.args(v)...)
		}
	}
	return out
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// The makers below fill want, ok and args: --name VALUE, or for a switch --name alone when it is on.

func number(name string, least, most int) option {
	return option{name: name, want: fmt.Sprintf("a whole number from %d to %d", least, most),
		ok: func(v string) bool {
			n, err := strconv.Atoi(v)
			return err == nil && n >= least && n <= most && strconv.Itoa(n) == v
		},
		args: pair(name)}
}

func fraction(name string, above, most float64) option {
	return option{name: name, want: fmt.Sprintf("a number above %g and up to %g", above, most),
		ok: func(v string) bool {
			f, err := strconv.ParseFloat(v, 64)
			return err == nil && f > above && f <= most && strings.Trim(v, "0123456789.") == ""
		},
		args: pair(name)}
}

func word(name string, words ...string) option {
	return option{name: name, want: "one of " + join(words), ok: func(v string) bool { return slices.Contains(words, v) }, args: pair(name)}
}

func toggle(name string) option {
	return option{name: name, want: "true or false", ok: func(v string) bool { return v == "true" || v == "false" },
		args: func(v string) []string {
			if v == "true" {
				return []string{"--" + name}
			}
			return nil
		}}
}

// ratios is a comma list of non-negative numbers, such as 3,1.
func ratios(name string) option {
	return option{name: name, want: "numbers with commas between, such as 3,1",
		ok: func(v string) bool {
			for part := range strings.SplitSeq(v, ",") {
				if f, err := strconv.ParseFloat(part, 64); err != nil || f < 0 || strings.Trim(part, "0123456789.") != "" {
					return false
				}
			}
			return true
		},
		args: pair(name)}
}

// object is a JSON object as text.
func object(name string) option {
	return option{name: name, want: `a JSON object, such as {"enable_thinking":false}`,
		ok: func(v string) bool {
			var o map[string]any
			return len(v) <= 4096 && json.Unmarshal([]byte(v), &o) == nil && o != nil
		},
		args: pair(name)}
}

// identifier is a short word that the engine looks up in a list of its own, which grows with its releases.
func identifier(name, want string) option {
	return option{name: name, want: want,
		ok: func(v string) bool {
			return v != "" && len(v) <= 64 && v[0] != '-' && strings.Trim(v, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == ""
		},
		args: pair(name)}
}

func pair(name string) func(string) []string {
	return func(v string) []string { return []string{"--" + name, v} }
}

// noArgs leaves the command line to the engine's Launch, which reads the option by itself.
func (o option) noArgs() option {
	o.args = nil
	return o
}

// orNumber lets a word option take a whole number as well.
func (o option) orNumber(least, most int) option {
	words, n := o, number(o.name, least, most)
	o.want = words.want + ", or " + n.want
	o.ok = func(v string) bool { return words.ok(v) || n.ok(v) }
	return o
}
