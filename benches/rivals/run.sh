#!/bin/sh
# Tests the proxy with KServe's server, which does not batch, and BentoML's, which does. Both must
# return equal answers, and calls to the one that batches by itself should be passed through.
#
# Takes minutes, and is run manually because it downloads packages: the environment of KServe is
# that of tests/servers/setup.sh, that of BentoML is created here. Prints a line for each server and
# `N met, N missed`, and fails if one is missed. A package that cannot be installed is reported and
# counts as missed.
set -eu
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-target}
kserve=${GROUPAGE_SERVERS_VENV:-$target/servers-venv}
bento=${GROUPAGE_RIVALS_VENV:-$target/rivals-venv}
groupage=${GROUPAGE:-$target/dist/groupage}
seconds=${1:-60}

if [ ! -x "$groupage" ]; then
    cargo build --locked --profile dist
fi
[ -x "$kserve/bin/python" ] || tests/servers/setup.sh || echo "KServe cannot be installed"
if [ ! -x "$bento/bin/bentoml" ]; then
    python3 -m venv --clear "$bento"
    # Wheels only: nothing is compiled here.
    "$bento/bin/pip" install --quiet --disable-pip-version-check --no-input --only-binary :all: bentoml==1.4.39 ||
        echo "BentoML cannot be installed"
fi
exec python3 -B benches/rivals/drive.py "$groupage" "$kserve" "$bento" "$seconds"
