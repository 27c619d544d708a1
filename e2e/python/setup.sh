#!/bin/sh
# Makes the virtual environment of e2e/python/requirements/NAME.txt from PyPI, or leaves it alone where it is there, and prints its folder: setup.sh NAME.
# It is kept beside Kubernetes, by what it is made of.
set -eu
cd "$(dirname "$0")"
name=$1
python=${PYTHON:-python3}
requirements=requirements/$name.txt

if ! "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "setup.sh: needs Python 3.11 or newer with venv as $python (Debian: apt-get install python3-venv)" >&2
    exit 1
fi
made_of=$({ "$python" -VV; cat "$requirements"; } | sha256sum | cut -c -16)
kept=${XDG_CACHE_HOME:-$HOME/.cache}/groupage-e2e/venvs
venv=$kept/$name-$made_of
mkdir -p "$kept"
# One run at a time makes it; the lock ends with this script.
exec 9>"$kept/$name.lock"
flock 9
# The mark comes last: what was interrupted is not taken for whole.
if [ ! -e "$venv/complete" ]; then
    "$python" -m venv --clear "$venv"
    # Wheels only: nothing is compiled here.
    "$venv/bin/pip" install --quiet --disable-pip-version-check --no-input --only-binary :all: -r "$requirements" >&2
    touch "$venv/complete"
    # Hundreds of MiB each: this one stays and the one before it, which another checkout may use.
    ls -dt "$kept/$name"-*/ | tail -n +3 | xargs -r rm -rf
fi
echo "$venv"
