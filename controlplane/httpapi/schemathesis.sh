#!/bin/sh
# Fuzzes the API of a server of its own with schemathesis (PyPI), by the OpenAPI document that the server serves.
#
#   controlplane/httpapi/schemathesis.sh [further options of "schemathesis run"]
#
# Needs go, curl and python3 with venv. SCHEMATHESIS names an installed program; otherwise one is put into a
# virtual environment in the cache directory. The server, its state and its sockets live in a temporary directory and end
# with the script. Streams (logs, watch) have no end of their own and are left out.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
work=$(mktemp -d)
server=
trap 'if [ -n "$server" ]; then kill "$server" 2>/dev/null; wait "$server" 2>/dev/null || true; fi; rm -rf "$work"' EXIT INT TERM

if [ -z "${SCHEMATHESIS:-}" ]; then
	venv=${XDG_CACHE_HOME:-$HOME/.cache}/levelrail/schemathesis
	[ -x "$venv/bin/schemathesis" ] || { python3 -m venv "$venv" && "$venv/bin/pip" install --quiet schemathesis; }
	SCHEMATHESIS=$venv/bin/schemathesis
fi

(cd "$root" && go build -o "$work/levelrail-server" ./cmd/levelrail-server)
port=${PORT:-17429}
STATE_DIRECTORY=$work/state LEVELRAIL_RUNTIME_DIR=$work/run LEVELRAIL_LISTEN=127.0.0.1:$port LEVELRAIL_DEBUG=true "$work/levelrail-server" run 2>"$work/log" &
server=$!
api() { curl -sS --fail-with-body --unix-socket "$work/run/api.sock" "$@"; }
tries=0
until api http://localhost/api/v1/status >/dev/null 2>&1; do
	tries=$((tries + 1))
	[ $tries -lt 100 ] || { echo "the server does not answer:" >&2; cat "$work/log" >&2; exit 1; }
	sleep 0.1
done
api http://localhost/api/v1/ca.pem >"$work/ca.pem"
token=$(api -H 'Content-Type: application/json' -d '{"name":"fuzz","abilities":["root"]}' http://localhost/api/v1/tokens | sed -n 's/.*"secret":"\(lrt-[0-9a-f]*\)".*/\1/p')

# A model and a key for the fuzzer to find.
api -H 'Content-Type: application/json' -d '{"name":"chat","engine":"llamacpp","model":"org/name:Q4_0","gpus":{"mode":"none"}}' http://localhost/api/v1/models >/dev/null

# The token is in a file of this user's, not in the command line.
umask 077
config() {
	cat <<TOML
headers = { Authorization = "Bearer $token" }
tls-verify = "$work/ca.pem"
$1
# Which models and options an engine takes is the engine's to say, and how large a limit or how long a time may be is a
# setting's, so no schema can.
[[operations]]
include-operation-id = ["deploy-model", "update-model", "create-key", "replace-key", "get-usage"]
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "401", "403", "404", "409"]
TOML
}
config "" >"$work/all.toml"
config 'parameters = { "path.name" = "chat" }' >"$work/chat.toml"
fuzz() {
	file=$1
	shift
	(cd "$work" && "$SCHEMATHESIS" --config-file "$work/$file" run "https://127.0.0.1:$port/api/v1/openapi.json" --url "https://127.0.0.1:$port" "$@")
}
status=0
# First everything but what takes the model or the fuzzer's own token away, with a model that is there; then everything.
fuzz chat.toml --exclude-path-regex '/(logs|watch)$' --exclude-operation-id revoke-token --exclude-operation-id delete-model "$@" || status=$?
fuzz all.toml --exclude-path-regex '/(logs|watch)$' --exclude-operation-id revoke-token "$@" || status=$?
fuzz all.toml --include-operation-id revoke-token "$@" || status=$?
echo "answers by status:"
sed -n 's/.*msg=request door=tls .* status=\([0-9]*\) .*/\1/p' "$work/log" | sort | uniq -c
if grep -E 'level=ERROR' "$work/log"; then
	echo "the server's log has errors" >&2
	status=1
fi
exit $status
