//! Merging and splitting of bodies, beside the same work with `serde_json::value::RawValue`:
//! `just bench-splice`, or `cargo bench --package groupage-protocol --bench splice`.
//!
//! - **split**: the response to 32 embeddings of 1024 numbers becomes 32 responses. Everything is
//!   validated as in the proxy: grammar, count, indexes, members outside the results, counters.
//! - **merge**: 32 requests, already parsed, become one, with a head. Everything but the items is
//!   compared. The head of this side has only the headers that the members have in common, and an id;
//!   that of the other side is a copy of the first one.
//! - **parse**: the same requests are parsed. There is no limit, because the work differs: this side
//!   also reads the heads, digests the credentials, rejects what servers read differently, measures
//!   the items, and writes merge keys.
//!
//! Both sides take turns in one run. The figure is the ratio of the medians. It is printed with the
//! tenth and the ninetieth percentile of the ratios of single turns. Turns are short, so that most of
//! them are not interrupted. `--test` (as `just bench-tiny` runs it) is a tiny run that compares the
//! results of both sides; the last line counts the limits met and missed. Arguments other than flags
//! select `split` or `merge`.

#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]
#![expect(clippy::disallowed_methods, reason = "a bench reads the clock")]
#![expect(clippy::unwrap_used, reason = "the bodies are generated here")]

use std::hint::black_box;
use std::time::{Duration, Instant};

#[path = "splice/bodies.rs"]
mod bodies;
#[path = "splice/groupage.rs"]
mod groupage;
#[path = "splice/raw_value.rs"]
mod raw_value;
#[path = "support/statistics.rs"]
mod statistics;

use bodies::MEMBERS;
use bytes::Bytes;
use statistics::median;

/// Limit: speed as a multiple of that of `RawValue`.
const SPEED_MIN: f64 = 1.2;

/// Extent of the measurements.
#[derive(Clone, Copy)]
struct Scale {
    turns: usize,
    /// Calls in one turn.
    calls: u32,
}

/// Times of one kind of work on both sides, turn by turn.
struct Comparison {
    name: String,
    bytes: usize,
    ours: Vec<Duration>,
    theirs: Vec<Duration>,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let tiny = !has("--bench") || has("--test");
    let scale = |calls| if tiny { Scale { turns: 3, calls: 1 } } else { Scale { turns: 1001, calls } };
    println!(
        "{:<28} {:>9} {:>11} {:>11} {:>7} {:>15} {:>9}",
        "", "bytes", "groupage", "RawValue", "times", "of the turns", "MB/s"
    );
    let chosen: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let is_selected = |name: &str| chosen.is_empty() || chosen.iter().any(|part| name.contains(part.as_str()));
    let mut comparisons = Vec::new();
    if is_selected("split") {
        comparisons.push(compare_split(scale(1)));
    }
    if is_selected("merge") {
        comparisons.extend([2000, 200].into_iter().flat_map(|text_len| compare_merge(text_len, scale(20))));
    }
    comparisons.iter().for_each(Comparison::print);
    if tiny {
        return;
    }
    let judged: Vec<&Comparison> = comparisons.iter().filter(|one| !one.name.starts_with("parse")).collect();
    let met = judged.iter().filter(|one| one.speed() >= SPEED_MIN).count();
    println!("{met} met, {} missed: at least {SPEED_MIN} times the speed of RawValue", judged.len() - met);
}

fn compare_split(scale: Scale) -> Comparison {
    let response = Bytes::from(bodies::response());
    let requests: Vec<String> = (0..MEMBERS).map(|member| bodies::request(member, 40)).collect();
    let batch = groupage::Batch::new(&requests);
    let replies = batch.split(&response);
    let expected = raw_value::split(&response, MEMBERS);
    assert_eq!(replies.len(), expected.len());
    for (reply, expected) in replies.iter().zip(&expected) {
        // Both sides divide the counters, by different rules, and the order of keys is the server's.
        let is_same = |key: &str| parse(&reply.body)[key] == parse(expected)[key];
        assert!(is_same("data") && is_same("model"), "{:?}", reply.body);
    }
    let ours = || black_box(batch.split(black_box(&response)));
    let theirs = || black_box(raw_value::split(black_box(&response), MEMBERS));
    let name = format!("split, {MEMBERS} responses");
    Comparison::measure(name, response.len(), scale, ours, theirs)
}

