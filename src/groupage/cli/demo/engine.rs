//! `groupage demo --engine`: the engine with a real model, one call at a time and in batches, under
//! the same load.
//!
//! The correct answers are recorded before the load: each call is sent alone, and every later answer
//! to it must have the same bytes. The two proxies run one after the other, so that one model is in
//! memory at a time.

use std::time::Duration;

use groupage_engine::Model;
use groupage_serving::{ModelRoute, ServedModel};
use serde_json::json;

use super::{Args, BUSY_PASS, RunResult, count_wrong, print_chart, print_table, progress, start_proxy};
use crate::api::v1alpha1::EngineDevice;
use crate::app::RunningApp;
use crate::batching::rng::SplitMix64;
use crate::config::{self, EngineConfig, Overrides, SourcedValue};
use crate::error::BoxError;
use crate::telemetry::Metrics;
use crate::telemetry::names::Metric;
use crate::testkit::ServerAddr;
use crate::testkit::load::{
    ClosedConfig, OpenConfig, PreparedCalls, post_json, record_calls, run_closed_loop, start_open_loop,
};

/// Number of different texts.
const TEXTS: usize = 64;
/// Smallest and largest number of words of a text: questions and short passages.
const WORDS: (u64, u64) = (4, 40);
/// The most frequent words of English texts, which every vocabulary has.
const VOCABULARY: [&str; 24] = [
    "the", "of", "and", "people", "in", "water", "is", "you", "that", "it", "house", "was", "for", "on", "are",
    "music", "with", "as", "city", "his", "they", "at", "be", "this",
];
/// The policy of the runs with one call at a time.
const ONE_AT_A_TIME: &str = "limits: {batchItemsMax: 1}";
/// Duration of the measurement of the rate with one call at a time.
const PROBE: Duration = Duration::from_secs(1);
/// Offered load of the passes, as a multiple of that rate.
const BUSY: f64 = 2.0;
const IDLE: f64 = 0.2;
/// Gain below which batching is reported to bring little: the spread of the rates of two equal runs.
const GAIN_MIN: f64 = 1.1;

/// The two ways to execute calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExecutionMode {
    OneAtATime,
    Batched,
}

/// A pass of the load.
#[derive(Debug, Clone, Copy)]
struct LoadPass {
    name: &'static str,
    /// Calls per second.
    rate: f64,
}

pub(super) async fn run_demo(args: &Args, engine: &EngineConfig) -> Result<(), BoxError> {
    let served = ServedModel::new(Model::open(&engine.model)?, 0);
    let requests = requests(&served, args.seed);
    let name = served.name().to_owned();
    drop(served);
    println!("model                  {name}, executed by the engine of this process");
    println!("calls                  {TEXTS} different texts of {} to {} words, one a call", WORDS.0, WORDS.1);
    let mut app = start_engine(engine, ExecutionMode::OneAtATime)?;
    let target = ServerAddr::Tcp(*app.listen.first().ok_or("the proxy has no listener")?);
    println!("device of the engine   {}", wait_loaded(&app, engine).await?);
    let calls = record_calls(target.clone(), requests.clone()).await?;
    let lone = measure_lone_calls(target, &calls).await;
    println!("one call at a time     {lone:.1} calls/s, by one client");
    println!(
        "load                   open loop, Poisson arrivals, {} s a run; latency from the scheduled time",
        args.seconds
    );
    println!();
    let busy = LoadPass { name: BUSY_PASS, rate: args.rate.unwrap_or(lone * BUSY) };
    let idle = LoadPass { name: "idle", rate: args.idle_rate.unwrap_or(lone * IDLE) };
    let mut rows = Vec::new();
    for pass in [busy, idle] {
        rows.push(run_pass(args, &app, &calls, pass, ExecutionMode::OneAtATime).await?);
    }
    app.drain().await;
    drop(app);
    let mut app = start_engine(engine, ExecutionMode::Batched)?;
    let target = ServerAddr::Tcp(*app.listen.first().ok_or("the proxy has no listener")?);
    // Waits for the model, and compares the first answers of this executor with those of the other.
    let again = record_calls(target, requests).await?;
    let differing = again.responses().zip(calls.responses()).filter(|(new, old)| new != old).count();
    for pass in [busy, idle] {
        rows.push(run_pass(args, &app, &calls, pass, ExecutionMode::Batched).await?);
    }
    app.drain().await;
    rows.sort_by_key(|row| row.pass != busy.name);
    print_table(&rows);
    print_chart(&rows);
    println!("{}", describe_gain(&rows));
    println!(
        "every answer was compared with that to the same call alone: {} wrong",
        count_wrong(&rows) + differing as u64
    );
    println!("next: groupage proxy {} --listen 127.0.0.1:8080", to_flags(engine));
    Ok(())
}

