//! Programs that are run: whether they are there, and what they said.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use super::Fault;

/// The tree.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Cargo's target folder.
pub(crate) fn cargo_target() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap_or(Path::new("target"))
}

/// Where what takes long to build outlives the checkout.
pub(crate) fn cache() -> Result<PathBuf, Fault> {
    let given = std::env::var_os("XDG_CACHE_HOME").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let cache = given.or_else(|| std::env::home_dir().map(|home| home.join(".cache"))).ok_or("no home folder")?;
    let folder = cache.join("groupage-e2e");
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// The time now: cases say how long they took.
#[expect(clippy::disallowed_methods, reason = "a measuring instrument beside the product")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Where a program is; Debian keeps some out of an ordinary user's path.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Runs it; only where it fails is shown what it said.
pub(crate) fn quietly(command: &mut Command) -> Result<String, Fault> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("cannot start {name}: {error}"))?;
    said(&name, &output)
}

/// What a program that has ended printed, or why it failed.
pub(crate) fn said(name: &str, output: &Output) -> Result<String, Fault> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{name} failed ({}):\n{}{}", output.status, text(&output.stdout), text(&output.stderr)).into())
}
