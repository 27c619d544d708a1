//! The scheduler on real sockets, compared with other batching rules and with the simulator:
//! `just bench-schedule`, or `cargo bench --bench schedule`.
//!
//! 1. Rows: five upstreams under Poisson arrivals, bursts and closed loops. Five contestants have
//!    the same arrivals at the same time, each in front of its own mock server: no proxy, KServe's
//!    blocking window, the best window of a grid, BentoML's cork, and Groupage. The simulator runs
//!    the same arrivals with the same lag, which is the time of a lone call beyond its execution.
//! 2. Idle: latency added to a single call, over persistent upstream connections.
//! 3. Share: closed loops, as a share of the mock server's own rate with batches of min(clients,
//!    32) sent directly.
//! 4. Restart: goodput lost when the proxy is killed and started again with its saved state.
//!
//! KServe's rule is the policy `Window` with one slot, and a window with any number of batches in
//! flight is `Static` with many slots: both use the same proxy with another policy. No policy
//! implements the cork, so the rule of the simulator is used behind a minimal proxy
//! (`schedule/cork_proxy.rs`).
//!
//! Each run starts cold; calls from 8 s on count. Figures are medians of paired runs. `--quick`
//! runs each row once, and shorter; `--test` (as `just bench-tiny` runs it) takes two tiny rows.
//! Arguments other than flags select rows or parts by name. The
//! last line counts the limits met and missed.

#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use groupage::simulator::baseline::Baseline;
use groupage::simulator::groupage_policy::GroupagePolicy;
use groupage::testkit::load::{ClosedConfig, OpenConfig, PreparedCalls, Report, run_closed_loop, start_open_loop};
use groupage::testkit::server::{Server, ServerConfig, ServerHandle};
use groupage::testkit::{Route, ServerAddr};

#[path = "schedule/cork_proxy.rs"]
mod cork_proxy;
#[path = "data_path/process.rs"]
#[expect(dead_code, reason = "the data path's bench uses all of it")]
mod process;
#[path = "schedule/row.rs"]
mod row;
#[path = "support/statistics.rs"]
mod statistics;

use cork_proxy::CorkProxy;
use process::Process;
use row::{GeneratedRow, Outcome, ServerKind, THINK, rows};
use statistics::median;

/// Names of the contestants. The arrays of runs and of servers are in the same order.
const CONTESTANTS: [&str; 5] = ["direct", "KServe", "window", "cork", "ours"];
/// Index of Groupage.
const OURS: usize = 4;
/// Maximum delay of KServe's window: its default of 5 s, times four like every other time here.
const KSERVE_DELAY: Duration = Duration::from_secs(20);
/// Maximum number of items of KServe's window, which is its default.
const KSERVE_ITEMS: u32 = 32;
/// Time after the last call by which every SLO here is missed.
const GRACE: Duration = Duration::from_millis(1500);
/// Number of rows that run concurrently. They leave most of two cores idle.
const ROWS_AT_ONCE: usize = 3;
/// Number of slots that no window uses up.
const SLOTS_MANY: u32 = 64;
/// Limits: difference of goodput and mean from the simulator, goodput of another contestant beyond
/// that of Groupage, latency added to a single call, and goodput lost by a restart.
const GOODPUT_OFF_MAX: f64 = 0.03;
const MEAN_OFF_MAX: f64 = 0.05;
const CONTESTANT_BETTER_MAX: f64 = 0.01;
const IDLE_ADDED_MS_MAX: f64 = 0.15;
const RESTART_LOST_MAX: f64 = 0.01;
/// Calls per second in the restart part, as in the row with four slots.
const RESTART_RATE: f64 = 1250.0;

/// Extent of the measurements.
#[derive(Clone, Copy)]
struct Scale {
    /// Time of the arrivals of a row.
    horizon: Duration,
    /// Number of runs of a row.
    repeats: u64,
    /// Duration of a run of the other parts.
    short: Duration,
    /// Number of such runs.
    short_repeats: usize,
}

/// Latency of a call beyond its execution: directly to the mock server, and through the proxy.
#[derive(Debug, Clone, Copy)]
struct CallLag {
    direct: Duration,
    proxied: Duration,
}

/// Results of a row: the runs of each contestant.
struct RowContest {
    name: &'static str,
    /// The arrivals of each run.
    generated: Vec<GeneratedRow>,
    /// The best window of the grid: number of items and delay.
    window: (u32, Duration),
    /// Runs on sockets.
    real: [Vec<Outcome>; 5],
    simulated: [Vec<Outcome>; 5],
}

