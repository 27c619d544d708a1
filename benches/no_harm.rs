//! Cost of the proxy where batching cannot help, and its gain where it can: `just bench-no-harm`,
//! or `cargo bench --bench no_harm`.
//!
//! 1. Rows: servers that are serial, execute 4 to 256 calls at once, have a cost per item, form
//!    batches themselves or take seconds, under closed loops of 1 to 200 clients with one API key,
//!    four, or one each.
//! 2. `change`: servers that change while they serve.
//! 3. `refusing`: servers that accept one item per call.
//!
//! Each row is measured directly and through a proxy that starts cold with the default policy, in
//! one run: concurrently, each in front of its own server, or in turns if they would share the
//! processor. Servers and proxies are separate processes. Streams are answered in one piece.
//!
//! `--pass` measures against the same proxy in mode `Passthrough` instead of the direct path: where
//! the processor is the bottleneck, any proxy takes a part of it from the server, and the remaining
//! difference is due to batching. `--seconds N` is the time of each row. `--test` (as `just
//! bench-tiny` runs it) takes a few tiny rows and judges none. Arguments other than flags select rows
//! by a part of their name. `GROUPAGE_BINARY=PATH` measures another build of the proxy. The last line counts
//! the limits met and missed. If one is missed, the limiter's state and the share by seconds are
//! printed below the row.

#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]
#![expect(clippy::cast_precision_loss, reason = "counts of a bench")]

use std::net::SocketAddr;
use std::time::Duration;

use groupage::testkit::Route;
use groupage::testkit::load::{Report, SLICE_INTERVAL};

#[path = "no_harm/change.rs"]
mod change;
#[path = "data_path/process.rs"]
#[expect(dead_code, reason = "the data path's bench uses all of it")]
mod data_path_process;
#[path = "no_harm/measure.rs"]
mod measure;
#[path = "no_harm/process.rs"]
mod process;
#[path = "no_harm/refusing.rs"]
mod refusing;
#[path = "no_harm/row.rs"]
mod row;

use data_path_process::Process;
use measure::{Tally, after, figures, loads, seconds, share};
use process::{StandIn, exchange};
use row::{Row, RunOrder, rows};

/// Default time of a row in seconds.
const SECONDS: u64 = 15;
/// Number of turns of direct, pass-through and proxied load, if they are not concurrent.
const TURNS: u32 = 5;
/// Share of the direct rate above which a gain is printed.
const GAIN: f64 = 1.1;
/// Rows of a tiny run, which include both orders, a gain, and two groups.
const TINY: [&str; 4] = ["64 at once, 5 ms, 4 own", "serial, 20 ms, 32 of one key", "slow model beside", "about 0 ms"];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let tiny = !has("--bench") || has("--test");
    let after_flag = arguments.iter().position(|argument| argument == "--seconds").map(|at| at + 1);
    let seconds = after_flag.and_then(|at| arguments.get(at)?.parse().ok()).unwrap_or(SECONDS);
    let names = arguments.iter().enumerate().filter(|(at, name)| !name.starts_with('-') && Some(*at) != after_flag);
    let chosen: Vec<&String> = names.map(|(_, name)| name).collect();
    let is_selected = |row: &str| chosen.is_empty() || chosen.iter().any(|name| row.contains(name.as_str()));
    let lasts = if tiny { Duration::from_millis(150) } else { Duration::from_secs(seconds) };
    let mut tally = Tally { judging: !tiny, ..Tally::default() };
    let reference = if has("--pass") { Reference::Pass } else { Reference::Direct };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        for row in rows() {
            if is_selected(row.name) && (!tiny || TINY.iter().any(|name| row.name.starts_with(name))) {
                measure_row(&row, lasts, reference, &mut tally).await;
            }
        }
        change::run(&mut tally, is_selected, reference, tiny).await;
        let first = if tiny { Duration::ZERO } else { Duration::from_secs(1) };
        let only = |name: &str| is_selected(name) && (!tiny || name.starts_with("refusing: 422"));
        refusing::run(&mut tally, only, reference, (first, lasts / 2)).await;
    });
    println!("{} met, {} missed", tally.met, tally.missed);
}

