//! `groupage check --local URL --route PATH`: sends a pair of calls alone and together to a server,
//! and reports whether splitting reproduces the single answers. The calls are those of
//! `groupage validate --against`, which compares the structure of the answers only.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args as ClapArgs;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::conformance::{self, RouteResult};
use super::{header, print_error};
use crate::config::{self, EXIT_NO_INPUT, LoadedPolicy};

/// Exit code of clap for usage errors.
const EXIT_USAGE: u8 = 2;

/// Arguments of `groupage check --local`.
#[derive(Debug, ClapArgs)]
pub(in super::super) struct LocalCheck {
    /// Check a model server instead of a cluster: send two calls alone and together to it, and
    /// compare the responses: http(s)://HOST:PORT
    #[arg(long, value_name = "URL")]
    pub(in super::super) local: Option<String>,
    /// Path of the calls
    #[arg(long, value_name = "PATH", requires = "local")]
    route: Option<String>,
    /// Protocol of the route, as in a policy
    #[arg(long, value_name = "PROTOCOL", requires = "route", conflicts_with = "policy")]
    protocol: Option<String>,
    /// Policy file with the route; without `--route`, all of its routes are tested
    #[arg(long, value_name = "FILE", requires = "local")]
    policy: Option<PathBuf>,
    /// Body of a call to send, once or twice; generated if the protocol is known
    #[arg(long = "sample", value_name = "FILE", requires = "local")]
    samples: Vec<String>,
    /// Header of the calls to send, such as 'Authorization: Bearer KEY'; may be repeated
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", requires = "local", value_parser = header)]
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// Tests the server at `url`, and prints the findings as text or as JSON.
pub(in super::super) fn check_local(args: &LocalCheck, url: &str, is_json: bool) -> ExitCode {
    if args.route.is_none() && args.policy.is_none() {
        eprintln!("× --local requires --route PATH or --policy FILE");
        return ExitCode::from(EXIT_USAGE);
    }
    let headers: HeaderMap = args.headers.iter().cloned().collect();
    let tested = load_policy(args).and_then(|loaded| {
        let samples = conformance::SampleCalls::read_pair(&args.samples)?;
        let results = conformance::run(&loaded, ("--local", url), &samples, &headers)?;
        let is_selected = |result: &RouteResult| args.route.as_ref().is_none_or(|route| result.is_of(route));
        Ok(results.into_iter().filter(is_selected).collect::<Vec<_>>())
    });
    match tested {
        Ok(results) => {
            if is_json {
                println!("{:#}", results.iter().map(RouteResult::json).collect::<serde_json::Value>());
            } else {
                print!("{}", format_results(&results));
            }
            ExitCode::from(exit_code(&results))
        }
        Err(error) => {
            print_error(&error);
            ExitCode::from(EXIT_NO_INPUT)
        }
    }
}

/// Returns the policy of the file, or one with the route alone.
fn load_policy(args: &LocalCheck) -> Result<LoadedPolicy, String> {
    if let Some(file) = &args.policy {
        return config::read(file).map_err(|error| error.to_string());
    }
    let route = serde_json::json!({
        "path": args.route,
        "protocol": args.protocol.as_deref().unwrap_or("Auto"),
    });
    let text = serde_json::json!({ "routes": [route] }).to_string();
    config::load(&text, "--route").map_err(|errors| errors.render(false))
}

fn format_results(results: &[RouteResult]) -> String {
    let text = results.iter().fold(String::new(), |text, result| text + &result.text() + &result.details());
    let is_wrong = results.iter().any(|result| result.is_wrong() || result.is_different());
    let verdict = if is_wrong || !results.iter().any(RouteResult::is_tested) { "×" } else { "√" };
    format!("{text}\nstatus: {verdict}\n")
}

/// Returns the exit code of `check`: 1 for an error. A test without any conclusion is not a
/// success.
fn exit_code(results: &[RouteResult]) -> u8 {
    let is_wrong = results.iter().any(|result| result.is_wrong() || result.is_different());
    if is_wrong {
        1
    } else if results.iter().any(RouteResult::is_tested) {
        0
    } else {
        EXIT_NO_INPUT
    }
}
