//! `cases [FILE]... [PART-OF-ID]... [--factor F] [--bin PATH]`: conformance cases of the wire
//! protocols, over sockets. Every case runs against its own proxy process in front of a scripted
//! upstream. A case lists the requests of the clients, the requests expected at the upstream with
//! their answers, and the expected responses. Cases run one at a time: their windows are 20 ms, and
//! concurrent cases would distort each other's timing.
//!
//! Without a file, the cases of `tests/data` run. The last line has the totals; the exit status is
//! 0 if no case failed.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a runner for people and scripts")]

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

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use case::Case;
use settings::{Verdict, verdict};
use support::json;
use support::report::{Options, Totals};

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
    let mut totals = Totals::default();
    let mut skipped = BTreeMap::<String, usize>::new();
    for file in files {
        let text = match std::fs::read(&file) {
            Ok(text) => text,
            Err(e) => {
                println!("FAIL {}: {e}", file.display());
                totals.failed += 1;
                continue;
            }
        };
        for (at, line) in text.split(|b| *b == b'\n').enumerate().filter(|(_, line)| !line.trim_ascii().is_empty()) {
            let place = format!("{}:{}", file.display(), at + 1);
            match one(line, &place, options).await {
                Outcome::Unwanted => {}
                Outcome::Passed => totals.passed += 1,
                Outcome::Skipped(name) => {
                    totals.skipped += 1;
                    *skipped.entry(name).or_default() += 1;
                }
                Outcome::Failed(name, faults) => {
                    totals.failed += 1;
                    println!("FAIL {name}");
                    for fault in faults {
                        println!("  {fault}");
                    }
                }
            }
        }
    }
    for (name, count) in skipped {
        println!("skipped {name}: {count}");
    }
    println!("{}", totals.line());
    totals
}

enum Outcome {
    Unwanted,
    Passed,
    Skipped(String),
    Failed(String, Vec<String>),
}

async fn one(line: &[u8], place: &str, options: &Options) -> Outcome {
    let parsed = json::parse(line.trim_ascii()).and_then(|line| Case::names(&line).map(|names| (line, names)));
    let (line, (id, adapter)) = match parsed {
        Ok(parsed) => parsed,
        Err(e) => return Outcome::Failed(place.to_owned(), vec![e]),
    };
    if !options.is_selected(&id) {
        return Outcome::Unwanted;
    }
    let paths = Case::paths(&line);
    let name = format!("{id} [{adapter}] {place}");
    match verdict(&adapter, line.get("config")) {
        Ok(Verdict::Run) => {}
        Ok(Verdict::Skip(name)) => return Outcome::Skipped(name),
        Err(e) => return Outcome::Failed(name, vec![e]),
    }
    let run = match Case::read(&line) {
        Ok(case) => run::run(case, &paths, options).await,
        Err(e) => Err(e),
    };
    match run {
        Ok(faults) if faults.is_empty() => Outcome::Passed,
        Ok(faults) => Outcome::Failed(name, faults),
        Err(e) => Outcome::Failed(name, vec![e]),
    }
}
