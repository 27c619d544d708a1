//! `groupage explain`: explains in sentences, with figures, what keeps batches from being larger.
//!
//! Facts come from a running proxy (`live`) or from its access log (`log`); `sentences` converts
//! them to sentences and is pure. Figures are interpreted only there, so that both sources give the
//! same sentences for the same facts.
//!
//! With a workload (`explain deploy/web`) the command reads all its pods (`pods`). With a code
//! (`explain GRP3304`) it explains the code (`code`) and reads nothing.
//!
//! Advice that needs a trial is left to `groupage simulate`. The command never changes the proxy.

mod code;
mod facts;
mod live;
mod log;
mod pods;
mod sentences;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Args as ClapArgs;
use serde_json::json;

use facts::ProxyFacts;
use sentences::Statement;

use super::TextOutput as Output;
use super::cluster::{self, ClusterTarget, WorkloadName};
use crate::config::EXIT_NO_INPUT;

/// Exit code for an unknown code, the same as for any invalid argument.
const EXIT_USAGE: u8 = 2;

/// Arguments of `groupage explain`.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Error code, such as GRP3304, or its reason; or a workload, such as deploy/web, to explain
    /// all its pods
    #[arg(value_name = "CODE|WORKLOAD", conflicts_with_all = ["admin", "access_log"])]
    subject: Option<String>,
    #[command(flatten)]
    target: ClusterTarget,
    /// Admin address of a running proxy
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9191")]
    admin: String,
    /// Read an access log instead: a file of JSON lines, or `-` for standard input
    #[arg(long, value_name = "FILE", conflicts_with = "admin")]
    access_log: Option<String>,
    /// Output format
    #[arg(short, long, value_enum, ignore_case = true, default_value = "text")]
    output: Output,
}

pub(super) fn run(args: &Args) -> ExitCode {
    let found = match (&args.subject, &args.access_log) {
        (Some(subject), _) if subject.contains('/') => return cluster::run_cluster_command(workload(args, subject)),
        (Some(word), _) => return print_code(word, args.output),
        (None, Some(path)) => log::read(path).map(|facts| vec![facts]),
        (None, None) => live::read_facts(&args.admin),
    };
    let found = match found {
        Ok(facts) => facts,
        Err(error) => {
            eprintln!("{}", strip_control_chars(&error));
            return ExitCode::from(EXIT_NO_INPUT);
        }
    };
    print(&found, args.output);
    ExitCode::SUCCESS
}

/// Explains all pods of a workload.
async fn workload(args: &Args, subject: &str) -> Result<ExitCode, String> {
    let workload = WorkloadName::parse(subject)?;
    let cluster = args.target.connect().await?;
    let (found, failed) = pods::read(&cluster, &workload).await?;
    print(&found, args.output);
    for failure in &failed {
        eprintln!("‼ {}", strip_control_chars(failure));
    }
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_NO_INPUT) })
}

fn print(found: &[ProxyFacts], output: Output) {
    match output {
        Output::Text => {
            let rendered: Vec<String> = found
                .iter()
                .map(|facts| text(facts, &sentences::explain(facts), std::io::stdout().is_terminal()))
                .collect();
            print!("{}", rendered.join("\n"));
        }
        Output::Json => {
            let rendered: Vec<_> = found.iter().map(|facts| json(facts, &sentences::explain(facts))).collect();
            let rendered = match &rendered[..] {
                [one] => one.clone(),
                ports => json!({"ports": ports}),
            };
            println!("{}", strip_control_chars(&rendered.to_string()));
        }
    }
}

/// Prints the explanation of a code.
fn print_code(word: &str, output: Output) -> ExitCode {
    match (code::find_code(word), output) {
        (Ok(explanation), Output::Text) => print!("{}", explanation.text()),
        (Ok(explanation), Output::Json) => println!("{}", explanation.json()),
        (Err(error), _) => {
            eprintln!("{error}");
            return ExitCode::from(EXIT_USAGE);
        }
    }
    ExitCode::SUCCESS
}

