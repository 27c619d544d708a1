//! `cases [FILE]... [PART-OF-ID]... [--factor F] [--bin PATH]`: conformance cases of the wire
//! protocols, over sockets. Every case runs against its own proxy process in front of a scripted
//! upstream. A case lists the requests of the clients, the requests expected at the upstream with
//! their answers, and the expected responses. Cases run one at a time: their windows are 20 ms, and
//! concurrent cases would distort each other's timing.
//!
//! Without a file, the cases of `tests/data` run. A table has the numbers of each adapter, and the
//! last line has the totals; the exit status is 0 if no case failed.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a runner for people and scripts")]

mod adapter_table;
mod case;
mod coding;
mod http2;
mod matching;
mod open_inference_grpc;
mod run;
mod script;
mod selfcheck;
mod settings;
#[path = "../support/all.rs"]
#[expect(dead_code, reason = "each test binary uses a part of the support")]
mod support;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use adapter_table::AdapterTable;
use case::Case;
use settings::{CaseSupport, support_of};
use support::json::{self, Json};
use support::report::{Options, Totals};

/// Row of the table for files and lines that cannot be read, and thus name no adapter.
const UNREADABLE: &str = "(unreadable)";

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1), Path::new(env!("CARGO_BIN_EXE_groupage"))) {
        Ok(options) => options,
        Err(e) => {
            eprintln!("cases: {e}");
            return ExitCode::from(2);
        }
    };
    if options.nothing {
        return ExitCode::SUCCESS;
    }
    let broken = selfcheck::run();
    if !broken.is_empty() {
        eprintln!("cases: the runner itself is wrong: {}", broken.join("; "));
        return ExitCode::FAILURE;
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => {
            eprintln!("cases: {e}");
            return ExitCode::FAILURE;
        }
    };
    runtime.block_on(all(&options)).code()
}

/// Returns the committed case files: `protocol_cases.jsonl`, then those of `tests/data/protocol`.
fn committed() -> Vec<PathBuf> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut ours: Vec<_> = std::fs::read_dir(data.join("protocol"))
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|end| end == "jsonl"))
        .collect();
    ours.sort();
    ours.insert(0, data.join("protocol_cases.jsonl"));
    ours
}

async fn all(options: &Options) -> Totals {
    let files = if options.files.is_empty() { committed() } else { options.files.clone() };
    let mut table = AdapterTable::default();
    for file in files {
        let text = match std::fs::read(&file) {
            Ok(text) => text,
            Err(e) => {
                println!("FAIL {}: {e}", file.display());
                table.row(UNREADABLE).failed += 1;
                continue;
            }
        };
        for (at, line) in text.split(|b| *b == b'\n').enumerate().filter(|(_, line)| !line.trim_ascii().is_empty()) {
            let place = format!("{}:{}", file.display(), at + 1);
            let (adapter, outcome) = one(line, &place, options).await;
            match outcome {
                Outcome::Unwanted => {}
                Outcome::Passed => table.row(&adapter).passed += 1,
                Outcome::Skipped => table.row(&adapter).skipped += 1,
                Outcome::Failed(name, faults) => {
                    table.row(&adapter).failed += 1;
                    println!("FAIL {name}");
                    for fault in faults {
                        println!("  {fault}");
                    }
                }
            }
        }
    }
    for line in table.lines() {
        println!("{line}");
    }
    let totals = table.totals();
    println!("{}", totals.line());
    totals
}

enum Outcome {
    Unwanted,
    Passed,
    Skipped,
    Failed(String, Vec<String>),
}

/// Runs the case on a line. Also returns its adapter.
async fn one(line: &[u8], place: &str, options: &Options) -> (String, Outcome) {
    let parsed = json::parse(line.trim_ascii()).and_then(|line| Case::names(&line).map(|names| (line, names)));
    match parsed {
        Ok((line, (id, adapter))) => {
            let outcome = run_case(&line, (&id, &adapter), place, options).await;
            (adapter, outcome)
        }
        Err(e) => (UNREADABLE.to_owned(), Outcome::Failed(place.to_owned(), vec![e])),
    }
}

async fn run_case(line: &Json, (id, adapter): (&str, &str), place: &str, options: &Options) -> Outcome {
    if !options.is_selected(id) {
        return Outcome::Unwanted;
    }
    let paths = Case::paths(line);
    let name = format!("{id} [{adapter}] {place}");
    match support_of(adapter, line.get("config")) {
        Ok(CaseSupport::Run) => {}
        Ok(CaseSupport::Skip) => return Outcome::Skipped,
        Err(e) => return Outcome::Failed(name, vec![e]),
    }
    let run = match Case::read(line) {
        Ok(case) => run::run(case, &paths, options).await,
        Err(e) => Err(e),
    };
    match run {
        Ok(faults) if faults.is_empty() => Outcome::Passed,
        Ok(faults) => Outcome::Failed(name, faults),
        Err(e) => Outcome::Failed(name, vec![e]),
    }
}
