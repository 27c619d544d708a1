//! `groupage validate` and `groupage config`: what a policy says, and what is wrong with it.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args as ClapArgs, ValueEnum};

use super::proxy;
use crate::config::{self, LoadError};

/// How to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// Files to check.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// The same with a flag, as kubectl takes it; may be given more than once
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Policy files, or - for standard input
    #[arg(value_name = "FILE", required_unless_present = "files")]
    more: Vec<PathBuf>,
    /// How to print
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

/// What `config` shows.
#[derive(Debug, ClapArgs)]
pub(super) struct ConfigArgs {
    #[command(flatten)]
    proxy: proxy::Args,
    /// How to print
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

pub(super) fn run(args: &Args) -> ExitCode {
    let files: Vec<&PathBuf> = args.files.iter().chain(&args.more).collect();
    let verdict = config::validate(&files, args.output == Output::Json, std::io::stdout().is_terminal());
    print!("{}", verdict.output);
    ExitCode::from(verdict.exit)
}

pub(super) fn config(args: ConfigArgs) -> ExitCode {
    let policy = match args.proxy.sources().begin() {
        Ok(began) => {
            began.wrong.iter().for_each(|error| eprint!("{}", error.render(std::io::stderr().is_terminal())));
            began.read.policy
        }
        Err(error) => return refuse(&error),
    };
    let settings = policy.effective();
    if args.output == Output::Json {
        match serde_json::to_string_pretty(settings) {
            Ok(text) => println!("{text}"),
            Err(error) => eprintln!("cannot print the settings: {error}"),
        }
        return ExitCode::SUCCESS;
    }
    let width = |text: fn(&config::Setting) -> usize| settings.iter().map(text).max().unwrap_or(0);
    let (path, value) = (width(|s| s.path.len()), width(|s| s.value.len()).min(48));
    for setting in settings {
        println!("{:path$}  {:value$}  {}", setting.path, setting.value, setting.source);
    }
    ExitCode::SUCCESS
}

/// Says why there is no policy to start with.
pub(super) fn refuse(error: &LoadError) -> ExitCode {
    match error {
        LoadError::Wrong(errors) => eprint!("{}", errors.render(std::io::stderr().is_terminal())),
        LoadError::Unreadable { .. } => eprintln!("× {error}"),
    }
    ExitCode::from(config::EXIT_CONFIG)
}
