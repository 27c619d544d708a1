//! The command line and the summary that the test runners share, and the rendering of bytes in a
//! failure.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Default factor for all times of a case. A window of 20 ms becomes 80 ms, so that a pause of the
/// machine does not separate two calls that arrive together.
const FACTOR: f64 = 4.0;

/// Options of the command line.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Case files to run; the committed ones if empty.
    pub(crate) files: Vec<PathBuf>,
    /// Parts of the ids of the cases to run; all cases if empty.
    pub(crate) filters: Vec<String>,
    /// Factor for all times of a case.
    pub(crate) factor: f64,
    /// Path of the proxy binary.
    pub(crate) binary: PathBuf,
    /// `true` for `--list` and `--ignored`, with which no case is run.
    pub(crate) nothing: bool,
}

/// Number of cases by result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
}

// === impl Options ===

impl Options {
    /// Parses file names and parts of ids in any order, and ignores the flags that are common to
    /// all test binaries.
    pub(crate) fn parse(args: impl IntoIterator<Item = String>, binary: &Path) -> Result<Self, String> {
        let mut options =
            Self { files: Vec::new(), filters: Vec::new(), factor: FACTOR, binary: binary.to_owned(), nothing: false };
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let (flag, mut value) = match arg.split_once('=') {
                Some((flag, value)) if flag.starts_with("--") => (flag.to_owned(), Some(value.to_owned())),
                _ => (arg, None),
            };
            let mut value = || value.take().or_else(|| args.next()).ok_or_else(|| format!("{flag} needs a value"));
            match flag.as_str() {
                "--factor" => {
                    let factor = value()?.parse().map_err(|_| "--factor needs a number")?;
                    if !(0.01..=1000.0).contains(&factor) {
                        return Err("--factor is 0.01 to 1000".to_owned());
                    }
                    options.factor = factor;
                }
                "--bin" => options.binary = value()?.into(),
                "--list" | "--ignored" => options.nothing = true,
                "--test-threads" | "--skip" | "--format" | "--color" | "--logfile" | "-Z" => drop(value()?),
                flag if flag.starts_with('-') => {}
                path if Path::new(path).is_file() => options.files.push(path.into()),
                // A misspelled file name must not become a filter that selects no case.
                path if path.contains('/') || path.ends_with(".jsonl") => {
                    return Err(format!("{path}: no such file"));
                }
                _ => options.filters.push(flag),
            }
        }
        Ok(options)
    }

    /// Returns `true` if the filters select a case.
    pub(crate) fn is_selected(&self, id: &str) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|part| id.contains(part.as_str()))
    }
}

// === impl Totals ===

impl Totals {
    /// Returns the summary line.
    pub(crate) fn line(self) -> String {
        format!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }

    /// Returns the exit code: success if no case failed.
    pub(crate) fn code(self) -> ExitCode {
        if self.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Renders two byte strings around their first difference, on two lines.
pub(crate) fn difference(expected: &[u8], actual: &[u8]) -> String {
    let same = expected.iter().zip(actual).take_while(|(a, b)| a == b).count();
    if same == expected.len() && same == actual.len() {
        return format!("both {}", shown(expected, 0));
    }
    let (expected_len, actual_len) = (expected.len(), actual.len());
    format!(
        "differ at byte {same}\n      expected ({expected_len} bytes) {}\n      actual   ({actual_len} bytes) {}",
        shown(expected, same),
        shown(actual, same)
    )
}

/// Renders bytes as text, shortened around an offset.
pub(crate) fn shown(bytes: &[u8], around: usize) -> String {
    const BEFORE: usize = 80;
    const AFTER: usize = 160;
    let start = around.saturating_sub(BEFORE).min(bytes.len());
    let end = around.saturating_add(AFTER).min(bytes.len());
    let part = bytes.get(start..end).unwrap_or_default();
    let text = match std::str::from_utf8(part) {
        Ok(text) => {
            text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
        }
        Err(_) => part.escape_ascii().to_string(),
    };
    let (before, after) = (if start > 0 { "…" } else { "" }, if end < bytes.len() { "…" } else { "" });
    format!("`{before}{text}{after}`")
}
