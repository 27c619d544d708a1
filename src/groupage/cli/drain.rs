//! `groupage drain`: the `preStop` hook of the sidecar.
//!
//! It notifies the proxy in its container that the pod is terminating, and returns at once; the
//! proxy serves until it receives SIGTERM. The hook is of type `exec`, because an HTTP hook of the
//! kubelet can only GET, and the image has no shell or HTTP client that could send the POST.

use std::process::ExitCode;

use clap::Args as ClapArgs;

use super::admin_client;
use crate::config::Overrides;

/// Default address of the admin port.
const ADMIN: &str = "127.0.0.1:9191";
/// Exit code if no proxy can be reached (sysexits: `EX_UNAVAILABLE`).
const EXIT_UNAVAILABLE: u8 = 69;

/// Arguments of `groupage drain`.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Admin address of the proxy [default: `GROUPAGE_ADMIN`, else 127.0.0.1:9191]
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
}

pub(super) fn run(args: &Args) -> ExitCode {
    let configured = Overrides::from_environment().admin.map(|given| given.value);
    let address = args.admin.clone().or(configured).unwrap_or_else(|| ADMIN.to_owned());
    match admin_client::post(&address, "/api/drain", "{}") {
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
