//! What is said of a policy: conditions and counts, from what was found. Pure; writing is `apply`'s.
//!
//! Seven conditions, each true when all is well: `Accepted` (it can be obeyed), `Programmed`
//! (sidecars run it), `TrafficCaptured` (what comes to the pods goes through them), `SLOMet`,
//! `Merging`, `RolloutHealthy`, and `Ready`, which sums them up. What cannot be said yet is
//! `Unknown`, never a guess.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

/// A condition's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Type {
    /// It can be obeyed, and nobody older says otherwise.
    Accepted,
    /// Sidecars run what it says.
    Programmed,
    /// What comes to the pods goes through sidecars.
    TrafficCaptured,
    /// Answers are as quick as promised.
    SloMet,
    /// Calls are merged where that pays.
    Merging,
    /// What is being tried does no harm.
    RolloutHealthy,
    /// All of it but `Merging`: where nothing is merged, pods serve as they would without a
    /// sidecar.
    Ready,
}

/// Whether it is so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Holds {
    /// Yes.
    True,
    /// No.
    False,
    /// It cannot be said.
    Unknown,
}

/// What is to be said of one condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Which.
    pub kind: Type,
    /// Whether it is so.
    pub holds: Holds,
    /// Why, in one word.
    pub reason: String,
    /// Why, for people.
    pub message: String,
}

/// Letters of a message: sentences, not lists. The schema takes 32768.
const MESSAGE_CHARS_MAX: usize = 600;

// === impl Type ===

impl Type {
    /// Every type, in the order in which they are written.
    pub const ALL: [Self; 7] = [
        Self::Accepted,
        Self::Programmed,
        Self::TrafficCaptured,
        Self::SloMet,
        Self::Merging,
        Self::RolloutHealthy,
        Self::Ready,
    ];

    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "Accepted",
            Self::Programmed => "Programmed",
            Self::TrafficCaptured => "TrafficCaptured",
            Self::SloMet => "SLOMet",
            Self::Merging => "Merging",
            Self::RolloutHealthy => "RolloutHealthy",
            Self::Ready => "Ready",
        }
    }
}

// === impl Holds ===

