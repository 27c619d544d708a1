//! The command line: subcommands, and the place where the parts are put together.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line talks to its user")]

mod compose;
mod demo;
mod explain;
mod keep;
mod proxy;
mod reload;
mod simulate;
mod validate;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
    /// Try it: a stand-in model server, a load, and the proxy in between
    Demo(demo::Args),
    /// Say in sentences what keeps batches from being larger, of a running proxy or from its access log; or what an error code means
    Explain(explain::Args),
    /// Run scenarios in virtual time: the policy that learns, beside what others do with the same arrivals
    Simulate(simulate::Args),
}

/// Runs the command that the process was started with.
#[must_use]
pub fn run() -> ExitCode {
    let command = Cli::parse().command;
    if !matches!(command, Command::Proxy(_)) {
        // So that `groupage … | head` ends quietly. Not for the proxy: there a write to a client that has gone would end the process.
        sigpipe::reset();
    }
    match command {
        Command::Proxy(args) => proxy::run(args),
        Command::Validate(args) => validate::run(&args),
        Command::Config(args) => validate::config(args),
        Command::Demo(args) => demo::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Simulate(args) => simulate::run(&args),
    }
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
