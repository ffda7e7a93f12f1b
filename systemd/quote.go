package systemd

import (
	"fmt"
	"strings"
)

// Plain makes a value that systemd takes as it is, except that it expands specifiers: a literal % is doubled.
func Plain(s string) string { return strings.ReplaceAll(s, "%", "%%") }

// Words joins words for a list that is split like a shell's (Environment=, LogExtraFields=): each quoted when it must be.
func Words(words ...string) string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = quoteWord(Plain(w))
	}
	return strings.Join(out, " ")
}

// Command joins a command line for ExecStart=: the words arrive in the process exactly as given, with neither specifiers
// nor variables expanded. The first word must be an absolute path, because a relative one means a search at start.
func Command(argv ...string) (string, error) {
	if len(argv) == 0 || !strings.HasPrefix(argv[0], "/") {
		return "", fmt.Errorf("command %.80q: the program has to be an absolute path", strings.Join(argv, " "))
	}
	out := make([]string, len(argv))
	for i, w := range argv {
		w = Plain(w)
		if i > 0 { // systemd expands variables in every word but the program's
			w = strings.ReplaceAll(w, "$", "$$")
		}
		out[i] = quoteWord(w)
	}
	return strings.Join(out, " "), nil
}

// quoteWord doubles backslashes, which systemd takes as escapes, and puts the word in double quotes when it would
// otherwise be split, end the command (;) or read as nothing.
func quoteWord(w string) string {
	w = strings.ReplaceAll(w, `\`, `\\`)
	if w != "" && !strings.ContainsAny(w, " \t\"';#") && !strings.HasSuffix(w, `\`) {
		return w
	}
	return `"` + strings.ReplaceAll(w, `"`, `\"`) + `"`
}

// checkPath accepts the paths that may stand in BindPaths= and its like: absolute, clean, and of characters that no such
// list reads as anything else. Levelrail chooses these paths itself, so nothing is lost by being narrow.
func checkPath(what, p string) error {
	if !strings.HasPrefix(p, "/") || strings.Contains(p, "//") || strings.Contains(p+"/", "/../") || p == "/" {
		return fmt.Errorf("%s %.120q: not an absolute, clean path", what, p)
	}
	for _, r := range p {
		ok := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+@", r)
		if !ok {
			return fmt.Errorf("%s %.120q: %q cannot stand in a list of paths", what, p, r)
		}
	}
	return nil
}
