//! `groupage check`: verifies that a cluster can run Groupage and that an installation works, or
//! with `--local` that a model server can be batched (`validate::local`).
//!
//! The command gathers facts (`facts`), judges them (`evaluate`) and prints the findings (`print`).
//! Symbols and exit codes are those of `linkerd check`: √ passes, ‼ is a warning, × is an error and
//! makes the command fail.

mod facts;
mod evaluate;
mod print;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};

use self::evaluate::{Severity, evaluate, worst_level};
use self::facts::{collect, dry_run_injection};
use self::print::format_results;
use super::cluster::{self, ClusterTarget};
use super::validate::{LocalCheck, check_local};
use crate::config::parse_duration;

/// Interval between two checks while `--wait` has not elapsed.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Format of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// All checks, as a table.
    Table,
    /// Only warnings and errors.
    Short,
    /// JSON, for programs.
    Json,
}

/// Arguments of `groupage check`.
#[derive(Debug, ClapArgs)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    target: ClusterTarget,
    #[command(flatten)]
    server: LocalCheck,
    /// Check only what an installation requires
    #[arg(long)]
    pre: bool,
    /// Namespace of the controller
    #[arg(long, value_name = "NAMESPACE", default_value = "groupage-system")]
    controller_namespace: String,
    /// Also check the injection in this namespace, by a server-side dry run of a pod that requests
    /// a sidecar; no pod is created
    #[arg(long, value_name = "NAMESPACE")]
    try_in: Option<String>,
    /// Wait up to this long until there is no error
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    wait: String,
    /// Output format
    #[arg(short, long, value_enum, ignore_case = true, default_value = "table")]
    output: Output,
}

pub(super) fn run(args: &CheckArgs) -> ExitCode {
    if let Some(url) = &args.server.local {
        return check_local(&args.server, url, args.output == Output::Json);
    }
    cluster::run_cluster_command(async {
        let wait = parse_duration(&args.wait).ok_or_else(|| format!("--wait {:?} is not a duration", args.wait))?;
        let cluster = args.target.connect().await?;
        let evaluate_once = async || {
            let mut facts = collect(&cluster.client, &args.controller_namespace, args.pre).await?;
            if let Some(namespace) = &args.try_in {
                facts.dry_run = Some(dry_run_injection(&cluster.client, namespace, &facts.controller).await);
            }
            Ok::<_, String>(evaluate(&facts, args.pre))
        };
        let until_healthy = async {
            loop {
                let findings = evaluate_once().await?;
                if worst_level(&findings) < Severity::Error {
                    return Ok::<_, String>(findings);
                }
                tokio::time::sleep(CHECK_INTERVAL).await;
            }
        };
        // When the time is over, check once more and report the result as it is.
        let findings = match tokio::time::timeout(wait, until_healthy).await {
            Ok(findings) => findings?,
            Err(_) => evaluate_once().await?,
        };
        print!("{}", format_results(&findings, args.output));
        Ok(if worst_level(&findings) == Severity::Error { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    })
}

#[cfg(test)]
mod tests;
