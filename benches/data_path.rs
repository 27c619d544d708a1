//! Benchmark of the data path against alternatives, in one run on one machine: `cargo bench`, or
//! `just bench`.
//!
//! 1. Throughput: closed-loop clients through the proxy, as a share of the mock server's own
//!    rate when it receives full batches directly.
//! 2. Idle latency: latency that the proxy adds to a single call, over persistent and over new
//!    upstream connections.
//! 3. Pass-through: CPU time per call and added latency compared with nginx and `HAProxy`, over
//!    8 and 64 persistent HTTP/1.1 connections, and the cost of predicting the effect of batching
//!    (mode `Observe`).
//! 4. Idle process: memory, context switches, and memory after a peak of connections.
//!
//! Shared machines are noisy, so figures are ratios within the run and medians of repetitions. With
//! `--test` (as `just bench-tiny` runs it) everything is tiny. Arguments other than flags select parts
//! by name, and rows of the first part as `throughput/Adaptive/5/64` (policy, milliseconds per
//! call, clients) or a piece of it. `GROUPAGE_BINARY=PATH` measures another build, so that two can
//! be compared in turns.

#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]
#![expect(clippy::cast_precision_loss, reason = "counts of a bench")]

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use groupage::testkit::load::{ClosedConfig, PreparedCalls, run_closed_loop};
use groupage::testkit::server::{Server, ServerConfig, ServerHandle};
use groupage::testkit::{Route, ServerAddr};

#[path = "data_path/pass_through.rs"]
mod pass_through;
#[path = "data_path/process.rs"]
#[expect(dead_code, reason = "the no_harm bench reads the admin port")]
mod process;
#[path = "data_path/reference_proxies.rs"]
mod reference_proxies;
#[path = "support/statistics.rs"]
mod statistics;

use process::Process;
use statistics::median;

/// Extent of the measurements.
#[derive(Clone, Copy)]
struct Scale {
    run: Duration,
    warm_up: Duration,
    repeats: usize,
    /// Number of rounds of the pass-through part.
    rounds: usize,
    connections: usize,
    settle: Duration,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let tiny = !arguments.iter().any(|argument| argument == "--bench")
        || arguments.iter().any(|argument| argument == "--test");
    let ms = Duration::from_millis;
    let scale = if tiny {
        Scale { run: ms(100), warm_up: ms(20), repeats: 1, rounds: 1, connections: 50, settle: ms(200) }
    } else {
        Scale { run: ms(3000), warm_up: ms(500), repeats: 3, rounds: 7, connections: 5000, settle: ms(30_000) }
    };
    let chosen: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let is_selected = |part: &str| chosen.is_empty() || chosen.iter().any(|name| part.contains(name.as_str()));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        throughput(scale, is_selected).await;
        if is_selected("idle-latency") {
            idle_latency(scale).await;
        }
        if is_selected("pass-through") {
            pass_through::run(scale).await;
        }
        if is_selected("idle-process") {
            idle_process(scale).await;
        }
    });
}

async fn stand_in(base: Duration, items_max: Option<usize>) -> ServerHandle {
    let listen = ServerAddr::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let config = ServerConfig {
        listen,
        base,
        per_item: Duration::ZERO,
        slots: 1,
        queue_max: 4096,
        items_max,
        ..ServerConfig::default()
    };
    Server::start(config).await.expect("a stand-in")
}

fn load(scale: Scale, to: SocketAddr, clients: usize, items: usize) -> ClosedConfig {
    ClosedConfig {
        target: ServerAddr::Tcp(to),
        calls: PreparedCalls::new(Route::Embeddings, items, 1),
        clients,
        duration: scale.run,
        warm_up: scale.warm_up,
        fresh: false,
        think: None,
    }
}

