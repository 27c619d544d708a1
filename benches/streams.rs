//! Load of many sidecars on one controller: `just bench-streams`, or
//! `cargo bench --bench streams -- [STREAMS]`.
//!
//! The controller is the real binary in its own process, connected to the API server of the tests.
//! The sidecars are real clients over TLS in this process, each with its own token. The benchmark
//! measures memory and CPU time of the controller while all sidecars report every 5 s, and the time
//! from an edit of the policy at the API server until the last sidecar has received it. Tokens are
//! reviewed at 50 per second by design, so that opening 10,000 streams takes over three minutes.
//!
//! Without `--bench`, as `just bench-tiny` runs it, it opens 200 streams and only verifies that all
//! sidecars receive the policy.

#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]
#![expect(clippy::unwrap_used, reason = "a bench that cannot continue reports its place")]

use std::time::Duration;

/// The API server of the tests, and the controller process that uses it.
#[path = "../tests/it/controller"]
mod controller {
    #[expect(dead_code, unused_imports, reason = "the tests of the controller use all of it")]
    mod api;
    #[path = "../../../benches/streams/controller_process.rs"]
    pub(crate) mod controller_process;
}

use controller::controller_process::ControllerProcess;

/// Number of streams by default, and in `just bench-tiny`.
const STREAMS: usize = 10_000;
const STREAMS_IN_TESTS: usize = 200;
/// Limits: memory in MiB, and time until all sidecars have an edited policy.
const MEMORY_MIB_MAX: u64 = 1024;
const PUSH_MAX: Duration = Duration::from_secs(5);
/// Number of edits of the policy, and the time over which CPU time is measured.
const EDITS: usize = 5;
const STEADY: Duration = Duration::from_secs(30);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    let test = !has("--bench") || has("--test");
    let wanted = args.iter().find_map(|arg| arg.parse().ok());
    let streams = wanted.unwrap_or(if test { STREAMS_IN_TESTS } else { STREAMS });
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(run(streams, test));
    runtime.shutdown_background();
}

async fn run(streams: usize, test: bool) {
    let mut controller = ControllerProcess::start(streams).await;
    let empty = controller.memory_mib();
    let opened = controller.open().await;
    println!("{streams} streams open and configured after {opened:.1?} (tokens are reviewed at 50/s)");
    if test {
        controller.edit().await;
        println!("ok: an edit was pushed to all");
        return;
    }
    let before = controller.processor();
    tokio::time::sleep(STEADY).await;
    let used = controller.processor() - before;
    let memory = controller.memory_mib();
    println!("memory: {memory} MiB resident, {empty} MiB before the first stream");
    println!(
        "processor: {:.1} % of a core while all report every 5 s",
        100.0 * used.as_secs_f64() / STEADY.as_secs_f64()
    );
    let mut times = Vec::new();
    for _ in 0..EDITS {
        times.push(controller.edit().await);
    }
    times.sort();
    let (median, worst) = (times[EDITS / 2], times[EDITS - 1]);
    println!("an edit pushed to all: median {median:.2?}, worst {worst:.2?} of {EDITS}");
    println!("memory after them: {} MiB resident", controller.memory_mib());
    let met = |met: bool| if met { "met" } else { "missed" };
    println!(
        "limits: memory {} ({memory} of {MEMORY_MIB_MAX} MiB), time {} ({worst:.2?} of {PUSH_MAX:?})",
        met(memory <= MEMORY_MIB_MAX),
        met(worst <= PUSH_MAX)
    );
}
