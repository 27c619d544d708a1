//! The command line: subcommands, and the place where the parts are put together.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line talks to its user")]

mod check;
mod cluster;
mod compose;
mod controller;
mod crds;
mod demo;
mod drain;
mod enable;
mod explain;
mod inject;
mod install;
mod keep;
mod local;
mod numbers;
mod pods;
mod proxy;
mod redirect_init;
mod reload;
mod rollback;
mod simulate;
mod stand_in;
mod status;
mod stream;
mod trouble;
mod validate;
mod ways;
mod yaml;

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

pub use self::compose::{Applied, Control, Refusal, Running, Starting, start};

/// The exit code of a defect of ours (sysexits: `EX_SOFTWARE`).
pub const EXIT_INTERNAL: u8 = 70;

/// Adaptive batching in front of the model server you already run.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true, max_term_width = 120)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the proxy in front of a model server
    Proxy(proxy::Args),
    /// Check policy files and say what is wrong with them
    Validate(validate::Args),
    /// Show every setting in effect and where it comes from
    Config(validate::ConfigArgs),
    /// Print the definitions of `BatchPolicy` and `BatchProfile`, for `kubectl apply --server-side -f -`
    Crds(crds::Args),
    /// Try it: a stand-in model server, a load, and the proxy in between
    Demo(demo::Args),
    /// Have the proxy on this machine get ready for its end: the hook of a sidecar, which returns at once
    Drain(drain::Args),
    /// Explain what keeps batches from being larger: of a running proxy, of all pods of a workload (deploy/web), or from an access log; or explain an error code
    Explain(explain::Args),
    /// Add the sidecar to the pods of Kubernetes manifests: YAML in, YAML out, a report on standard error
    Inject(inject::InjectArgs),
    /// Take the sidecar out of manifests again
    Uninject(inject::Files),
    /// Lead ports of this pod to its sidecar, by rules in the kernel: the init container of a pod that is captured by `Redirect`
    RedirectInit(redirect_init::Args),
    /// Run the controller of a cluster
    Controller(Box<controller::Args>),
    /// Print what an installation is made of, for `kubectl apply --server-side -f -`
    Install(install::Args),
    /// Whether a cluster can take Groupage, and whether what is installed works
    Check(check::Args),
    /// Every pod with a sidecar, its policy and how it goes
    Status(status::Args),
    /// Add the sidecar to a workload's pods, and wait until they have it
    Enable(enable::EnableArgs),
    /// Take the sidecar out of a workload's pods
    Disable(enable::DisableArgs),
    /// Another profile in force, at once: a policy's limits and scheduling as they were before
    Rollback(rollback::Args),
    /// Run scenarios in virtual time: the policy that learns, beside what others do with the same arrivals
    Simulate(simulate::Args),
    /// A model server that only pretends, or a caller, for tests and tries on a cluster
    #[command(hide = true)]
    StandIn(stand_in::Args),
}

/// Runs the command that the process was started with.
#[must_use]
pub fn run() -> ExitCode {
    let matches = parser(std::env::args_os().next().as_deref()).get_matches();
    let command = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()).command;
    if !matches!(command, Command::Proxy(_) | Command::Controller(_)) {
        // So that `groupage … | head` ends quietly. Not for those that serve: there a write to a client that has gone would end the process.
        sigpipe::reset();
    }
    match command {
        Command::Proxy(args) => proxy::run(args),
        Command::Validate(args) => validate::run(&args),
        Command::Config(args) => validate::config(args),
        Command::Crds(args) => crds::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Drain(args) => drain::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Inject(args) => inject::inject(&args),
        Command::Uninject(args) => inject::uninject(&args),
        Command::RedirectInit(args) => redirect_init::run(&args),
        Command::Controller(args) => controller::run(&args),
        Command::Install(args) => install::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Enable(args) => enable::enable(&args),
        Command::Disable(args) => enable::disable(&args),
        Command::Rollback(args) => rollback::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::StandIn(args) => stand_in::run(args),
    }
}

/// The name under which kubectl finds a command of its own: `kubectl groupage`.
const PLUGIN: &str = "kubectl-groupage";

/// What reads the command line. Started by kubectl it calls itself what its user typed.
fn parser(program: Option<&OsStr>) -> clap::Command {
    let is_plugin = program.is_some_and(|program| Path::new(program).file_stem() == Some(OsStr::new(PLUGIN)));
    if is_plugin { Cli::command().bin_name("kubectl groupage") } else { Cli::command() }
}

/// The runtime of the data path, with so many threads that serve calls.
fn runtime(threads: usize) -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name("groupage")
        // Sockets are looked at after every 8 tasks, not 61: a batch's connection must not wait for the answers of the batch before it.
        .event_interval(8)
        .enable_all()
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_says_what_was_typed_also_through_kubectl() {
        for (program, usage) in [
            ("/usr/local/bin/kubectl-groupage", "Usage: kubectl groupage status"),
            ("/usr/local/bin/groupage", "Usage: groupage status"),
        ] {
            let mut parser = parser(Some(OsStr::new(program)));
            let help = parser.try_get_matches_from_mut([program, "status", "--help"]).unwrap_err().to_string();
            assert!(help.contains(usage), "{program}: {help}");
        }
        assert_eq!(parser(None).get_bin_name(), None);
    }
}
