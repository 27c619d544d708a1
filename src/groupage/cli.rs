//! The command line: its subcommands. The processes that they run are assembled in `app`.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the command line prints for its user")]

// The subcommands, in the order of the help.
mod proxy;
mod validate;
mod crds;
mod demo;
mod doctor;
mod drain;
mod explain;
mod inject;
mod redirect_init;
mod controller;
mod install;
mod check;
mod status;
mod enable;
mod rollback;
mod simulate;

// Their helpers.
mod refusal;
mod cluster;
mod pods;
mod pod_problem;
mod bypasses;
mod sidecar_metrics;
mod admin_client;
mod yaml;

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

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
    /// Check policy files and report what is wrong with them
    Validate(validate::Args),
    /// Show every setting in effect and where it comes from
    Config(validate::ConfigArgs),
    /// Print the CRDs `BatchPolicy` and `BatchProfile`, for `kubectl apply --server-side -f -`
    Crds(crds::Args),
    /// Try batching on this machine: a simulated model server, a load, and the proxy in between
    Demo(demo::Args),
    /// Report what this machine and this build offer to the engine, and with --engine what it would do
    /// with a model
    Doctor(doctor::Args),
    /// Prepare the proxy on this machine for its shutdown and return at once: the `preStop` hook of
    /// a sidecar
    Drain(drain::Args),
    /// Explain what keeps batches from being larger, for a running proxy, for all pods of a
    /// workload (deploy/web) or from an access log; or explain an error code
    Explain(explain::Args),
    /// Add the sidecar to the pods of Kubernetes manifests: reads and writes YAML, reports on
    /// standard error
    Inject(inject::InjectArgs),
    /// Remove the sidecar from Kubernetes manifests
    Uninject(inject::InputFiles),
    /// Redirect ports of this pod to its sidecar by kernel rules: the init container of a pod that
    /// is captured by `Redirect`
    #[command(hide = true)]
    RedirectInit(redirect_init::Args),
    /// Run the controller of a cluster
    Controller(Box<controller::Args>),
    /// Print the manifests of an installation, for `kubectl apply --server-side -f -`
    Install(install::Args),
    /// Check whether a cluster can run Groupage, and whether what is installed works
    Check(check::CheckArgs),
    /// Show every pod that has a sidecar, with its policy and its figures
    Status(status::Args),
    /// Add the sidecar to a workload's pods, and wait for the rollout
    Enable(enable::EnableArgs),
    /// Remove the sidecar from a workload's pods
    Disable(enable::DisableArgs),
    /// Put another profile in force at once: a policy's limits and scheduling as they were before
    Rollback(rollback::Args),
    /// Run scenarios in virtual time: compare the adaptive policy with others on the same arrivals
    Simulate(simulate::Args),
}

/// Format of an output that is text by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TextOutput {
    /// Human-readable text.
    Text,
    /// JSON, for programs.
    Json,
}

/// Parses the command line and runs its subcommand.
#[must_use]
pub fn run() -> ExitCode {
    let matches = parser(std::env::args_os().next().as_deref()).get_matches();
    let command = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()).command;
    if !matches!(command, Command::Proxy(_) | Command::Controller(_)) {
        // Restore the default action of SIGPIPE, so that `groupage … | head` ends quietly. The
        // serving commands keep ignoring it: there a write to a client that has disconnected would
        // end the process.
        sigpipe::reset();
    }
    match command {
        Command::Proxy(args) => proxy::run(args),
        Command::Validate(args) => validate::run(&args),
        Command::Config(args) => validate::config(args),
        Command::Crds(args) => crds::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Doctor(args) => doctor::run(&args),
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
    }
}

/// File name by which kubectl finds the plugin `kubectl groupage`.
const PLUGIN: &str = "kubectl-groupage";

/// Builds the command line parser. If the program was started by kubectl, its usage texts show the
/// command that the user typed.
fn parser(program: Option<&OsStr>) -> clap::Command {
    let is_plugin = program.is_some_and(|program| Path::new(program).file_stem() == Some(OsStr::new(PLUGIN)));
    if is_plugin { Cli::command().bin_name("kubectl groupage") } else { Cli::command() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_shows_the_program_that_was_typed_including_kubectl() {
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
