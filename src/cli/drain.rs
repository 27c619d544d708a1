//! `groupage drain`: the sidecar's own `preStop` hook.
//!
//! It tells the proxy beside it that its pod ends and returns at once; the proxy goes on serving until it is told to stop. It is `exec`, since an image without a shell
//! has nothing else to post with.

use std::process::ExitCode;

use clap::Args as ClapArgs;

use super::local;
use crate::config::Overrides;

/// Where the admin port is unless somebody says otherwise.
const ADMIN: &str = "127.0.0.1:9191";
/// The exit code where no proxy can be told (sysexits: `EX_UNAVAILABLE`).
const EXIT_UNAVAILABLE: u8 = 69;

/// Whom to tell.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// The admin port of the proxy [default: `GROUPAGE_ADMIN`, else 127.0.0.1:9191]
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
}

pub(super) fn run(args: &Args) -> ExitCode {
    let told = Overrides::from_environment().admin.map(|given| given.value);
    let address = args.admin.clone().or(told).unwrap_or_else(|| ADMIN.to_owned());
    match local::post(&address, "/api/drain", "{}") {
        Ok(_) => {
            println!("draining");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(EXIT_UNAVAILABLE)
        }
    }
}
