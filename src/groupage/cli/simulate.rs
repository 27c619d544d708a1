//! `groupage simulate`: runs the proxy's batching core in virtual time, and compares it with other
//! policies on the same arrivals.
//!
//! Two rows run at a time and are printed in order, so that equal arguments give equal output. The
//! elapsed time is printed to standard error.

mod args;
mod description;
mod scenario_file;
mod json;
mod profile;
mod svg;
mod text;
mod traffic;

use std::process::ExitCode;

use crate::batching::Tick;
use crate::clock::Clock;
use crate::simulator::compare::{ScenarioReport, run_scenario};
use crate::simulator::scenario;
use crate::simulator::workers::run_in_order;

use args::Output;

pub(super) use args::Args;

/// Exit code of an invalid command line, the same as clap's.
const EXIT_USAGE: u8 = 2;

pub(super) fn run(args: &Args) -> ExitCode {
    if args.list {
        print!("{}", text::list(&scenario::base_rows(scenario::HORIZON), &args::extended_scenarios()));
        return ExitCode::SUCCESS;
    }
    let clock = Clock::start();
    let work = match args.to_work() {
        Ok(work) => work,
        Err(reason) => {
            eprintln!("{reason}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let people = args.output == Output::Table;
    if let Some(recorded) = work.recorded.as_ref().filter(|_| people) {
        print!("{}", text::recorded(recorded));
    }
    let mut reports: Vec<ScenarioReport> = Vec::new();
    run_in_order(
        &work.scenarios,
        |scenario| run_scenario(scenario, args.seeds, args.compare),
        |report| {
            if people {
                print!("{}", text::format_report(&report, args.seeds));
            }
            reports.push(report);
        },
    );
    eprintln!("{}", text::format_elapsed(&reports, args.seeds, clock.now().since(Tick::default())));
    if !people {
        println!("{:#}", json::format_reports(&reports, work.recorded.as_ref()));
    }
    if let Some(path) = &args.svg
        && let Err(error) = std::fs::write(path, svg::plot(&reports))
    {
        eprintln!("cannot write {}: {error}", path.display());
        return ExitCode::from(EXIT_USAGE);
    }
    ExitCode::SUCCESS
}
