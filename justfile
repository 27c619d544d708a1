# Development commands. CI runs the same commands without this file. On PyPI, `just` is `rust-just`.

# List all recipes
default:
    @just --list --unsorted

# Format the code
fmt:
    cargo fmt --all

# Format check, clippy and documentation, as in CI
lint:
    cargo fmt --all -- --check
    cargo clippy --locked --workspace --all-targets -- -D warnings
    cargo clippy --locked --test sim --test e2e -- -D warnings
    cargo clippy --locked --package groupage-engine --features cuda,simulator --all-targets -- -D warnings
    cargo clippy --locked --features cuda --all-targets -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps --document-private-items

# All tests that need no further tools
test *ARGS:
    cargo test --locked --workspace {{ARGS}}

# Benchmarks that need no feature, in a short form and not optimised
bench-tiny:
    cargo test --locked --workspace --bench core --bench data_path --bench encode --bench generate --bench no_harm --bench schedule --bench splice --bench streams

# Regenerate the reference pages and golden files
update:
    UPDATE=1 cargo test --locked -p groupage-policy
    UPDATE=1 cargo test --locked --test it -- tidy injector::golden

# Run the demo
demo *ARGS:
    cargo run --locked --release -- demo {{ARGS}}

# Print the simulated run of each seed: just sim 42 43
sim +SEEDS:
    cargo test --locked --profile sim --test sim -- {{SEEDS}}

# Simulate many seeds and print those that violate a property
sim-many COUNT="1000000" FIRST="0":
    cargo test --locked --profile sim --test sim -- --count {{COUNT}} {{FIRST}}

# Protocol cases over sockets: just cases FILE [PART-OF-ID]
cases *ARGS:
    cargo test --locked --test cases -- {{ARGS}}

# Raw HTTP/1.1 cases against the proxy, with a recorder as its upstream
raw *ARGS:
    cargo test --locked --test raw -- {{ARGS}}

# The proxy runs in a memory cgroup with the sidecar's limit. --full takes half an hour.
# Attacks on the proxy of an honest client: just attack [--full] [--seconds N] [PART-OF-NAME]
attack *ARGS:
    cargo test --locked --test attack -- {{ARGS}}

# Install the Python packages for `servers` in target/servers-venv
servers-setup:
    tests/servers/setup.sh

# Real model servers behind the proxy and real clients in front of it: just servers [PART-OF-NAME]
servers *ARGS:
    cargo test --locked --test servers -- {{ARGS}}

# Installs their packages from PyPI and npm on first use, about 4.5 GB in ~/.cache/groupage-e2e.
# The same with all servers and clients
servers-all: servers-setup
    cargo test --locked --test servers -- --all

# Rates of all servers of the examples, directly and through the proxy from a cold start
servers-rates *ARGS: servers-setup
    cargo build --locked --profile dist
    cargo test --locked --test servers -- --rates --bin target/dist/groupage {{ARGS}}

# The tests start a cluster and remove it. They need root, Linux and Go; see docs/testing.md.
# Tests on a Kubernetes cluster: just e2e [CASE…] [--all] [--shell] [--kubeconfig FILE]
e2e *ARGS:
    cargo test --locked --test e2e -- {{ARGS}}

# Build the image: target/image/groupage.tar, or with `just image cuda` that with CUDA support
image VARIANT="static":
    cargo test --locked --test e2e -- --image {{VARIANT}}

# Follow every item through faults, cancellations and poisoned calls
ledger ITEMS="300000":
    RUST_TEST_THREADS=2 GROUPAGE_LEDGER_ITEMS={{ITEMS}} GROUPAGE_STREAM_LEDGER_CALLS=10000 cargo test --locked --profile sim --test it ledger -- --nocapture

# The same for hours
soak ITEMS="30000000":
    RUST_TEST_THREADS=2 GROUPAGE_LEDGER_ITEMS={{ITEMS}} cargo test --locked --profile sim --test it ledger -- --nocapture

# Generated pairs of calls that must not share a batch
key-pairs PAIRS="1000000":
    GROUPAGE_KEY_PAIRS={{PAIRS}} cargo test --locked --profile sim --package groupage-protocol --lib key_pairs