impl Holds {
    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

// === impl Finding ===

impl Finding {
    /// A finding.
    #[must_use]
    pub fn new(kind: Type, holds: Holds, reason: &str, message: impl Into<String>) -> Self {
        Self { kind, holds, reason: reason.to_owned(), message: message.into() }
    }
}

/// `Ready` from all others but `Merging`: what is not so makes it not so, in the order of the
/// types; what cannot be said makes it unsaid, but for `SLOMet`: a policy without traffic is ready.
#[must_use]
pub fn ready(others: &[Finding]) -> Finding {
    let counts = |finding: &&Finding| match finding.kind {
        Type::Merging => false,
        Type::SloMet => finding.holds != Holds::Unknown,
        _ => true,
    };
    let first = |holds| others.iter().filter(counts).find(|finding| finding.holds == holds);
    if let Some(bad) = first(Holds::False) {
        let message = format!("{}: {}", bad.kind.as_str(), bad.message);
        return Finding::new(Type::Ready, Holds::False, &bad.reason, message);
    }
    if let Some(unsaid) = first(Holds::Unknown) {
        let message = format!("{}: {}", unsaid.kind.as_str(), unsaid.message);
        return Finding::new(Type::Ready, Holds::Unknown, &unsaid.reason, message);
    }
    Finding::new(Type::Ready, Holds::True, "Ready", "all is as it should be")
}

/// The reason of `SLOMet` where the policy promises nothing.
pub const NO_SLO: &str = "NoSLO";

/// Findings as conditions. One that is as it was keeps its time; `before` is what was written last.
#[must_use]
pub fn conditions(before: &[Condition], findings: &[Finding], generation: i64, now: Timestamp) -> Vec<Condition> {
    let condition = |finding: &Finding| {
        let was = before.iter().find(|was| was.type_ == finding.kind.as_str());
        let same = was.filter(|was| was.status == finding.holds.as_str());
        Condition {
            type_: finding.kind.as_str().to_owned(),
            status: finding.holds.as_str().to_owned(),
            observed_generation: Some(generation),
            last_transition_time: same.map_or_else(|| whole_second(now), |was| was.last_transition_time.clone()),
            reason: finding.reason.clone(),
            message: cut(&finding.message),
        }
    };
    findings.iter().map(condition).collect()
}

/// Kubernetes keeps whole seconds; what is compared with what was read must have no more.
fn whole_second(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

fn cut(message: &str) -> String {
    if message.chars().count() <= MESSAGE_CHARS_MAX {
        return message.to_owned();
    }
    let kept: String = message.chars().take(MESSAGE_CHARS_MAX - 4).collect();
    format!("{kept} ...")
}

/// The first of a list in a sentence, and how many more there are.
#[must_use]
pub fn some_of(all: &[String], shown: usize) -> String {
    let first = all.iter().take(shown).cloned().collect::<Vec<_>>().join(", ");
    let more = all.len().saturating_sub(shown);
    if more == 0 { first } else { format!("{first} and {more} more") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::new(second, 123_456_789).unwrap()
    }

    fn found(kind: Type, holds: Holds, reason: &str) -> Finding {
        Finding::new(kind, holds, reason, "m")
    }

    #[test]
    fn a_condition_that_is_as_it_was_keeps_its_time_also_with_other_words() {
        let first = conditions(&[], &[found(Type::Accepted, Holds::True, "Accepted")], 1, at(10));
        assert_eq!(first[0].last_transition_time.0.as_nanosecond(), 10_000_000_000, "whole seconds");
        let same = conditions(&first, &[found(Type::Accepted, Holds::True, "Other")], 2, at(20));
        assert_eq!(same[0].last_transition_time, first[0].last_transition_time);
        assert_eq!((same[0].observed_generation, same[0].reason.as_str()), (Some(2), "Other"));
        let changed = conditions(&same, &[found(Type::Accepted, Holds::False, "Invalid")], 2, at(30));
        assert_eq!(changed[0].last_transition_time.0.as_second(), 30);
    }

    #[test]
    fn ready_is_what_the_worst_of_the_others_is() {
        let all = |holds: [Holds; 3]| {
            let kinds = [Type::Accepted, Type::TrafficCaptured, Type::SloMet];
            let findings: Vec<_> = kinds.into_iter().zip(holds).map(|(kind, holds)| found(kind, holds, "R")).collect();
            ready(&findings)
        };
        assert_eq!(all([Holds::True; 3]).holds, Holds::True);
        assert_eq!(all([Holds::True, Holds::Unknown, Holds::False]).holds, Holds::False);
        assert_eq!(all([Holds::True, Holds::Unknown, Holds::True]).holds, Holds::Unknown);
        let quiet =
            |reason| ready(&[found(Type::Accepted, Holds::True, "A"), found(Type::SloMet, Holds::Unknown, reason)]);
        assert_eq!([NO_SLO, "FewCalls"].map(|reason| quiet(reason).holds), [Holds::True; 2]);
        let unmerged = ready(&[found(Type::Accepted, Holds::True, "A"), found(Type::Merging, Holds::False, "NoGain")]);
        assert_eq!(unmerged.holds, Holds::True, "it serves as it would without a sidecar");
        let bad = ready(&[Finding::new(Type::Accepted, Holds::False, "Conflicted", "older is the other")]);
        assert_eq!((bad.reason.as_str(), bad.message.as_str()), ("Conflicted", "Accepted: older is the other"));
    }

    #[test]
    fn a_long_message_is_cut_between_letters() {
        let long = conditions(&[], &[Finding::new(Type::Ready, Holds::True, "R", "é".repeat(5000))], 1, at(1));
        assert_eq!(long[0].message.chars().count(), MESSAGE_CHARS_MAX);
    }

    #[test]
    fn reasons_and_types_are_words_as_kubernetes_wants_them() {
        for kind in Type::ALL {
            assert!(kind.as_str().bytes().all(|byte| byte.is_ascii_alphanumeric()));
        }
        assert_eq!(some_of(&["a".into(), "b".into(), "c".into()], 2), "a, b and 1 more");
    }
}
