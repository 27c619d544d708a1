//! Differences between two policies, and the part of a new policy that a running process can apply.
//!
//! All keys except those under `engine` and `proxy` may change while a process runs. Those are used
//! at startup (a model, sockets, buffers, the log), so a change of them takes effect at the next
//! start and is reported as pending until then.

use std::collections::BTreeMap;

use serde::Serialize;

use super::effective::Setting;
use super::policy::Policy;

/// Prefixes of the settings that are fixed at startup.
const FIXED: [&str; 2] = ["engine.", "proxy."];

/// A setting that differs between two policies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SettingChange {
    /// Path of the key.
    pub path: String,
    /// Previous value, as written in a file; `None` if the key did not exist, as in a new route.
    pub from: Option<String>,
    /// New value; `None` if the key no longer exists.
    pub to: Option<String>,
}

// === impl Policy ===

impl Policy {
    /// Returns this policy as a process that was started with `started` can apply it, which is all
    /// of it except the keys under `engine` and `proxy`. Also returns the changes that are pending until the
    /// next start.
    #[must_use]
    pub fn hot_reload_onto(self, started: &Self) -> (Self, Vec<SettingChange>) {
        let pending = differences(startup_settings(started), startup_settings(&self));
        // Keeps the order of the schema, in which these are last.
        let hot = self.settings.iter().filter(|setting| !is_fixed(setting)).cloned();
        let settings = hot.chain(startup_settings(started).cloned()).collect();
        (Self { proxy: started.proxy.clone(), engine: started.engine.clone(), settings, ..self }, pending)
    }

    /// Returns the differences from an earlier policy, in the order of the schema. Keys that no
    /// longer exist are last.
    #[must_use]
    pub fn changes(&self, earlier: &Self) -> Vec<SettingChange> {
        differences(earlier.settings.iter(), self.settings.iter())
    }
}

fn startup_settings(policy: &Policy) -> impl Iterator<Item = &Setting> {
    policy.settings.iter().filter(|setting| is_fixed(setting))
}

/// Returns `true` for a setting that is fixed at startup.
pub(super) fn is_fixed(setting: &Setting) -> bool {
    FIXED.iter().any(|prefix| setting.path.starts_with(prefix))
}

fn differences<'a>(
    from: impl Iterator<Item = &'a Setting>,
    to: impl Iterator<Item = &'a Setting>,
) -> Vec<SettingChange> {
    let mut before: BTreeMap<&str, &str> =
        from.map(|setting| (setting.path.as_str(), setting.value.as_str())).collect();
    let mut out = Vec::new();
    for setting in to {
        let was = before.remove(setting.path.as_str());
        if was != Some(&setting.value) {
            let (from, to) = (was.map(str::to_owned), Some(setting.value.clone()));
            out.push(SettingChange { path: setting.path.clone(), from, to });
        }
    }
    let removed =
        |(path, value): (&str, &str)| SettingChange { path: path.to_owned(), from: Some(value.to_owned()), to: None };
    out.extend(before.into_iter().map(removed));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::built;

    fn to_tuples(changes: &[SettingChange]) -> Vec<(&str, Option<&str>, Option<&str>)> {
        changes.iter().map(|change| (change.path.as_str(), change.from.as_deref(), change.to.as_deref())).collect()
    }

    #[test]
    fn settings_under_proxy_are_unchanged_and_reported_as_pending() {
        let started = built("limits: {batchItemsMax: 4}\nproxy: {log: {level: info}, listen: [127.0.0.1:1]}");
        let target = built("limits: {batchItemsMax: 16}\nproxy: {log: {level: debug}, listen: [127.0.0.1:1]}");
        let (now, pending) = target.hot_reload_onto(&started);
        assert_eq!(to_tuples(&pending), [("proxy.log.level", Some("info"), Some("debug"))]);
        assert_eq!(to_tuples(&now.changes(&started)), [("limits.batchItemsMax", Some("4"), Some("16"))]);
        assert_eq!((&now.proxy, now.limits.batch_items_max), (&started.proxy, 16));
        assert_eq!(now.effective().len(), started.effective().len());
        let order = |policy: &Policy| policy.effective().iter().map(|setting| setting.path.clone()).collect::<Vec<_>>();
        assert_eq!(order(&now), order(&started));
    }

    #[test]
    fn a_moved_line_is_no_change_and_a_removed_route_is_one() {
        let before = built("routes: [{path: /a}, {path: /b}]");
        let moved = built("\n\nroutes: [{path: /a}, {path: /b}]");
        assert_eq!(moved.changes(&before), []);
        let after = built("routes: [{path: /a}]");
        let changes = after.changes(&before);
        assert!(
            changes.iter().all(|change| change.path.starts_with("routes[1]") && change.to.is_none()),
            "{changes:?}"
        );
        assert!(changes.iter().any(|change| change.from.as_deref() == Some("/b")));
    }
}
