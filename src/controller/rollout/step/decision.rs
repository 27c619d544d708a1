//! The result of an evaluation: the next state, the profile of each pod, and the events and
//! verdicts that follow from it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::RolloutState;
use crate::api::v1alpha1::VerdictOutcome;

/// Result of an evaluation.
#[derive(Debug, Clone, PartialEq)]
pub struct RolloutDecision {
    /// State to keep.
    pub state: RolloutState,
    /// Profile of each pod, by UID.
    pub profiles: BTreeMap<String, String>,
    /// Pods that serve as the control arm. They must not be tuned while other pods are compared
    /// with them.
    pub frozen: BTreeSet<String>,
    /// Events to emit.
    pub events: Vec<RolloutEvent>,
    /// Verdicts to record with their profiles.
    pub verdicts: Vec<ProfileVerdict>,
}

/// A Kubernetes Event to emit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RolloutEvent {
    /// `true` for an Event of type `Warning`.
    pub warning: bool,
    /// Machine-readable reason.
    pub reason: &'static str,
    /// Human-readable explanation.
    pub message: String,
}

/// Verdict on a profile.
#[derive(Debug, Clone, PartialEq)]
pub struct ProfileVerdict {
    /// Name of the profile.
    pub profile: String,
    /// Name of the profile that it was compared with.
    pub control_profile: String,
    /// Outcome of the comparison.
    pub outcome: VerdictOutcome,
    /// Machine-readable reason.
    pub reason: String,
    /// Human-readable explanation.
    pub message: String,
    /// The 99th percentile of its latency.
    pub p99: Option<Duration>,
    /// Number of calls.
    pub calls: u64,
    /// Number of the calls that were not served.
    pub unserved_calls: u64,
}
