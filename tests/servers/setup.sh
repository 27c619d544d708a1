#!/bin/sh
# Creates the virtual environment of tests/servers from PyPI, unless it is complete already.
# GROUPAGE_SERVERS_VENV selects a location other than the target folder.
set -eu
cd "$(dirname "$0")/../.."
venv=${GROUPAGE_SERVERS_VENV:-${CARGO_TARGET_DIR:-target}/servers-venv}
python=${PYTHON:-python3}

if [ -x "$venv/bin/python" ] && "$venv/bin/python" -B tests/servers/installed.py >/dev/null; then
    echo "$venv is complete"
    exit 0
fi
if ! "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "setup.sh: needs Python 3.11 or newer with venv as $python (Debian: apt-get install python3-venv)" >&2
    exit 1
fi
"$python" -m venv --clear "$venv"
# Wheels only: nothing is compiled here.
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-input --only-binary :all: \
    -r tests/servers/requirements.txt
"$venv/bin/python" -B tests/servers/installed.py
echo "$venv is ready"
