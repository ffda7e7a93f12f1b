# Completion of levelrail for bash.
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
