//! The log of settings: notices, changes, findings and refusals, in the wording of `groupage
//! validate`.

use super::compose::{AppliedSettings, SettingsRefusal};
use crate::config::{ConfigErrors, LoadError, Notice, SettingChange};

/// Maximum number of log lines of one change; the rest is only counted.
const LINES_MAX: usize = 50;

/// Logs the notices about valid settings.
pub(super) fn log_notices(notices: &[Notice]) {
    for notice in notices {
        tracing::info!(path = notice.path, line = notice.line, "{}", notice.message);
    }
}

/// Logs every change of new settings, in force or pending.
pub(super) fn log_changes(applied: &AppliedSettings) {
    for change in applied.changes.iter().take(LINES_MAX) {
        log_change(change, "setting changed");
    }
    for change in applied.pending.iter().take(LINES_MAX) {
        log_change(change, "setting takes effect at the next start");
    }
}

fn log_change(change: &SettingChange, what: &str) {
    let (from, to) = (change.from.as_deref().unwrap_or("none"), change.to.as_deref().unwrap_or("none"));
    tracing::info!(path = change.path, from, to, "{what}");
}

/// Logs why settings are not put in force.
pub(super) fn log_refusal(refusal: &SettingsRefusal) {
    match refusal {
        SettingsRefusal::Load(error) => log_load_error(error),
        SettingsRefusal::Because(reason) => tracing::error!(reason, "settings refused"),
    }
}

/// Logs why settings cannot be loaded.
pub(super) fn log_load_error(error: &LoadError) {
    match error {
        LoadError::Invalid(errors) => log_findings(errors),
        LoadError::Unreadable { .. } => tracing::error!(%error, "settings refused"),
    }
}

/// Logs every finding with its place.
pub(super) fn log_findings(errors: &ConfigErrors) {
    for finding in errors.findings.iter().take(LINES_MAX) {
        tracing::error!(
            code = finding.code.as_str(),
            path = finding.path,
            line = finding.line(),
            value = finding.value,
            allowed = finding.allowed,
            nearest = finding.nearest,
            "settings refused: {}",
            finding.message
        );
    }
    if errors.findings.len() > LINES_MAX {
        tracing::error!(findings = errors.findings.len(), "settings refused: more findings are not listed");
    }
}
