//! The command that starts the binary under test, without settings of the environment of the test
//! run, which may configure another proxy.

use std::process::Command;

/// Returns the command `groupage proxy`.
pub(crate) fn proxy_command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_groupage"));
    command.args(["proxy", "--log-format", "json"]);
    remove_settings(&mut command);
    command
}

/// Removes the settings of the environment from a command.
pub(crate) fn remove_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name == "RUST_LOG" || name.to_string_lossy().starts_with("GROUPAGE_") {
            command.env_remove(name);
        }
    }
}
