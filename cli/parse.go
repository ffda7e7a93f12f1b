package cli

import (
	"fmt"
	"regexp"
	"strings"

	ucli "github.com/urfave/cli/v2"
)

// parsed is what the words of a command line name. words is the line in the order that urfave/cli reads: the command,
// its flags, `--`, its arguments.
type parsed struct {
	path  []string // "models", "get"
	noun  noun     // the last noun on the path
	verb  *verb    // nil: the line ends at a noun
	help  bool     // --help stands somewhere, or the word help at the front
	json  bool     // --json stands somewhere
	words []string
}

// usageError is a command line that says nothing that could be done; the code is 2.
type usageError struct {
	message string
	help    string // the command that explains it
}

func (e *usageError) Error() string { return e.message }

func usagef(help, format string, args ...any) *usageError {
	return &usageError{message: fmt.Sprintf(format, args...), help: help}
}

// parse finds the command and puts its flags before its arguments, so that flags may stand after the name too. Flags
// that every command has (--json, --help) may stand anywhere.
func parse(root noun, args []string) (parsed, error) {
	p := parsed{noun: root}
	if len(args) > 0 && args[0] == "help" {
		p.help = true
		args = args[1:]
	}
	var early []string // --json before the verb
	var flags, rest []string
	for i := 0; i < len(args); i++ {
		w := args[i]
		switch {
		case w == "--":
			if p.verb == nil {
				return p, usagef(p.helpLine(), "a command must stand before --")
			}
			rest = append(rest, args[i+1:]...)
			i = len(args)
		case w == "-h" || w == "--help" || w == "-help":
			p.help = true
		case p.verb == nil && (w == "--version" || w == "-v") && len(p.path) == 0:
			p.path, p.words = []string{"version"}, nil
			p.verb, _ = root.child("version")
		case p.verb == nil && (w == "--json" || w == "-json"):
			early, p.json = append(early, "--json"), true
		case len(w) > 1 && w[0] == '-' && p.verb == nil:
			return p, usagef(p.helpLine(), "the flag %s stands before a command; write it after, as in: levelrail models list --json", w)
		case len(w) > 1 && w[0] == '-':
			name, value, hasValue := strings.Cut(strings.TrimLeft(w, "-"), "=")
			f := p.verb.flag(name)
			if f == nil && w[1] != '-' && len(name) > 1 { // -n100
				if s := p.verb.flag(name[:1]); s != nil && takesValue(s) {
					f, value, hasValue = s, name[1:], true
					name = name[:1]
				}
			}
			if f == nil {
				return p, usagef(p.helpLine(), "%s has no flag %s%s", p.what(), w, didYouMean("--"+name, flagNames(p.verb)))
			}
			if name == "json" {
				p.json = value != "false"
			}
			long := "--" + f.Names()[0]
			switch {
			case hasValue:
				flags = append(flags, long+"="+value)
			case takesValue(f):
				if i+1 == len(args) {
					return p, usagef(p.helpLine(), "the flag %s needs a value", w)
				}
				i++
				flags = append(flags, long+"="+args[i])
			default:
				flags = append(flags, long)
			}
		case p.verb == nil:
			v, n := p.noun.child(w)
			if v == nil && n == nil && p.noun.bare != "" {
				v, _ = p.noun.child(p.noun.bare)
				p.path, p.verb = append(p.path, v.name), v
				rest = append(rest, w)
				continue
			}
			if v == nil && n == nil {
				return p, unknownCommand(p, w)
			}
			p.path, p.verb = append(p.path, w), v
			if n != nil {
				p.noun = *n
			}
		default:
			rest = append(rest, w)
		}
	}
	if p.verb == nil || p.help {
		return p, nil
	}
	if p.verb.noJSON {
		early = nil
	}
	least, most := p.verb.argCount()
	switch {
	case len(rest) < least:
		return p, usagef(p.helpLine(), "%s needs %s", p.what(), strings.Join(strings.Fields(p.verb.args)[len(rest):least], " and "))
	case len(rest) > most && most == 0:
		return p, usagef(p.helpLine(), "%s takes no argument, and %q was given", p.what(), rest[0])
	case len(rest) > most:
		return p, usagef(p.helpLine(), "%s takes %s only, and %q was given too", p.what(), p.verb.args, rest[most])
	}
	p.words = append(append(append(append(p.words, p.path...), early...), flags...), "--")
	p.words = append(p.words, rest...)
	return p, nil
}

// line is the command as typed: "levelrail models get".
func (p parsed) line() string { return strings.Join(append([]string{"levelrail"}, p.path...), " ") }

// what names the command in messages, which begin with the program's name already.
func (p parsed) what() string {
	if len(p.path) == 0 {
		return "levelrail"
	}
	return strings.Join(p.path, " ")
}

func (p parsed) helpLine() string { return p.line() + " --help" }

func helpOf(c *ucli.Context) string {
	return c.Command.HelpName + " --help"
}

func unknownCommand(p parsed, word string) error {
	hint := didYouMean(word, p.noun.children())
	if hint == "" && len(p.path) == 0 { // a verb without its noun: `levelrail deploy`
		for _, n := range p.noun.nouns {
			if v, _ := n.child(word); v != nil {
				hint = fmt.Sprintf("; did you mean levelrail %s %s?", n.name, word)
				break
			}
		}
	}
	return usagef(p.helpLine(), "%s has no command %q%s", p.what(), word, hint)
}

func flagNames(v *verb) []string {
	var names []string
	for _, f := range v.allFlags() {
		names = append(names, "--"+f.Names()[0])
	}
	return append(names, "--help")
}

// didYouMean returns "; did you mean X?" for the nearest candidate, or "" when none is near.
func didYouMean(word string, candidates []string) string {
	best, least := "", 1+max(1, len(strings.TrimLeft(word, "-"))/3)
	for _, c := range candidates {
		d := distance(word, c)
		if strings.HasPrefix(c, word) && len(strings.TrimLeft(word, "-")) > 1 {
			d = 1
		}
		if d < least {
			best, least = c, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

// distance is the number of letters to insert, delete, replace or swap to come from a to b.
func distance(a, b string) int {
	prev2, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], prev2[j-2]+1)
			}
		}
		prev2, prev, cur = prev, cur, prev2
	}
	return prev[len(b)]
}

var badValue = regexp.MustCompile(`^invalid (?:boolean )?value "([^"]*)" for (?:flag )?-{0,2}([\w-]+): (.*)$`)

// flagError says in our words what urfave/cli and package flag say of a value.
func flagError(err error) string {
	m := badValue.FindStringSubmatch(err.Error())
	if m == nil {
		return err.Error()
	}
	if strings.HasPrefix(err.Error(), "invalid boolean") {
		return fmt.Sprintf("--%s %q is neither true nor false", m[2], m[1])
	}
	if m[3] == "parse error" {
		return fmt.Sprintf("--%s %q is not a whole number", m[2], m[1])
	}
	return fmt.Sprintf("--%s %q: %s", m[2], m[1], m[3])
}
