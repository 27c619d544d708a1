//! Runs the binary once and collects its output.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

/// The result of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CommandOutput {
    pub(super) exit: i32,
    pub(super) out: String,
    pub(super) report: String,
}

// === impl CommandOutput ===

impl CommandOutput {
    /// Parses standard output as JSON.
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.out))
    }
}

/// Runs `groupage` with a text on standard input.
pub(super) fn groupage(args: &[&str], input: &str) -> CommandOutput {
    let mut child = Command::new(env!("CARGO_BIN_EXE_groupage"))
        .args(args)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writer = std::thread::spawn(move || {
        // A process that rejects its arguments does not read its input.
        let _sent = stdin.write_all(input.as_bytes());
    });
    let out = child.wait_with_output().unwrap();
    writer.join().unwrap();
    CommandOutput {
        exit: out.status.code().unwrap_or(-1),
        out: String::from_utf8(out.stdout).unwrap(),
        report: String::from_utf8(out.stderr).unwrap(),
    }
}

pub(super) fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/inject")
}
