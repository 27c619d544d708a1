//! `groupage demo`: shows the effect of batching on this machine, in half a minute.
//!
//! With `--engine`, the engine executes a real model instead (`engine`).
//!
//! Starts a simulated model server on a loopback socket, the real proxy in front of it, and an
//! open-loop load that is sent to either. The comparison is repeated with a server that batches by
//! itself, in front of which the proxy forwards each call. All printed figures are counted from
//! real calls; only the model's compute time is simulated.

#[cfg(feature = "engine")]
mod engine;

use std::io::{IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args as ClapArgs;

use crate::api::v1alpha1::EngineDevice;
use crate::app::{AppOptions, EXIT_INTERNAL, RunningApp, build_runtime, start};
use crate::batching::{CostClassId, FlowMode, FlowReport};
use crate::config::{self, EngineConfig, MachineLimits, Overrides, SourcedValue};
use crate::error::BoxError;
use crate::telemetry::log::LevelHandle;
use crate::testkit::load::{OpenConfig, OpenLoad, PreparedCalls, Report, start_open_loop};
use crate::testkit::server::{InternalBatching, Server, ServerConfig, ServerHandle};
use crate::testkit::{Route, ServerAddr};

/// Compute time of the simulated model for n items: a + b·n.
const BASE: Duration = Duration::from_millis(9);
const PER_ITEM: Duration = Duration::from_micros(600);
/// Calls that wait in the simulated server before it rejects more.
const QUEUE: usize = 64;
/// The server that batches by itself. It computes in half the time at a higher rate, so that
/// learning fits into the demo. Its front end works in parallel to the model, an advantage that is
/// lost if whole batches arrive. At this rate the server keeps up in both cases.
const INNER_BASE: Duration = Duration::from_micros(4500);
const INNER_PER_ITEM: Duration = Duration::from_micros(300);
const INNER: InternalBatching = InternalBatching {
    items_max: 256,
    admitted_items_max: QUEUE,
    front: Duration::from_micros(50),
    front_item: Duration::from_micros(250),
};
const INNER_RATE: f64 = 1.5;
/// Name of its load in the table.
const SELF_BATCHING: &str = "self-batching";
/// Maximum duration of its runs, which otherwise have the duration of the others.
const INNER_RUN_MAX: Duration = Duration::from_secs(2);
/// Interval between two progress updates.
const PROGRESS: Duration = Duration::from_millis(500);

/// Rates of the passes against the simulated servers, in calls per second.
const RATE: f64 = 700.0;
const IDLE_RATE: f64 = 20.0;
/// Name of the load that a server cannot answer one call at a time.
const BUSY_PASS: &str = "busy";
/// Number of characters of the longest bar.
const BAR_MAX: u8 = 50;

/// Arguments of `groupage demo`.
#[derive(Debug, Clone, ClapArgs)]
pub(super) struct Args {
    /// Directory of a model that the engine executes, as of `groupage proxy --engine`: compares calls
    /// executed one at a time with batches
    #[arg(long, value_name = "MODEL_DIR")]
    engine: Option<PathBuf>,
    /// Device that executes the model: Auto, Cpu or Cuda
    #[arg(
        long,
        value_name = "DEVICE",
        default_value = "Auto",
        requires = "engine",
        value_parser = config::parse_engine_device
    )]
    engine_device: EngineDevice,
    /// Calls per second under the busy load [default: 700; with --engine, twice the rate that the model
    /// reaches with one call at a time]
    #[arg(long, value_name = "N")]
    rate: Option<f64>,
    /// Calls per second under the idle load [default: 20; with --engine, a fifth of that rate]
    #[arg(long, value_name = "N")]
    idle_rate: Option<f64>,
    /// Seconds for each of the four runs against the first server, or the model
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// Seed of the arrivals; equal seeds give equal arrivals
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
}

/// Result of one run of the load.
struct RunResult {
    pass: &'static str,
    way: &'static str,
    rate: f64,
    report: Report,
    items_per_batch: f64,
}

pub(super) fn run(args: &Args) -> ExitCode {
    // The load and the simulated server share the machine with the proxy, so use all cores.
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let runtime = match build_runtime(threads) {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error.into(), EXIT_INTERNAL),
    };
    let run = async {
        match &args.engine {
            None => run_demo(args).await,
            Some(model) => {
                let engine = EngineConfig { device: args.engine_device, ..EngineConfig::new(model) };
                run_model(args, &engine).await
            }
        }
    };
    match runtime.block_on(run) {
        Ok(()) => ExitCode::SUCCESS,
        // The code of `groupage proxy` and `groupage doctor` for a model that cannot be served.
        Err(error) if args.engine.is_some() => fail(&error, config::EXIT_CONFIG),
        Err(error) => fail(&error, EXIT_INTERNAL),
    }
}

#[cfg(feature = "engine")]
async fn run_model(args: &Args, engine: &EngineConfig) -> Result<(), BoxError> {
    engine::run_demo(args, engine).await
}

