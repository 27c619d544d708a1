//! The desired state, and the result of the round that computed it.
//!
//! `reconcile` publishes the result of each round. `apply` writes the differences from the existing
//! objects, and `uninjected` classifies the pods without a sidecar.

use std::collections::BTreeMap;

use super::attachment::AttachmentMap;
use super::cluster_state::{ClusterState, ObjectKey};
use super::events::EventNotice;
use crate::api::v1alpha1::{BatchPolicyStatus, BatchProfileSpec, BatchProfileStatus};

/// The desired state.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DesiredState {
    /// Status of every policy.
    pub policies: BTreeMap<ObjectKey, BatchPolicyStatus>,
    /// Status of every profile.
    pub profiles: BTreeMap<ObjectKey, BatchProfileStatus>,
    /// Profiles to create.
    pub make: Vec<NewProfile>,
    /// Profiles to delete, with their UIDs.
    pub remove: Vec<(ObjectKey, String)>,
    /// Injectable pods without a sidecar.
    pub missing: Vec<ObjectKey>,
    /// Notices to publish.
    pub notices: Vec<EventNotice>,
}

/// A profile to create.
#[derive(Debug, Clone, PartialEq)]
pub struct NewProfile {
    /// Namespace and name.
    pub key: ObjectKey,
    /// The spec.
    pub spec: BatchProfileSpec,
    /// Name and UID of the owning policy. The profile is garbage-collected with it.
    pub owner: (String, String),
}

/// Result of one round, shared by all readers.
#[derive(Debug, Clone, Default)]
pub struct ReconcileResult {
    /// The cluster state that the round observed.
    pub cluster: ClusterState,
    /// The assignment of pods to policies.
    pub attached: AttachmentMap,
    /// The desired state.
    pub desired: DesiredState,
    /// Number of this round, counted from 1.
    pub number: u64,
}