/// Returns the flags that select a model and its device.
fn to_flags(engine: &EngineConfig) -> String {
    let EngineConfig { model, device, .. } = engine;
    match device {
        EngineDevice::Auto => format!("--engine {}", model.display()),
        EngineDevice::Cpu | EngineDevice::Cuda => format!("--engine {} --engine-device {device:?}", model.display()),
    }
}

/// Waits until the model is loaded, and returns a description of the device.
async fn wait_loaded(app: &RunningApp, engine: &EngineConfig) -> Result<String, BoxError> {
    let error = || format!("the model cannot be loaded: `groupage doctor {}` prints the reason", to_flags(engine));
    app.engine_device().await.ok_or_else(|| error().into())
}

/// Starts the proxy with the engine.
fn start_engine(engine: &EngineConfig, mode: ExecutionMode) -> Result<RunningApp, BoxError> {
    let policy = match mode {
        ExecutionMode::OneAtATime => Some(config::load(ONE_AT_A_TIME, "demo").map_err(|errors| errors.render(false))?),
        ExecutionMode::Batched => None,
    };
    let overrides = Overrides {
        engine: Some(SourcedValue::flag("--engine", engine.model.display().to_string())),
        engine_device: Some(SourcedValue::flag("--engine-device", format!("{:?}", engine.device))),
        ..Overrides::default()
    };
    start_proxy(policy.as_ref(), overrides)
}

/// Returns the calls per second of one client.
async fn measure_lone_calls(target: ServerAddr, calls: &PreparedCalls) -> f64 {
    let config = ClosedConfig {
        target,
        calls: calls.clone(),
        clients: 1,
        duration: PROBE,
        warm_up: Duration::ZERO,
        fresh: false,
        think: None,
    };
    run_closed_loop(config).await.calls_per_second()
}

async fn run_pass(
    args: &Args,
    app: &RunningApp,
    calls: &PreparedCalls,
    pass: LoadPass,
    mode: ExecutionMode,
) -> Result<RunResult, BoxError> {
    let target = ServerAddr::Tcp(*app.listen.first().ok_or("the proxy has no listener")?);
    let before = EngineCounts::read(&app.metrics);
    let mut config = OpenConfig::new(target, calls.clone(), pass.rate, Duration::from_secs(args.seconds));
    config.seed = args.seed;
    let load = start_open_loop(config);
    progress(pass.name, mode.name(), &load).await?;
    let report = load.finish().await?;
    let items_per_batch = EngineCounts::read(&app.metrics).sequences_per_batch(before);
    Ok(RunResult { pass: pass.name, way: mode.name(), rate: pass.rate, report, items_per_batch })
}

/// Describes the gain of the busy pass.
fn describe_gain(rows: &[RunResult]) -> String {
    let rate = |mode: ExecutionMode| {
        rows.iter().find(|row| row.pass == BUSY_PASS && row.way == mode.name()).map(|row| row.report.calls_per_second())
    };
    match (rate(ExecutionMode::OneAtATime), rate(ExecutionMode::Batched)) {
        (Some(unbatched), Some(batched)) if unbatched > 0.0 => format_gain(batched / unbatched),
        _ => "no call was served in a busy run".to_owned(),
    }
}

