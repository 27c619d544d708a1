//! `groupage simulate`: runs the proxy's batching core in virtual time, and compares it with other
//! policies on the same arrivals.
//!
//! Two rows run at a time and are printed in order, so that equal arguments give equal output. The
//! elapsed time is printed to standard error.

mod args;
mod scenario_file;
mod json;
mod profile;
mod svg;
mod text;
mod traffic;

use crate::batching::Tick;
use crate::clock::Clock;
use crate::simulator::compare::{CriterionResult, HarmTotals, JobResult, RunSettings};
use crate::simulator::scenario;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;

use args::{Output, Work};

pub(super) use args::Args;

/// Number of rows that run concurrently.
const WORKERS: usize = 2;
/// Exit code if a criterion is missed.
const EXIT_MISSED: u8 = 1;
/// Exit code of an invalid command line, the same as clap's.
const EXIT_USAGE: u8 = 2;

pub(super) fn run(args: &Args) -> ExitCode {
    if args.list {
        print!("{}", text::list(&scenario::base_rows(scenario::HORIZON), &args::extended_scenarios()));
        return ExitCode::SUCCESS;
    }
    let clock = Clock::start();
    let todo = match args.to_work() {
        Ok(todo) => todo,
        Err(wrong) => {
            eprintln!("{wrong}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let settings = RunSettings { seeds: args.seeds, compare: todo.judged, altered: todo.altered };
    let all = run_jobs(args, &todo, settings);
    let harms = all.iter().filter_map(|told| if let JobResult::Harm(harm) = told { Some(harm) } else { None });
    let totals = HarmTotals::of(harms);
    let together = totals.as_ref().map(HarmTotals::verdict);
    let verdicts = || {
        let each = all.iter().flat_map(|told| told.verdicts().iter().map(move |verdict| (told.name(), verdict)));
        each.chain(together.iter().map(|verdict| ("all rows", verdict)))
    };
    let missed: Vec<(&str, &CriterionResult)> = verdicts().filter(|(_, verdict)| !verdict.is_met()).collect();
    let met = verdicts().count() - missed.len();
    eprintln!("{}", text::format_elapsed(&all, args.seeds, clock.now().since(Tick::default())));
    match args.output {
        Output::Json => println!("{:#}", json::report(&all, todo.recorded.as_ref(), met, &missed)),
        Output::Table if todo.judged => {
            print!("{}{}", totals.as_ref().map(text::totals).unwrap_or_default(), text::format_criteria(met, &missed));
        }
        Output::Table => {}
    }
    if let Some(path) = &args.svg
        && let Err(error) = std::fs::write(path, svg::plot(&all))
    {
        eprintln!("cannot write {}: {error}", path.display());
        return ExitCode::from(EXIT_USAGE);
    }
    if missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_MISSED) }
}

/// Runs the jobs, two at a time, and prints each result once all before it are printed.
fn run_jobs(args: &Args, todo: &Work, settings: RunSettings) -> Vec<JobResult> {
    let people = args.output == Output::Table;
    if let Some(recorded) = todo.recorded.as_ref().filter(|_| people) {
        print!("{}", text::recorded(recorded));
    }
    let next = AtomicUsize::new(0);
    let (sender, receiver) = sync_channel(WORKERS);
    let mut all = Vec::new();
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = todo.jobs.get(place) else { return };
                    if sender.send((place, job.run(settings))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut early = BTreeMap::new();
        let mut due = 0;
        for (place, told) in receiver {
            early.insert(place, told);
            while let Some(told) = early.remove(&due) {
                due += 1;
                let Some(told) = told else { continue };
                if people {
                    print!("{}", text::format_result(&told, settings.seeds));
                }
                all.push(told);
            }
        }
    });
    all
}
