#!/bin/sh
# Installs the packages of package-lock.json for the Node.js of this machine, unless they are there, and prints their folder.
set -eu
cd "$(dirname "$0")"
if ! node -e 'process.exit(Number(process.versions.node.split(".")[0]) < 20 ? 1 : 0)' 2>/dev/null || ! npm --version >/dev/null 2>&1; then
    echo "setup.sh: needs Node.js 20 or newer with npm (Debian: apt-get install nodejs npm)" >&2
    exit 1
fi
made_of=$({ node --version; cat package-lock.json; } | sha256sum | cut -c -16)
kept=${XDG_CACHE_HOME:-$HOME/.cache}/groupage-e2e/node
folder=$kept/$made_of
mkdir -p "$folder"
# One run at a time installs them; the lock ends with this script.
exec 9>"$kept/lock"
flock 9
if [ ! -e "$folder/complete" ]; then
    cp package.json package-lock.json "$folder"
    npm ci --prefix "$folder" --ignore-scripts --no-audit --no-fund --silent >&2
    touch "$folder/complete"
fi
echo "$folder"