/// Number of limits met and missed.
#[derive(Default)]
struct Tally {
    /// `false` for runs that are too short to be judged.
    judging: bool,
    met: u32,
    missed: u32,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let tiny = !has("--bench") || has("--test");
    let ms = Duration::from_millis;
    let scale = match () {
        () if tiny => Scale { horizon: ms(300), repeats: 1, short: ms(60), short_repeats: 1 },
        () if has("--quick") => Scale { horizon: ms(16_000), repeats: 1, short: ms(1000), short_repeats: 3 },
        () => Scale { horizon: ms(28_000), repeats: 3, short: ms(3000), short_repeats: 5 },
    };
    let chosen: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let is_selected = |part: &str| chosen.is_empty() || chosen.iter().any(|name| part.contains(name.as_str()));
    let mut tally = Tally { judging: !tiny, ..Tally::default() };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let lag = measure_lag(scale).await;
        println!(
            "lag: a lone call takes {:.2?} longer than its execution, {:.2?} through the proxy",
            lag.direct, lag.proxied
        );
        println!("rows: goodput and mean in ms, on sockets / in the simulator, medians of {} runs", scale.repeats);
        let mut rows = rows();
        if tiny {
            rows.retain(|row| matches!(row.name, "affine, Poisson" | "affine, closed 32"));
        }
        rows.retain(|row| is_selected(row.name));
        // The simulator runs first, because it would disturb concurrent measurements.
        let mut contests: Vec<RowContest> =
            rows.into_iter().map(|row| RowContest::simulate(&row, scale, lag)).collect();
        while !contests.is_empty() {
            let rest = contests.split_off(contests.len().min(ROWS_AT_ONCE));
            let runs: Vec<_> = contests.into_iter().map(|contest| tokio::spawn(contest.run_on_sockets())).collect();
            for run in runs {
                run.await.expect("a row").judge(&mut tally);
            }
            contests = rest;
        }
        if is_selected("idle") {
            measure_idle(scale, &mut tally).await;
        }
        if is_selected("share") {
            measure_share(scale, &mut tally).await;
        }
        if is_selected("restart") {
            measure_restart(scale, &mut tally).await;
        }
    });
    println!("{} met, {} missed", tally.met, tally.missed);
}

fn simulate_contestants(generated: &GeneratedRow, window: (u32, Duration), lag: CallLag) -> [Outcome; 5] {
    let baseline = |rule: &Baseline, lag| generated.simulated(lag, |_| rule.build());
    let cap = generated.row.cap;
    [
        baseline(&Baseline::Direct, lag.direct),
        baseline(&Baseline::KServe { items: KSERVE_ITEMS, delay: KSERVE_DELAY }, lag.proxied),
        baseline(&Baseline::Window { items: window.0, delay: window.1 }, lag.proxied),
        baseline(&Baseline::Cork { items: cap }, lag.proxied),
        generated.simulated(lag.proxied, |seed| Box::new(GroupagePolicy::with_cap_only(cap, seed))),
    ]
}

/// Runs all contestants concurrently, each in front of its own mock server, so that a disturbance
/// affects all.
async fn run_contestants(generated: &GeneratedRow, window: (u32, Duration)) -> [Outcome; 5] {
    let row = &generated.row;
    let mut servers = Vec::new();
    for _ in CONTESTANTS {
        servers.push(Server::start(row.server()).await.expect("a stand-in"));
    }
    let kserve = policy("Window", KSERVE_ITEMS, KSERVE_DELAY, 1);
    let window = policy("Static", window.0, window.1, SLOTS_MANY);
    let ours = format!(
        "slo: {{latencyP99: {}ms}}\nlimits: {{batchItemsMax: {}}}\nscheduling: {{policy: Adaptive}}\n",
        row.slo.as_millis(),
        row.cap
    );
    let proxies: Vec<Process> = [(1, &kserve), (2, &window), (4, &ours)]
        .into_iter()
        .map(|(server, policy): (usize, &String)| Process::groupage(&servers[server].url(), policy))
        .collect();
    let cork = CorkProxy::start(servers[3].addr(), &Baseline::Cork { items: row.cap }, row.slo).await;
    let addresses = [servers[0].addr(), proxies[0].listen, proxies[1].listen, cork.addr, proxies[2].listen];
    let runs = addresses.map(|to| tokio::spawn(run_load(generated.clone(), to)));
    let mut outcomes = [Outcome { goodput: 0.0, mean: 0.0 }; 5];
    for (outcome, run) in outcomes.iter_mut().zip(runs) {
        let report = run.await.expect("a load");
        assert_eq!(report.wrong, 0, "every answer is checked");
        *outcome = Outcome { goodput: report.share_within(row.slo), mean: report.mean().as_secs_f64() * 1e3 };
    }
    outcomes
}

/// Returns a policy without an SLO, which sheds no calls.
fn policy(name: &str, items: u32, delay: Duration, slots: u32) -> String {
    let delay = delay.as_micros();
    format!(
        "limits: {{queueDelayMax: {delay}us, slotsMax: {slots}, queueItemsMax: 100000}}\n\
         scheduling: {{policy: {name}, items: {items}, delay: {delay}us, slots: {slots}}}\n"
    )
}

