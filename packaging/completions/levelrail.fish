# Completion of levelrail for fish.
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
