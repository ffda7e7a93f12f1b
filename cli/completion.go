package cli

import (
	"io"

	ucli "github.com/urfave/cli/v2"
)

func completionVerb() verb {
	return verb{
		name: "completion", args: "SHELL", usage: "print the completion script for bash, zsh or fish", complete: []string{"bash|zsh|fish"}, noJSON: true,
		long: "The packages install these scripts; this is for other ways of installing. Names of models, nodes, keys and tokens come from the server, which is asked for at most a second.",
		examples: []example{
			{"bash, for this user", "levelrail completion bash > ~/.local/share/bash-completion/completions/levelrail"},
			{"zsh, in a directory of $fpath", "levelrail completion zsh > ~/.zfunc/_levelrail"},
			{"fish", "levelrail completion fish > ~/.config/fish/completions/levelrail.fish"},
		},
		run: func(s *session, c *ucli.Context) error {
			script, ok := completionScripts[arg(c, 0)]
			if !ok {
				return usagef(helpOf(c), "there is no completion for %q; use bash, zsh or fish", arg(c, 0))
			}
			io.WriteString(s.stdout, script)
			return nil
		},
	}
}

// completionScripts ask the program itself (`levelrail __complete`), so they never go stale.
var completionScripts = map[string]string{
	"bash": `# Completion of levelrail for bash.
_levelrail() {
    local line=${COMP_LINE:0:COMP_POINT} words cur keep
    read -ra words <<<"$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    cur=${words[${#words[@]} - 1]}
    mapfile -t COMPREPLY < <(command levelrail __complete plain "${words[@]:1}" 2>/dev/null)
    if ((${#COMPREPLY[@]} == 0)) && [[ $cur == [./~]* ]]; then
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
    fi
    # bash completes only what follows the last of its word breaks
    keep=${cur##*[:=]}
    COMPREPLY=("${COMPREPLY[@]#"${cur%"$keep"}"}")
}
complete -F _levelrail levelrail
`,
	"zsh": `#compdef levelrail
# Completion of levelrail for zsh.
_levelrail() {
    local line
    local -a described
    for line in "${(@f)$(command levelrail __complete described "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
        [[ -n $line ]] || continue
        if [[ $line == *$'\t'* ]]; then
            described+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
        else
            described+=("${line//:/\\:}")
        fi
    done
    if (( ${#described} )); then
        _describe 'levelrail' described
    elif [[ ${words[CURRENT]} == [./~]* ]]; then
        _files
    fi
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _levelrail "$@"
else
    compdef _levelrail levelrail
fi
`,
	"fish": `# Completion of levelrail for fish.
function __levelrail_complete
    set -l words (commandline -opc)
    set -e words[1]
    set -l cur (commandline -ct)
    set -l found (command levelrail __complete described $words "$cur" 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\n' $found
    else if string match -qr '^[./~]' -- "$cur"
        __fish_complete_path "$cur"
    end
end
complete -c levelrail -f -a '(__levelrail_complete)'
`,
}
