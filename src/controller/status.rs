//! Conditions of a policy's status, computed from findings. Pure; `apply` writes them.
//!
//! There are seven conditions, each true in the good case: `Accepted` (the policy is valid and has
//! precedence), `Programmed` (the sidecars run it), `TrafficCaptured` (the traffic of the pods
//! passes through their sidecars), `SLOMet`, `Merging`, `RolloutHealthy`, and `Ready`, which
//! summarizes them. A condition that cannot be determined yet is `Unknown`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use strum::{IntoStaticStr, VariantArray};

/// Type of a condition. The types are in the order in which they are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoStaticStr, VariantArray)]
pub enum ConditionType {
    /// The policy is valid, and no older policy has precedence.
    Accepted,
    /// The sidecars run the policy.
    Programmed,
    /// The traffic of the pods passes through their sidecars.
    TrafficCaptured,
    /// Latencies meet the SLO.
    #[strum(serialize = "SLOMet")]
    SloMet,
    /// Calls are merged where merging pays.
    Merging,
    /// The profile under rollout does no harm.
    RolloutHealthy,
    /// All other conditions hold. `Merging` is not counted: without merging, pods serve as they
    /// would without a sidecar.
    Ready,
}

/// Value of a condition: true, false or unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr)]
pub enum ConditionStatus {
    /// The condition holds.
    True,
    /// The condition does not hold.
    False,
    /// The condition cannot be determined.
    Unknown,
}

/// Value and explanation of a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionState {
    /// Value of the condition: true, false or unknown.
    pub holds: ConditionStatus,
    /// Machine-readable reason, in one word.
    pub reason: String,
    /// Human-readable explanation.
    pub message: String,
}

/// The result for one condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionFinding {
    /// Type of the condition.
    pub kind: ConditionType,
    /// Value of the condition.
    pub holds: ConditionStatus,
    /// Machine-readable reason, in one word.
    pub reason: String,
    /// Human-readable explanation.
    pub message: String,
}

/// Maximum length of a message in characters. Messages are sentences, not lists; the schema allows
/// 32768.
const MESSAGE_CHARS_MAX: usize = 600;

// === impl ConditionType ===