#[cfg(not(feature = "engine"))]
fn run_model(_: &Args, engine: &EngineConfig) -> std::future::Ready<Result<(), BoxError>> {
    let reason = "this build has no engine: build it with `--features engine`";
    std::future::ready(Err(format!("--engine {}: {reason}", engine.model.display()).into()))
}

fn fail(error: &BoxError, code: u8) -> ExitCode {
    eprintln!("the demo cannot run: {error}");
    ExitCode::from(code)
}

async fn run_demo(args: &Args) -> Result<(), BoxError> {
    let plain = ServerConfig { base: BASE, per_item: PER_ITEM, slots: 1, queue_max: QUEUE, ..ServerConfig::default() };
    let stand_in = Server::start(plain).await?;
    let mut proxy = proxy(&stand_in)?;
    let through = *proxy.listen.first().ok_or("the proxy has no listener")?;
    println!("stand-in model server  {}  one slot, t(n) = 9 ms + 0.6 ms·n, with a queue of {QUEUE}", stand_in.url());
    println!("groupage proxy         http://{through}  no policy: all defaults");
    println!(
        "load                   open loop, Poisson arrivals, one item a call, {} s a run; latency from the scheduled time",
        args.seconds
    );
    println!();
    let mut rows = Vec::new();
    let span = Duration::from_secs(args.seconds);
    for (pass, rate) in [(BUSY_PASS, args.rate.unwrap_or(RATE)), ("idle", args.idle_rate.unwrap_or(IDLE_RATE))] {
        for (way, target) in [("direct", stand_in.addr()), ("groupage", through)] {
            let run = LoadRun { pass, way, rate, span, to: target };
            rows.push(run.execute(args, &stand_in, async |load| progress(pass, way, load).await).await?.0);
        }
    }
    proxy.drain().await;
    let concluded = run_self_batching(args, &mut rows).await?;
    print_table(&rows);
    print_chart(&rows);
    println!("{concluded}");
    println!("every answer was checked: {} wrong", count_wrong(&rows));
    println!("next: groupage proxy --upstream http://127.0.0.1:8080   in front of your own server");
    Ok(())
}

/// Runs the load against the server that batches by itself. Returns the proxy's conclusion about
/// it.
async fn run_self_batching(args: &Args, rows: &mut Vec<RunResult>) -> Result<String, BoxError> {
    let batches = ServerConfig {
        base: INNER_BASE,
        per_item: INNER_PER_ITEM,
        slots: 1,
        queue_max: QUEUE,
        inner: Some(INNER),
        ..ServerConfig::default()
    };
    let stand_in = Server::start(batches).await?;
    let mut proxy = proxy(&stand_in)?;
    let through = *proxy.listen.first().ok_or("the proxy has no listener")?;
    println!();
    println!(
        "another server         {}  batches by itself: the server computes all waiting calls together, t(n) = 4.5 ms + 0.3 ms·n",
        stand_in.url()
    );
    println!("groupage proxy         http://{through}  no policy");
    println!();
    let span = Duration::from_secs(args.seconds).min(INNER_RUN_MAX);
    for (way, to) in [("direct", stand_in.addr()), ("groupage", through)] {
        let run = LoadRun { pass: SELF_BATCHING, way, rate: args.rate.unwrap_or(RATE) * INNER_RATE, span, to };
        rows.push(run.execute(args, &stand_in, async |load| progress(SELF_BATCHING, way, load).await).await?.0);
    }
    let learned = proxy.learned().await.ok_or("the scheduler has stopped")?;
    proxy.drain().await;
    let open = |(_, flow): &(CostClassId, FlowReport)| matches!(flow.mode, FlowMode::Open(_));
    let conclusion = if learned.flows.iter().all(open) {
        "no queue inside that server and forwarded each call at once"
    } else {
        "a queue inside that server and merged calls"
    };
    Ok(format!("{SELF_BATCHING}: the proxy measured {conclusion}"))
}

/// Starts the real proxy on a free port, without a policy.
fn proxy(stand_in: &ServerHandle) -> Result<RunningApp, BoxError> {
    let upstream = Some(SourcedValue::flag("--upstream", stand_in.url()));
    start_proxy(None, Overrides { upstream, ..Overrides::default() })
}

/// Starts the real proxy on a free port. `server` names its model server.
fn start_proxy(policy: Option<&config::LoadedPolicy>, server: Overrides) -> Result<RunningApp, BoxError> {
    let overrides = Overrides {
        listen: Some(SourcedValue::flag("--listen", vec!["127.0.0.1:0".to_owned()])),
        metrics: Some(SourcedValue::flag("--metrics", "off".to_owned())),
        admin: Some(SourcedValue::flag("--admin", "off".to_owned())),
        ..server
    };
    let policy = config::build(policy, &overrides, &MachineLimits::read()).map_err(|errors| errors.render(false))?;
    start(AppOptions { policy, level: LevelHandle::disabled(), seed: 1, drain_token: None })
}