async fn run_load(generated: GeneratedRow, to: SocketAddr) -> Report {
    let calls = PreparedCalls::new(Route::Predict, 1, 1);
    let target = ServerAddr::Tcp(to);
    let Some(clients) = generated.row.clients() else {
        let open_config = OpenConfig::new(target, calls, 1.0, generated.horizon);
        let config = OpenConfig { times: generated.times, warm_up: generated.from, grace: GRACE, ..open_config };
        return start_open_loop(config).finish().await.expect("a load");
    };
    let (duration, warm_up) = (generated.horizon - generated.from, generated.from);
    run_closed_loop(ClosedConfig { target, calls, clients, duration, warm_up, fresh: false, think: Some(THINK) }).await
}

/// Measures the lag of a lone call, directly and through the proxy.
async fn measure_lag(scale: Scale) -> CallLag {
    let base = Duration::from_millis(20);
    let mock = stand_in(base, None).await;
    let proxy = Process::groupage(&mock.url(), "scheduling: {policy: Adaptive}\n");
    let (mut direct, mut proxied) = (Vec::new(), Vec::new());
    for _ in 0..scale.short_repeats {
        direct.push(run_clients(scale, mock.addr(), 1, 1).await.p50().as_secs_f64());
        proxied.push(run_clients(scale, proxy.listen, 1, 1).await.p50().as_secs_f64());
    }
    let lag = |latencies: &[f64]| Duration::from_secs_f64(median(latencies)).saturating_sub(base);
    CallLag { direct: lag(&direct), proxied: lag(&proxied) }
}

/// Measures the latency that the proxy adds to a single call of 2 ms.
async fn measure_idle(scale: Scale, tally: &mut Tally) {
    let mock = stand_in(Duration::from_millis(2), None).await;
    let yaml = "scheduling: {policy: Adaptive}\nproxy: {connection: {reuse: Always, http2: Never}}\n";
    let proxy = Process::groupage(&mock.url(), yaml);
    let mut added = Vec::new();
    for _ in 0..scale.short_repeats * 2 - 1 {
        let direct = run_clients(scale, mock.addr(), 1, 1).await.p50().as_secs_f64();
        added.push((run_clients(scale, proxy.listen, 1, 1).await.p50().as_secs_f64() - direct) * 1e3);
    }
    println!("idle: one client, 2 ms a call, kept upstream connections");
    tally.judge("ms added to the median", median(&added), IDLE_ADDED_MS_MAX);
}

/// Measures the rate of closed loops through the proxy, as a share of the rate of the mock server
/// with batches of min(clients, 32). Two clients send these directly, so that one batch is queued
/// while the other is executed.
async fn measure_share(scale: Scale, tally: &mut Tally) {
    println!(
        "share: one slot, at most 32 items; of the stand-in's own rate with batches of min(clients, 32) sent directly"
    );
    for (clients, millis, share_min) in [(64, 5, 0.95), (8, 20, 0.93), (32, 20, 0.93)] {
        let mock = stand_in(Duration::from_millis(millis), Some(32)).await;
        let yaml = "limits: {batchItemsMax: 32}\nscheduling: {policy: Adaptive}\n";
        let proxy = Process::groupage(&mock.url(), yaml);
        let mut shares = Vec::new();
        for _ in 0..scale.short_repeats {
            let own = run_clients(scale, mock.addr(), 2, clients.min(32)).await.items_per_second();
            let report = run_clients(scale, proxy.listen, clients, 1).await;
            assert_eq!(report.wrong, 0, "every answer is checked");
            shares.push(report.items_per_second() / own);
        }
        tally.at_least(&format!("share with {clients} clients, {millis} ms a call"), median(&shares), share_min);
    }
}

/// Measures the goodput lost in the first two seconds after the proxy is killed and started again
/// with its saved state, at the rate of the row with four slots.
async fn measure_restart(scale: Scale, tally: &mut Tally) {
    let Some(row) = rows().into_iter().find(|row| row.server_kind == ServerKind::FourSlots) else { return };
    let server = Server::start(row.server()).await.expect("a stand-in");
    let measured = Duration::from_secs(2).min(scale.horizon / 4);
    let mut lost = Vec::new();
    for seed in 0..scale.short_repeats {
        let state = tempfile::tempdir().expect("a folder");
        let policy = format!(
            "slo: {{latencyP99: {}ms}}\nlimits: {{batchItemsMax: {}}}\nproxy: {{state: {}}}\n",
            row.slo.as_millis(),
            row.cap,
            state.path().display()
        );
        let goodput = async |to: SocketAddr, horizon: Duration| {
            let calls = PreparedCalls::new(Route::Predict, 1, 1);
            let config = OpenConfig::new(ServerAddr::Tcp(to), calls, RESTART_RATE, horizon);
            let config = OpenConfig { warm_up: horizon - measured, grace: GRACE, seed: seed as u64, ..config };
            start_open_loop(config).finish().await.expect("a load").share_within(row.slo)
        };
        let first = Process::groupage(&server.url(), &policy);
        let before = goodput(first.listen, measured * 4).await;
        drop(first);
        let again = Process::groupage(&server.url(), &policy);
        lost.push(before - goodput(again.listen, measured).await);
    }
    println!("restart: four slots, {RESTART_RATE} calls/s, killed after 8 s");
    tally.judge("goodput lost in the first 2 s", median(&lost), RESTART_LOST_MAX);
}