async fn measure_row(row: &Row, lasts: Duration, reference: Reference, tally: &mut Tally) {
    // Calls complete in waves. The measurement ends between two of them.
    let lone = row.model.lone().max(Duration::from_millis(1));
    let waves = u32::try_from(lasts.as_nanos() / lone.as_nanos()).unwrap_or(u32::MAX);
    let lasts = if waves >= 2 { lone.mul_f64(f64::from(waves) - 0.5) } else { lasts };
    println!("{}{}", row.name, if reference == Reference::Pass { ", direct is mode Passthrough" } else { "" });
    let (direct, pass, proxied, proxy) = match row.order {
        RunOrder::Concurrent => measure_concurrently(row, lasts, reference).await,
        RunOrder::InTurns => in_turns(row, lasts / TURNS, reference).await,
    };
    let before = tally.missed;
    for (at, group) in row.groups.iter().enumerate() {
        let (direct, proxied) = (&direct[at], &proxied[at]);
        let share = share(proxied, direct);
        let gain = if share >= GAIN { format!(", {share:.1} times direct") } else { String::new() };
        println!("  {:<32} direct  {}", group.name(), figures(direct));
        if let Some(pass) = pass.get(at) {
            println!("  {:<32} pass    {}", "", figures(pass));
        }
        println!("  {:<32} proxied {}  share {share:.3}{gain}", "", figures(proxied));
        let against = if row.of_pass { pass.get(at).unwrap_or(direct) } else { direct };
        if !tally.judge(proxied, against, row.share_min) {
            println!("    share by seconds: {}", seconds(proxied, direct));
        }
    }
    if tally.missed > before {
        diagnose(&proxy).await;
    }
}

/// Reference of the measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reference {
    Direct,
    Pass,
}

/// Returns the address of the reference, and the proxy in front of it, which must live during the
/// measurement.
fn referred(reference: Reference, server: &StandIn) -> (SocketAddr, Option<Process>) {
    let proxy = (reference == Reference::Pass).then(|| passing(server));
    (proxy.as_ref().map_or(server.listen, |proxy| proxy.listen), proxy)
}

fn passing(server: &StandIn) -> Process {
    Process::groupage(&server.url(), "mode: Passthrough\n")
}

type RowReports = (Vec<Report>, Vec<Report>, Vec<Report>, Process);

async fn measure_concurrently(row: &Row, lasts: Duration, reference: Reference) -> RowReports {
    let servers = [StandIn::start(&row.model), StandIn::start(&row.model)];
    let proxy = Process::with_admin(&servers[1].url(), "");
    let (to, _passing) = referred(reference, &servers[0]);
    let time = (Duration::ZERO, lasts);
    let (direct, proxied) = tokio::join!(
        loads(to, Route::Embeddings, &row.groups, time),
        loads(proxy.listen, Route::Embeddings, &row.groups, time)
    );
    (direct, Vec::new(), proxied, proxy)
}

async fn in_turns(row: &Row, lasts: Duration, reference: Reference) -> RowReports {
    let server = StandIn::start(&row.model);
    let (to, _passing) = referred(reference, &server);
    let pass_proxy = row.of_pass.then(|| passing(&server));
    let mut all: [Vec<Option<Report>>; 3] = std::array::from_fn(|_| vec![None; row.groups.len()]);
    let mut proxy = Process::with_admin(&server.url(), "");
    for turn in 0..TURNS {
        if turn > 0 {
            proxy = Process::with_admin(&server.url(), "");
        }
        let ways: [Option<SocketAddr>; 3] =
            [Some(to), pass_proxy.as_ref().map(|proxy| proxy.listen), Some(proxy.listen)];
        for (all, to) in all.iter_mut().zip(ways) {
            let Some(to) = to else { continue };
            let reports = loads(to, Route::Embeddings, &row.groups, (Duration::ZERO, lasts)).await;
            for (sum, report) in all.iter_mut().zip(reports) {
                *sum = Some(after(sum.take(), report));
            }
        }
    }
    let [direct, pass, proxied] = all.map(|reports| reports.into_iter().flatten().collect());
    (direct, pass, proxied, proxy)
}

/// Returns the part of a report from `begin` on. Only its rate is valid.
fn from(report: &Report, begin: Duration) -> Report {
    let slices = usize::try_from(begin.as_nanos() / SLICE_INTERVAL.as_nanos()).unwrap_or(0);
    let served = report.slices.iter().skip(slices).sum();
    Report { served, elapsed: report.elapsed.saturating_sub(begin), ..report.clone() }
}

/// Prints the state of the limiter of each cost class.
async fn diagnose(proxy: &Process) {
    let Some(admin) = proxy.admin else { return };
    let scheduler = exchange(admin, "GET", "/api/scheduler", "").await;
    println!("    concurrency: {}", scheduler["concurrency"]);
}
