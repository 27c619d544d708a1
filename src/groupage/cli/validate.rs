//! `groupage validate` and `groupage config`: print the findings about a policy, and its effective
//! settings.

mod conformance;
mod local;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args as ClapArgs;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::{TextOutput as Output, proxy, refusal};
use crate::config::{self, EXIT_NO_INPUT};

pub(super) use local::{LocalCheck, check_local};

/// Arguments of `groupage validate`.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Policy files given by a flag, as in kubectl; may be repeated
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Policy files, or - for standard input
    #[arg(value_name = "FILE", required_unless_present = "files")]
    more: Vec<PathBuf>,
    /// Send a call alone and with its items twice to this server, for each declared route and each
    /// form in which it accepts an item, and compare the structure of the responses:
    /// http(s)://HOST:PORT. Exits with 79 if they differ, and with 66 if no route can be tested
    #[arg(long, value_name = "URL")]
    against: Option<String>,
    /// Body of the call to send, for every route or for one path; generated if the protocol is
    /// known
    #[arg(long = "sample", value_name = "[PATH=]FILE", requires = "against")]
    samples: Vec<String>,
    /// Header of the calls to send, such as 'Authorization: Bearer KEY'; may be repeated
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", requires = "against", value_parser = header)]
    headers: Vec<(HeaderName, HeaderValue)>,
    /// Output format
    #[arg(short, long, value_enum, ignore_case = true, default_value = "text")]
    output: Output,
}

/// Arguments of `groupage config`.
#[derive(Debug, ClapArgs)]
pub(super) struct ConfigArgs {
    #[command(flatten)]
    proxy: proxy::Args,
    /// Output format
    #[arg(short, long, value_enum, ignore_case = true, default_value = "text")]
    output: Output,
}

pub(super) fn run(args: &Args) -> ExitCode {
    let files: Vec<&PathBuf> = args.files.iter().chain(&args.more).collect();
    let verdict = config::validate(&files, args.output == Output::Json, std::io::stdout().is_terminal());
    let Some(url) = args.against.as_ref().filter(|_| verdict.exit == 0) else {
        print!("{}", verdict.output);
        return ExitCode::from(verdict.exit);
    };
    let headers: HeaderMap = args.headers.iter().cloned().collect();
    let tried: Result<Vec<_>, String> = files.iter().map(|file| try_file(file, url, &args.samples, &headers)).collect();
    let results: Vec<conformance::RouteResult> = match tried {
        Ok(results) => results.into_iter().flatten().collect(),
        Err(error) => {
            print_error(&error);
            return ExitCode::from(EXIT_NO_INPUT);
        }
    };
    print!("{}", render(&verdict.output, args.output, &results));
    ExitCode::from(exit_code(&results))
}

/// Prints an error. Those of a configuration have a marker of their own, the code.
fn print_error(error: &str) {
    if error.starts_with("error[") {
        eprintln!("{}", error.trim_end());
    } else {
        eprintln!("× {error}");
    }
}

/// Returns the exit code of a test. A test without any conclusion is not a success.
fn exit_code(results: &[conformance::RouteResult]) -> u8 {
    if results.iter().any(conformance::RouteResult::is_wrong) {
        config::EXIT_FINDINGS
    } else if results.iter().any(conformance::RouteResult::is_tested) {
        0
    } else {
        EXIT_NO_INPUT
    }
}

/// Parses a header in the syntax of `curl -H`.
fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("must be NAME: VALUE")?;
    let name: HeaderName = name.trim().parse().map_err(|_| "invalid header name")?;
    let mut value: HeaderValue = value.trim().parse().map_err(|_| "invalid header value")?;
    value.set_sensitive(true);
    Ok((name, value))
}

/// Sends the calls of one file's routes to a server.
fn try_file(
    file: &Path,
    url: &str,
    samples: &[String],
    headers: &HeaderMap,
) -> Result<Vec<conformance::RouteResult>, String> {
    if file.as_os_str() == "-" {
        return Err("--against reads files, not standard input".to_owned());
    }
    let loaded = config::read(file).map_err(|error| error.to_string())?;
    let samples = conformance::SampleCalls::read(samples)?;
    conformance::run(&loaded, ("--against", url), &samples, headers)
}

/// Formats the findings about the files together with those about the server.
fn render(files: &str, output: Output, results: &[conformance::RouteResult]) -> String {
    match output {
        Output::Text if results.is_empty() => format!(
            "{files}× nothing was tested: no route with merged calls is declared; add calls to send with --sample \
             PATH=FILE\n"
        ),
        Output::Text => {
            let text = results.iter().fold(files.to_owned(), |text, result| text + &result.text());
            if results.iter().any(conformance::RouteResult::is_tested) {
                text
            } else {
                text + "× nothing was tested\n"
            }
        }
        Output::Json => {
            let mut all: serde_json::Value = serde_json::from_str(files).unwrap_or_default();
            all["against"] = results.iter().map(conformance::RouteResult::json).collect();
            all["tested"] = results.iter().filter(|result| result.is_tested()).count().into();
            format!("{all:#}\n")
        }
    }
}

pub(super) fn config(args: ConfigArgs) -> ExitCode {
    let policy = match args.proxy.sources().begin() {
        Ok(began) => {
            began.wrong.iter().for_each(|error| eprint!("{}", error.render(std::io::stderr().is_terminal())));
            began.read.policy
        }
        Err(error) => return refusal::refuse(&error),
    };
    let settings = policy.effective();
    if args.output == Output::Json {
        match serde_json::to_string_pretty(settings) {
            Ok(text) => println!("{text}"),
            Err(error) => eprintln!("cannot print the settings: {error}"),
        }
        return ExitCode::SUCCESS;
    }
    let width = |text: fn(&config::Setting) -> usize| settings.iter().map(text).max().unwrap_or(0);
    let (path, value) = (width(|s| s.path.len()), width(|s| s.value.len()).min(48));
    for setting in settings {
        println!("{:path$}  {:value$}  {}", setting.path, setting.value, setting.source);
    }
    ExitCode::SUCCESS
}