/// Formats the sentences, with a heading for each subject.
fn text(facts: &ProxyFacts, sentences: &[Statement], bold: bool) -> String {
    let mut out = format!("{}\n", strip_control_chars(&facts.description));
    let mut about = "";
    for sentence in sentences {
        if sentence.about != about {
            about = &sentence.about;
            let over = sentence.over_seconds.map_or_else(String::new, |over| format!(" (last {over} s)"));
            let about = strip_control_chars(about) + &over;
            out.push_str(&if bold { format!("\n\u{1b}[1m{about}\u{1b}[0m\n") } else { format!("\n{about}\n") });
        }
        let indent = if sentence.about.is_empty() { "" } else { "  " };
        out.push_str(&format!("{indent}{}\n", strip_control_chars(&sentence.text)));
    }
    out
}

/// Removes control characters. The text may come from an untrusted program or log, and must not
/// control the terminal.
fn strip_control_chars(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

fn json(facts: &ProxyFacts, sentences: &[Statement]) -> serde_json::Value {
    json!({"over": facts.description, "sentences": sentences})
}

#[cfg(test)]
mod tests {
    use super::facts::{CallKind, ConcurrencyFacts, KeyDifference, OperatingPoint, SlotFacts};
    use super::*;

    /// The sample in the documentation is printed for these facts, so that it changes with the
    /// sentences.
    #[test]
    fn the_page_of_scheduling_shows_what_is_printed() {
        let limiter = ConcurrencyFacts {
            limit: Some(1),
            lone_us: 10_600,
            batch_items_milli: 1000,
            batch_us: 10_600,
            ..ConcurrencyFacts::default()
        };
        let user = KeyDifference { what: "header".to_owned(), name: "x-user".to_owned(), values: 8, keys_without: 1 };
        let point = OperatingPoint {
            best_items: 1,
            best_us: 10_600,
            double_us: 15_900,
            lone_us: 10_600,
            ..OperatingPoint::default()
        };
        let kind = CallKind {
            name: "/v1/models/m:predict".to_owned(),
            over_seconds: Some(60),
            batches: 5600,
            calls: 5600,
            items: 5600,
            separated_batches: 5544,
            concurrency: Some(limiter),
            point: Some(point),
            keys: 8,
            differs: vec![user],
            ..CallKind::default()
        };
        let facts = ProxyFacts {
            description: "the proxy at 127.0.0.1:9191, up for 70 s, 6480 calls".to_owned(),
            calls: 6480,
            items: 6480,
            slots: Some(SlotFacts { learned: 1, max: 64, fixed: false }),
            kinds: vec![kind],
            ..ProxyFacts::default()
        };
        let page = include_str!("../../../docs/scheduling.md");
        let sample = page.split_once("$ groupage explain\n").and_then(|(_, rest)| rest.split_once("```"));
        let printed = text(&facts, &sentences::explain(&facts), false);
        assert_eq!(sample.map(|(sample, _)| sample), Some(printed.as_str()));
    }

    #[test]
    fn control_characters_are_removed_from_the_output() {
        let evil = || "a\u{1b}[2J\u{9b}31m\r\nb".to_owned();
        let kind = CallKind { name: evil(), calls: 90, batches: 90, causes: vec![(evil(), 9)], ..CallKind::default() };
        let facts = ProxyFacts {
            description: evil(),
            calls: 100,
            items: 100,
            passed: vec![(evil(), 50)],
            unserved: vec![(evil(), 50)],
            kinds: vec![kind],
            ..ProxyFacts::default()
        };
        let sentences = sentences::explain(&facts);
        let output = text(&facts, &sentences, false);
        assert!(output.contains("a[2J31mb") && output.contains("could not be merged"), "{output}");
        assert!(!output.chars().any(|c| c.is_control() && c != '\n') && !output.contains("\nb"), "{output:?}");
        assert!(!strip_control_chars(&json(&facts, &sentences).to_string()).chars().any(char::is_control));
    }
}
