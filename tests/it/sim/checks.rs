//! The tests that `cargo test` runs on the simulator.

use super::check_seed;
use super::invariant::Coverage;

/// Number of seeds in every test run. `just sim` runs more.
const SEEDS: u64 = 1500;

/// Situations that the seeds above must cover; otherwise they prove little.
const TOUCHED: [&str; 29] = [
    "accepted",
    "aborted",
    "retest: items",
    "retest: weight",
    "alone: client batch full",
    "alone: quarantined",
    "cancelled: in flight",
    "cancelled: queued",
    "cancelled: unknown",
    "cause: bytes",
    "cause: deadline",
    "cause: delay",
    "cause: drain",
    "cause: full",
    "cause: idle",
    "cause: probe",
    "cause: weight",
    "ceiling lowered",
    "ceiling raised",
    "cut: exclusive",
    "expired",
    "held",
    "paused",
    "refused: bytes full",
    "refused: queue full",
    "refused: tenant share",
    "shared",
    "slo forgiven",
    "weight ceiling moved",
];

#[test]
fn seeds_hold_invariants_and_cover_situations() {
    let runs = std::thread::scope(|scope| {
        let halves = [0..SEEDS / 2, SEEDS / 2..SEEDS];
        let check = |seed| check_seed::check_seed(seed).map(|run| run.tally);
        let threads = halves.map(|seeds| scope.spawn(move || seeds.map(check).collect::<Vec<_>>()));
        threads.map(|thread| thread.join().unwrap())
    });
    let mut touched = Coverage::new();
    let mut broken = Vec::new();
    for run in runs.into_iter().flatten() {
        match run {
            Ok(tally) => tally.into_iter().for_each(|(what, times)| *touched.entry(what).or_default() += times),
            Err(how) => broken.push(how),
        }
    }
    assert!(broken.is_empty(), "{} of {SEEDS} runs fail:\n{}", broken.len(), broken.join("\n"));
    let missed: Vec<_> = TOUCHED.into_iter().filter(|what| !touched.contains_key(what)).collect();
    assert!(missed.is_empty(), "no run covers {missed:?}; together they cover {touched:#?}");
}

#[test]
fn recorded_seeds_hold_invariants() {
    for line in include_str!("../../data/seeds").lines() {
        let seed = line.split('#').next().unwrap_or_default().trim();
        if !seed.is_empty() {
            let seed = seed.parse().expect("a seed is a number");
            check_seed::check_seed(seed).unwrap_or_else(|how| panic!("{how}, again: {line}"));
        }
    }
}

#[test]
fn traces_of_two_seeds_differ() {
    assert_ne!(check_seed::simulate(1).trace.text(), check_seed::simulate(2).trace.text());
}
