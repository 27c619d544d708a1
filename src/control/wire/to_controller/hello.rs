//! The first message of a stream: the identity of a sidecar, and the settings that it has in force.

use serde::{Deserialize, Serialize};

use super::super::UnknownFields;
use super::{AppliedConfig, NAME_BYTES_MAX, PORTS_MAX, truncate_text};

/// Maximum number of features.
const FEATURES_MAX: usize = 64;

/// The first message of a stream: the identity and state of a sidecar.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Hello {
    /// Version of the program, as in `0.3.1`.
    pub version: String,
    /// Minor version of the sidecar's protocol ([`super::super::MINOR`]).
    pub minor: u32,
    /// Features that the sidecar supports beyond minor version 0 ([`super::super::FEATURES`]).
    pub features: Vec<String>,
    /// The sidecar's pod. Its UID must be that of the token.
    pub pod: PodIdentity,
    /// Captured ports.
    pub ports: Vec<CapturedPort>,
    /// Epoch of the process. The numbers of reports and events are scoped to it.
    pub epoch: u64,
    /// Settings in force; absent if none were received over a stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<AppliedConfig>,
    /// Number of unknown fields.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

/// Identity of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodIdentity {
    /// UID, which distinguishes the pod from a later one of the same name.
    pub uid: String,
    /// Name of the pod.
    pub name: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the node that the pod runs on.
    pub node: String,
}

/// A captured port.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CapturedPort {
    /// Port of the application.
    pub port: u16,
    /// Name of the port, if it has one.
    pub name: String,
}

// === impl Hello ===

impl Hello {
    /// Truncates all fields to the sizes that a genuine sidecar sends, because any pod with a valid
    /// token may send more.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        truncate_text(&mut self.version, NAME_BYTES_MAX);
        self.features.truncate(FEATURES_MAX);
        self.features.iter_mut().for_each(|feature| truncate_text(feature, NAME_BYTES_MAX));
        for name in [&mut self.pod.uid, &mut self.pod.name, &mut self.pod.namespace, &mut self.pod.node] {
            truncate_text(name, NAME_BYTES_MAX);
        }
        self.ports.truncate(PORTS_MAX);
        self.ports.iter_mut().for_each(|port| truncate_text(&mut port.name, NAME_BYTES_MAX));
        self.config.iter_mut().for_each(AppliedConfig::truncate);
        self
    }

    /// Returns `true` if the sidecar supports `feature`.
    #[must_use]
    pub fn has_feature(&self, feature: &str) -> bool {
        self.features.iter().any(|known| known == feature)
    }
}