async fn throughput(scale: Scale, is_selected: impl Fn(&str) -> bool) {
    let rows = [
        ("WorkConserving", 5, &[1, 8, 32, 64, 256][..]),
        ("Adaptive", 5, &[1, 8, 32, 64, 256]),
        ("Adaptive", 20, &[8, 32]),
    ];
    let rows = rows.map(|(policy, millis, all)| {
        let wanted = |clients: &&usize| is_selected(&format!("throughput/{policy}/{millis}/{clients}"));
        (policy, millis, all.iter().filter(wanted).copied().collect::<Vec<usize>>())
    });
    if rows.iter().all(|(_, _, all)| all.is_empty()) {
        return;
    }
    println!(
        "throughput: one slot, at most 32 items; share of the stand-in's own rate with batches of min(clients, 32) sent directly"
    );
    println!("  policy           ms  clients    items/s    share   items/batch       p50   CPU a call");
    for (policy, millis, all) in rows {
        if all.is_empty() {
            continue;
        }
        let mock = stand_in(Duration::from_millis(millis), Some(32)).await;
        let yaml = format!("limits: {{batchItemsMax: 32}}\nscheduling: {{policy: {policy}}}\n");
        let proxy = Process::groupage(&mock.url(), &yaml);
        for clients in all {
            // Upper bound for this number of clients: a call of each in every batch.
            let mut own = Vec::new();
            for _ in 0..scale.repeats {
                own.push(run_closed_loop(load(scale, mock.addr(), 2, clients.min(32))).await.items_per_second());
            }
            let own = median(&own);
            let (mut rates, mut p50, mut sizes, mut cpu) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            for _ in 0..scale.repeats {
                let (before, cpu_before) = (mock.stats(), process::cpu(&proxy.pids));
                let report = run_closed_loop(load(scale, proxy.listen, clients, 1)).await;
                assert_eq!(report.wrong, 0, "every answer is checked");
                // Calls of the warm-up take CPU time but are not in `served`, so their share is
                // subtracted.
                let share = scale.run.as_secs_f64() / (scale.run + scale.warm_up).as_secs_f64();
                let spent = (process::cpu(&proxy.pids) - cpu_before).as_secs_f64() * share;
                cpu.push(spent * 1e6 / report.served.max(1) as f64);
                sizes.push(mock.stats().since(&before).items_per_call());
                rates.push(report.items_per_second());
                p50.push(report.p50().as_secs_f64() * 1e3);
            }
            let (rate, p50, cpu) = (median(&rates), median(&p50), median(&cpu));
            println!(
                "  {policy:<14} {millis:>4} {clients:>8} {rate:>10.0}    {:.3}   {:>11.1} {p50:>6.2} ms {cpu:>9.1} us",
                rate / own,
                median(&sizes)
            );
        }
    }
}

async fn idle_latency(scale: Scale) {
    println!("idle latency: one client, 2 ms a call; what the proxy adds to the median");
    let mock = stand_in(Duration::from_millis(2), None).await;
    let kept = Process::groupage(&mock.url(), "proxy: {connection: {reuse: Always, http2: Never}}\n");
    let fresh = Process::groupage(&mock.url(), "proxy: {connection: {reuse: Never, http2: Never}}\n");
    let (mut with_kept, mut with_fresh) = (Vec::new(), Vec::new());
    for _ in 0..scale.repeats * 3 {
        let short = Scale { run: scale.run / 2, ..scale };
        let direct = run_closed_loop(load(short, mock.addr(), 1, 1)).await.p50();
        let added = |p50: Duration| (p50.as_secs_f64() - direct.as_secs_f64()) * 1e3;
        with_kept.push(added(run_closed_loop(load(short, kept.listen, 1, 1)).await.p50()));
        with_fresh.push(added(run_closed_loop(load(short, fresh.listen, 1, 1)).await.p50()));
    }
    println!("  kept upstream connections   +{:.3} ms", median(&with_kept));
    println!("  fresh upstream connections  +{:.3} ms", median(&with_fresh));
}

async fn idle_process(scale: Scale) {
    println!("idle process: no connection open");
    let mock = stand_in(Duration::ZERO, None).await;
    let proxy = Process::groupage(&mock.url(), "");
    let pid = proxy.pids[0];
    tokio::time::sleep(scale.settle / 15).await;
    let idle = process::rss(pid);
    let before = process::context_switches(pid);
    let watched = scale.settle / 3;
    tokio::time::sleep(watched).await;
    let switches = process::context_switches(pid) - before;
    println!("  RSS {:.1} MiB, {:.2} context switches a second", mib(idle), switches as f64 / watched.as_secs_f64());
    let mut connections = Vec::with_capacity(scale.connections);
    for _ in 0..scale.connections {
        let mut stream = TcpStream::connect(proxy.listen).expect("a connection");
        process::half_a_call(&mut stream);
        connections.push(stream);
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let peak = process::rss(pid);
    drop(connections);
    let mut after = process::rss(pid);
    let mut waited = Duration::ZERO;
    while waited < scale.settle * 2 && after > idle * 3 / 2 {
        tokio::time::sleep(scale.settle / 30).await;
        waited += scale.settle / 30;
        after = process::rss(pid);
    }
    println!(
        "  {} connections with 16 KiB each: RSS {:.1} MiB at the peak, {:.1} MiB ({:.2} x idle) {:.0} s after",
        scale.connections,
        mib(peak),
        mib(after),
        after as f64 / idle as f64,
        waited.as_secs_f64()
    );
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
