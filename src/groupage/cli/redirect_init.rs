//! `groupage redirect-init`: the init container of a pod in capture mode `Redirect`.
//!
//! It writes rules to the pod's network namespace (`redirect`) and ends. It requires `NET_ADMIN`;
//! no other container of the pod does.

use std::process::ExitCode;

use clap::Args as ClapArgs;

use crate::redirect::{Redirect, RedirectError, WriteReport, install};

/// Exit code if the node or the pod does not permit the rules (sysexits: `EX_UNAVAILABLE`).
const EXIT_UNAVAILABLE: u8 = 69;
/// Exit code for arguments that contradict each other, the same as for an invalid argument.
const EXIT_USAGE: u8 = 2;

/// Arguments of `groupage redirect-init`.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Redirect traffic from outside the pod from PORT to LISTEN; traffic of the pod itself is not
    /// redirected. May be repeated. The injector sets it
    #[arg(long, value_name = "PORT=LISTEN", required = true)]
    redirect: Vec<Redirect>,
}

pub(super) fn run(args: &Args) -> ExitCode {
    match install(&args.redirect) {
        Ok(WriteReport { warnings: doubts }) => {
            args.redirect.iter().for_each(|redirect| println!("{redirect}"));
            doubts.iter().for_each(|doubt| eprintln!("warning: {doubt}"));
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
