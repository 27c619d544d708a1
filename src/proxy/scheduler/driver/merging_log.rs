//! Log lines about the end of merging: suspensions of a cost class and their end, merge keys in
//! quarantine, servers that accept one item per call, and an empty replay budget.

use std::time::Duration;

use super::Driver;
use crate::batching::{
    Batch, BatchRefusal, CostClassId, MergingChange, MergingRestriction, RestrictedClass, Suspension, Tick,
    UnbatchedReason,
};
use crate::protocol::{MismatchKind, ResponseMismatch, decode_cost_class};

/// Remedy for a server that rejects or ignores batches.
const ONE_ITEM_REMEDY: &str = "If the server accepts only one item per call, set `mode: Passthrough`";

/// Time without calls that are withheld from merging after which the next one is logged. While
/// batches keep failing, the budget is empty and filled again every few seconds.
const QUIET: Duration = Duration::from_secs(60);

/// The time of the last call that was sent unbatched because the replay budget was empty.
#[derive(Debug, Default)]
pub(super) struct BudgetLog(Option<Tick>);

// === impl BudgetLog ===

impl BudgetLog {
    /// Records such a call. Returns `true` for the first one, and for one after a quiet time.
    fn on_call(&mut self, now: Tick) -> bool {
        self.0.replace(now).is_none_or(|last| now.since(last) >= QUIET)
    }
}

// === impl Driver ===

impl Driver<'_> {
    /// Logs once that calls are sent unbatched because failed batches have used up the replay
    /// budget.
    pub(super) fn report_empty_budget(&mut self, batch: &Batch, now: Tick) {
        if batch.unbatched_reason != Some(UnbatchedReason::BudgetEmpty) || !self.budget_log.on_call(now) {
            return;
        }
        let (class, mismatch) = (self.describe_class(batch.cost_class), self.supervisor.backend.recent_mismatch());
        tracing::warn!(
            class = class.as_str(),
            mismatch = mismatch.as_ref().map(|mismatch| mismatch.what.as_str()),
            member = mismatch.as_ref().and_then(|mismatch| mismatch.member.as_deref()),
            "{}",
            withheld_message(mismatch.as_ref())
        );
    }

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

/// Returns the message about calls that are sent unbatched because batches failed, with the remedy
/// for the last defect of a response, if there was one.
fn withheld_message(mismatch: Option<&ResponseMismatch>) -> String {
    let remedy = match mismatch.map(|mismatch| mismatch.what) {
        None => "The log at level `debug` has the batches that failed",
        Some(MismatchKind::Undeclared) => {
            "Responses to batches have a member outside the results that is not known to be constant: `groupage \
             validate --against URL` names it; if every caller may see it, add it to respondWith.fields"
        }
        Some(_) => "Responses to batches cannot be split: check that the route's `protocol` is that of the server",
    };
    format!(
        "merging withheld: failed batches cost more than three retries a second, and calls are sent alone \
         (`merge_refused`) until they cost less. {remedy}"
    )
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
    let unbatched =
        if suspension.answered_unbatched && !is_usage { ", but their calls are answered individually" } else { "" };
    format!("merging suspended: {cause}{unbatched}; each call is now sent individually. {remedy}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_budget_is_logged_once_until_no_call_was_affected_for_a_while() {
        let mut log = BudgetLog::default();
        let logged = [5, 6, 50, 109, 168, 228, 229].map(|seconds| log.on_call(Tick::from_millis(1000 * seconds)));
        assert_eq!(logged, [true, false, false, false, false, true, false]);
    }

    #[test]
    fn an_empty_budget_is_explained_by_the_last_mismatch() {
        let message = |kind: MismatchKind| withheld_message(Some(&kind.into()));
        assert!(message(MismatchKind::Undeclared).contains("respondWith.fields"));
        assert!(message(MismatchKind::Count).contains("cannot be split"));
        let unknown = withheld_message(None);
        assert!(unknown.starts_with("merging withheld: failed batches cost") && !unknown.contains("Responses"));
    }

    #[test]
    fn a_suspension_names_what_the_server_did() {
        let message = |refusal, answered_unbatched| {
            let (since, retest) = (Tick::default(), Tick::default());
            suspension_message(Suspension { since, retest, refusal, answered_unbatched })
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
