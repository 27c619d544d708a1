//! What the controller writes: the status of both kinds.
//!
//! Lists are bounded, since etcd holds an object whole: the full view of a large workload is in the metrics and the tools. Words are kept when they are
//! not known, as in the spec, so that a newer controller's status does not make an object unreadable for an older one.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DurationText, Mode, SchedulingPolicy, ShareText, TuningMode, Word, schema};

/// Conditions of an object: six are written, others may add theirs.
pub const CONDITIONS_MAX: usize = 16;
/// Pods in `podTunings`: some 300 bytes each, so the list stays far below what etcd takes.
pub const POD_TUNINGS_MAX: usize = 100;
/// Entries of `learned`: profiles times kinds of accelerators that are in use side by side.
pub const LEARNED_MAX: usize = 16;
/// Points of a learned curve: sizes 1, 2, 4 … 32768.
pub const CURVE_MAX: usize = 16;
/// Arms of an experiment, as many as the spec takes.
pub const ARMS_MAX: usize = 16;
/// Policies in `usedBy`.
pub const USED_BY_MAX: usize = 100;

/// What became of a policy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BatchPolicyStatus {
    /// The generation of the object that this speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Accepted`, `Programmed`, `TrafficCaptured`, `SLOMet`, `Merging`, `RolloutHealthy` and `Ready`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Whom the policy is for, in short: `Deployment/embedder`, `Deployment/a +2`, `app=embedder`, or `*` for the namespace's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The mode of the policy, with the default where it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Word<Mode>>,
    /// The profile in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_profile: Option<String>,
    /// The profile that is being rolled out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub candidate_profile: Option<String>,
    /// Pods, counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pods: Option<PodCounts>,
    /// How it goes, over all connected pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<Summary>,
    /// In mode `Observe`: what batching would have done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted: Option<Summary>,
    /// Where the rollout stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutStatus>,
    /// What was tuned, for at most 100 pods.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = POD_TUNINGS_MAX),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["pod"])
    )]
    pub pod_tunings: Vec<PodTuning>,
    /// What was learned, for new pods to begin with.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = LEARNED_MAX))]
    pub learned: Vec<Learned>,
}

/// Pods, counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodCounts {
    /// Those that the policy is for.
    pub matched: u32,
    /// Of these, with a sidecar.
    pub injected: u32,
    /// Of these, whose sidecar has a stream to the controller.
    pub connected: u32,
    /// Of these, whose traffic all goes through the sidecar.
    pub captured: u32,
    /// Of the connected, those that run the current profile.
    pub on_current: u32,
}

/// How it goes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Summary {
    /// Items in a batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_items: Option<Quantiles>,
    /// 99th percentile of the time in the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_delay: Option<DurationText>,
    /// 99th percentile from a call's arrival to its answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_p99: Option<DurationText>,
    /// Items answered in a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throughput: Option<u64>,
    /// Share of upstream calls that batching saved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saved: Option<ShareText>,
    /// Of what is predicted: the most items in one call of which it was measured what they take. What a larger batch would take is a guess.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured_items: Option<u32>,
}

/// Quantiles.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Quantiles {
    /// Nine of ten are larger.
    pub p10: u32,
    /// The median.
    pub p50: u32,
    /// One of ten is larger.
    pub p90: u32,
}

/// Where a rollout stands. It survives the controller, so that another one goes on where this one ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutStatus {
    /// `Progressing`, `Paused`, `Promoted` or `RolledBack`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Word<RolloutPhase>>,
    /// The step of the canary, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,
    /// Share of the pods that are to run the candidate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<u32>,
    /// When this step, or this phase, began.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub since: Option<Time>,
    /// The profile to go back to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous_profile: Option<String>,
    /// Why, as a word in CamelCase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What each arm did so far.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = ARMS_MAX))]
    pub arms: Vec<ArmStatus>,
}

/// Where a rollout stands, in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RolloutPhase {
    /// `Progressing`.
    Progressing,
    /// `Paused`.
    Paused,
    /// `Promoted`.
    Promoted,
    /// `RolledBack`.
    RolledBack,
}

/// What an arm did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ArmStatus {
    /// Its profile.
    pub profile: String,
    /// Pods that run it.
    #[serde(default)]
    pub pods: u32,
    /// Calls answered.
    #[serde(default)]
    pub samples: u64,
    /// 99th percentile of their latency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_p99: Option<DurationText>,
    /// Share of them that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_rate: Option<ShareText>,
    /// `true`: it was found worse and gets no more pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<bool>,
    /// The evidence so far, for the controller that goes on with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<String>,
}

/// What was tuned for a pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodTuning {
    /// Its name; each once.
    pub pod: String,
    /// Its UID: a pod of the same name may be another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// The profile that it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// The accelerator or kind of machine that it runs on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<String>,
    /// `Auto`: in force; `Recommend`: published only; `Manual`: as the policy says, not tuned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Word<TuningMode>>,
    /// Instead of `limits.slotsMax`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots_max: Option<u32>,
    /// Instead of `limits.batchWeightMax`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_weight_max: Option<u64>,
    /// By how much deadlines come earlier, as a share of the latency target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_shift: Option<ShareText>,
    /// Why, as a word in CamelCase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why, with numbers, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When these values were set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub since: Option<Time>,
}

/// What was learned under a profile on a kind of machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Learned {
    /// The name of the profile.
    pub profile: String,
    /// The accelerator or kind of machine.
    pub accelerator: String,
    /// Requests that the model server runs side by side, beyond which calls are held and merged; absent while calls are forwarded as they come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// The latency of a lone call below that number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<DurationText>,
    /// Calls are forwarded since a batch does not pay: the cost of an item in one, in thousandths of a lone call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_gain_permille: Option<u64>,
    /// By how much the next batch may leave before one comes back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lead: Option<DurationText>,
    /// The mean of execution times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution: Option<DurationText>,
    /// The cost class that the curve is of, escaped; the one with most batches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// What batches cost, by size, smallest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = CURVE_MAX))]
    pub curve: Vec<CurvePoint>,
    /// What a batch exceeds but once in fifty times, over what it was expected to take, in thousandths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tail_permille: Option<u64>,
    /// By how much deadlines came earlier in the end, as a share of the latency target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_shift: Option<ShareText>,
    /// What was tuned instead of `limits.slotsMax` in the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots_max: Option<u32>,
    /// Batches that this was learned from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// When it last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub updated: Option<Time>,
}

/// A point of a cost curve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CurvePoint {
    /// Items of the batch.
    pub items: u32,
    /// Their typical weight, where it matters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u64>,
    /// From dispatch to answer.
    pub duration: DurationText,
}

/// What became of a profile.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BatchProfileStatus {
    /// Policies that use it, by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = USED_BY_MAX))]
    pub used_by: Vec<String>,
    /// The policy of its scheduling, with the default where it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Word<SchedulingPolicy>>,
    /// Calls answered under it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// How it did when it was last compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
}

/// How a profile did.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Verdict {
    /// `Better`, `Same`, `Worse` or `Undecided`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Word<Outcome>>,
    /// The profile that it was compared with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against: Option<String>,
    /// 99th percentile of its calls' latency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_p99: Option<DurationText>,
    /// Share of its calls that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_rate: Option<ShareText>,
    /// Why, as a word in CamelCase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why, with numbers, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When it was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub since: Option<Time>,
}

/// How a profile did, in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Outcome {
    /// `Better`.
    Better,
    /// `Same`.
    Same,
    /// `Worse`.
    Worse,
    /// `Undecided`.
    Undecided,
}
