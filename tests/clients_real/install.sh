#!/usr/bin/env bash
# Puts the clients that the gateway is tested with into a folder, each with the libraries that it asks for.  What cannot
# be had here leaves a note with the reason, which the tests show when they skip.
#
#     tests/clients_real/install.sh FOLDER PYTHON
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
folder=$(cd "$1" && pwd)
python=$2

attempt() {  # NAME COMMAND...: run it, and note how it went
    local name=$1
    shift
    mkdir -p "$folder/$name"
    rm -f "$folder/$name/.missing" "$folder/$name/.installed"
    if "$@" >"$folder/$name.log" 2>&1; then
        touch "$folder/$name/.installed"
    else
        echo "$name could not be installed: $(grep -v '^$' "$folder/$name.log" | tail -1)" | tee "$folder/$name/.missing"
    fi
}

python_clients() {
    test -x "$folder/python/bin/python" || "$python" -m venv "$folder/python"
    "$folder/python/bin/python" -m pip install --quiet -r "$here/requirements.txt"
}

websockets13() {
    "$python" -m pip install --quiet --upgrade --target "$folder/websockets13" websockets==13.1
}

node_clients() {
    command -v npm >/dev/null || { echo "there is no npm"; return 1; }
    cp "$here/node/package.json" "$here/node/package-lock.json" "$folder/node/"
    (cd "$folder/node" && npm ci --no-audit --no-fund)
}

attempt python python_clients
attempt websockets13 websockets13
attempt node node_clients
