//! Random runs of the batching core, one for each seed: `sim SEED...` prints them,
//! `sim --count N [FIRST]` makes N of them and prints those that violate a property.
#![expect(clippy::print_stdout, reason = "this is what it is for")]

use std::process::ExitCode;

/// The simulator without its tests, which are in `tests/it`.
#[path = "../it/sim"]
mod sim {
    pub(crate) mod batch;
    mod ceiling;
    pub(crate) mod random;
    pub(crate) mod learned;
    pub(crate) mod key_queue;
    pub(crate) mod model;
    pub(crate) mod invariant;
    pub(crate) mod run_parameters;
    pub(crate) mod check_seed;
    pub(crate) mod trace;
    pub(crate) mod simulation;
}

use sim::check_seed;
use sim::invariant::Coverage;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Result<Vec<u64>, _> =
        words.iter().filter(|word| *word != "--count").map(|word| word.parse()).collect();
    let count = words.first().is_some_and(|word| word == "--count");
    let well = match numbers.as_deref() {
        Ok([count_max]) if count => many(0, *count_max),
        Ok([count_max, first]) if count => many(*first, *count_max),
        Ok(seeds @ [_, ..]) if !count => seeds.iter().all(|seed| print(*seed)),
        _ => {
            println!("usage: sim SEED... | sim --count N [FIRST]");
            false
        }
    };
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints the run of a seed and its result. Returns `true` if all properties hold.
fn print(seed: u64) -> bool {
    print!("seed {seed}\n{}", check_seed::simulate(seed).trace.text());
    let end = check_seed::check_seed(seed);
    match &end {
        Ok(_) => println!("seed {seed}: every invariant held"),
        Err(how) => println!("{how}"),
    }
    end.is_ok()
}

/// Makes `count` runs. Prints those that violate a property, and how often each situation
/// occurred in all of them. Returns `true` if there is no violation.
fn many(first: u64, count: u64) -> bool {
    let (mut broken, mut touched) = (0_u64, Coverage::new());
    for seed in first..first.saturating_add(count) {
        match check_seed::check_seed(seed) {
            Ok(run) => run.tally.into_iter().for_each(|(what, times)| *touched.entry(what).or_default() += times),
            Err(how) => {
                println!("{how}");
                broken += 1;
            }
        }
    }
    for (what, times) in touched {
        println!("{times:>12} {what}");
    }
    println!("{} held, {broken} broken", count - broken);
    broken == 0
}
