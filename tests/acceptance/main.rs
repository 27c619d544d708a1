//! The requirements on the scheduler, checked in virtual time: `just sim-table`.
//!
//! `criteria` holds the criteria of each row, `results` its runs, `optimality_gap` the distance to
//! the optimum by curve and load, `capacity` the maximum rates, `case` comparisons between Groupage
//! runs, `table` all of it as one list of jobs, and `no_harm` Groupage beside direct calls, window
//! by window. Two oracles are computed where possible: the optimal table of an SMDP, run on the same
//! arrivals, and a clairvoyant that knows all arrivals of the first seconds.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "this program prints tables")]

mod capacity;
mod case;
mod criteria;
mod determinism;
mod no_harm;
mod optimality_gap;
mod oracle;
mod results;
mod row;
mod table;
mod text;
#[cfg(test)]
mod tests;

use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use groupage_simulator::workers::run_in_order;

use criteria::CriterionResult;
use no_harm::HarmTotals;
use table::{Job, JobResult};

/// Exit code if a criterion is missed.
const EXIT_MISSED: u8 = 1;
/// Exit code of an invalid command line, the same as clap's.
const EXIT_USAGE: u8 = 2;

/// Checks the requirements on the scheduler in virtual time. Equal arguments give equal output.
#[derive(Debug, Parser)]
struct Args {
    /// Parts of the table [default: all but no-harm]
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// Run a short sample
    #[arg(long)]
    small: bool,
    /// With no-harm: only rows that have these words in their names, separated by commas,
    /// alternatives by /: k4/k8,50ms,48
    #[arg(long, value_name = "WORDS", default_value = "", hide_default_value = true, conflicts_with = "small")]
    only: String,
    /// Number of seeds, starting at 0
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
}

/// A part of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// All scenarios, compared with other policies and with oracles
    Rows,
    /// Latency curves by load: the mean compared with the optimum
    Curves,
    /// Capacities: the highest rate that is served in time
    Capacities,
    /// Presets, slow control loops, a warm start, SLOs near the latency of an unbatched call
    Cases,
    /// Ablations of the policy, one feature at a time
    Ablations,
    /// Cold starts and changing servers, compared with calls that are forwarded at once
    NoHarm,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let jobs = match args.jobs() {
        Ok(jobs) => jobs,
        Err(reason) => {
            eprintln!("{reason}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let mut results: Vec<JobResult> = Vec::new();
    run_in_order(
        &jobs,
        |job| job.run(args.seeds),
        |result| {
            let Some(result) = result else { return };
            print!("{}", text::format_result(&result, args.seeds));
            results.push(result);
        },
    );
    if report(&results) { ExitCode::SUCCESS } else { ExitCode::from(EXIT_MISSED) }
}

/// Prints the totals and each missed criterion. Returns `true` if all criteria are met.
fn report(results: &[JobResult]) -> bool {
    let harms = results.iter().filter_map(|result| if let JobResult::Harm(harm) = result { Some(harm) } else { None });
    let totals = HarmTotals::of(harms);
    let together = totals.as_ref().map(HarmTotals::verdict);
    let each = results.iter().flat_map(|result| result.verdicts().iter().map(|verdict| (result.name(), verdict)));
    let all: Vec<(&str, &CriterionResult)> = each.chain(together.iter().map(|verdict| ("all rows", verdict))).collect();
    let missed: Vec<_> = all.iter().filter(|(_, verdict)| !verdict.is_met()).copied().collect();
    print!("{}", totals.as_ref().map(text::format_totals).unwrap_or_default());
    print!("{}", text::format_criteria(all.len() - missed.len(), &missed));
    missed.is_empty()
}

// === impl Args ===

impl Args {
    /// Returns the selected jobs, or why there are none.
    fn jobs(&self) -> Result<Vec<Job>, String> {
        if !self.only.is_empty() && self.parts != [Part::NoHarm] {
            return Err("--only selects rows of no-harm: add no-harm".to_owned());
        }
        let jobs: Vec<Job> = match (self.small, self.parts.as_slice()) {
            (false, []) => Job::standard(),
            (true, []) => Job::small(),
            (true, [Part::NoHarm]) => Job::no_harm_small(),
            (true, _) => return Err("--small accepts no other part than no-harm".to_owned()),
            (false, parts) => parts.iter().flat_map(|part| self.jobs_of(*part)).collect(),
        };
        if jobs.is_empty() { Err(format!("no row has a name that contains all of {:?}", self.only)) } else { Ok(jobs) }
    }

    fn jobs_of(&self, part: Part) -> Vec<Job> {
        match part {
            Part::Rows => Job::rows(),
            Part::Curves => Job::curves(),
            Part::Capacities => Job::capacities(),
            Part::Cases => Job::cases(),
            Part::Ablations => Job::ablations(),
            Part::NoHarm => Job::no_harm(&self.only),
        }
    }
}
