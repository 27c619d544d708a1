//! Attacks on the data port and the metrics port of the real binary while a client makes honest
//! calls, and a run of calls with similar identities:
//! `cargo test --test attack -- [--full] [--seconds N] [PART-OF-NAME…]`.
//!
//! The proxy runs in a memory cgroup with the default limit of the sidecar, if the machine allows
//! one. Attackers are separate processes, each with its own loopback address. By default, an attack
//! takes a few seconds with an eighth of its connections, and five run at once. With `--full`, one
//! runs after another, for a minute with all of its connections, and for ten minutes if its calls
//! all have different merge keys. `--seconds` replaces these times.
//!
//! The names of attacks begin with numbers. Those that are missing here need no process with a
//! memory limit, and every run of the other tests makes them in full:
//!
//! - s1, a server that quotes inputs of one caller in answers to another:
//!   `tests/it/proxy/quoting.rs` and the fuzz target `split_leak`
//! - s6, 2000 idle connections to the webhook beside a review, and s7, 1000 silent connections to
//!   the port of control streams beside a handshake: `tests/it/controller/idle_connections.rs`
//! - s8 also has shared answers that are too slow, after which the members are sent alone:
//!   `tests/it/proxy/isolation.rs`, `src/proxy/bounded_body/tests.rs`
//! - s11, a policy with an `appListen` that runs code in a pod:
//!   `src/policy/config/app_listen/tests.rs`, `tests/data/crd/refused`
//! - s12, a `Host` of a foreign page: `src/runtime/permits/host.rs`,
//!   `tests/it/proxy/admin/host.rs`, `tests/it/controller/end_to_end.rs`
//! - s12, a drain token from an annotation: `src/injector/tests.rs`
//! - s12, a batch label that counts the calls of others: `src/proxy/debug.rs`
//! - s12, a port name as an argument of its own: `src/injector/tests/corners.rs`
//! - s12, token reviews used up by one namespace: `src/control/server/token_review/tests.rs`

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a runner for people and scripts")]

mod attackers;
mod attacks;
mod cgroup;
mod h2;
mod reference_client;
mod identity;
mod server;
#[path = "../support/all.rs"]
#[expect(dead_code, reason = "each test binary uses a part of the support")]
mod support;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};

use self::attackers::Attackers;
use self::attacks::{ATTACKS, Attack, ConnectionBehaviour};
use self::cgroup::MemoryGroup;
use self::reference_client::{HonestClient, ProcessUsage};
use self::server::ModelServer;
use self::support::proxy::{Proxy, Start};
use self::support::upstream::{Upstream, now};

/// The default memory limit of an injected sidecar (`SidecarDefaults`).
const LIMIT: u64 = 128 << 20;
/// Bound on the latency of honest calls during an attack: `LATENCY_FACTOR` times the usual latency,
/// plus `SLACK`.
const LATENCY_FACTOR: u32 = 3;
const SLACK: Duration = Duration::from_millis(50);
/// Slack of a short run, which shares its cores with other work on the machine.
const SLACK_SHORT: Duration = Duration::from_millis(150);
/// Interval between two samples of the proxy's memory and descriptors.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);
/// Time after an attack within which memory and descriptors fall to at most 1.5 times their earlier
/// values.
const RECOVERY: Duration = Duration::from_secs(60);
/// Bound on the growth of memory from the first to the second half of an attack by calls that all
/// differ: a tenth and `FLAT_SLACK` bytes, for pages that the allocator keeps. It applies to
/// attacks of at least `FLAT_FROM`.
const FLAT_FROM: Duration = Duration::from_secs(60);
const FLAT_SLACK: u64 = 2 << 20;
/// Time of a full run of that attack.
const FLAT_TIME: Duration = Duration::from_secs(600);

/// Extent of a run and the bounds that it is judged by.
#[derive(Debug, Clone, Copy)]
struct RunScale {
    /// Number of connections, in eighths of those of a full run.
    eighths: usize,
    /// Duration of the attack.
    time: Duration,
    /// Percentile of the latency of honest calls that is judged.
    percentile: usize,
    /// First second from which calls are judged. All attackers connect at once, which affects less
    /// than 1 % of the calls of a full run but more of a short one.
    judged_from: u64,
    /// Constant part of the bound on the latency.
    slack: Duration,
    /// Minimum fraction of honest calls that are served.
    served: f64,
}

/// Number of short runs at once, each with proxies of its own. They wait most of the time.
const CONCURRENT: usize = 5;

