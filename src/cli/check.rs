//! `groupage check`: whether a cluster can take Groupage, and whether what is installed works.
//!
//! Facts are gathered first (`facts`), then judged (`judge`), then printed (`print`). Symbols and
//! exit codes are those of `linkerd check`: √ holds, ‼ should be looked at, × does not hold and
//! ends with an error.

mod facts;
mod judge;
mod print;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};

use self::facts::{gather, tried};
use self::judge::{Level, judge, worst};
use self::print::shown;
use super::cluster::{self, Target};
use crate::config::parse_duration;

/// Between two looks, while it is waited for.
const AGAIN: Duration = Duration::from_secs(1);

/// How to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Every check.
    Table,
    /// Only what does not hold.
    Short,
    /// For programs.
    Json,
}

/// `groupage check`.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    #[command(flatten)]
    target: Target,
    /// Only what is needed before an installation
    #[arg(long)]
    pre: bool,
    /// The controller's namespace
    #[arg(long, value_name = "NAMESPACE", default_value = "groupage-system")]
    controller_namespace: String,
    /// Have the API server say what it would make of a pod that asks for a sidecar in this
    /// namespace: a dry run, no pod is made
    #[arg(long, value_name = "NAMESPACE")]
    try_in: Option<String>,
    /// How long to wait until everything holds
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    wait: String,
    /// How to print
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

pub(super) fn run(args: &Args) -> ExitCode {
    cluster::run(async {
        let wait = parse_duration(&args.wait).ok_or_else(|| format!("--wait {:?} is no duration", args.wait))?;
        let cluster = args.target.connect().await?;
        let look = async || {
            let mut facts = gather(&cluster.client, &args.controller_namespace, args.pre).await?;
            if let Some(namespace) = &args.try_in {
                facts.tried = Some(tried(&cluster.client, namespace, &facts.controller).await);
            }
            Ok::<_, String>(judge(&facts, args.pre))
        };
        let soon = async {
            loop {
                let findings = look().await?;
                if worst(&findings) < Level::Error {
                    return Ok::<_, String>(findings);
                }
                tokio::time::sleep(AGAIN).await;
            }
        };
        // When the time is over it is looked at once more, and told as it is.
        let findings = match tokio::time::timeout(wait, soon).await {
            Ok(findings) => findings?,
            Err(_) => look().await?,
        };
        print!("{}", shown(&findings, args.output));
        Ok(if worst(&findings) == Level::Error { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    })
}

#[cfg(test)]
mod tests;
