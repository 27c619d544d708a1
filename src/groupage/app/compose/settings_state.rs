//! The settings in force with the result of their last change, and their JSON for the admin port.

use serde_json::{Value, json};

use super::super::state_dir::crash_guard::{CRASH_COUNT, CRASH_WINDOW};
use crate::batching::Tick;
use crate::config::{LoadError, Policy, Setting, SettingChange};
use crate::telemetry::names::ReloadResult;

/// Result of applying new settings.
#[derive(Debug, Clone, Default)]
pub struct AppliedSettings {
    /// Changes that are in force now.
    pub changes: Vec<SettingChange>,
    /// Changes that take effect at the next start.
    pub pending: Vec<SettingChange>,
}

/// Reason why settings are not put in force.
#[derive(Debug)]
pub enum SettingsRefusal {
    /// They are unreadable or invalid.
    Load(LoadError),
    /// Any other reason, as a message.
    Because(String),
}

/// The settings in force and the history of their changes.
#[derive(Debug)]
pub(super) struct SettingsState {
    pub(super) policy: Policy,
    /// Changes that take effect at the next start.
    pub(super) pending: Vec<SettingChange>,
    /// End of the pass-through mode after crashes, while it is on.
    pub(super) passthrough_until: Option<Tick>,
    applied: u64,
    refused: u64,
    last: Option<LastChange>,
}

/// Result of the last change.
#[derive(Debug)]
struct LastChange {
    at: Tick,
    result: ReloadResult,
    changes: Vec<SettingChange>,
    /// Errors of a refused change.
    reason: Value,
}

// === impl SettingsRefusal ===

impl SettingsRefusal {
    fn json(&self) -> Value {
        match self {
            Self::Load(LoadError::Invalid(errors)) => errors.json(),
            Self::Load(error @ LoadError::Unreadable { .. }) => json!([{"message": error.to_string()}]),
            Self::Because(message) => json!([{"message": message}]),
        }
    }
}

// === impl SettingsState ===

impl SettingsState {
    pub(super) fn new(policy: Policy, passthrough_until: Option<Tick>) -> Self {
        Self { policy, pending: Vec::new(), passthrough_until, applied: 0, refused: 0, last: None }
    }

    /// Records a change that was applied at this instant.
    pub(super) fn on_applied(&mut self, at: Tick, policy: Policy, applied: &AppliedSettings) {
        let changes = applied.changes.clone();
        self.policy = policy;
        self.pending.clone_from(&applied.pending);
        self.applied += 1;
        self.last = Some(LastChange { at, result: ReloadResult::Applied, changes, reason: Value::Null });
    }

    /// Records that new settings were refused at this instant.
    pub(super) fn on_refused(&mut self, at: Tick, error: &SettingsRefusal) {
        self.refused += 1;
        self.last = Some(LastChange { at, result: ReloadResult::Refused, changes: Vec::new(), reason: error.json() });
    }

    /// Returns every setting in force with its source, as JSON. `pending` has the value that the
    /// next start would use, if it differs.
    pub(super) fn config_json(&self) -> Value {
        let pending = |path: &str| self.pending.iter().find(|change| change.path == path);
        let entry = |setting: &Setting| {
            let mut entry = json!({"value": setting.value, "source": setting.source.to_string()});
            if let Some(change) = pending(&setting.path) {
                entry["pending"] = change.to.clone().into();
            }
            (setting.path.clone(), entry)
        };
        Value::Object(self.policy.effective().iter().map(entry).collect())
    }

    /// Returns the result of the last change, as JSON.
    pub(super) fn reload_json(&self, now: Tick) -> Value {
        let last = self.last.as_ref().map(|last| {
            json!({
                "result": last.result.as_str(),
                "seconds_ago": now.since(last.at).as_secs(),
                "changes": last.changes,
                "why": last.reason,
            })
        });
        json!({"applied": self.applied, "refused": self.refused, "last": last, "pending": self.pending})
    }

    /// Returns the pass-through mode after crashes as JSON; null if it is off.
    pub(super) fn crash_passthrough_json(&self, now: Tick) -> Value {
        self.passthrough_until.map_or(Value::Null, |until| {
            json!({
                "crashes": CRASH_COUNT,
                "within_seconds": CRASH_WINDOW.as_secs(),
                "ends_in_seconds": until.since(now).as_secs(),
            })
        })
    }
}
