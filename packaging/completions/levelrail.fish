# Completion of levelrail for fish.
function __levelrail_complete
    set -l words (commandline -opc)
    set -e words[1]
    command levelrail __complete described $words (commandline -ct | string collect --allow-empty) 2>/dev/null
end
complete -c levelrail -f -a '(__levelrail_complete)'