/// Arguments of a run.
#[derive(Debug)]
struct RunOptions {
    full: bool,
    seconds: Option<u64>,
    /// Parts of the names of the attacks that run; empty for all.
    names: Vec<String>,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let is_attacker = args.first().is_some_and(|first| first == attackers::FLAG);
    // Threads inherit the priority, so it is lowered before the runtime starts any.
    if is_attacker && let Err(error) = rustix::process::nice(attackers::NICENESS) {
        eprintln!("the attacker keeps its CPU priority: {error}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    if is_attacker {
        return runtime.block_on(attackers::attack(&args));
    }
    let options = match RunOptions::parse(&args) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let mut failed = 0;
    let mut report = |name: &str, lines: Vec<String>| {
        let fails = lines.iter().any(|line| line.starts_with("FAILED"));
        failed += usize::from(fails);
        println!("{} {name}", if fails { "FAILED" } else { "ok" });
        lines.iter().for_each(|line| println!("    {line}"));
    };
    runtime.block_on(async {
        let mut runs = stream::iter(options.runs()).buffered(if options.full { 1 } else { CONCURRENT });
        while let Some((name, lines)) = runs.next().await {
            report(name, lines);
        }
    });
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

// === impl RunOptions ===

impl RunOptions {
    fn parse(args: &[String]) -> Result<Self, String> {
        let mut options = Self { full: false, seconds: None, names: Vec::new() };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--full" => options.full = true,
                "--seconds" => {
                    let seconds = args.next().and_then(|text| text.parse().ok());
                    options.seconds = Some(seconds.ok_or("--seconds needs a number of seconds")?);
                }
                // Arguments for the test harness of other test binaries.
                flag if flag.starts_with('-') => {}
                name => options.names.push(name.to_owned()),
            }
        }
        Ok(options)
    }

    fn is_selected(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|part| name.contains(part.as_str()))
    }

    /// Returns the selected runs: names, with their measurements and failed checks as lines. A run
    /// starts when it is taken from the iterator.
    fn runs(&self) -> impl Iterator<Item = BoxFuture<'static, (&'static str, Vec<String>)>> {
        let full = self.full;
        let identity = self
            .is_selected(identity::NAME)
            .then(move || start_run(identity::NAME, identity::run(groupage_binary(), full)));
        let selected = ATTACKS.iter().filter(|attack| self.is_selected(attack.name));
        identity.into_iter().chain(selected.map(|attack| start_run(attack.name, run(attack, self.scale(attack)))))
    }

    fn scale(&self, attack: &Attack) -> RunScale {
        let is_long = self.full && matches!(attack.behaviour, ConnectionBehaviour::Differ);
        let scale = if self.full {
            RunScale {
                eighths: 8,
                time: Duration::from_secs(60),
                percentile: 99,
                judged_from: 0,
                slack: SLACK,
                served: 0.99,
            }
        } else {
            RunScale {
                eighths: 1,
                time: Duration::from_secs(4),
                percentile: 95,
                judged_from: 1,
                slack: SLACK_SHORT,
                served: 0.95,
            }
        };
        let time = if is_long { FLAT_TIME } else { scale.time };
        RunScale { time: self.seconds.map_or(time, Duration::from_secs), ..scale }
    }
}

/// Starts a run. An error, or a panic, becomes a failed check.
fn start_run(
    name: &'static str,
    run: impl Future<Output = Result<Vec<String>, String>> + Send + 'static,
) -> BoxFuture<'static, (&'static str, Vec<String>)> {
    let started = tokio::spawn(run);
    async move {
        let result = started.await.unwrap_or_else(|error| Err(error.to_string()));
        (name, result.unwrap_or_else(|error| vec![format!("FAILED: {error}")]))
    }
    .boxed()
}