fn format_gain(gain: f64) -> String {
    let judged = if gain < GAIN_MIN { ": batching gains little with this model on this device" } else { "" };
    format!("busy: {gain:.2} times the calls per second of one call at a time{judged}")
}

/// Returns requests for the model.
fn requests(served: &ServedModel, seed: u64) -> Vec<bytes::Bytes> {
    let path = match served.root_route() {
        ModelRoute::Embed => "/embed",
        _ => "/predict",
    };
    let mut rng = SplitMix64::new(seed);
    (0..TEXTS).map(|_| post_json(path, &json!({"inputs": text(&mut rng), "truncate": true}).to_string())).collect()
}

fn text(rng: &mut SplitMix64) -> String {
    let count = WORDS.0 + rng.next_u64() % (WORDS.1 - WORDS.0 + 1);
    let word = |_| {
        let at = usize::try_from(rng.next_u64() % VOCABULARY.len() as u64).unwrap_or_default();
        VOCABULARY.get(at).copied().unwrap_or_default()
    };
    (0..count).map(word).collect::<Vec<_>>().join(" ")
}

// === impl ExecutionMode ===

impl ExecutionMode {
    const fn name(self) -> &'static str {
        match self {
            Self::OneAtATime => "one by one",
            Self::Batched => "groupage",
        }
    }
}

/// Counters of the engine since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct EngineCounts {
    sequences: f64,
    batches: f64,
}

// === impl EngineCounts ===

impl EngineCounts {
    fn read(metrics: &Metrics) -> Self {
        Self::parse(&metrics.render())
    }

    fn parse(text: &str) -> Self {
        let value = |metric: Metric| {
            let found = text.lines().find_map(|line| line.strip_prefix(metric.name())?.strip_prefix(' ')?.parse().ok());
            found.unwrap_or_default()
        };
        Self { sequences: value(Metric::EngineSequences), batches: value(Metric::EngineBatches) }
    }

    fn sequences_per_batch(self, before: Self) -> f64 {
        (self.sequences - before.sequences) / (self.batches - before.batches).max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_depend_on_the_seed_alone() {
        let texts = |seed| {
            let mut rng = SplitMix64::new(seed);
            (0..TEXTS).map(|_| text(&mut rng)).collect::<Vec<_>>()
        };
        assert_eq!(texts(1), texts(1));
        assert_ne!(texts(1), texts(2));
        let lengths: Vec<u64> = texts(1).iter().map(|text| text.split(' ').count() as u64).collect();
        assert!(lengths.iter().all(|length| (WORDS.0..=WORDS.1).contains(length)), "{lengths:?}");
        assert!(lengths.iter().any(|length| *length < 12) && lengths.iter().any(|length| *length > 32));
    }

    #[test]
    fn sequences_of_a_batch_are_counted_between_two_reads() {
        let text = |sequences, batches| {
            format!("# HELP\ngroupage_engine_batches_total {batches}\ngroupage_engine_sequences_total {sequences}\n")
        };
        let (before, after) = (EngineCounts::parse(&text(10, 10)), EngineCounts::parse(&text(74, 14)));
        assert!((after.sequences_per_batch(before) - 16.0).abs() < 1e-9);
        assert_eq!(EngineCounts::parse(""), EngineCounts::default());
    }

    #[test]
    fn a_small_gain_is_reported_as_small() {
        assert!(format_gain(1.04).contains("1.04") && format_gain(1.04).contains("gains little"));
        assert!(!format_gain(2.5).contains("gains little"));
        assert!(!format_gain(1.04).contains("CPU"), "the device is printed with its name");
    }

    #[test]
    fn the_next_command_has_the_device_of_the_demo() {
        let on = |device| to_flags(&EngineConfig { device, ..EngineConfig::new("m") });
        assert_eq!(on(EngineDevice::Auto), "--engine m");
        assert_eq!(on(EngineDevice::Cpu), "--engine m --engine-device Cpu");
    }
}
