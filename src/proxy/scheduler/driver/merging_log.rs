//! Log lines about the end of merging: suspensions of a cost class and their end, merge keys in
//! quarantine, and servers that accept one item per call.

use super::Driver;
use crate::batching::{
    BatchRefusal, CostClassId, MergingChange, MergingRestriction, RestrictedClass, Suspension, Tick,
};
use crate::protocol::decode_cost_class;

/// Remedy for a server that rejects or ignores batches.
const ONE_ITEM_REMEDY: &str = "If the server accepts only one item per call, set `mode: Passthrough`";

// === impl Driver ===

impl Driver<'_> {
    /// Logs the changes of merging, and updates the number of suspended classes.
    pub(super) fn report_merging_changes(&mut self) {
        for RestrictedClass { class, restriction } in self.core.take_merging_restrictions() {
            log_restriction(&self.describe_class(class), restriction, self.now());
        }
        let changes = self.core.take_merging_changes();
        if changes.is_empty() {
            return;
        }
        for change in changes {
            log_change(&self.describe_class(change.class), change, self.now());
        }
        self.supervisor.metrics.set_merging_suspended(self.core.count_suspended_classes());
    }

    /// Returns path and model of a cost class.
    fn describe_class(&self, class: CostClassId) -> String {
        let name = self.ids.class_name(class).and_then(decode_cost_class);
        name.map_or_else(String::new, |name| format!("{} {}", name.path, name.model))
    }
}

fn log_change(class: &str, change: MergingChange, now: Tick) {
    let Some(suspension) = change.suspension else {
        tracing::info!(class, "merging resumed: the server accepts batches");
        return;
    };
    let (answer, status) = (suspension.refusal.as_str(), suspension.refusal.status());
    let retest = suspension.retest.since(now);
    if change.is_retest_failure {
        tracing::debug!(class, answer, status, ?retest, "a batch of two failed again: merging stays suspended");
        return;
    }
    tracing::warn!(class, answer, status, ?retest, "{}", suspension_message(suspension));
}

fn log_restriction(class: &str, restriction: MergingRestriction, now: Tick) {
    match restriction {
        MergingRestriction::KeyRefused { refusal, retest } => tracing::warn!(
            class,
            answer = refusal.as_str(),
            status = refusal.status(),
            retest = ?retest.since(now),
            "the server rejects batches of one merge key but answers their calls individually: calls of that key are \
             sent alone for a while, and those of other keys are merged"
        ),
        MergingRestriction::OneItem { status } => tracing::warn!(
            class,
            status,
            "merging ended: the server accepts one item per call; each call is now sent individually, and a batch of \
             two is tried from time to time. `mode: Passthrough` ends the retests"
        ),
    }
}

/// Returns the message about a suspension: what the server did, what follows, and the remedy. It
/// states that calls are answered individually only if those of the last batch were.
fn suspension_message(suspension: Suspension) -> String {
    let (cause, remedy) = match suspension.refusal {
        BatchRefusal::Usage => (
            "the server accepts batches but counts only the first item in `usage`, as llama.cpp does",
            "`protocol: LlamaCpp` or `mode: Passthrough` ends the retests",
        ),
        BatchRefusal::Mismatch => (
            "responses to batches cannot be split",
            "Check that the route's `protocol` is that of the server, or set `mode: Passthrough`",
        ),
        BatchRefusal::Different => (
            "responses to batches differ from responses to single calls",
            "The model computes an item depending on the others: set `mode: Passthrough`",
        ),
        BatchRefusal::Timeout => ("the server does not answer batches in time", ONE_ITEM_REMEDY),
        BatchRefusal::Status(_)
        | BatchRefusal::TooLarge(_)
        | BatchRefusal::Reset
        | BatchRefusal::OutOfMemory
        | BatchRefusal::Overload => ("the server rejects batches", ONE_ITEM_REMEDY),
    };
    let is_usage = suspension.refusal == BatchRefusal::Usage;
    let alone = if suspension.answered_alone && !is_usage { ", but their calls are answered individually" } else { "" };
    format!("merging suspended: {cause}{alone}; each call is now sent individually. {remedy}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suspension_names_what_the_server_did() {
        let message = |refusal, answered_alone| {
            let (since, retest) = (Tick::default(), Tick::default());
            suspension_message(Suspension { since, retest, refusal, answered_alone })
        };
        let usage = message(BatchRefusal::Usage, true);
        assert!(usage.contains("counts only the first item in `usage`") && !usage.contains("one item per call"));
        assert!(message(BatchRefusal::Mismatch, true).contains("cannot be split, but their calls are answered"));
        let refused = "merging suspended: the server rejects batches, but their calls are answered individually; each \
                       call is now sent individually. If the server accepts only one item per call, set `mode: \
                       Passthrough`";
        assert_eq!(message(BatchRefusal::Status(422), true), refused);
        let unretried = message(BatchRefusal::Status(422), false);
        assert!(unretried.contains("the server rejects batches; each call is now sent individually"), "{unretried}");
    }
}
