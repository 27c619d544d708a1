#!/bin/sh
# Real servers directly and through the proxy in one run: no_harm.sh [SECONDS [PART-OF-A-NAME]...]. FastAPI with async handlers, the same behind LiteLLM
# with a key for each caller, a server that takes one text a call, an ASGI echo, KServe and BentoML. Some ten minutes; made by hand, since it downloads.
# Each venv is made where it is missing; what cannot be installed is reported and counts as missed. GROUPAGE names the binary.
set -eu
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-target}
servers=${GROUPAGE_SERVERS_VENV:-$target/servers-venv}
litellm=${GROUPAGE_LITELLM_VENV:-$target/litellm-venv}
bento=${GROUPAGE_RIVALS_VENV:-$target/rivals-venv}
groupage=${GROUPAGE:-$target/release/groupage}
seconds=${1:-4}
[ $# -eq 0 ] || shift

# Wheels only: nothing is compiled here.
install() {
    python3 -m venv --clear "$1"
    "$1/bin/pip" install --quiet --disable-pip-version-check --no-input --only-binary :all: "$2" || echo "$2 cannot be installed"
}

[ -x "$groupage" ] || cargo build --locked --release
[ -x "$servers/bin/uvicorn" ] || tests/servers/setup.sh || echo "FastAPI and KServe cannot be installed"
[ -x "$litellm/bin/litellm" ] || install "$litellm" 'litellm[proxy]==1.106.2'
[ -x "$bento/bin/bentoml" ] || install "$bento" bentoml==1.4.39
exec python3 -B benches/rivals/no_harm.py "$groupage" "$servers" "$litellm" "$bento" "$seconds" "$@"
