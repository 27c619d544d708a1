# Commands for people. CI runs the same commands without this file; `just` is `rust-just` on PyPI.

# What there is
default:
    @just --list --unsorted

# Format
fmt:
    cargo fmt --all

# What CI holds besides the tests
lint:
    cargo fmt --all -- --check
    cargo clippy --locked --all-targets -- -D warnings
    cargo clippy --locked --test sim -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --document-private-items

# Everything that a bare machine can run
test *ARGS:
    cargo test --locked {{ARGS}}

# Rewrite what is generated: reference pages and golden files
update:
    UPDATE=1 cargo test --locked --lib config
    UPDATE=1 cargo test --locked --test it tidy

# The demo
demo *ARGS:
    cargo run --locked --release -- demo {{ARGS}}

# The simulator's story of each seed: just sim 42 43
sim +SEEDS:
    cargo test --locked --profile sim --test sim -- {{SEEDS}}

# Many stories; names the seeds that break a promise
sim-stories COUNT="1000000" FIRST="0":
    cargo test --locked --profile sim --test sim -- --count {{COUNT}} {{FIRST}}

# Protocol cases over sockets: just cases FILE [PART-OF-ID]
cases *ARGS:
    cargo test --locked --test cases -- {{ARGS}}

# Raw HTTP/1.1 cases against the proxy with a recorder behind it
raw *ARGS:
    cargo test --locked --test raw -- {{ARGS}}

# Attacks beside an honest client, in a memory cgroup of the sidecar's limit: just attack [--full] [PART-OF-NAME]; --full takes half an hour
attack *ARGS:
    cargo test --locked --test attack -- {{ARGS}}

# Python servers and clients for `servers`, in .venv
servers-setup:
    tests/servers/setup.sh

# Real model servers behind the proxy, real clients before it
servers *ARGS:
    cargo test --locked --test servers -- {{ARGS}}

# A real Kubernetes cluster, started and taken down here: just e2e [CASE…] [--all] [--shell] [--kubeconfig FILE]. Root, Linux, Go; see docs/testing.md
e2e *ARGS:
    cargo test --locked --test e2e -- {{ARGS}}

# The image: target/image/groupage.tar
image:
    cargo test --locked --test e2e -- --image

# Every item followed through faults, cancels and poison
ledger ITEMS="300000":
    GROUPAGE_LEDGER_ITEMS={{ITEMS}} cargo test --locked --profile sim --test it ledger -- --nocapture

# The same, for hours
soak ITEMS="30000000":
    GROUPAGE_LEDGER_ITEMS={{ITEMS}} cargo test --locked --profile sim --test it ledger -- --nocapture

# All that is asked of the scheduler, in virtual time, 10 seeds a row (3 leave bursts and near saturation to luck); the last lines name each bar missed
sim-table SEEDS="10" *ARGS="":
    cargo build --locked --profile sim
    -target/sim/groupage simulate --table --seeds {{SEEDS}} {{ARGS}}

# The same with 30 seeds a row, each run twice and replayed; some 20 minutes on two cores
sim-long SEEDS="30":
    just sim-table {{SEEDS}}

# What the data path costs, as ratios within one run
bench *ARGS:
    cargo bench --locked --bench data_path -- {{ARGS}}

# The scheduler on sockets beside the rules of others and beside the simulator: just bench-schedule [--quick]
bench-schedule *ARGS:
    cargo bench --locked --bench schedule -- {{ARGS}}

# Servers and callers directly and through the proxy in one run, cold: the share of the direct rate that is left, or gained: just bench-no-harm [--seconds N] [PART-OF-A-ROW]
bench-no-harm *ARGS:
    cargo bench --locked --bench no_harm -- {{ARGS}}

# The same before real servers, which it installs from PyPI: just bench-real [SECONDS [PART-OF-A-NAME]...]
bench-real *ARGS:
    benches/rivals/no_harm.sh {{ARGS}}

# Ten thousand sidecars on one controller: its memory, its processor time, how soon an edit is told to all: just bench-streams [STREAMS]
bench-streams *ARGS:
    cargo bench --locked --bench streams -- {{ARGS}}

# What the core costs an item: time, allocations, plans
bench-core *ARGS:
    cargo bench --locked --bench core -- {{ARGS}}

# What tests miss. Needs cargo-deny, cargo-fuzz with a nightly toolchain, cargo-mutants; slow
audit: deny faults fuzz-all mutants (attack "--full")

# Licences, bans, sources, advisories
deny:
    cargo deny --locked check

# Planted faults of the core, each of which the simulator must catch
faults:
    tests/faults/run.sh

# One fuzz target: just fuzz read_call 600. What it finds on the way is kept in target/fuzz; what breaks belongs into fuzz/corpus
fuzz TARGET SECONDS="60":
    mkdir -p target/fuzz/{{TARGET}}
    cargo +nightly fuzz run {{TARGET}} target/fuzz/{{TARGET}} fuzz/corpus/{{TARGET}} -- -max_total_time={{SECONDS}}

# Every fuzz target
fuzz-all SECONDS="60":
    for target in $(ls fuzz/corpus); do just fuzz "$target" {{SECONDS}} || exit 1; done

# Mutants of the pure parts that no test notices
mutants:
    cargo mutants --file 'src/batching/**' --file 'src/protocol/**' -- --lib --test it

# Bump, tag: see release.toml
release LEVEL:
    cargo release {{LEVEL}}
