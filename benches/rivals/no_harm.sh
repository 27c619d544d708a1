#!/bin/sh
# Measures real servers directly and through the proxy: no_harm.sh [SECONDS [PART-OF-A-NAME]...].
#
# The servers are FastAPI with async handlers, the same behind LiteLLM with an API key per client, a
# server that accepts one text per call, an ASGI echo, KServe and BentoML. Takes some ten minutes,
# and is run manually because it downloads packages. Missing virtual environments are created. A
# package that cannot be installed is reported and counts as missed. GROUPAGE is the path of the
# binary.
set -eu
cd "$(dirname "$0")/../.."
target=$(realpath "${CARGO_TARGET_DIR:-target}")
servers=${GROUPAGE_SERVERS_VENV:-$target/servers-venv}
litellm=${GROUPAGE_LITELLM_VENV:-$target/litellm-venv}
bento=${GROUPAGE_RIVALS_VENV:-$target/rivals-venv}
groupage=${GROUPAGE:-$target/dist/groupage}
seconds=${1:-4}
[ $# -eq 0 ] || shift

# Wheels only: nothing is compiled here.
install() {
    python3 -m venv --clear "$1"
    "$1/bin/pip" install --quiet --disable-pip-version-check --no-input --only-binary :all: "$2" || echo "$2 cannot be installed"
}

[ -x "$groupage" ] || cargo build --locked --profile dist
[ -x "$servers/bin/uvicorn" ] || tests/servers/setup.sh || echo "FastAPI and KServe cannot be installed"
[ -x "$litellm/bin/litellm" ] || install "$litellm" 'litellm[proxy]==1.106.2'
[ -x "$bento/bin/bentoml" ] || install "$bento" bentoml==1.4.39
exec python3 -B benches/rivals/no_harm.py "$groupage" "$servers" "$litellm" "$bento" "$seconds" "$@"
