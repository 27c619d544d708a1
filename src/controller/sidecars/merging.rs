//! The state of merging under a policy, for its condition `Merging`. Pure.
//!
//! Messages contain no changing numbers: a condition is written, and an Event published, only if
//! the state changes.

use std::collections::{BTreeMap, BTreeSet};

use super::registry::SidecarState;
use crate::api::v1alpha1::Mode;
use crate::control::wire::{ClassCostReport, MergingSuspension};
use crate::status::{ConditionState, ConditionStatus, MERGE_REFUSED, NO_GAIN, join_first};

/// Values of a reported limiter's `open` for which merging does not pay.
const NOT_PAYING: [&str; 2] = ["no_gain", "server_batches"];
/// Maximum number of kinds of calls named in a message.
const NAMED_MAX: usize = 3;

/// Cause for which a server ends merging.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum EndCause {
    /// Batches are refused, or not answered.
    Refused,
    /// A call may have one item.
    OneItem,
    /// The counters of a batch cover its first item only.
    Usage,
    /// Answers to batches cannot be split.
    Mismatch,
}

/// Summarizes the reports of the sidecars; `None` if there is none.
pub(super) fn merging_state<'a>(
    mode: Mode,
    sidecars: impl Iterator<Item = &'a SidecarState>,
) -> Option<ConditionState> {
    let state =
        |holds, reason: &str, message: String| Some(ConditionState { holds, reason: reason.to_owned(), message });
    if mode != Mode::Batch {
        return state(
            ConditionStatus::Unknown,
            "NotMerging",
            format!("the mode is {mode:?}: calls are forwarded unmodified"),
        );
    }
    let (mut reported, mut concluded) = (false, 0);
    let (mut refused, mut without_gain) = (BTreeMap::<EndCause, BTreeSet<String>>::new(), Vec::new());
    for class in sidecars.flat_map(|sidecar| &sidecar.learned).inspect(|_| reported = true).flat_map(|all| &all.classes)
    {
        if let Some(found) = &class.suspended {
            let (cause, calls) = (EndCause::of(found), describe_calls(class));
            refused.entry(cause).or_default().insert(cause.describe_class(calls, found));
        } else if let Some(limiter) = &class.limiter {
            concluded += 1;
            if NOT_PAYING.contains(&limiter.open.as_str()) {
                without_gain.push(describe_calls(class).to_owned());
            }
        }
    }
    if !refused.is_empty() {
        let causes: Vec<String> = refused
            .into_iter()
            .map(|(cause, calls)| {
                let named = join_first(&calls.into_iter().collect::<Vec<_>>(), NAMED_MAX);
                format!("{}: {named}", cause.as_str())
            })
            .collect();
        let message = format!(
            "{}. These calls are sent individually; a batch of two is retried from time to time",
            causes.join("; ")
        );
        return state(ConditionStatus::False, MERGE_REFUSED, message);
    }
    // It suffices that merging pays for one kind of calls.
    if concluded > 0 && without_gain.len() == concluded {
        let named: BTreeSet<String> = without_gain.into_iter().collect();
        let named = join_first(&named.into_iter().collect::<Vec<_>>(), NAMED_MAX);
        let message =
            format!("a batch takes as long as its calls sent concurrently: {named}. Calls are forwarded on arrival");
        return state(ConditionStatus::False, NO_GAIN, message);
    }
    reported.then_some(())?;
    state(
        ConditionStatus::True,
        "Merging",
        "calls that wait for the server are merged where a batch is faster".to_owned(),
    )
}

// === impl EndCause ===

impl EndCause {
    fn of(found: &MergingSuspension) -> Self {
        match found.answer.as_str() {
            "one_item" => Self::OneItem,
            "usage" => Self::Usage,
            "mismatch" => Self::Mismatch,
            _ => Self::Refused,
        }
    }

