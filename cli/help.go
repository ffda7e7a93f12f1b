package cli

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	ucli "github.com/urfave/cli/v2"
)

// helpColumns is how wide help texts are wrapped; command lines in them are never broken.
const helpColumns = 96

// help shows the text for a command or a noun. `levelrail` alone shows how to begin.
func (s *session) help(p parsed) error {
	switch {
	case p.verb != nil:
		io.WriteString(s.stdout, verbHelp(p.line(), *p.verb))
	case p.json && !p.help:
		return usagef(p.helpLine(), "%s needs a command: %s", p.what(), strings.Join(p.noun.children(), ", "))
	case len(p.path) > 0:
		io.WriteString(s.stdout, nounHelp(p.line(), p.noun))
	case p.help:
		io.WriteString(s.stdout, rootHelp(p.noun))
	default:
		io.WriteString(s.stdout, overview)
	}
	return nil
}

const overview = `levelrail runs large language models on your own machines and serves them to any OpenAI client.

Begin with
  levelrail status
      is everything running?
  levelrail models deploy --name chat --engine ollama --model llama3.1:8b
      run a model; prints its address, a key and a curl line to try it
  levelrail models list
      how do the models stand?

All commands: levelrail --help      The manual: man levelrail
`

// environment is what the command line reads of the environment.
var environment = [][2]string{
	{"LEVELRAIL_SOCKET", "Path of the server's socket. Default: /run/levelrail/api.sock, which root and the group levelrail may use."},
	{"LEVELRAIL_URL", "Address of a server elsewhere, such as https://cp.example.com:7420, in place of the socket."},
	{"LEVELRAIL_TOKEN", "The API token for LEVELRAIL_URL. There is no flag for it: every user of a machine can read command lines."},
	{"LEVELRAIL_TOKEN_FILE", "A file that holds the token, in place of LEVELRAIL_TOKEN."},
	{"LEVELRAIL_CA_FILE", "The certificate authority of the server at LEVELRAIL_URL, a PEM file: its /api/v1/ca.pem. Default: the system's authorities."},
	{"HF_TOKEN", "The Hugging Face token that --hf-token-from-env and `models set-hf-token` send."},
	{"NO_COLOR", "Anything but empty: no colours, on a terminal too."},
}

// exitCodes explains what a script may rely on.
var exitCodes = [][2]string{
	{"0", "Done. For a wait: the model serves."},
	{"1", "Failed, for none of the reasons below. An unknown or expired token is among them."},
	{"2", "The command line is wrong: an unknown command or flag, a value that cannot be read, something missing."},
	{"3", "There is no such thing: model, key, node or token."},
	{"4", "Refused: invalid, forbidden, there already, or a wait that ended on a reason which needs somebody."},
	{"5", "The server, or what it needs, cannot be reached; try again."},
	{"6", "Time ran out. What was asked for goes on, and the command to follow it is printed."},
	{"130", "Stopped by Ctrl-C. What was asked for goes on."},
	{"141", "Whoever read the output has gone, as in `levelrail models list | head -1`."},
}

// output explains the streams.
const outputText = "Answers go to standard output, everything else to standard error. With --json standard output is exactly one JSON document, whichever way the command " +
	"ends: what the API sent, or {\"error\": {\"kind\": …, \"message\": …, \"next\": …}}. A command that follows its work prints the document when the following ends, with the " +
	"model as last seen, and the error, if the following ended with one, is the last line of standard error, in the same form. `models logs --json` prints one document a " +
	"line. Flags may stand before or after names."

func rootHelp(root noun) string {
	var b strings.Builder
	b.WriteString("levelrail: " + root.usage + "\n\nUsage: levelrail COMMAND [flags] [NAME]\n")
	b.WriteString("\nCommands\n")
	pairs(&b, commandLines(root, ""))
	b.WriteString("\nEvery command has --help with examples, and --json.\n\nEnvironment\n")
	pairs(&b, environment)
	b.WriteString("\nExit codes\n")
	pairs(&b, exitCodes)
	b.WriteString("\nOutput\n" + wrap(outputText, "  "))
	return b.String()
}

// commandLines lists every command below a noun with its usage line.
func commandLines(n noun, path string) [][2]string {
	var rows [][2]string
	for _, v := range n.verbs {
		rows = append(rows, [2]string{strings.TrimSpace(path + v.name + " " + v.args), v.usage})
	}
	var below [][2]string
	for _, sub := range n.nouns {
		below = append(below, commandLines(sub, path+sub.name+" ")...)
	}
	if n.name == "" { // at the root the nouns are what people come for
		return append(below, rows...)
	}
	return append(rows, below...)
}