impl ConditionType {
    /// Returns the name used in the status.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

// === impl ConditionStatus ===

impl ConditionStatus {
    /// Returns the value used in the status.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

// === impl ConditionFinding ===

impl ConditionFinding {
    /// Creates a finding.
    #[must_use]
    pub fn new(kind: ConditionType, holds: ConditionStatus, reason: &str, message: impl Into<String>) -> Self {
        Self { kind, holds, reason: reason.to_owned(), message: message.into() }
    }
}

/// Summarizes all other findings except `Merging` as `Ready`. The first false finding, in the order
/// of the types, makes it false; otherwise the first unknown one makes it unknown. An unknown
/// `SLOMet` is ignored: a policy without traffic is ready.
#[must_use]
pub fn summarize_ready(others: &[ConditionFinding]) -> ConditionFinding {
    let counts = |finding: &&ConditionFinding| match finding.kind {
        ConditionType::Merging => false,
        ConditionType::SloMet => finding.holds != ConditionStatus::Unknown,
        _ => true,
    };
    let first = |holds| others.iter().filter(counts).find(|finding| finding.holds == holds);
    if let Some(bad) = first(ConditionStatus::False) {
        let message = format!("{}: {}", bad.kind.as_str(), bad.message);
        return ConditionFinding::new(ConditionType::Ready, ConditionStatus::False, &bad.reason, message);
    }
    if let Some(unknown) = first(ConditionStatus::Unknown) {
        let message = format!("{}: {}", unknown.kind.as_str(), unknown.message);
        return ConditionFinding::new(ConditionType::Ready, ConditionStatus::Unknown, &unknown.reason, message);
    }
    ConditionFinding::new(ConditionType::Ready, ConditionStatus::True, "Ready", "no problem was found")
}

/// Reason of `SLOMet` if the policy has no SLO.
pub const NO_SLO: &str = "NoSLO";
/// Reason of `Merging=False` if a server rejects batches or its answers to them cannot be used.
pub(super) const MERGE_REFUSED: &str = "MergeRefused";
/// Reason of `Merging=False` if a batch takes as long as its calls sent concurrently.
pub(super) const NO_GAIN: &str = "NoGain";

/// Converts findings to conditions. `before` is the last written status: a condition with an
/// unchanged value keeps its transition time.
#[must_use]
pub fn to_conditions(
    before: &[Condition],
    findings: &[ConditionFinding],
    generation: i64,
    now: Timestamp,
) -> Vec<Condition> {
    let condition = |finding: &ConditionFinding| {
        let was = before.iter().find(|was| was.type_ == finding.kind.as_str());
        let same = was.filter(|was| was.status == finding.holds.as_str());
        Condition {
            type_: finding.kind.as_str().to_owned(),
            status: finding.holds.as_str().to_owned(),
            observed_generation: Some(generation),
            last_transition_time: same.map_or_else(|| whole_second(now), |was| was.last_transition_time.clone()),
            reason: finding.reason.clone(),
            message: truncate(&finding.message),
        }
    };
    findings.iter().map(condition).collect()
}

/// Truncates to whole seconds, as Kubernetes stores them: the result is compared with times that
/// were read back.
fn whole_second(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

fn truncate(message: &str) -> String {
    if message.chars().count() <= MESSAGE_CHARS_MAX {
        return message.to_owned();
    }
    let prefix: String = message.chars().take(MESSAGE_CHARS_MAX - 4).collect();
    format!("{prefix} ...")
}

/// Joins the first `count` elements of a list for a sentence, followed by the number of the others.
#[must_use]
pub fn join_first(all: &[String], count: usize) -> String {
    let first = all.iter().take(count).cloned().collect::<Vec<_>>().join(", ");
    let more = all.len().saturating_sub(count);
    if more == 0 { first } else { format!("{first} and {more} more") }
}

/// Returns `true` for a type or a reason as Kubernetes conventions require it: one word in
/// CamelCase.
#[cfg(test)]
pub(crate) fn is_single_word(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_uppercase())
        && text.chars().all(|letter| letter.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::new(second, 123_456_789).unwrap()
    }

    fn found(kind: ConditionType, holds: ConditionStatus, reason: &str) -> ConditionFinding {
        ConditionFinding::new(kind, holds, reason, "m")
    }

    #[test]
    fn a_condition_keeps_its_transition_time_if_only_its_reason_changes() {
        let first = to_conditions(&[], &[found(ConditionType::Accepted, ConditionStatus::True, "Accepted")], 1, at(10));
        assert_eq!(first[0].last_transition_time.0.as_nanosecond(), 10_000_000_000, "whole seconds");
        let same = to_conditions(&first, &[found(ConditionType::Accepted, ConditionStatus::True, "Other")], 2, at(20));
        assert_eq!(same[0].last_transition_time, first[0].last_transition_time);
        assert_eq!((same[0].observed_generation, same[0].reason.as_str()), (Some(2), "Other"));
        let changed =
            to_conditions(&same, &[found(ConditionType::Accepted, ConditionStatus::False, "Invalid")], 2, at(30));
        assert_eq!(changed[0].last_transition_time.0.as_second(), 30);
    }

    #[test]
    fn ready_has_the_status_of_the_worst_other_condition() {
        let all = |holds: [ConditionStatus; 3]| {
            let kinds = [ConditionType::Accepted, ConditionType::TrafficCaptured, ConditionType::SloMet];
            let findings: Vec<_> = kinds.into_iter().zip(holds).map(|(kind, holds)| found(kind, holds, "R")).collect();
            summarize_ready(&findings)
        };
        assert_eq!(all([ConditionStatus::True; 3]).holds, ConditionStatus::True);
        assert_eq!(
            all([ConditionStatus::True, ConditionStatus::Unknown, ConditionStatus::False]).holds,
            ConditionStatus::False
        );
        assert_eq!(
            all([ConditionStatus::True, ConditionStatus::Unknown, ConditionStatus::True]).holds,
            ConditionStatus::Unknown
        );
        let quiet = |reason| {
            summarize_ready(&[
                found(ConditionType::Accepted, ConditionStatus::True, "A"),
                found(ConditionType::SloMet, ConditionStatus::Unknown, reason),
            ])
        };
        assert_eq!([NO_SLO, "FewCalls"].map(|reason| quiet(reason).holds), [ConditionStatus::True; 2]);
        let unmerged = summarize_ready(&[
            found(ConditionType::Accepted, ConditionStatus::True, "A"),
            found(ConditionType::Merging, ConditionStatus::False, "NoGain"),
        ]);
        assert_eq!(unmerged.holds, ConditionStatus::True, "calls are served as without a sidecar");
        let bad = summarize_ready(&[ConditionFinding::new(
            ConditionType::Accepted,
            ConditionStatus::False,
            "Conflicted",
            "older is the other",
        )]);
        assert_eq!((bad.reason.as_str(), bad.message.as_str()), ("Conflicted", "Accepted: older is the other"));
    }

    #[test]
    fn a_long_message_is_cut_between_letters() {
        let long = to_conditions(
            &[],
            &[ConditionFinding::new(ConditionType::Ready, ConditionStatus::True, "R", "é".repeat(5000))],
            1,
            at(1),
        );
        assert_eq!(long[0].message.chars().count(), MESSAGE_CHARS_MAX);
    }

    /// The reasons of single conditions are checked where they occur, by the tests of `recompute`
    /// and of `sidecars`.
    #[test]
    fn types_and_common_reasons_of_conditions_are_single_words() {
        let types = ConditionType::VARIANTS.iter().map(|kind| kind.as_str());
        for word in types.chain([NO_SLO, MERGE_REFUSED, NO_GAIN]) {
            assert!(is_single_word(word), "{word}");
        }
        assert!(is_single_word(&summarize_ready(&[]).reason));
        for text in ["", "missed", "Not met", "9Lives", "Slo-Missed", "Naïve"] {
            assert!(!is_single_word(text), "{text}");
        }
    }

    #[test]
    fn a_long_list_is_shortened_and_the_others_are_counted() {
        let list = ["a", "b", "c"].map(str::to_owned);
        assert_eq!([2, 3, 4].map(|shown| join_first(&list, shown)), ["a, b and 1 more", "a, b, c", "a, b, c"]);
        assert_eq!(join_first(&[], 2), "");
    }
}
