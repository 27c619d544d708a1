//! `groupage redirect-init`: the init container of a pod in capture mode `Redirect`.
//!
//! It writes rules to the pod's network namespace (`redirect`) and ends. It requires `NET_ADMIN`;
//! no other container of the pod does. Outside of a pod the rules would apply to the whole machine
//! and outlast the command, so there it requires `--force`.

use std::process::ExitCode;

use clap::Args as ClapArgs;

use crate::config::PodInfo;
use crate::redirect::{Redirect, RedirectError, WriteReport, install};

/// Exit code if the node or the pod does not permit the rules (sysexits: `EX_UNAVAILABLE`).
const EXIT_UNAVAILABLE: u8 = 69;
/// Exit code for arguments that contradict each other and for a run outside of a pod, the same as
/// for an invalid argument.
const EXIT_USAGE: u8 = 2;
/// Command that removes the rules.
const UNDO: &str = "nft delete table inet groupage";

/// Arguments of `groupage redirect-init`.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Redirect traffic from outside the pod from PORT to LISTEN; traffic of the pod itself is not
    /// redirected. May be repeated. The injector sets it
    #[arg(long, value_name = "PORT=LISTEN", required = true)]
    redirect: Vec<Redirect>,
    /// Also run outside of a pod, where the rules apply to the whole network namespace until you run
    /// `nft delete table inet groupage`
    #[arg(long)]
    force: bool,
}

pub(super) fn run(args: &Args) -> ExitCode {
    let is_in_pod = PodInfo::is_in_pod();
    if !is_in_pod && !args.force {
        eprintln!(
            "no port is redirected: this is not a pod (KUBERNETES_SERVICE_HOST is not set), and the rules would apply to every process of this machine; to write them nevertheless use --force, and to undo it `{UNDO}`"
        );
        return ExitCode::from(EXIT_USAGE);
    }
    match install(&args.redirect) {
        Ok(WriteReport { warnings }) => {
            args.redirect.iter().for_each(|redirect| println!("{redirect}"));
            warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
            // The rules of a pod end with its network namespace.
            if !is_in_pod {
                println!("to undo: {UNDO}");
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("no port is redirected: {error}");
            ExitCode::from(if matches!(error, RedirectError::InvalidArgument(_)) {
                EXIT_USAGE
            } else {
                EXIT_UNAVAILABLE
            })
        }
    }
}
