package cli

import "strings"

//go:generate go test -run ^TestGenerated$ . -update

// generated is every file that is made from the tree of commands, by path from the repository's root. A test holds the
// files against it, and writes them with -update.
func generated() map[string]string {
	root := tree()
	files := map[string]string{
		"docs/reference/cli.md":                reference(root),
		"packaging/man/levelrail.1":            rootManual(root),
		"packaging/completions/levelrail.bash": completionScripts["bash"],
		"packaging/completions/_levelrail":     completionScripts["zsh"],
		"packaging/completions/levelrail.fish": completionScripts["fish"],
	}
	for _, n := range root.nouns {
		files["packaging/man/levelrail-"+n.name+".1"] = nounManual(n)
	}
	return files
}

// reference is the page of the documentation, in Markdown.
func reference(root noun) string {
	var b strings.Builder
	b.WriteString("# The command line\n\n<!-- Generated from package cli by `go generate ./cli`; change the texts there. -->\n\n")
	b.WriteString("`levelrail` asks the server and shows its answers. A command is a noun, a verb and a name: `levelrail models get chat`.\n\n")
	for _, l := range commandLines(root, "") {
		line := "levelrail " + l[0]
		b.WriteString("* [`" + line + "`](#" + anchor(commandOf(line)) + "): " + mdText(l[1]) + "\n")
	}
	b.WriteString("\n## Output\n\n" + mdText(outputText) + "\n\n## Exit codes\n\n| code | meaning |\n|---|---|\n")
	for _, e := range exitCodes {
		b.WriteString("| " + e[0] + " | " + mdCell(e[1]) + " |\n")
	}
	b.WriteString("\n## Environment\n\n| variable | meaning |\n|---|---|\n")
	for _, e := range environment {
		b.WriteString("| `" + e[0] + "` | " + mdCell(e[1]) + " |\n")
	}
	referenceNoun(&b, root, "levelrail")
	return b.String()
}

func referenceNoun(b *strings.Builder, n noun, line string) {
	for _, sub := range n.nouns {
		b.WriteString("\n## " + line + " " + sub.name + "\n\n" + mdText(capital(sub.usage)) + ".\n")
		if sub.long != "" {
			b.WriteString("\n" + mdText(sub.long) + "\n")
		}
		for _, v := range sub.verbs {
			referenceVerb(b, v, line+" "+sub.name)
		}
		referenceNoun(b, sub, line+" "+sub.name)
	}
	if n.name == "" {
		b.WriteString("\n## Single words\n")
		for _, v := range n.verbs {
			referenceVerb(b, v, line)
		}
	}
}

func referenceVerb(b *strings.Builder, v verb, line string) {
	b.WriteString("\n### " + line + " " + v.name + "\n\n" + mdText(capital(v.usage)) + ".\n\n```\n" + usageLine(line+" "+v.name, v) + "\n```\n")
	if v.long != "" {
		b.WriteString("\n" + mdText(v.long) + "\n")
	}
	b.WriteString("\n```sh\n")
	for _, e := range v.examples {
		b.WriteString("# " + e.what + "\n" + e.line + "\n")
	}
	b.WriteString("```\n")
	if len(v.allFlags()) > 0 {
		b.WriteString("\n| flag | meaning |\n|---|---|\n")
		for _, f := range v.allFlags() {
			b.WriteString("| `" + flagLine(f) + "` | " + mdCell(flagUsage(f)) + " |\n")
		}
	}
}

// commandOf is a usage line without its arguments.
func commandOf(line string) string {
	var words []string
	for _, w := range strings.Fields(line) {
		if w == strings.ToLower(w) {
			words = append(words, w)
		}
	}
	return strings.Join(words, " ")
}

func anchor(heading string) string { return strings.ReplaceAll(heading, " ", "-") }