func nounHelp(line string, n noun) string {
	var b strings.Builder
	b.WriteString(line + ": " + n.usage + "\n")
	if n.long != "" {
		b.WriteString("\n" + wrap(n.long, ""))
	}
	b.WriteString("\nCommands\n")
	rows := commandLines(n, "")
	for i := range rows {
		rows[i][0] = line + " " + rows[i][0]
	}
	pairs(&b, rows)
	b.WriteString("\nMore about one of them: " + line + " COMMAND --help\n")
	return b.String()
}

func verbHelp(line string, v verb) string {
	var b strings.Builder
	b.WriteString(line + ": " + v.usage + "\n\nUsage: " + usageLine(line, v) + "\n")
	if v.long != "" {
		b.WriteString("\n" + wrap(v.long, ""))
	}
	if len(v.examples) > 0 {
		b.WriteString("\nExamples\n")
		for _, e := range v.examples {
			b.WriteString("  # " + e.what + "\n  " + e.line + "\n")
		}
	}
	b.WriteString("\nFlags\n")
	var rows [][2]string
	for _, f := range v.allFlags() {
		rows = append(rows, [2]string{flagLine(f), flagUsage(f)})
	}
	pairs(&b, append(rows, [2]string{"--help, -h", "show this"}))
	return b.String()
}

func usageLine(line string, v verb) string {
	u := line
	if v.args != "" {
		u += " " + v.args
	}
	return u + " [flags]"
}

// flagLine is how a flag is written: "--lines N, -n N".
func flagLine(f ucli.Flag) string {
	var words []string
	for _, n := range f.Names() {
		w := "--" + n
		if len(n) == 1 {
			w = "-" + n
		}
		words = append(words, w)
	}
	line := strings.Join(words, ", ")
	if takesValue(f) {
		line += " " + valueName(f)
	}
	return line
}

// valueName is what stands for a flag's value.
func valueName(f ucli.Flag) string {
	switch f.(type) {
	case *ucli.IntFlag, *ucli.Int64Flag:
		return "N"
	}
	switch f.Names()[0] {
	case "option":
		return "NAME=VALUE"
	case "timeout", "expires-in", "grace", "since":
		return "TIME"
	case "name", "node", "engine", "model", "domain", "served-name", "ability", "key":
		return strings.ToUpper(strings.TrimPrefix(f.Names()[0], "served-"))
	}
	return "VALUE"
}

func flagUsage(f ucli.Flag) string {
	d, ok := f.(ucli.DocGenerationFlag)
	if !ok {
		return ""
	}
	if v := d.GetValue(); takesValue(f) && v != "" && v != "0" && v != "[]" && !strings.Contains(d.GetUsage(), "default") {
		return fmt.Sprintf("%s (default: %s)", d.GetUsage(), strings.Trim(v, `"`))
	}
	return d.GetUsage()
}

// pairs writes names with their texts, the texts in a column of their own, or below a name that is too long for it.
func pairs(b *strings.Builder, rows [][2]string) {
	width := 0
	for _, r := range rows {
		if n := utf8.RuneCountInString(r[0]); n <= 40 {
			width = max(width, n)
		}
	}
	indent := strings.Repeat(" ", width+4)
	for _, r := range rows {
		text := strings.TrimLeft(wrap(r[1], indent), " ")
		if n := utf8.RuneCountInString(r[0]); n > width {
			b.WriteString("  " + r[0] + "\n" + indent + text)
		} else {
			b.WriteString("  " + r[0] + strings.Repeat(" ", width-n+2) + text)
		}
	}
}

// wrap breaks paragraphs at helpColumns, each line with the indent.
func wrap(text, indent string) string {
	var b strings.Builder
	for i, para := range strings.Split(text, "\n\n") {
		if i > 0 {
			b.WriteString("\n")
		}
		line := ""
		for _, w := range strings.Fields(para) {
			if line != "" && utf8.RuneCountInString(indent+line+" "+w) > helpColumns {
				b.WriteString(indent + line + "\n")
				line = ""
			}
			line = strings.TrimPrefix(line+" "+w, " ")
		}
		b.WriteString(indent + line + "\n")
	}
	return b.String()
}
