//! What differs between two policies, and what of it a running process takes.
//!
//! All but `proxy` may change while a process runs. What stands there was used at the start (sockets, buffers, the log), so a change of it is for the next
//! start and is told as pending until then.

use std::collections::BTreeMap;

use serde::Serialize;

use super::effective::Setting;
use super::policy::Policy;

/// What is fixed at the start.
const FIXED: &str = "proxy.";

/// A setting that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The key's path.
    pub path: String,
    /// What it was, as it would be written; `None`: there was no such key, as in a route that is new.
    pub from: Option<String>,
    /// What it is; `None`: there is none any more.
    pub to: Option<String>,
}

// === impl Policy ===

impl Policy {
    /// This policy in a process that was started with another: all of it but what stands under `proxy`. Also what a start with it would change.
    #[must_use]
    pub fn within(self, started: &Self) -> (Self, Vec<Change>) {
        let pending = differences(fixed(started), fixed(&self));
        // In the order of the schema, where `proxy` stands last.
        let hot = self.settings.iter().filter(|setting| !setting.path.starts_with(FIXED)).cloned();
        let settings = hot.chain(fixed(started).cloned()).collect();
        (Self { proxy: started.proxy.clone(), settings, ..self }, pending)
    }

    /// What differs from an earlier policy, in the order of the schema; what is no more stands last.
    #[must_use]
    pub fn changes(&self, earlier: &Self) -> Vec<Change> {
        differences(earlier.settings.iter(), self.settings.iter())
    }
}

fn fixed(policy: &Policy) -> impl Iterator<Item = &Setting> {
    policy.settings.iter().filter(|setting| setting.path.starts_with(FIXED))
}

fn differences<'a>(from: impl Iterator<Item = &'a Setting>, to: impl Iterator<Item = &'a Setting>) -> Vec<Change> {
    let mut before: BTreeMap<&str, &str> =
        from.map(|setting| (setting.path.as_str(), setting.value.as_str())).collect();
    let mut out = Vec::new();
    for setting in to {
        let was = before.remove(setting.path.as_str());
        if was != Some(&setting.value) {
            let (from, to) = (was.map(str::to_owned), Some(setting.value.clone()));
            out.push(Change { path: setting.path.clone(), from, to });
        }
    }
    let gone = |(path, value): (&str, &str)| Change { path: path.to_owned(), from: Some(value.to_owned()), to: None };
    out.extend(before.into_iter().map(gone));
    out
}

#[cfg(test)]
mod tests {
    use super::super::{Machine, Overrides, build, load};
    use super::*;

    fn policy(text: &str) -> Policy {
        build(Some(&load(text, "test.yaml").unwrap()), &Overrides::default(), &Machine::default()).unwrap()
    }

    fn told(changes: &[Change]) -> Vec<(&str, Option<&str>, Option<&str>)> {
        changes.iter().map(|change| (change.path.as_str(), change.from.as_deref(), change.to.as_deref())).collect()
    }

    #[test]
    fn what_stands_under_proxy_stays_and_is_told_as_pending() {
        let started = policy("limits: {batchItemsMax: 4}\nproxy: {log: {level: info}, listen: [127.0.0.1:1]}");
        let wanted = policy("limits: {batchItemsMax: 16}\nproxy: {log: {level: debug}, listen: [127.0.0.1:1]}");
        let (now, pending) = wanted.within(&started);
        assert_eq!(told(&pending), [("proxy.log.level", Some("info"), Some("debug"))]);
        assert_eq!(told(&now.changes(&started)), [("limits.batchItemsMax", Some("4"), Some("16"))]);
        assert_eq!((&now.proxy, now.limits.batch_items_max), (&started.proxy, 16));
        assert_eq!(now.effective().len(), started.effective().len());
        let order = |policy: &Policy| policy.effective().iter().map(|setting| setting.path.clone()).collect::<Vec<_>>();
        assert_eq!(order(&now), order(&started));
    }

    #[test]
    fn a_line_that_moved_is_no_change_and_a_route_that_went_is_one() {
        let before = policy("routes: [{path: /a}, {path: /b}]");
        let moved = policy("\n\nroutes: [{path: /a}, {path: /b}]");
        assert_eq!(moved.changes(&before), []);
        let after = policy("routes: [{path: /a}]");
        let changes = after.changes(&before);
        assert!(
            changes.iter().all(|change| change.path.starts_with("routes[1]") && change.to.is_none()),
            "{changes:?}"
        );
        assert!(changes.iter().any(|change| change.from.as_deref() == Some("/b")));
    }
}
