#!/bin/sh
# Applies each fault of this folder to a copy of the core, and verifies that the simulator or a
# property test fails.
#
# A fault is a patch of `src/batching` with one deliberate bug. Its first line names the invariant
# that it breaks. The working tree is not modified. Prints a line for each fault and `N caught, N
# missed`. Fails if a fault is missed, or if a patch does not apply or does not compile.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# Built dependencies are kept between runs. A fault may leave a variable unused, so `-D warnings` of
# the caller must not apply here.
export CARGO_TARGET_DIR="$root/target/faults"
unset RUSTFLAGS

# The core has no dependencies, so a workspace that contains only the core is built in seconds.
mkdir -p "$work/src" "$work/tests/it"
cat >"$work/Cargo.toml" <<EOF
[workspace]
members = ["src/batching"]

$(awk '/^\[/ { inherited = /^\[workspace\./ } inherited' "$root/Cargo.toml")

[package]
name = "groupage"
version = "0.0.0"
edition = "2024"
autotests = false

[dependencies]
groupage-batching = { path = "src/batching" }

[dev-dependencies]
proptest.workspace = true

[[test]]
name = "it"
path = "tests/it/main.rs"

[profile.test]
opt-level = 1
EOF
cp "$root/Cargo.lock" "$work/"
echo 'pub use groupage_batching as batching;' >"$work/src/lib.rs"
printf 'mod batching;\nmod sim;\n' >"$work/tests/it/main.rs"
cp -R "$root/tests/it/batching.rs" "$root/tests/it/batching" "$root/tests/it/sim.rs" "$root/tests/it/sim" "$work/tests/it/"
cp -R "$root/tests/data" "$work/tests/"
cd "$work"

restore() {
    rm -rf src/batching
    cp -R "$root/src/batching" src/
}

# Runs the tests with a timeout, because a fault may cause an endless loop.
check() {
    timeout 300 cargo test --quiet --test it >"$work/log" 2>&1
}

restore
if ! check; then
    cat "$work/log"
    echo "the tests fail on the core without a fault" >&2
    exit 1
fi

caught=0
missed=0
for patch in "$here"/*.patch; do
    name=$(basename "$patch" .patch)
    restore
    if ! git apply "$patch" || ! cargo test --quiet --test it --no-run >"$work/log" 2>&1; then
        cat "$work/log"
        echo "$name: the patch does not apply or does not compile; update it" >&2
        exit 1
    fi
    if check; then
        missed=$((missed + 1))
        echo "MISSED $name: $(head -n 1 "$patch")"
    else
        caught=$((caught + 1))
        by=$(grep -o 'invariant [A-Za-z]* broken\|^test [a-z_:]* \.\.\. FAILED\|^    [a-z_]*::[a-z_:]*$' "$work/log" | sort | uniq -c | sort -rn | head -n 1 |
            sed 's/^ *[0-9]* *//')
        echo "caught $name, by: $by"
    fi
done
echo "$caught caught, $missed missed"
[ "$missed" -eq 0 ]
