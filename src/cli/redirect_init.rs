//! `groupage redirect-init`: the init container of a pod whose ports are captured by `Redirect`.
//!
//! It writes rules into the pod's network (`redirect`) and ends. It needs `NET_ADMIN`, and nothing else of the pod does.

use std::process::ExitCode;

use clap::Args as ClapArgs;

use crate::redirect::{Redirect, RedirectError, Written, write};

/// The exit code where this node or pod does not allow it (sysexits: `EX_UNAVAILABLE`).
const EXIT_UNAVAILABLE: u8 = 69;
/// The exit code for arguments that make no sense together, as for those that make none alone.
const EXIT_USAGE: u8 = 2;

/// Which ports to redirect.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// What comes from outside to PORT of this pod is led to LISTEN; what the pod itself sends there is not. May be given more than once. The injector writes it
    #[arg(long, value_name = "PORT=LISTEN", required = true)]
    redirect: Vec<Redirect>,
}

pub(super) fn run(args: &Args) -> ExitCode {
    match write(&args.redirect) {
        Ok(Written { doubts }) => {
            args.redirect.iter().for_each(|redirect| println!("{redirect}"));
            doubts.iter().for_each(|doubt| eprintln!("warning: {doubt}"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("nothing is redirected: {error}");
            ExitCode::from(if matches!(error, RedirectError::Asked(_)) { EXIT_USAGE } else { EXIT_UNAVAILABLE })
        }
    }
}
