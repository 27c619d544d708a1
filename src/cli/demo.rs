//! `groupage demo`: what batching does, on this machine, in half a minute.
//!
//! A stand-in model server on a real loopback socket, the real proxy in front of it, and an open-loop load that goes to either. Every number printed is
//! counted here; nothing is simulated but the model's own time.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args as ClapArgs;

use super::compose::{Starting, start};
use super::{EXIT_INTERNAL, Running};
use crate::config::{self, Given, Machine, Overrides};
use crate::error::BoxError;
use crate::standin::load::{Calls, OpenConfig, Report, open};
use crate::standin::server::{Running as StandIn, Server, ServerConfig};
use crate::standin::{Route, Target};
use crate::telemetry::log::LevelHandle;

/// The stand-in's time for n items: a + b·n.
const BASE: Duration = Duration::from_millis(9);
const PER_ITEM: Duration = Duration::from_micros(600);
/// Calls that wait in the stand-in before it refuses.
const QUEUE: usize = 64;
/// Between two lines of progress.
const PROGRESS: Duration = Duration::from_millis(500);

/// How much to show.
#[derive(Debug, Clone, ClapArgs)]
pub(super) struct Args {
    /// Calls a second in the busy pass
    #[arg(long, default_value_t = 700.0, value_name = "N")]
    rate: f64,
    /// Calls a second in the idle pass
    #[arg(long, default_value_t = 20.0, value_name = "N")]
    idle_rate: f64,
    /// Seconds for each of the four runs
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// The same seed gives the same arrivals
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
}

/// One run of the load.
struct Row {
    pass: &'static str,
    way: &'static str,
    rate: f64,
    report: Report,
    items_per_batch: f64,
}

pub(super) fn run(args: &Args) -> ExitCode {
    let runtime = match super::runtime() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error.into()),
    };
    match runtime.block_on(show(args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn fail(error: &BoxError) -> ExitCode {
    eprintln!("the demo cannot run: {error}");
    ExitCode::from(EXIT_INTERNAL)
}

async fn show(args: &Args) -> Result<(), BoxError> {
    let listen = Target::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let stand_in = Server::start(ServerConfig {
        listen,
        base: BASE,
        per_item: PER_ITEM,
        slots: 1,
        queue_max: QUEUE,
        ..ServerConfig::default()
    })
    .await?;
    let mut proxy = proxy(&stand_in)?;
    let through = *proxy.listen.first().ok_or("the proxy listens nowhere")?;
    println!(
        "stand-in model server  {}  one slot, t(n) = 9 ms + 0.6 ms·n, a queue of {QUEUE} before it",
        stand_in.url()
    );
    println!("groupage proxy         http://{through}  no policy: every default");
    println!(
        "load                   open loop, Poisson arrivals, one item a call, {} s a run; latency from the scheduled time",
        args.seconds
    );
    println!();
    let mut rows = Vec::new();
    for (pass, rate) in [("busy", args.rate), ("idle", args.idle_rate)] {
        for (way, target) in [("direct", stand_in.addr()), ("groupage", through)] {
            let before = stand_in.stats();
            let report = load(args, pass, way, rate, target).await?;
            let items_per_batch = stand_in.stats().since(&before).items_per_call();
            rows.push(Row { pass, way, rate, report, items_per_batch });
        }
    }
    proxy.drain().await;
    table(&rows);
    Ok(())
}

/// The real proxy, on a free port, with no policy.
fn proxy(stand_in: &StandIn) -> Result<Running, BoxError> {
    let any = || "127.0.0.1:0".to_owned();
    let overrides = Overrides {
        listen: Some(Given::flag("--listen", vec![any()])),
        upstream: Some(Given::flag("--upstream", stand_in.url())),
        metrics: Some(Given::flag("--metrics", "off".to_owned())),
        admin: Some(Given::flag("--admin", "off".to_owned())),
        ..Overrides::default()
    };
    let policy = config::build(None, &overrides, &Machine::read()).map_err(|errors| errors.render(false))?;
    start(Starting { policy, level: LevelHandle::none(), seed: 1 })
}

/// One run, with its progress on one line.
async fn load(args: &Args, pass: &str, way: &str, rate: f64, to: SocketAddr) -> Result<Report, BoxError> {
    let calls = Calls::new(Route::Embeddings, 1, args.seed);
    let mut config = OpenConfig::new(Target::Tcp(to), calls, rate, Duration::from_secs(args.seconds));
    config.seed = args.seed;
    let load = open(config);
    let mut tick = tokio::time::interval(PROGRESS);
    while !load.is_finished() {
        tick.tick().await;
        let now = load.snapshot();
        print!(
            "\r{pass} {way:<9} {:>6} offered {:>6} served {:>6} refused   p50 {}  p99 {}   ",
            now.offered,
            now.served,
            now.refused,
            millis(now.p50),
            millis(now.p99)
        );
        std::io::stdout().flush()?;
    }
    println!();
    Ok(load.finish().await?)
}

fn table(rows: &[Row]) {
    println!();
    println!("pass  way        offered/s  served/s      p50       p99   items/batch  refused");
    for row in rows {
        let report = &row.report;
        println!(
            "{:<5} {:<9} {:>10.0} {:>9.1} {:>9} {:>9} {:>13.1} {:>7.1}%",
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
    let wrong: u64 = rows.iter().map(|row| row.report.wrong).sum();
    println!();
    println!("every answer was checked: {wrong} wrong");
    println!("next: groupage proxy --upstream http://127.0.0.1:8080   in front of a server of your own");
}

fn millis(duration: Duration) -> String {
    format!("{:.2} ms", duration.as_secs_f64() * 1e3)
}

#[expect(clippy::cast_precision_loss, reason = "counts of a demo")]
fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}