# With 3 seeds, rows with bursts or near saturation depend on chance. The last lines list the
# criteria that are missed.
# All requirements on the scheduler, in virtual time with 10 seeds per row
sim-table SEEDS="10" *ARGS="":
    -cargo run --locked --profile sim --package groupage-acceptance -- --seeds {{SEEDS}} {{ARGS}}

# The same with 30 seeds per row, each run twice and replayed
sim-long SEEDS="30":
    just sim-table {{SEEDS}}

# Benchmark the data path, as ratios within one run
bench *ARGS:
    cargo bench --locked --bench data_path -- {{ARGS}}

# Compare the scheduler with other rules and the simulator: just bench-schedule [--quick]
bench-schedule *ARGS:
    cargo bench --locked --bench schedule -- {{ARGS}}

# Prints the share of the direct rate that remains or is gained. Every proxy starts cold.
# Compare direct and proxied load: just bench-no-harm [--seconds N] [PART-OF-A-ROW]
bench-no-harm *ARGS:
    cargo bench --locked --bench no_harm -- {{ARGS}}

# The same with real servers, installed from PyPI: just bench-real [SECONDS [PART-OF-A-NAME]...]
bench-real *ARGS:
    benches/rivals/no_harm.sh {{ARGS}}

# Measures memory and CPU time of the controller, and the time until all have an edited policy.
# Connect 10,000 sidecars to one controller: just bench-streams [STREAMS]
bench-streams *ARGS:
    cargo bench --locked --bench streams -- {{ARGS}}

# Benchmark generated text in front of an overloaded engine
bench-generate *ARGS:
    cargo bench --locked --bench generate -- {{ARGS}}

# Benchmark merging and splitting of bodies beside serde_json
bench-splice *ARGS:
    cargo bench --locked --package groupage-protocol --bench splice -- {{ARGS}}

# Benchmark the core: time and allocations per item, plans
bench-core *ARGS:
    cargo bench --locked --bench core -- {{ARGS}}

# Rate of the engine beside onnxruntime: just bench-encode
bench-encode *ARGS:
    sh src/engine/tests/setup.sh
    cargo bench --locked --package groupage-engine --bench encode -- {{ARGS}}

# Rate and latency of the engine over HTTP beside FastAPI with onnxruntime: just bench-engine-http
bench-engine-http *ARGS:
    sh src/engine/tests/setup.sh --http
    cargo bench --locked --features engine --bench serve_engine -- {{ARGS}}

# Writes docs/gpu-results.md. Without a GPU it fails, and measures nothing.
# Check the engine on a GPU of this machine: just gpu [build | check]
gpu *ARGS:
    python3 tests/gpu/run.py {{ARGS}}

# Compile the CUDA kernels to PTX with the pinned compiler: just kernels [--check | --gates]
kernels *ARGS:
    python3 src/engine/cuda/kernels/build.py {{ARGS}}

# Needs cargo-deny, cargo-mutants, and cargo-fuzz with a nightly toolchain.
# All slow checks beyond the tests
audit: deny faults fuzz-all mutants (attack "--full")

# Check licences, bans, sources and advisories of dependencies
deny:
    cargo deny --locked check

# Apply planted faults to the core, each of which the simulator must detect
faults:
    tests/faults/run.sh

# New inputs are kept in target/fuzz. Failing inputs have to be added to fuzz/corpus.
# Run one fuzz target: just fuzz read_call 600
fuzz TARGET SECONDS="60":
    mkdir -p target/fuzz/{{TARGET}}
    cargo +nightly fuzz run {{TARGET}} target/fuzz/{{TARGET}} fuzz/corpus/{{TARGET}} -- -max_total_time={{SECONDS}}

# Run every fuzz target
fuzz-all SECONDS="60":
    for target in $(ls fuzz/corpus); do just fuzz "$target" {{SECONDS}} || exit 1; done

# Find mutants of the pure parts that no test detects
mutants:
    cargo mutants --file 'src/batching/**' --file 'src/protocol/**' -- --workspace --lib --test it

# Bump the version and tag: see release.toml
release LEVEL:
    cargo release {{LEVEL}}
