//! Text generation on an overloaded engine: `just bench-generate`, or
//! `cargo bench --bench generate`.
//!
//! The engine is a stand-in with continuous batching. It receives 1.5 times as many calls as it can
//! answer, and a fifth of them are urgent. The contestants are the engine alone (`direct`), the
//! proxy with a fixed limit of calls in flight (`slotsMax`), and the proxy that learns the limit
//! (`learned`). All run at the same time with the same calls, and each has an engine of its own.
//!
//! After the time for learning, two figures are measured: the share of urgent calls whose first
//! token arrives within the SLO, and the tokens per second of the engine. `--test` (as `just
//! bench-tiny` runs it) makes a run of a few seconds. The last line counts the criteria that the
//! learned limit meets and misses.

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
#[path = "support/statistics.rs"]
mod statistics;

use engine::{Engine, EngineModel};
use load::CallResult;
use process::Process;
use statistics::median;

/// The engine of every contestant.
const MODEL: EngineModel = EngineModel {
    calls_max: 32,
    // 16 calls of the mean length.
    cache_tokens: 16 * 270,
    step_time: Duration::from_millis(20),
    time_per_call: Duration::from_micros(500),
    time_per_prompt_token: Duration::from_micros(25),
};
/// Minimum and maximum number of tokens of a prompt.
const PROMPTS: (u64, u64) = (20, 400);
/// Minimum and maximum number of tokens of a response.
const LENGTHS: (u64, u64) = (20, 100);
/// Offered load, as a multiple of the engine's capacity.
const OVERLOAD: f64 = 1.5;
/// Maximum time to the first token of an urgent call: that of a conversation in `MLPerf`
/// Inference (`llama2-70b`, scenario Server).
const SLO: Duration = Duration::from_secs(2);
/// Criterion: minimum share of urgent calls within the SLO.
const WITHIN_SLO_MIN: f64 = 0.99;
/// Criterion: minimum rate of tokens, as a share of that of the best other contestant.
const TOKENS_MIN: f64 = 0.97;

/// Times of a run.
#[derive(Debug, Clone, Copy)]
struct RunTimes {
    /// End of the time for learning. Calls that begin earlier are not counted.
    learned: Duration,
    end: Duration,
}

/// Result of a contestant: of the engine alone, or of the proxy with one limit.
#[derive(Debug)]
struct ContestantResult {
    name: String,
    /// Share of the urgent calls that had their first token within the SLO.
    within: f64,
    /// Median time to the first token: of urgent calls, and of all that were answered.
    medians: [Duration; 2],
    /// Tokens per second of the engine.
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
        RunTimes { learned: seconds(120), end: seconds(300) }
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
    let (learned, others) = results.split_last().expect("there is a contestant for each limit");
    let best = others.iter().map(|one| one.tokens).fold(0.0, f64::max);
    let criteria = [learned.within >= WITHIN_SLO_MIN, learned.tokens >= TOKENS_MIN * best];
    println!("tokens: {:.3} of the best other contestant", learned.tokens / best);
    let met = criteria.iter().filter(|met| **met).count();
    println!("{met} met, {} missed", criteria.len() - met);
}

async fn run_all(times: RunTimes) -> Vec<ContestantResult> {
    // Time of the engine for each call while its cache is full: the steps of a call, shared by all
    // calls in them, and the reading of its prompt. Its inverse is the capacity.
    let [prompt, length] = [PROMPTS, LENGTHS].map(|(least, most)| u32::try_from((least + most) / 2).unwrap_or(1));
    let concurrent = u32::try_from(MODEL.cache_tokens).unwrap_or(u32::MAX) / (prompt + length);
    let time_per_call = (MODEL.step_time + MODEL.time_per_call * concurrent) * length / concurrent
        + MODEL.time_per_prompt_token * prompt;
    let rate = OVERLOAD / time_per_call.as_secs_f64();
    let calls = load::plan(1, times.end, rate, PROMPTS, LENGTHS);
    println!("{} calls, {rate:.1} per second, to an engine for {concurrent} calls of the mean length", calls.len());
    // `None` is the engine alone, and `{}` the learned limit, which has to be the last one.
    let limits = [None, Some("{slotsMax: 8}"), Some("{slotsMax: 16}"), Some("{slotsMax: 24}"), Some("{}")];
    let mut runs = Vec::new();
    for limits in limits {
        runs.push(tokio::spawn(run_one(limits, calls.clone(), times)));
    }
    let mut results = Vec::new();
    for run in runs {
        results.push(run.await.expect("a contestant does not panic"));
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
    let count_tokens = async {
        tokio::time::sleep(times.learned).await;
        let before = engine.tokens();
        tokio::time::sleep(times.end - times.learned).await;
        engine.tokens() - before
    };
    let (results, tokens) = tokio::join!(load::run(address, calls, times.end), count_tokens);
    let name = limits.map_or("direct".to_owned(), |limits| match limits {
        "{}" => "learned".to_owned(),
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
        // Calls that begin shortly before the end cannot be answered by any contestant before it.
        let is_counted = |result: &&CallResult| {
            result.call.at >= times.learned && result.call.at + SLO + Duration::from_secs(5) <= times.end
        };
        let all: Vec<&CallResult> = results.iter().filter(is_counted).collect();
        let urgent: Vec<&CallResult> = all.iter().copied().filter(|result| result.call.is_urgent).collect();
        let within = urgent.iter().filter(|result| result.first_token.is_some_and(|first| first <= SLO)).count();
        #[expect(clippy::cast_precision_loss, reason = "some hundreds of calls")]
        let within = within as f64 / urgent.len().max(1) as f64;
        Self { name, within, medians: [median_first_token(&urgent), median_first_token(&all)], tokens }
    }
}

/// Returns the median time to the first token of the answered calls, or zero if none was answered.
fn median_first_token(results: &[&CallResult]) -> Duration {
    let times = results.iter().filter_map(|result| result.first_token);
    let seconds: Vec<f64> = times.map(|time| time.as_secs_f64()).collect();
    Duration::from_secs_f64(median(&seconds))
}
