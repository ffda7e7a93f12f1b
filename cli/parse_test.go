package cli

import (
	"strings"
	"testing"

	ucli "github.com/urfave/cli/v2"
)

// TestParse: flags may stand anywhere after the command, in every way that people write them, and -- ends them.
func TestParse(t *testing.T) {
	for in, want := range map[string]string{
		"models get chat --json":                       "models get --json -- chat",
		"models get --json chat":                       "models get --json -- chat",
		"--json models get chat":                       "models get --json -- chat",
		"models --json get chat":                       "models get --json -- chat",
		"models logs chat -f -n 100":                   "models logs --follow --lines=100 -- chat",
		"models logs -n100 chat":                       "models logs --lines=100 -- chat",
		"models logs --lines=5 chat --since=-1h":       "models logs --lines=5 --since=-1h -- chat",
		"models logs chat --since -1h":                 "models logs --since=-1h -- chat",
		"models get -- -x":                             "models get -- -x",
		"models deploy -name a --option x=y=z --gpus=": "models deploy --name=a --option=x=y=z --gpus= --",
		"-v":                         "version --",
		"version":                    "version --",
		"models":                     "",
		"":                           "",
		"models get":                 "error: models get needs NAME",
		"models keys revoke":         "error: models keys revoke needs NAME and KEY",
		"models get chat --lines 3":  "error: models get has no flag --lines",
		"models get a b":             `error: models get takes NAME only, and "b" was given too`,
		"models logs a -n":           "error: the flag -n needs a value",
		"models list --josn":         "error: models list has no flag --josn; did you mean --json?",
		"models dep":                 `error: models has no command "dep"; did you mean deploy?`,
		"node list":                  `error: levelrail has no command "node"; did you mean nodes?`,
		"rotate-key":                 `error: levelrail has no command "rotate-key"; did you mean levelrail models rotate-key?`,
		"quux":                       `error: levelrail has no command "quux"`,
		"-- models":                  "error: a command must stand before --",
		"models get chat --json=yes": "models get --json=yes -- chat",
	} {
		p, err := parse(tree(), strings.Fields(in))
		got := strings.Join(p.words, " ")
		if err != nil {
			got = "error: " + err.Error()
		}
		if got != want {
			t.Errorf("%q gives\n%s, want\n%s", in, got, want)
		}
	}
}

// TestTree: every command has what its help, manual and completion need, and no flag is named twice.
func TestTree(t *testing.T) {
	var walk func(n noun, path string)
	walk = func(n noun, path string) {
		for _, v := range n.verbs {
			line := strings.TrimSpace(path + " " + v.name)
			if v.usage == "" || strings.HasSuffix(v.usage, ".") || v.usage[0] >= 'A' && v.usage[0] <= 'Z' || v.run == nil || len(v.examples) == 0 {
				t.Errorf("%s: a usage of one lower-case line, an example and a run are needed", line)
			}
			for _, e := range v.examples {
				if !strings.Contains(e.line, "levelrail "+line) {
					t.Errorf("%s: the example is of something else: %s", line, e.line)
				}
			}
			seen := map[string]bool{"help": true, "h": true}
			for _, f := range v.allFlags() {
				for _, name := range f.Names() {
					if seen[name] {
						t.Errorf("%s: the flag %s is there twice", line, name)
					}
					seen[name] = true
				}
				if flagUsage(f) == "" {
					t.Errorf("%s: %s has no text", line, f.Names()[0])
				}
			}
			if least, most := v.argCount(); least > most || len(v.complete) > most {
				t.Errorf("%s: %d to %d arguments, completed %v", line, least, most, v.complete)
			}
		}
		for _, sub := range n.nouns {
			if sub.usage == "" {
				t.Errorf("%s %s has no usage", path, sub.name)
			}
			walk(sub, strings.TrimSpace(path+" "+sub.name))
		}
	}
	walk(tree(), "")
}

// TestExamplesParse: every example of the help can be read by the command line itself, but for what stands for a value.
func TestExamplesParse(t *testing.T) {
	var walk func(n noun)
	walk = func(n noun) {
		for _, v := range n.verbs {
			for _, e := range v.examples {
				_, line, _ := strings.Cut(" "+e.line, " levelrail ")
				for _, end := range []string{" | ", " && ", " > "} {
					line, _, _ = strings.Cut(line, end)
				}
				p, err := parse(tree(), shellWords(line))
				if err != nil || p.verb == nil {
					t.Errorf("%s: %v", e.line, err)
					continue
				}
				app := &ucli.App{Commands: commands(tree(), nil), HideHelp: true, DisableSliceFlagSeparator: true, OnUsageError: onUsageError}
				stopAtRun(app.Commands)
				if err := app.Run(append([]string{"levelrail"}, p.words...)); err != nil {
					t.Errorf("%s: %v", e.line, err)
				}
			}
		}
		for _, sub := range n.nouns {
			walk(sub)
		}
	}
	walk(tree())
}

func stopAtRun(commands []*ucli.Command) {
	for _, c := range commands {
		c.Action = func(*ucli.Context) error { return nil }
		stopAtRun(c.Subcommands)
	}
}
