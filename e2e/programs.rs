//! Lookup and execution of external programs, and the folders of a run.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use super::TestError;

/// Root folder of the repository.
pub(crate) fn repository_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Cargo's target folder.
pub(crate) fn cargo_target() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap_or(Path::new("target"))
}

/// Folder for artifacts that take long to build. It outlives the checkout.
pub(crate) fn cache_dir() -> Result<PathBuf, TestError> {
    let given = std::env::var_os("XDG_CACHE_HOME").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let cache = given.or_else(|| std::env::home_dir().map(|home| home.join(".cache"))).ok_or("no home folder")?;
    let folder = cache.join("groupage-e2e");
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Current time, for the durations in reports.
#[expect(clippy::disallowed_methods, reason = "a measuring instrument beside the product")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Finds a program. Debian keeps some in folders that are not on an ordinary user's path.
pub(crate) fn find_program(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Runs a command without printing its output, which the error contains if the command fails.
pub(crate) fn run_quietly(command: &mut Command) -> Result<String, TestError> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("cannot start {name}: {error}"))?;
    output_or_error(&name, &output)
}

/// Returns the standard output of a program that has exited, or an error with all of its output.
pub(crate) fn output_or_error(name: &str, output: &Output) -> Result<String, TestError> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{name} failed ({}):\n{}{}", output.status, text(&output.stdout), text(&output.stderr)).into())
}
