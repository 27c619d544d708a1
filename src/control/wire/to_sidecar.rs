//! Messages from the controller to the sidecar.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Acknowledgement, UnknownFields};

/// Settings for one sidecar. They replace the previous settings completely.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SidecarConfig {
    /// UID of the policy object, empty where the pod has none. Generations are compared only within
    /// one source.
    pub source: String,
    /// `namespace/name` of the policy, for display.
    pub name: String,
    /// Generation of the policy object. A generation older than the applied one of the same source
    /// is rejected.
    pub generation: u64,
    /// Name of the profile that `limits` and `scheduling` come from, if any.
    pub profile: String,
    /// Hash of the other fields. The sidecar returns it in reports and does not interpret it.
    pub hash: String,
    /// `BatchPolicySpec` as JSON, with the profile and the cluster defaults already merged by the
    /// controller.
    pub policy: Value,
    /// Values set by the tuner.
    pub settings: TunedSettings,
    /// Arm of an experiment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub experiment: Option<ExperimentArm>,
    /// Number of unknown fields.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

/// Values set by the tuner, within the policy's bounds. An absent value is the policy's own.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TunedSettings {
    /// Minimum shift of SLO deadlines to an earlier time, in thousandths of the SLO. The sidecar's
    /// own shift may be larger.
    #[serde(skip_serializing_if = "is_zero")]
    pub shift_permille: u32,
    /// Maximum number of batches in flight, at most `limits.slotsMax`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots_max: Option<u32>,
    /// Maximum weight of a batch, at most `limits.batchWeightMax`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_weight_max: Option<u64>,
    /// Weights of tenants, which replace those of the policy.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tenant_weights: BTreeMap<String, u32>,
    /// Start values for a sidecar that has learned nothing yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<StartValues>,
}

/// Values learned by other pods on the same kind of machine. They are used with low confidence, and
/// only by a sidecar that has learned nothing itself.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StartValues {
    /// Number of batches that the server executes concurrently.
    pub slots: u32,
    /// Lead in microseconds: time before a batch returns at which the next one may be dispatched.
    pub lead_us: u64,
    /// EWMA of execution times, in microseconds.
    pub mean_us: u64,
    /// Probability that a completion is followed by an exploring batch, in thousandths.
    pub explore_permille: u32,
    /// Execution times of batches, by cost class.
    pub curves: Vec<PushedCurve>,
}

/// Execution times of batches of one cost class.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PushedCurve {
    /// Name of the cost class, escaped with `u8::escape_ascii`.
    pub class: String,
    /// Pairs of items and microseconds, sorted by items.
    pub points: Vec<(u32, u64)>,
    /// 98th percentile of observed over predicted execution time, in thousandths.
    pub tail_permille: u64,
    /// Mean weight of an item, in thousandths.
    pub weight_milli: u64,
    /// Concurrency limiter of the class. It is absent if the limiter has no result yet, and from a
    /// controller without this field; then the `slots` of the start values apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limiter: Option<LimiterState>,
}

/// Result of the concurrency limiter of a cost class.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LimiterState {
    /// Maximum number of requests in flight; 0 if calls are forwarded on arrival.
    pub limit: u32,
    /// Reason for forwarding calls, as one word such as `no_gain`; empty under a limit.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub open: String,
    /// Cost of an item in a batch, in thousandths of an unbatched call, if batching does not pay
    /// off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item_permille: Option<u64>,
    /// Latency of an unbatched call below the limit, in microseconds; 0 if unknown.
    pub base_us: u64,
}

/// An arm of an experiment, which overrides the policy while the controller keeps renewing it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExperimentArm {
    /// Name of the arm, for reports.
    pub arm: String,
    /// Name of the profile under test.
    pub profile: String,
    /// `limits` and `scheduling` of the profile, which replace those of the policy:
    /// `BatchProfileSpec` as JSON.
    pub spec: Value,
    /// Lifetime in milliseconds after receipt of this message. Afterwards the arm ends by itself
    /// and the policy applies; each `SidecarConfig` with the experiment restarts the time. It is
    /// measured on the sidecar's own clock, so clocks need not be synchronized. The expiry ends
    /// experiments and never serving.
    pub expires_after_ms: u64,
}

/// CA certificates to trust.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CaBundle {
    /// CA certificates as PEM. During a rotation it contains both the old and the new one.
    pub ca: String,
    /// Number of unknown fields.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

/// A request to open the stream elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Goaway {
    /// `host:port` of the replica to connect to. Its certificate must be valid for the same name as
    /// before. Any replica if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Reason, for logs.
    pub reason: String,
    /// Number of unknown fields.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

/// A keep-alive message.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ping {
    /// Acknowledgement of the sidecar's reports and events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acked: Option<Acknowledgement>,
    /// Number of unknown fields.
    #[serde(flatten)]
    pub unknown: UnknownFields,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires this signature")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

// === impl TunedSettings ===

impl TunedSettings {
    /// Returns the applied settings, without the start values, which matter at the beginning only.
    #[must_use]
    pub fn without_start(&self) -> Self {
        Self { start: None, ..self.clone() }
    }
}
