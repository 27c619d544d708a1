//! The committed PTX is that of the sources, compiled with the pinned compiler.

use std::io::Write as _;
use std::process::Command;

use crate::manifest::folder;

/// Exit status of the build script if the compiler cannot be installed.
const INSTALL_FAILED: i32 = 3;

/// Reports that the test cannot run, which fails it in CI. Writes to standard error directly,
/// because the harness discards the output of tests that pass.
fn report_skipped(reason: &str) {
    assert!(std::env::var_os("CI").is_none(), "CI is set, and the test cannot run: {reason}");
    writeln!(std::io::stderr(), "SKIPPED: the_committed_ptx_is_what_the_sources_compile_to: {reason}").ok();
}

#[test]
fn the_committed_ptx_is_what_the_sources_compile_to() {
    let output = match Command::new("python3").arg(folder().join("build.py")).arg("--check").output() {
        Ok(output) => output,
        Err(error) => return report_skipped(&format!("no python3, which runs the build script: {error}")),
    };
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.code() == Some(INSTALL_FAILED) {
        return report_skipped(&text);
    }
    assert!(output.status.success(), "{text}");
}
