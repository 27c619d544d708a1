//! `servers [PART-OF-NAME]... [--all] [--rates] [--bin PATH]`: real model servers behind the proxy and real
//! clients in front of it. Every answer is compared with that of the same call sent alone to the
//! server.
//!
//! Without `--all` or a name, a sample runs, whose Python packages are installed by `setup.sh`
//! (`just servers-setup`). If they are missing, nothing is downloaded and all scenarios count as
//! skipped. All other scenarios (`client_scripts::table`) install the pinned packages of their server and
//! client from `PyPI` and npm, about 4.5 GB in total, and keep them. A scenario whose packages cannot
//! be installed is skipped and names them. With `--rates`, the load scripts of the examples measure
//! the rate of each server directly and through the proxy. The last line has the totals; the exit status is 0 if no
//! scenario failed.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a runner for people and scripts")]

mod calls;
mod client_scripts;
mod engine;
mod environment;
mod fastapi;
mod kserve;
mod openai;
mod pass_through;
mod python;
#[path = "../support/all.rs"]
#[expect(dead_code, reason = "each test binary uses a part of the support")]
mod support;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use client_scripts::{Attempt, ScriptScenario, table};
use kserve::Model;
use python::{Python, Server};
use support::proxy::{Proxy, Start};
use support::report::{Options, Totals};
use support::upstream::now;

/// Scenarios, in the order in which they run. A name begins with its server.
const SCENARIOS: [&str; 9] = [
    "kserve.batches",
    "kserve.bad_item",
    "kserve.passed",
    "fastapi.batches",
    "fastapi.bad_item",
    "fastapi.passed",
    "openai.batches",
    "openai.bad_item",
    ENGINE,
];
/// The scenario without a server: the proxy executes the model.
const ENGINE: &str = "engine.openai";

/// Result of a scenario: its numbers, or the fault.
type Verdict = Result<String, String>;

/// Resources shared by the scenarios.
#[derive(Debug)]
struct Bench {
    binary: PathBuf,
    python: Python,
    measures_rates: bool,
}

// === impl Bench ===

impl Bench {
    /// Starts a new proxy, so that its counters belong to one scenario.
    async fn proxy(&self, upstream: SocketAddr, config: Option<&Path>) -> Result<Proxy, String> {
        let start = Start { binary: self.binary.clone(), upstream, config, metrics: true };
        Proxy::start(&start).await
    }

    async fn run(&self, name: &str, kserve: &Result<Model, String>, fastapi: &Result<Server, String>) -> Verdict {
        let (verdict, server) = if name.starts_with("kserve") {
            let model = kserve.as_ref().map_err(Clone::clone)?;
            let verdict = match name {
                "kserve.batches" => kserve::batches(self, model).await,
                "kserve.bad_item" => kserve::bad_item(self, model).await,
                _ => kserve::passed(self, model).await,
            };
            (verdict, &model.server)
        } else {
            let server = fastapi.as_ref().map_err(Clone::clone)?;
            let verdict = match name {
                "fastapi.batches" => fastapi::batches(self, server).await,
                "fastapi.bad_item" => fastapi::bad_item(self, server).await,
                "fastapi.passed" => fastapi::passed(self, server).await,
                "openai.batches" => openai::batches(self, server).await,
                _ => openai::bad_item(self, server).await,
            };
            (verdict, server)
        };
        verdict.map_err(|e| format!("{e}\n  the server's output ends with\n{}", server.tail()))
    }
}

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1), Path::new(env!("CARGO_BIN_EXE_groupage"))) {
        Ok(options) => options,
        Err(e) => {
            eprintln!("servers: {e}");
            return ExitCode::from(2);
        }
    };
    if options.nothing {
        return ExitCode::SUCCESS;
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => {
            eprintln!("servers: {e}");
            return ExitCode::FAILURE;
        }
    };
    runtime.block_on(all(options)).code()
}

async fn all(options: Options) -> Totals {
    let mut totals = Totals::default();
    let has = |flag: &str| std::env::args().any(|arg| arg == flag);
    let measures_rates = has("--rates");
    let wanted: Vec<_> = SCENARIOS.into_iter().filter(|name| options.is_selected(name) && !measures_rates).collect();
    let is_all = has("--all") || measures_rates || !options.filters.is_empty();
    let (scripted, left): (Vec<_>, Vec<_>) = table::SCENARIOS
        .iter()
        .filter(|it| options.is_selected(it.name) && (it.is_example() || !measures_rates))
        .partition(|it| is_all || it.is_sample);
    if !left.is_empty() {
        totals.skipped += left.len();
        println!("SKIPPED: {} scenarios of further servers; run `just servers-all`", left.len());
    }
    if wanted.is_empty() && scripted.is_empty() {
        println!("{}", totals.line());
        return totals;
    }
    let python = match Python::find().await {
        Ok(python) => python,
        Err(missing) => {
            println!("SKIPPED: {missing} missing; run `just servers-setup` (tests/servers/setup.sh)");
            for name in wanted.iter().copied().chain(scripted.iter().map(|it| it.name)) {
                println!("SKIPPED: {name}");
                totals.skipped += 1;
            }
            println!("{}", totals.line());
            return totals;
        }
    };
    let bench = Bench { binary: options.binary, python, measures_rates };
    run_sample(&bench, &wanted, &mut totals).await;
    run_scripts(&bench, &scripted, &mut totals).await;
    println!("{}", totals.line());
    totals
}

/// Runs the scenarios of [`SCENARIOS`]. KServe and FastAPI are started once, at the same time.
async fn run_sample(bench: &Bench, wanted: &[&'static str], totals: &mut Totals) {
    let unused = || "not started".to_owned();
    let uses = |servers: &[&str]| wanted.iter().any(|name| servers.iter().any(|server| name.starts_with(server)));
    let (uses_kserve, uses_fastapi) = (uses(&["kserve"]), uses(&["fastapi", "openai"]));
    let (kserve, fastapi) =
        tokio::join!(async { if uses_kserve { kserve::start(&bench.python).await } else { Err(unused()) } }, async {
            if uses_fastapi { fastapi::start(&bench.python).await } else { Err(unused()) }
        },);
    for name in wanted {
        let began = now();
        let attempt = match *name {
            ENGINE => engine::openai(bench).await,
            name => Ok(bench.run(name, &kserve, &fastapi).await),
        };
        report_attempt(totals, name, attempt, now().duration_since(began));
    }
}

/// Runs the scenarios of the table, in which each server is started once.
async fn run_scripts(bench: &Bench, scenarios: &[&ScriptScenario], totals: &mut Totals) {
    let mut running = None;
    for scenario in scenarios {
        let began = now();
        let attempt = scenario.run(bench, &mut running).await;
        report_attempt(totals, scenario.name, attempt, now().duration_since(began));
    }
}

/// Reports the result of a scenario, or what is missing for it.
fn report_attempt(totals: &mut Totals, name: &str, attempt: Attempt, took: Duration) {
    match attempt {
        Ok(verdict) => report(totals, name, verdict, took),
        Err(missing) => {
            totals.skipped += 1;
            println!("SKIPPED: {name}: {missing}");
        }
    }
}

fn report(totals: &mut Totals, name: &str, verdict: Verdict, took: Duration) {
    match verdict {
        Ok(numbers) => {
            totals.passed += 1;
            println!("ok   {name}: {numbers} ({:.1} s)", took.as_secs_f64());
        }
        Err(fault) => {
            totals.failed += 1;
            println!("FAIL {name}: {fault}");
        }
    }
}