/// Runs one attack beside a second proxy that is not attacked. Returns the measurements and the
/// failed checks as lines.
async fn run(attack: &'static Attack, scale: RunScale) -> Result<Vec<String>, String> {
    let mut lines = Vec::new();
    let group = MemoryGroup::make(attack.name, LIMIT)
        .inspect_err(|why| lines.push(format!("!!! SKIPPED the memory limit: {why}")))
        .ok();
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let server = Upstream::start(Arc::new(ModelServer)).await.map_err(|error| format!("no model server: {error}"))?;
    let limited = binary(folder.path(), group.as_ref())?;
    let start = Start { binary: limited, upstream: server.address, config: None, metrics: true };
    let mut proxy = Proxy::start(&start).await?;
    let metrics = proxy.metrics.ok_or("no metrics port")?;
    let honest = HonestClient { calls: proxy.listen, probes: metrics };
    honest.run(Duration::from_secs(1)).await;
    let usual = honest.run(Duration::from_secs(2)).await;
    let bystander_server =
        Upstream::start(Arc::new(ModelServer)).await.map_err(|error| format!("no model server: {error}"))?;
    let start = Start { binary: binary(folder.path(), None)?, upstream: bystander_server.address, ..start };
    let bystander = Proxy::start(&start).await?;
    let bystander_client =
        HonestClient { calls: bystander.listen, probes: bystander.metrics.ok_or("no metrics port")? };
    let before = ProcessUsage::of(proxy.id());
    let attackers = Attackers::start(attack, scale.eighths, (proxy.listen, metrics), scale.time)?;
    let half = scale.time / 2;
    let (attacked, not_attacked, (early, late)) =
        tokio::join!(honest.run(scale.time), bystander_client.run(scale.time), async {
            (peak(proxy.id(), half).await, peak(proxy.id(), half).await)
        });
    attackers.end();
    let peak = early.max(late);
    lines.push(format!("usual      {usual}"));
    lines.push(format!("bystander  {not_attacked}"));
    lines.push(format!("attacked   {attacked}"));
    let after = recovered(proxy.id(), before).await;
    lines.push(format!("before     {before}"));
    lines.push(format!("attacked   {peak}, at most {}", group.as_ref().map_or("?".to_owned(), MemoryGroup::peak)));
    lines.push(format!("after      {after}"));
    let slowest = attacked.at_since(scale.percentile, scale.judged_from);
    let limit = |usual: Duration| usual * LATENCY_FACTOR + scale.slack;
    // The attackers use the processor of the same machine. The latency of the proxy that is not
    // attacked includes this effect, so the limit is derived from the larger of both latencies.
    let (strict, limit) = (limit(usual.at(99)), limit(usual.at(99).max(not_attacked.at(scale.percentile))));
    lines.push(format!(
        "judged     p{} {slowest:.1?}, limit {limit:.1?}, without the bystander {strict:.1?}",
        scale.percentile
    ));
    // Calls that all differ leave nothing behind, so memory does not grow with their number.
    let is_flat = !matches!(attack.behaviour, ConnectionBehaviour::Differ)
        || scale.time < FLAT_FROM
        || late.own() <= early.own() / 10 * 11 + FLAT_SLACK;
    let checks = [
        (proxy.fault().is_none(), "the proxy ended or panicked".to_owned()),
        (attacked.share() >= scale.served, format!("{:.2} % of honest calls were served", attacked.share() * 100.0)),
        (slowest <= limit, format!("p{} {slowest:.1?} is above {limit:.1?}", scale.percentile)),
        (group.is_none() || peak.own() <= LIMIT / 10 * 9, format!("{peak} are more than nine tenths of the limit")),
        (is_flat, format!("memory grows: {early} in the first half, {late} in the second")),
        (attacked.probes_failed == 0, format!("{} probes failed", attacked.probes_failed)),
        (after.is_back_to(before), format!("neither memory nor descriptors are back after {RECOVERY:?}")),
    ];
    let fails = checks.iter().filter(|(holds, _)| !holds).map(|(_, what)| format!("FAILED: {what}"));
    lines.extend(fails);
    if lines.iter().any(|line| line.starts_with("FAILED")) {
        lines.extend(proxy.tail().lines().map(str::to_owned));
    }
    Ok(lines)
}

/// Samples the usage of a process for `time` and returns the maximum of each value.
async fn peak(process: u32, time: Duration) -> ProcessUsage {
    let until = now() + time;
    let mut peak = ProcessUsage::of(process);
    while now() < until {
        tokio::time::sleep(SAMPLE_INTERVAL).await;
        peak = peak.max(ProcessUsage::of(process));
    }
    peak
}

/// Waits until the usage of the proxy is back to that of `before`, for at most [`RECOVERY`].
async fn recovered(process: u32, before: ProcessUsage) -> ProcessUsage {
    let until = now() + RECOVERY;
    loop {
        let usage = ProcessUsage::of(process);
        if usage.is_back_to(before) || now() > until {
            return usage;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Returns the binary under test.
fn groupage_binary() -> PathBuf {
    std::env::var_os("GROUPAGE_BINARY").map_or_else(|| env!("CARGO_BIN_EXE_groupage").into(), PathBuf::from)
}

/// Returns the binary, or a script that runs it in the cgroup.
fn binary(folder: &Path, group: Option<&MemoryGroup>) -> Result<PathBuf, String> {
    match group {
        None => Ok(groupage_binary()),
        Some(group) => group.wrapped(&groupage_binary(), folder).map_err(|error| error.to_string()),
    }
}
