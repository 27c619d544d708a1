//! `groupage simulate`: the core that the proxy runs, in virtual time, beside what others do with the same arrivals.
//!
//! Rows run two at a time and are told in their order, so equal arguments give equal output.

mod json;
mod text;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};
use serde_json::Value;

use crate::simulate::compare::{self, Settings, Verdict};
use crate::simulate::scenario::{self, Scenario};

/// Rows in work at once.
const WORKERS: usize = 2;
/// The exit code when a bar is missed.
const EXIT_MISSED: u8 = 1;
/// The exit code of a wrong command line, as clap has it.
const EXIT_USAGE: u8 = 2;
/// Factors of the rate that make sense: within them a run stays in memory.
const RATE_FACTORS: std::ops::RangeInclusive<f64> = 0.001..=20.0;

/// How to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// What to run.
#[derive(Debug, Clone, ClapArgs)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(super) struct Args {
    /// A scenario by name, or `all`; may be given more than once. Without it: the rows of the design
    #[arg(long = "scenario", value_name = "NAME")]
    scenarios: Vec<String>,
    /// List the scenarios and stop
    #[arg(long)]
    list: bool,
    /// Run all baselines and oracles on the same arrivals, and judge
    #[arg(long)]
    compare: bool,
    /// Curves at loads instead: the mean beside the optimum
    #[arg(long, conflicts_with_all = ["scenarios", "compare", "capacity", "slo", "cap", "rate"])]
    curves: bool,
    /// Capacities instead: the largest rate that is served in time
    #[arg(long, conflicts_with_all = ["scenarios", "compare", "slo", "cap", "rate", "seconds", "seeds"])]
    capacity: bool,
    /// Seeds, from 0 on
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Virtual seconds for which calls come [default: 20; with --curves 30]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: Option<u64>,
    /// What if the SLO were this, in milliseconds
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=600_000))]
    slo: Option<u64>,
    /// What if batches held at most this many items
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=512))]
    cap: Option<u32>,
    /// What if calls came this many times as often
    #[arg(long, value_name = "FACTOR", value_parser = factor)]
    rate: Option<f64>,
    /// How to print
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

/// A row as it is told.
struct Told {
    text: String,
    json: Value,
    met: usize,
    missed: usize,
}

pub(super) fn run(args: &Args) -> ExitCode {
    if args.list {
        print!("{}", text::list(&scenario::design(scenario::HORIZON), &scenario::wider(scenario::HORIZON)));
        return ExitCode::SUCCESS;
    }
    let (met, missed) = if args.curves {
        let rows = curves(args);
        show(args, rows.len(), |i| compare::gap(&rows[i], args.seeds).as_ref().map_or_else(Told::nothing, Told::gap))
    } else if args.capacity {
        show(args, compare::capacity_upstreams(), |i| {
            compare::capacity(i).as_ref().map_or_else(Told::nothing, Told::capacity)
        })
    } else {
        let rows = match chosen(args) {
            Ok(rows) => rows,
            Err(name) => {
                eprintln!("no scenario is called {name:?}; `groupage simulate --list` names them all");
                return ExitCode::from(EXIT_USAGE);
            }
        };
        let altered = args.slo.is_some() || args.cap.is_some() || args.rate.is_some();
        let settings = Settings { seeds: args.seeds, compare: args.compare, altered };
        show(args, rows.len(), |i| Told::row(&compare::row(&rows[i], settings), settings.seeds))
    };
    let judged = args.compare || args.curves || args.capacity;
    if judged && args.output == Output::Table {
        println!("{met} met, {missed} missed");
    }
    if missed > 0 { ExitCode::from(EXIT_MISSED) } else { ExitCode::SUCCESS }
}

fn factor(text: &str) -> Result<f64, String> {
    let factor: f64 = text.parse().map_err(|_| format!("{text:?} is no number"))?;
    if RATE_FACTORS.contains(&factor) {
        Ok(factor)
    } else {
        Err(format!("it must be from {} to {}", RATE_FACTORS.start(), RATE_FACTORS.end()))
    }
}

/// The rows that were asked for, in the order of the tables, or the name that is none.
fn chosen(args: &Args) -> Result<Vec<Scenario>, &str> {
    let horizon = args.seconds.map_or(scenario::HORIZON, Duration::from_secs);
    let (mut rows, wider) = (scenario::design(horizon), scenario::wider(horizon));
    if !args.scenarios.is_empty() {
        rows.extend(wider);
        let is = |name: &str, row: &Scenario| name == "all" || row.name.eq_ignore_ascii_case(name);
        if let Some(name) = args.scenarios.iter().find(|name| !rows.iter().any(|row| is(name.as_str(), row))) {
            return Err(name);
        }
        rows.retain(|row| args.scenarios.iter().any(|name| is(name, row)));
    }
    Ok(rows.into_iter().map(|row| alter(row, args)).collect())
}

fn alter(mut row: Scenario, args: &Args) -> Scenario {
    row.slo = args.slo.map_or(row.slo, Duration::from_millis);
    row.cap = args.cap.unwrap_or(row.cap);
    args.rate.map_or(row.clone(), |factor| row.times(factor))
}

fn curves(args: &Args) -> Vec<Scenario> {
    let lasting = |row: Scenario| match args.seconds {
        Some(seconds) => row.lasting(Duration::from_secs(seconds)),
        None => row,
    };
    scenario::curve_loads().into_iter().map(lasting).collect()
}

/// Runs this many rows, two at a time, prints each once all before it are printed, and counts bars.
fn show(args: &Args, rows: usize, work: impl Fn(usize) -> Told + Sync) -> (usize, usize) {
    let next = AtomicUsize::new(0);
    let (sender, receiver) = sync_channel(WORKERS);
    let (mut met, mut missed, mut all) = (0, 0, Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            let (sender, next, work) = (sender.clone(), &next, &work);
            scope.spawn(move || {
                while let Some(row) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|row| *row < rows) {
                    if sender.send((row, work(row))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut early = BTreeMap::new();
        let mut due = 0;
        for (row, told) in receiver {
            early.insert(row, told);
            while let Some(told) = early.remove(&due) {
                due += 1;
                met += told.met;
                missed += told.missed;
                match args.output {
                    Output::Table => print!("{}", told.text),
                    Output::Json => all.push(told.json),
                }
            }
        }
    });
    if args.output == Output::Json {
        println!("{:#}", json::report(&all, met, missed));
    }
    (met, missed)
}

// === impl Told ===

impl Told {
    fn nothing() -> Self {
        Self { text: String::new(), json: Value::Null, met: 0, missed: 0 }
    }

    fn row(row: &compare::Row, seeds: u64) -> Self {
        Self::judged(text::row(row, seeds), json::row(row), &row.verdicts)
    }

    fn gap(gap: &compare::Gap) -> Self {
        Self::judged(text::gap(gap), json::gap(gap), std::slice::from_ref(&gap.verdict))
    }

    fn capacity(capacity: &compare::Capacity) -> Self {
        Self::judged(text::capacity(capacity), json::capacity(capacity), std::slice::from_ref(&capacity.verdict))
    }

    fn judged(text: String, json: Value, verdicts: &[Verdict]) -> Self {
        let met = verdicts.iter().filter(|verdict| verdict.is_met()).count();
        Self { text, json, met, missed: verdicts.len() - met }
    }
}