/// Parameters of one run of the load.
#[derive(Debug, Clone, Copy)]
struct LoadRun {
    pass: &'static str,
    way: &'static str,
    rate: f64,
    span: Duration,
    to: SocketAddr,
}

// === impl LoadRun ===

impl LoadRun {
    /// Runs the load to its end; `look` observes it meanwhile.
    async fn execute<T>(
        self,
        args: &Args,
        stand_in: &ServerHandle,
        look: impl AsyncFn(&OpenLoad) -> Result<T, BoxError>,
    ) -> Result<(RunResult, T), BoxError> {
        let before = stand_in.stats();
        let calls = PreparedCalls::new(Route::Embeddings, 1, args.seed);
        let mut config = OpenConfig::new(ServerAddr::Tcp(self.to), calls, self.rate, self.span);
        config.seed = args.seed;
        let load = start_open_loop(config);
        let found = look(&load).await?;
        let report = load.finish().await?;
        let items_per_batch = stand_in.stats().since(&before).items_per_call();
        Ok((RunResult { pass: self.pass, way: self.way, rate: self.rate, report, items_per_batch }, found))
    }
}

/// Shows the progress of a run on one line of the terminal until it ends. Prints nothing if standard
/// error is no terminal, since the line is overwritten with carriage returns.
async fn progress(pass: &str, way: &str, load: &OpenLoad) -> Result<(), BoxError> {
    if !std::io::stderr().is_terminal() {
        return Ok(());
    }
    let mut tick = tokio::time::interval(PROGRESS);
    while !load.is_finished() {
        tick.tick().await;
        print_progress(pass, way, load)?;
    }
    writeln!(std::io::stderr())?;
    Ok(())
}

fn print_progress(pass: &str, way: &str, load: &OpenLoad) -> std::io::Result<()> {
    let now = load.snapshot();
    write!(
        std::io::stderr(),
        "\r{pass:<13} {way:<11} {:>6} offered {:>6} served {:>6} refused   p50 {}  p99 {}   ",
        now.offered,
        now.served,
        now.refused,
        millis(now.p50),
        millis(now.p99)
    )
}

fn print_table(rows: &[RunResult]) {
    println!();
    println!("load          path         offered/s  served/s       p50       p99   items/batch  refused");
    for row in rows {
        let report = &row.report;
        println!(
            "{:<13} {:<11} {:>10.0} {:>9.1} {:>9} {:>9} {:>13.1} {:>7.1}%",
            row.pass,
            row.way,
            row.rate,
            report.calls_per_second(),
            millis(report.p50()),
            millis(report.p99()),
            row.items_per_batch,
            percent(report.refused + report.failed, report.offered),
        );
    }
    println!();
}

/// Prints the rates of the busy load as bars.
fn print_chart(rows: &[RunResult]) {
    let rates = || rows.iter().filter(|row| row.pass == BUSY_PASS).map(|row| (row.way, row.report.calls_per_second()));
    let most = rates().fold(0.0_f64, |most, (_, rate)| most.max(rate));
    println!("calls served per second, {BUSY_PASS} load");
    for (way, rate) in rates() {
        println!("  {way:<11} {} {rate:.1}", draw_bar(rate, most));
    }
    println!();
}

/// Returns a bar as long as the share of a value in the largest one.
fn draw_bar(value: f64, most: f64) -> String {
    let columns = value / most * f64::from(BAR_MAX);
    let filled = (1..=BAR_MAX).filter(|column| f64::from(*column) - 0.5 <= columns).count();
    "█".repeat(filled)
}

fn count_wrong(rows: &[RunResult]) -> u64 {
    rows.iter().map(|row| row.report.wrong).sum()
}

fn millis(duration: Duration) -> String {
    format!("{:.2} ms", duration.as_secs_f64() * 1e3)
}

#[expect(clippy::cast_precision_loss, reason = "counts of a demo")]
fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches as _;

    use super::*;

    #[test]
    fn bars_have_the_lengths_of_their_values() {
        let length = |value, most| draw_bar(value, most).chars().count();
        assert_eq!(length(693.0, 693.0), usize::from(BAR_MAX));
        assert_eq!(length(102.4, 693.0), 7);
        assert_eq!(length(0.0, 0.0), 0, "no call was served");
    }

    #[test]
    fn a_device_is_named_together_with_a_model() {
        let parse = |arguments: &[&str]| {
            let command = Args::augment_args(clap::Command::new("demo").no_binary_name(true));
            let matches = command.try_get_matches_from(arguments)?;
            Args::from_arg_matches(&matches).map(|args| args.engine_device)
        };
        assert_eq!(parse(&["--engine", "m", "--engine-device", "cpu"]).unwrap(), EngineDevice::Cpu);
        assert_eq!(parse(&["--engine", "m"]).unwrap(), EngineDevice::Auto);
        assert_eq!(parse(&[]).unwrap(), EngineDevice::Auto);
        assert!(parse(&["--engine-device", "cpu"]).unwrap_err().to_string().contains("--engine <MODEL_DIR>"));
    }
}