/// Runs closed-loop clients without think time.
async fn run_clients(scale: Scale, to: SocketAddr, clients: usize, items: usize) -> Report {
    run_closed_loop(ClosedConfig {
        target: ServerAddr::Tcp(to),
        calls: PreparedCalls::new(Route::Embeddings, items, 1),
        clients,
        duration: scale.short,
        warm_up: scale.short / 6,
        fresh: false,
        think: None,
    })
    .await
}

async fn stand_in(base: Duration, items_max: Option<usize>) -> ServerHandle {
    let listen = ServerAddr::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let config =
        ServerConfig { listen, base, per_item: Duration::ZERO, queue_max: 4096, items_max, ..ServerConfig::default() };
    Server::start(config).await.expect("a stand-in")
}

fn median_outcome(outcomes: &[Outcome]) -> Outcome {
    let of = |part: fn(&Outcome) -> f64| median(&outcomes.iter().map(part).collect::<Vec<_>>());
    Outcome { goodput: of(|outcome| outcome.goodput), mean: of(|outcome| outcome.mean) }
}

// === impl RowContest ===

impl RowContest {
    /// Simulates a row once per repetition, each with other arrivals.
    fn simulate(row: &row::Row, scale: Scale, lag: CallLag) -> Self {
        let generated: Vec<GeneratedRow> = (1..=scale.repeats).map(|seed| row.generate(scale.horizon, seed)).collect();
        let window = generated[0].tuned_window(lag.proxied);
        let mut simulated: [Vec<Outcome>; 5] = Default::default();
        for generated in &generated {
            for (all, one) in simulated.iter_mut().zip(simulate_contestants(generated, window, lag)) {
                all.push(one);
            }
        }
        Self { name: row.name, generated, window, real: Default::default(), simulated }
    }

    /// Runs the same arrivals on sockets.
    async fn run_on_sockets(mut self) -> Self {
        for generated in &self.generated {
            for (all, one) in self.real.iter_mut().zip(run_contestants(generated, self.window).await) {
                all.push(one);
            }
        }
        self
    }

    /// Prints the medians of the runs and judges them.
    fn judge(&self, tally: &mut Tally) {
        println!("  {}, window N={} W={:?}", self.name, self.window.0, self.window.1);
        for ((name, real), simulated) in CONTESTANTS.iter().zip(&self.real).zip(&self.simulated) {
            let (real, simulated) = (median_outcome(real), median_outcome(simulated));
            println!(
                "    {name:<8} {:.3} / {:.3}   {:>8.1} / {:>8.1}",
                real.goodput, simulated.goodput, real.mean, simulated.mean
            );
        }
        let (ours, model) = (median_outcome(&self.real[OURS]), median_outcome(&self.simulated[OURS]));
        tally.judge("goodput off the simulator's", (ours.goodput - model.goodput).abs(), GOODPUT_OFF_MAX);
        tally.judge("mean off the simulator's", (ours.mean / model.mean - 1.0).abs(), MEAN_OFF_MAX);
        for (name, contestant) in CONTESTANTS.iter().zip(&self.real).take(OURS) {
            let pairs = contestant.iter().zip(&self.real[OURS]);
            let differences: Vec<f64> = pairs.map(|(contestant, ours)| contestant.goodput - ours.goodput).collect();
            let better = median(&differences);
            tally.judge(&format!("goodput of {name} beyond ours"), better, CONTESTANT_BETTER_MAX);
        }
    }
}

// === impl Tally ===

impl Tally {
    fn judge(&mut self, what: &str, value: f64, most: f64) {
        self.count(value <= most, &format!("{what}: {value:.3}, at most {most}"));
    }

    fn at_least(&mut self, what: &str, value: f64, least: f64) {
        self.count(value >= least, &format!("{what}: {value:.3}, at least {least}"));
    }

    /// Counts and prints a limit.
    fn count(&mut self, met: bool, line: &str) {
        if !self.judging {
            return;
        }
        if met {
            self.met += 1;
        } else {
            self.missed += 1;
        }
        println!("    {} {line}", if met { "met   " } else { "MISSED" });
    }
}