    /// Returns the beginning of a message that lists kinds of calls.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "the server rejects batches",
            Self::OneItem => "the server accepts one item per call",
            Self::Usage => "the server accepts batches, but counts only the first item in `usage`",
            Self::Mismatch => {
                "answers of the server to batches have a wrong form, and those to individual calls the right one"
            }
        }
    }

    /// Returns the name of a kind of calls, with the answer of the server if the cause leaves it
    /// open.
    fn describe_class(self, calls: &str, found: &MergingSuspension) -> String {
        if self != Self::Refused {
            return calls.to_owned();
        }
        let answer = found.status.map_or_else(|| found.answer.clone(), |status| format!("status {status}"));
        format!("{calls} ({answer})")
    }
}

/// Returns the human-readable description of a class.
fn describe_calls(class: &ClassCostReport) -> &str {
    if class.calls.is_empty() { &class.class } else { &class.calls }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::wire::{LearnedReport, LimiterState};

    fn class(calls: &str, open: &str) -> ClassCostReport {
        let limiter =
            LimiterState { limit: u32::from(open.is_empty()), open: open.to_owned(), ..LimiterState::default() };
        ClassCostReport { calls: calls.to_owned(), limiter: Some(limiter), ..ClassCostReport::default() }
    }

    fn sidecar(classes: &[ClassCostReport]) -> SidecarState {
        SidecarState {
            learned: vec![LearnedReport { classes: classes.to_vec(), ..LearnedReport::default() }],
            ..SidecarState::default()
        }
    }

    fn words(all: &[SidecarState]) -> String {
        let state = merging_state(Mode::Batch, all.iter()).unwrap();
        format!("{}/{}: {}", state.holds.as_str(), state.reason, state.message)
    }

    #[test]
    fn one_kind_of_calls_that_is_refused_is_reported_with_the_servers_answer() {
        let suspended = Some(MergingSuspension { answer: "status".to_owned(), status: Some(422) });
        let refused = ClassCostReport { suspended, ..class("/v1/embeddings of m", "") };
        let refusing = sidecar(&[refused]);
        let found = words(&[sidecar(&[class("/b", "")]), refusing.clone(), refusing]);
        assert!(found.starts_with("False/MergeRefused: "), "{found}");
        assert!(
            found.contains(": /v1/embeddings of m (status 422). These"),
            "once, though two pods report it: {found}"
        );
    }

    #[test]
    fn each_cause_that_ends_merging_has_a_text_of_its_own() {
        let suspended = |calls: &str, answer: &str| {
            let suspended = Some(MergingSuspension { answer: answer.to_owned(), status: None });
            ClassCostReport { suspended, ..class(calls, "") }
        };
        let found = words(&[sidecar(&[
            suspended("/llama", "usage"),
            suspended("/one", "one_item"),
            suspended("/first", "mismatch"),
            suspended("/closed", "reset"),
        ])]);
        for part in [
            "the server rejects batches: /closed (reset); ",
            "the server accepts one item per call: /one; ",
            "accepts batches, but counts only the first item in `usage`: /llama; ",
            "have a wrong form, and those to individual calls the right one: /first. These",
        ] {
            assert!(found.contains(part), "{part}: {found}");
        }
    }

    #[test]
    fn no_gain_is_reported_only_where_no_kind_of_calls_gains() {
        let found = words(&[sidecar(&[class("/a", "no_gain")]), sidecar(&[class("/b", "server_batches")])]);
        assert!(found.starts_with("False/NoGain: ") && found.contains("/a, /b"), "{found}");
        for open in ["", "no_queue", "room_found"] {
            let found = words(&[sidecar(&[class("/a", "no_gain"), class("/b", open)])]);
            assert!(found.starts_with("True/Merging: "), "{found}");
        }
        assert!(words(&[sidecar(&[ClassCostReport::default()])]).starts_with("True/"), "it is still being learned");
    }

    #[test]
    fn without_reports_there_is_no_condition_and_in_mode_observe_it_is_unknown() {
        assert_eq!(merging_state(Mode::Batch, [].iter()), None);
        assert_eq!(merging_state(Mode::Batch, [SidecarState::default()].iter()), None);
        let state = merging_state(Mode::Observe, [sidecar(&[class("/a", "no_gain")])].iter()).unwrap();
        assert_eq!((state.holds, state.reason.as_str()), (ConditionStatus::Unknown, "NotMerging"));
        assert_eq!(state.message, "the mode is Observe: calls are forwarded unmodified");
    }
}
