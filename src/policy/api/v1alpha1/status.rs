//! Status of both kinds, written by the controller.
//!
//! Lists are bounded, because etcd stores an object as a whole. The complete view of a large
//! workload is available in the metrics and the tools. Unknown values are kept, as in the spec, so
//! that an older controller can read a status that a newer one wrote.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::lengths::{ARMS_MAX, CURVE_MAX, LEARNED_MAX, POD_TUNINGS_MAX, USED_BY_MAX};
use super::{DurationText, Mode, OpenEnum, SchedulingPolicy, ShareText, TuningMode, schema};

optional_keys! {
    /// Most recently observed status of a `BatchPolicy`.
    pub struct BatchPolicyStatus {
        /// Generation of the object to which this status refers.
        pub observed_generation: Option<i64>,
        /// Conditions `Accepted`, `Programmed`, `TrafficCaptured`, `SLOMet`, `Merging`,
        /// `RolloutHealthy` and `Ready`.
        #[schemars(schema_with = "schema::conditions_schema")]
        pub conditions: Vec<Condition>,
        /// Short form of the target of the policy: `Deployment/embedder`, `Deployment/a +2`,
        /// `app=embedder`, or `*` for the default policy of the namespace.
        pub target: Option<String>,
        /// Operating mode of the policy, or the default if the policy sets none.
        pub mode: Option<OpenEnum<Mode>>,
        /// Name of the profile in force.
        pub current_profile: Option<String>,
        /// Name of the profile that is being rolled out.
        pub candidate_profile: Option<String>,
        /// Numbers of pods.
        pub pods: Option<PodCounts>,
        /// Summary over all connected pods.
        pub summary: Option<BatchingSummary>,
        /// Predicted effect of batching, in mode `Observe`.
        pub predicted: Option<BatchingSummary>,
        /// Progress of the rollout.
        pub rollout: Option<RolloutStatus>,
        /// Tuned values, for at most 100 pods.
        #[schemars(
            length(max = POD_TUNINGS_MAX),
            extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["pod"])
        )]
        pub pod_tunings: Vec<PodTuning>,
        /// Learned state, from which new pods start.
        #[schemars(length(max = LEARNED_MAX))]
        pub learned: Vec<LearnedState>,
    }
}

/// Numbers of pods.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodCounts {
    /// Number of pods to which the policy applies.
    pub matched: u32,
    /// Number of these pods that have a sidecar.
    pub injected: u32,
    /// Number of these pods with a sidecar that is connected to the controller.
    pub connected: u32,
    /// Number of these pods with traffic that passes through the sidecar completely.
    pub captured: u32,
    /// Number of connected pods that run the current profile.
    pub on_current: u32,
}

optional_keys! {
    /// Summary of batching.
    pub struct BatchingSummary {
        /// Number of items in a batch.
        pub batch_items: Option<Quantiles>,
        /// 99th percentile of the time in the queue.
        pub queue_delay: Option<DurationText>,
        /// 99th percentile of the time from the arrival of a call to its response.
        pub latency_p99: Option<DurationText>,
        /// Number of items answered per second.
        pub throughput: Option<u64>,
        /// Share of upstream calls that batching saved.
        pub saved: Option<ShareText>,
        /// Largest number of items in one call with a measured execution time. Only set for
        /// predictions. Execution times of larger batches are estimates.
        pub measured_items: Option<u32>,
    }
}

/// Quantiles of a distribution.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Quantiles {
    /// 10th percentile.
    pub p10: u32,
    /// Median.
    pub p50: u32,
    /// 90th percentile.
    pub p90: u32,
}

optional_keys! {
    /// Progress of a rollout. Another controller resumes from it.
    pub struct RolloutStatus {
        /// Phase of the rollout: `Progressing`, `Paused`, `Promoted` or `RolledBack`.
        pub phase: Option<OpenEnum<RolloutPhase>>,
        /// Current step of the canary, starting at 0.
        pub step: Option<u32>,
        /// Percentage of pods that are assigned the candidate profile.
        pub percent: Option<u32>,
        /// Start time of this step or phase.
        #[schemars(schema_with = "schema::time_schema")]
        pub since: Option<Time>,
        /// Name of the profile to which a rollback returns.
        pub previous_profile: Option<String>,
        /// Machine-readable reason in CamelCase.
        pub reason: Option<String>,
        /// Human-readable explanation.
        pub message: Option<String>,
        /// Results of each arm.
        #[schemars(length(max = ARMS_MAX))]
        pub arms: Vec<ArmStatus>,
    }
}

/// Phase of a rollout.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RolloutPhase {
    /// The rollout is in progress.
    Progressing,
    /// The rollout is paused.
    Paused,
    /// The candidate profile was promoted on all pods.
    #[default]
    Promoted,
    /// The previous profile was restored.
    RolledBack,
}

