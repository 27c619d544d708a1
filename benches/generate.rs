//! Generated text in front of an overloaded engine: `just bench-generate`, or
//! `cargo bench --bench generate`.
//!
//! A stand-in engine batches continuously. It gets half as many calls again as it can answer, a fifth
//! of them urgent: directly, through the proxy with fixed numbers of calls in flight, and through the
//! proxy as it learns that number. All have the same calls at the same time, each in front of an
//! engine of its own.
//!
//! Two figures count after the time for learning: the urgent calls whose first token arrives within
//! the SLO, and the tokens of the engine. `--test` (as `cargo test` runs it) is a tiny run. The last
//! line counts the bars met and missed.

#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]
#![expect(clippy::disallowed_methods, reason = "the engine and its clients keep real time")]

use std::time::Duration;

#[path = "generate/engine.rs"]
mod engine;
#[path = "generate/load.rs"]
mod load;
#[path = "data_path/process.rs"]
#[expect(dead_code, reason = "the data path's bench uses all of it")]
mod process;

use engine::{Engine, EngineModel};
use load::CallResult;
use process::Process;

const MODEL: EngineModel = EngineModel {
    calls_max: 16,
    step_time: Duration::from_millis(20),
    time_per_call: Duration::from_micros(500),
    time_per_prompt: Duration::from_millis(5),
};
const LENGTHS: (u64, u64) = (20, 100);
/// Offered load, as a multiple of the engine's capacity.
const OVERLOAD: f64 = 1.5;
/// Maximum time to the first token of an urgent call.
const SLO: Duration = Duration::from_secs(1);
/// Bars: urgent calls within the SLO, and tokens as a part of those of the best fixed number.
const WITHIN: f64 = 0.99;
const TOKENS: f64 = 0.97;

/// Times of a run.
#[derive(Debug, Clone, Copy)]
struct RunTimes {
    /// Calls that begin earlier do not count.
    learned: Duration,
    end: Duration,
}

/// Result of one contestant.
#[derive(Debug)]
struct ContestantResult {
    name: String,
    /// Part of the urgent calls that had their first token within the SLO.
    within: f64,
    /// Median time to the first token: of urgent calls, and of all that were answered.
    medians: [Duration; 2],
    tokens: f64,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let tiny = !has("--bench") || has("--test");
    let seconds = Duration::from_secs;
    let times = if tiny {
        RunTimes { learned: seconds(1), end: seconds(3) }
    } else {
        RunTimes { learned: seconds(60), end: seconds(180) }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let results = runtime.block_on(run_all(times));
    println!("{:>12} {:>8} {:>12} {:>12} {:>10}", "", "in SLO", "urgent p50", "all p50", "tokens/s");
    for ContestantResult { name, within, medians, tokens } in &results {
        println!("{name:>12} {:7.1}% {:12.2?} {:12.2?} {tokens:10.1}", within * 100.0, medians[0], medians[1]);
    }
    if tiny {
        return;
    }
    let (ours, others) = results.split_last().expect("contestants");
    let best = others.iter().map(|one| one.tokens).fold(0.0, f64::max);
    let bars = [ours.within >= WITHIN, ours.tokens >= TOKENS * best];
    println!("tokens {:.3} of the best", ours.tokens / best);
    let met = bars.iter().filter(|met| **met).count();
    println!("{met} met, {} missed", bars.len() - met);
}

async fn run_all(times: RunTimes) -> Vec<ContestantResult> {
    // Calls per second that the engine answers while it is full.
    let calls_max = u32::try_from(MODEL.calls_max).unwrap_or(u32::MAX);
    let mean = u32::try_from((LENGTHS.0 + LENGTHS.1) / 2).unwrap_or(u32::MAX);
    let of_one = (MODEL.step_time + MODEL.time_per_call * calls_max) * mean / calls_max + MODEL.time_per_prompt;
    let rate = OVERLOAD / of_one.as_secs_f64();
    let calls = load::plan(1, times.end, rate, LENGTHS);
    println!("{} calls, {rate:.1} a second, at an engine for {} calls at once", calls.len(), MODEL.calls_max);
    let limits = [None, Some("{slotsMax: 8}"), Some("{slotsMax: 16}"), Some("{slotsMax: 24}"), Some("{}")];
    let mut runs = Vec::new();
    for limits in limits {
        runs.push(tokio::spawn(run_one(limits, calls.clone(), times)));
    }
    let mut results = Vec::new();
    for run in runs {
        results.push(run.await.expect("a contestant"));
    }
    results
}

/// Runs the calls against an engine: directly, or through the proxy with these limits.
async fn run_one(limits: Option<&str>, calls: Vec<load::PlannedCall>, times: RunTimes) -> ContestantResult {
    let engine = Engine::start(MODEL).await;
    let proxy = limits.map(|limits| {
        let classes = "[{name: bulk, weight: 1}, {name: urgent, weight: 8}]";
        let policy = format!("limits: {limits}\npriority: {{header: x-priority, classes: {classes}}}\n");
        Process::groupage(&format!("http://{}", engine.address), &policy)
    });
    let address = proxy.as_ref().map_or(engine.address, |proxy| proxy.listen);
    let counted = async {
        tokio::time::sleep(times.learned).await;
        let before = engine.tokens();
        tokio::time::sleep(times.end - times.learned).await;
        engine.tokens() - before
    };
    let (results, tokens) = tokio::join!(load::run(address, calls, times.end), counted);
    let name = limits.map_or("direct".to_owned(), |limits| match limits {
        "{}" => "ours".to_owned(),
        _ => limits.trim_matches(['{', '}']).to_owned(),
    });
    let seconds = (times.end - times.learned).as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "some thousands of tokens")]
    let tokens = tokens as f64 / seconds;
    ContestantResult::new(name, &results, tokens, times)
}

// === impl ContestantResult ===

impl ContestantResult {
    fn new(name: String, results: &[CallResult], tokens: f64, times: RunTimes) -> Self {
        // Calls of the last moments could not be answered in time by any contestant.
        let counts = |result: &&CallResult| {
            result.call.at >= times.learned && result.call.at + SLO + Duration::from_secs(5) <= times.end
        };
        let all: Vec<&CallResult> = results.iter().filter(counts).collect();
        let urgent: Vec<&CallResult> = all.iter().copied().filter(|result| result.call.is_urgent).collect();
        let within = urgent.iter().filter(|result| result.first_token.is_some_and(|first| first <= SLO)).count();
        #[expect(clippy::cast_precision_loss, reason = "some hundreds of calls")]
        let within = within as f64 / urgent.len().max(1) as f64;
        Self { name, within, medians: [median(&urgent), median(&all)], tokens }
    }
}

fn median(results: &[&CallResult]) -> Duration {
    let mut times: Vec<Duration> = results.iter().filter_map(|result| result.first_token).collect();
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
