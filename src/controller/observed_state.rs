//! The observed state that is not part of the cluster: reports of the sidecars and progress of
//! rollouts.
//!
//! An [`ObservationSource`] provides it in every round, and `recompute` turns it into statuses.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;

use super::attachment::AttachmentMap;
use super::cluster_state::{ClusterState, ObjectKey};
use super::events::EventNotice;
use super::status::ConditionState;
use crate::api::v1alpha1::{BatchingSummary, LearnedState, PodTuning, ProfileVerdict, RolloutStatus};

/// Reports of the sidecars and progress of rollouts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ObservedState {
    /// Connected pods, by UID.
    pub pods: BTreeMap<String, PodObserved>,
    /// Policies with a running state; any other has its requested profile in force.
    pub policies: BTreeMap<ObjectKey, PolicyObserved>,
    /// Notices to publish once.
    pub notices: Vec<EventNotice>,
}

/// State of a connected sidecar.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodObserved {
    /// Set if it runs the profile in force, not a candidate or an older one.
    pub current: bool,
    /// Set if it runs the configuration that was pushed last.
    pub programmed: bool,
    /// The reason for which it rejected its configuration.
    pub refused: Option<String>,
    /// Settings that take effect at its next start.
    pub pending: Vec<String>,
}

/// State of a policy at run time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PolicyObserved {
    /// The profile in force.
    pub current: Option<String>,
    /// The profile under rollout.
    pub candidate: Option<String>,
    /// Other profiles that pods run or may be given again.
    pub used: Vec<String>,
    /// Progress of the rollout.
    pub rollout: Option<RolloutStatus>,
    /// Health of the rollout; `None` if there is none.
    pub healthy: Option<ConditionState>,
    /// State of the SLO; `None` if it is unknown.
    pub slo: Option<ConditionState>,
    /// State of merging; `None` if no sidecar has reported.
    pub merging: Option<ConditionState>,
    /// Summary over all pods.
    pub summary: Option<BatchingSummary>,
    /// Predicted result of batching.
    pub predicted: Option<BatchingSummary>,
    /// Tuned settings.
    pub pod_tunings: Vec<PodTuning>,
    /// Learned values.
    pub learned: Vec<LearnedState>,
    /// Results of profiles, by name: number of calls, and the verdict.
    pub verdicts: BTreeMap<String, (u64, Option<ProfileVerdict>)>,
}

/// Source of sidecar reports: the control stream with rollout and tuner. It is called in every
/// round, with the pods and the requested profile of every policy, and must not block.
pub trait ObservationSource: Send + Sync {
    /// Returns the current state. Only a call with `leads` may make decisions; others only report.
    fn observe(&self, cluster: &ClusterState, attached: &AttachmentMap, leads: bool, now: Timestamp) -> ObservedState;
}

/// A source without any connected sidecar.
#[derive(Debug, Clone, Copy, Default)]
pub struct EmptySource;

// === impl EmptySource ===

impl ObservationSource for EmptySource {
    fn observe(&self, _: &ClusterState, _: &AttachmentMap, _: bool, _: Timestamp) -> ObservedState {
        ObservedState::default()
    }
}
