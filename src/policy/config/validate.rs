//! `groupage validate`: validates files and reports the findings.

use std::path::Path;

use serde_json::json;

use super::EXIT_NO_INPUT;
use super::env::{MachineLimits, Overrides};
use super::file::{LoadError, load, read, read_from};

/// Exit code if there are findings, the same as that of `istioctl analyze`.
pub const EXIT_FINDINGS: u8 = 79;

/// Result of a validation, ready to be printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidationReport {
    /// Text for standard output.
    pub output: String,
    /// Exit code: 0, 79 if there are findings, 66 if a file cannot be read.
    pub exit: u8,
}

/// Validates every file, with `-` for standard input, and reports all findings: as JSON if
/// `as_json` is set, otherwise as text with snippets.
pub fn validate<P: AsRef<Path>>(paths: &[P], as_json: bool, colour: bool) -> ValidationReport {
    let (mut findings, mut unreadable) = (false, false);
    let mut text = String::new();
    let mut files = Vec::new();
    for path in paths {
        let path = path.as_ref();
        let stdin = path.as_os_str() == "-";
        let name = if stdin { "standard input".to_owned() } else { path.display().to_string() };
        // The policy is built as well, so that everything that would prevent a start is found here.
        let loaded = if stdin {
            read_from(std::io::stdin().lock(), &name).and_then(|text| Ok(load(&text, &name)?))
        } else {
            read(path)
        };
        let found = loaded.and_then(|loaded| {
            super::build(Some(&loaded), &Overrides::default(), &MachineLimits::default())?;
            Ok(loaded)
        });
        match found {
            Ok(loaded) => {
                let settings = count_settings(&loaded.json);
                let noun = if settings == 1 { "setting" } else { "settings" };
                text.push_str(&format!("√ {name}: {settings} {noun}, defaults for the rest\n"));
                for notice in &loaded.notices {
                    text.push_str(&format!("  {name}:{}: {}\n", notice.line, notice.message));
                }
                files.push(json!({
                    "file": name, "ok": true, "settings": settings, "findings": [], "notices": loaded.notices,
                }));
            }
            Err(LoadError::Invalid(errors)) => {
                findings = true;
                text.push_str(&errors.render(colour));
                files.push(json!({ "file": name, "ok": false, "findings": errors.json(), "notices": [] }));
            }
            Err(error @ LoadError::Unreadable { .. }) => {
                unreadable = true;
                text.push_str(&format!("× {error}\n"));
                files.push(json!({ "file": name, "ok": false, "error": error.to_string(), "findings": [] }));
            }
        }
    }
    let output = if as_json { format!("{:#}\n", json!({ "files": files })) } else { text };
    let exit = match (unreadable, findings) {
        (true, _) => EXIT_NO_INPUT,
        (false, true) => EXIT_FINDINGS,
        (false, false) => 0,
    };
    ValidationReport { output, exit }
}

/// Returns the number of values that a file sets. A list of scalars counts once.
fn count_settings(json: &serde_json::Value) -> usize {
    match json {
        serde_json::Value::Object(entries) => entries.values().map(count_settings).sum(),
        serde_json::Value::Array(items) if items.iter().any(serde_json::Value::is_object) => {
            items.iter().map(count_settings).sum()
        }
        _ => 1,
    }
}
