//! The refusal to start: printed by the commands that need valid settings and find none.

use std::io::IsTerminal;
use std::process::ExitCode;

use crate::config::{self, LoadError};

/// Prints why no policy is available to start with.
pub(super) fn refuse(error: &LoadError) -> ExitCode {
    match error {
        LoadError::Invalid(errors) => eprint!("{}", errors.render(std::io::stderr().is_terminal())),
        LoadError::Unreadable { .. } => eprintln!("× {error}"),
    }
    ExitCode::from(config::EXIT_CONFIG)
}