/// Compares merging of requests: the part for each arriving request, and the part for the batch.
fn compare_merge(text_len: usize, scale: Scale) -> [Comparison; 2] {
    let requests: Vec<String> = (0..MEMBERS).map(|member| bodies::request(member, text_len)).collect();
    let merger = groupage::Merger::new(&requests);
    let (calls, parsed) = (merger.parse(), raw_value::parse(&requests));
    let head = merger.head();
    assert_eq!(parse(&merger.merge(&calls).body), parse(&raw_value::merge(head, &parsed).1));
    let bytes = requests.iter().map(String::len).sum();
    let ours = || black_box(black_box(&merger).parse());
    let theirs = || black_box(raw_value::parse(black_box(&requests)));
    let parse = Comparison::measure(format!("parse, texts of {text_len} bytes"), bytes, scale, ours, theirs);
    let ours = || black_box(merger.merge(black_box(&calls)));
    let theirs = || black_box(raw_value::merge(black_box(head), black_box(&parsed)));
    let merge = Comparison::measure(format!("merge, texts of {text_len} bytes"), bytes, scale, ours, theirs);
    [parse, merge]
}

fn parse(body: &[u8]) -> serde_json::Value {
    serde_json::from_slice(body).unwrap()
}

// === impl Comparison ===

impl Comparison {
    fn measure<A, B>(name: String, bytes: usize, scale: Scale, ours: impl Fn() -> A, theirs: impl Fn() -> B) -> Self {
        // A result that is kept above the memory of others keeps the allocator from returning that
        // memory to the system after each call, as calls in flight do in the proxy.
        let others = (ours(), theirs());
        let _kept = (ours(), theirs());
        drop(others);
        let (ours, theirs) = (|| drop(ours()), || drop(theirs()));
        let time = |work: &dyn Fn()| {
            let begin = Instant::now();
            (0..scale.calls).for_each(|_| work());
            begin.elapsed() / scale.calls
        };
        // The first turn warms caches and the allocator.
        time(&ours);
        time(&theirs);
        let turns: Vec<(Duration, Duration)> = (0..scale.turns).map(|_| (time(&ours), time(&theirs))).collect();
        let (ours, theirs) = turns.into_iter().unzip();
        Self { name, bytes, ours, theirs }
    }

    fn speed(&self) -> f64 {
        median_time(&self.theirs).as_secs_f64() / median_time(&self.ours).as_secs_f64()
    }

    fn print(&self) {
        let mut ratios: Vec<f64> = self
            .theirs
            .iter()
            .zip(&self.ours)
            .map(|(theirs, ours)| theirs.as_secs_f64() / ours.as_secs_f64())
            .collect();
        ratios.sort_by(f64::total_cmp);
        let (low, high) = (ratios[ratios.len() / 10], ratios[ratios.len() * 9 / 10]);
        let ours = median_time(&self.ours);
        let rate = f64::from(u32::try_from(self.bytes).unwrap()) / ours.as_secs_f64() / 1e6;
        println!(
            "{:<28} {:>9} {ours:>11.1?} {:>11.1?} {:>7.2} {:>15} {rate:>9.0}",
            self.name,
            self.bytes,
            median_time(&self.theirs),
            self.speed(),
            format!("{low:.2} to {high:.2}"),
        );
    }
}

fn median_time(times: &[Duration]) -> Duration {
    let seconds: Vec<f64> = times.iter().map(Duration::as_secs_f64).collect();
    Duration::from_secs_f64(median(&seconds))
}
