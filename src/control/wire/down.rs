//! What the controller says.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Acked, Unknown};

/// What is to be in force in one sidecar. It replaces what was before as a whole.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Config {
    /// Whose settings: the UID of the policy object, empty where the pod has none. Generations of one source only are compared.
    pub source: String,
    /// `namespace/name` of the policy, for people.
    pub name: String,
    /// The generation of the policy object. An older one than what is in force of the same source is refused.
    pub generation: u64,
    /// The name of the profile that `limits` and `scheduling` come from, if any.
    pub profile: String,
    /// Changes with anything here. It is given back in reports, and means nothing to a sidecar but that.
    pub hash: String,
    /// `BatchPolicySpec` as JSON, with everything merged that the controller merges: profile, defaults of the cluster.
    pub policy: Value,
    /// What the tuner found.
    pub settings: Settings,
    /// An arm of an experiment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub experiment: Option<Experiment>,
    /// Fields that are not known.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// What the tuner sets, within the policy's bounds. What is absent is the policy's own.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Settings {
    /// By how much deadlines that come from an SLO count earlier at least, in thousandths of that SLO. The sidecar's own shift may be larger.
    #[serde(skip_serializing_if = "is_zero")]
    pub shift_permille: u32,
    /// At most so many batches in flight; never above `limits.slotsMax`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots_max: Option<u32>,
    /// Most weight in a batch; never above `limits.batchWeightMax`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_weight_max: Option<u64>,
    /// Shares of tenants, over those of the policy.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tenant_weights: BTreeMap<String, u32>,
    /// What a sidecar begins with that has learned nothing yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<Start>,
}

/// What other pods learned on the same kind of machine: believed little, and only by a sidecar that knows nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Start {
    /// Batches that the server runs side by side.
    pub slots: u32,
    /// By how much the next batch may leave before one comes back, in microseconds.
    pub lead_us: u64,
    /// The running mean of execution times, in microseconds.
    pub mean_us: u64,
    /// How often another number of slots is tried, in thousandths.
    pub explore_permille: u32,
    /// What batches cost, by cost class.
    pub curves: Vec<Curve>,
}

/// What batches of one cost class take.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Curve {
    /// The class, as `u8::escape_ascii` writes its bytes.
    pub class: String,
    /// Items and microseconds, by items.
    pub points: Vec<(u32, u64)>,
    /// What a batch exceeds but once in fifty times, over what it was expected to take, in thousandths.
    pub tail_permille: u64,
    /// The mean weight of an item, in thousandths.
    pub weight_milli: u64,
    /// The concurrency limiter of the class; absent where nothing was concluded, and from a
    /// controller without this field: then `slots` of the start counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limiter: Option<Limiter>,
}

/// What the concurrency limiter of a cost class concluded.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Limiter {
    /// Requests that may be in flight; 0: calls are forwarded as they come.
    pub limit: u32,
    /// Why calls are forwarded, in one word, such as `no_gain`; empty under a limit.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub open: String,
    /// Cost of an item in a batch, in thousandths of a lone call, where a batch does not pay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item_permille: Option<u64>,
    /// Latency of a lone call below the limit, in microseconds; 0: not known.
    pub base_us: u64,
}

/// An arm of an experiment, laid over the policy for as long as the controller keeps it up.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Experiment {
    /// The arm's name, for reports.
    pub arm: String,
    /// The profile that is tried.
    pub profile: String,
    /// Its `limits` and `scheduling`, in place of the policy's: `BatchProfileSpec` as JSON.
    pub spec: Value,
    /// So many milliseconds after this message came the arm ends by itself, and the policy holds; every `Config` with the experiment begins anew. Counted on
    /// the sidecar's own clock, so no two clocks need to agree. It ends experiments, never serving.
    pub expires_after_ms: u64,
}

/// Whom to trust.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Bundle {
    /// Certificates of CAs, as PEM; in a rotation the old and the new one.
    pub ca: String,
    /// Fields that are not known.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Open the stream elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Goaway {
    /// `host:port` of the replica to go to; its certificate must be for the same name as before. Absent: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Why, for logs.
    pub reason: String,
    /// Fields that are not known.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// The controller lives.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ping {
    /// What of the sidecar's has arrived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acked: Option<Acked>,
    /// Fields that are not known.
    #[serde(flatten)]
    pub unknown: Unknown,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

// === impl Settings ===

impl Settings {
    /// Without what holds at the beginning only: what is in force.
    #[must_use]
    pub fn in_force(&self) -> Self {
        Self { start: None, ..self.clone() }
    }
}