/// Results of an arm.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ArmStatus {
    /// Name of the profile of the arm.
    pub profile: String,
    /// Number of pods that run the profile.
    #[serde(default)]
    pub pods: u32,
    /// Number of calls answered.
    #[serde(default)]
    pub samples: u64,
    /// 99th percentile of the latency of these calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_p99: Option<DurationText>,
    /// Share of these calls that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_rate: Option<ShareText>,
    /// `true` if the arm was found to be worse and receives no more pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<bool>,
    /// Serialised evidence, from which another controller continues the comparison.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<String>,
}

/// Tuned values of a pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodTuning {
    /// Name of the pod. It is unique in the list.
    pub pod: String,
    /// UID of the pod, which distinguishes it from another pod with the same name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Name of the profile that the pod runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Accelerator or machine type of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<String>,
    /// Tuning mode. `Auto`: the values are in force. `Recommend`: the values are only published.
    /// `Manual`: the pod is not tuned and uses the values of the policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<OpenEnum<TuningMode>>,
    /// Tuned value that replaces `limits.slotsMax`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots_max: Option<u32>,
    /// Tuned value that replaces `limits.batchWeightMax`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_weight_max: Option<u64>,
    /// Time by which deadlines are brought forward, as a share of the latency target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_shift: Option<ShareText>,
    /// Machine-readable reason in CamelCase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Human-readable explanation with figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Time since which these values apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time_schema")]
    pub since: Option<Time>,
}

/// State learned under a profile on a machine type.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LearnedState {
    /// Name of the profile.
    pub profile: String,
    /// Accelerator or machine type.
    pub accelerator: String,
    /// Number of requests that the model server executes concurrently, above which calls are held
    /// and merged. Absent while calls are forwarded on arrival.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// Latency of an unbatched call while fewer requests are in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<DurationText>,
    /// Cost of an item in a batch, in thousandths of the cost of an unbatched call. Set if calls
    /// are forwarded on arrival because batching has no benefit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_gain_permille: Option<u64>,
    /// Time by which the next batch may be dispatched before the previous one completes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lead: Option<DurationText>,
    /// Mean execution time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution: Option<DurationText>,
    /// Escaped name of the cost class that the curve describes: the class with the most batches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Execution times of batches by size, smallest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = CURVE_MAX))]
    pub curve: Vec<CurvePoint>,
    /// 98th percentile of the ratio of actual to expected execution time, in thousandths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tail_permille: Option<u64>,
    /// Last deadline shift, as a share of the latency target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_shift: Option<ShareText>,
    /// Last tuned value that replaces `limits.slotsMax`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots_max: Option<u32>,
    /// Number of batches from which the state was learned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// Time of the last change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time_schema")]
    pub updated: Option<Time>,
}

/// A point of a cost curve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CurvePoint {
    /// Number of items in the batch.
    pub items: u32,
    /// Typical weight of the batch, if it affects the cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u64>,
    /// Time from dispatch to response.
    pub duration: DurationText,
}

optional_keys! {
    /// Most recently observed status of a `BatchProfile`.
    pub struct BatchProfileStatus {
        /// Names of the policies that use the profile.
        #[schemars(length(max = USED_BY_MAX))]
        pub used_by: Vec<String>,
        /// Scheduling policy of the profile, or the default if the profile sets none.
        pub policy: Option<OpenEnum<SchedulingPolicy>>,
        /// Number of calls answered under the profile.
        pub samples: Option<u64>,
        /// Result of the last comparison.
        pub verdict: Option<ProfileVerdict>,
    }

    /// Result of a comparison of a profile.
    pub struct ProfileVerdict {
        /// Outcome of the comparison: `Better`, `Same`, `Worse` or `Undecided`.
        pub outcome: Option<OpenEnum<VerdictOutcome>>,
        /// Name of the profile with which it was compared.
        pub against: Option<String>,
        /// 99th percentile of the latency of its calls.
        pub latency_p99: Option<DurationText>,
        /// Share of its calls that failed.
        pub error_rate: Option<ShareText>,
        /// Machine-readable reason in CamelCase.
        pub reason: Option<String>,
        /// Human-readable explanation with figures.
        pub message: Option<String>,
        /// Time of the comparison.
        #[schemars(schema_with = "schema::time_schema")]
        pub since: Option<Time>,
    }
}

/// Outcome of a comparison of a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum VerdictOutcome {
    /// Better than the other profile.
    Better,
    /// Not worse than the other profile.
    Same,
    /// Worse than the other profile.
    Worse,
    /// No result, for lack of evidence or of a profile to compare with.
    Undecided,
}