func capital(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

// mdText escapes what Markdown would read as a tag; backquotes stay what they are.
func mdText(text string) string { return strings.ReplaceAll(text, "<", "&lt;") }

func mdCell(text string) string { return strings.ReplaceAll(mdText(text), "|", "\\|") }

// Manual pages are in man(7)'s macros.

const manualNote = ".\\\" Generated from package cli by `go generate ./cli`; change the texts there.\n"

func manualHead(name, usage string) string {
	return manualNote + ".TH " + strings.ToUpper(roff(name)) + " 1 \"\" Levelrail \"Levelrail manual\"\n.SH NAME\n" + roff(name) + " \\- " + roff(usage) + "\n"
}

func rootManual(root noun) string {
	var b strings.Builder
	b.WriteString(manualHead("levelrail", root.usage))
	b.WriteString(".SH SYNOPSIS\n.B levelrail\n.I COMMAND\n.RI [ flags ]\n.RI [ NAME ]\n.SH DESCRIPTION\n")
	b.WriteString("Asks the server and shows its answers. A command is a noun, a verb and a name, such as\n.BR \"levelrail models get chat\" .\n")
	b.WriteString(roffText(outputText) + ".SH COMMANDS\nEach has \\fB\\-\\-help\\fR with examples.\n")
	for _, l := range commandLines(root, "") {
		b.WriteString(".TP\n" + roffBold(l[0]) + "\n" + roff(capital(l[1])) + ".\n")
	}
	for _, v := range root.verbs {
		manualVerb(&b, v, "levelrail")
	}
	b.WriteString(".SH EXIT STATUS\n")
	manualPairs(&b, exitCodes)
	b.WriteString(".SH ENVIRONMENT\n")
	manualPairs(&b, environment)
	b.WriteString(".SH FILES\n.TP\n.I /run/levelrail/api.sock\nThe server's socket, for root and the group levelrail:\n.B sudo usermod \\-aG levelrail $USER\n")
	var pages []string
	for _, n := range root.nouns {
		pages = append(pages, manualRef("levelrail-"+n.name, "1"))
	}
	pages = append(pages, manualRef("levelrail-server", "8"), manualRef("levelrail-agent", "8"), manualRef("levelrail-gateway", "8"))
	b.WriteString(".SH SEE ALSO\n" + strings.Join(pages, ",\n") + "\n")
	return b.String()
}

func nounManual(n noun) string {
	var b strings.Builder
	b.WriteString(manualHead("levelrail-"+n.name, n.usage))
	b.WriteString(".SH SYNOPSIS\n")
	for i, l := range commandLines(n, "") {
		if i > 0 {
			b.WriteString(".br\n")
		}
		b.WriteString(roffBold("levelrail "+n.name+" "+l[0]) + " [\\fIflags\\fR]\n")
	}
	b.WriteString(".SH DESCRIPTION\n" + roff(capital(n.usage)) + ".\n")
	if n.long != "" {
		b.WriteString(".PP\n" + roffText(n.long))
	}
	b.WriteString(".PP\nExit status, environment and output are described in\n" + manualRef("levelrail", "1") + ".\n")
	manualVerbs(&b, n, "levelrail "+n.name)
	b.WriteString(".SH SEE ALSO\n" + manualRef("levelrail", "1") + "\n")
	return b.String()
}

func manualVerbs(b *strings.Builder, n noun, line string) {
	for _, v := range n.verbs {
		manualVerb(b, v, line)
	}
	for _, sub := range n.nouns {
		manualVerbs(b, sub, line+" "+sub.name)
	}
}

func manualVerb(b *strings.Builder, v verb, line string) {
	line += " " + v.name
	b.WriteString(".SH " + strings.ToUpper(roff(strings.TrimPrefix(line, "levelrail "))) + "\n" + roffBold(usageLine(line, v)) + "\n.PP\n" + roff(capital(v.usage)) + ".\n")
	if v.long != "" {
		b.WriteString(".PP\n" + roffText(v.long))
	}
	var rows [][2]string
	for _, f := range v.allFlags() {
		rows = append(rows, [2]string{flagLine(f), flagUsage(f)})
	}
	manualPairs(b, rows)
	for _, e := range v.examples {
		b.WriteString(".PP\n" + roff(e.what) + ":\n.PP\n.nf\n.RS 4\n" + roff(e.line) + "\n.RE\n.fi\n")
	}
}

func manualPairs(b *strings.Builder, rows [][2]string) {
	for _, r := range rows {
		b.WriteString(".TP\n" + roffBold(r[0]) + "\n" + roffText(r[1]))
	}
}

func manualRef(page, section string) string { return "\\fB" + roff(page) + "\\fR(" + section + ")" }

func roffBold(text string) string { return "\\fB" + roff(text) + "\\fR" }

// roff escapes a line for man(7): backslashes, hyphens that are to be copied, and what would be a request at its start.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "…", `\[u2026]`, "`", "", "'", `\(aq`).Replace(text)
	if strings.HasPrefix(text, ".") {
		text = `\&` + text
	}
	return text
}

// roffText is paragraphs; what stands in backquotes is bold.
func roffText(text string) string {
	var b strings.Builder
	for i, para := range strings.Split(text, "\n\n") {
		if i > 0 {
			b.WriteString(".PP\n")
		}
		for j, part := range strings.Split(para, "`") {
			if j%2 == 1 {
				b.WriteString(roffBold(part))
			} else {
				b.WriteString(roff(part))
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}
