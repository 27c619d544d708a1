//! The keys that have a meaning in a cluster only: to whom a policy is, who may change it, how it reaches the pods.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Assignment, Capture, DurationText, Granularity, NativeSidecar, OnFailure, ShareText, Strategy, TuningMode, Word,
};

/// A workload by name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TargetRef {
    /// API group, empty for the core group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// `Deployment`, `StatefulSet`, `DaemonSet`, `Service`, `InferenceService` or `InferencePool`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Pods by label.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Selector {
    /// Labels that a pod must have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub match_labels: Option<BTreeMap<String, String>>,
    /// Terms that a pod must satisfy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub match_expressions: Option<Vec<SelectorTerm>>,
}

/// One term of a selector.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SelectorTerm {
    /// The label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator: Option<String>,
    /// Values for `In` and `NotIn`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub values: Option<Vec<String>>,
}

/// An object by name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NameRef {
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// What the controller may tune.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TuningSpec {
    /// `Auto` applies, `Recommend` only publishes, `Manual` does nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Word<TuningMode>>,
    /// What shares one set of values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub granularity: Option<Word<Granularity>>,
    /// Within which values; never above `limits`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bounds: Option<Bounds>,
}

/// Bounds of tuning.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Bounds {
    /// For `limits.slotsMax`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots_max: Option<NumberBounds>,
    /// For `limits.batchWeightMax`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_weight_max: Option<NumberBounds>,
    /// For the deadline shift.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_shift: Option<ShiftBounds>,
}

/// From and to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NumberBounds {
    /// At least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<u64>,
    /// At most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<u64>,
}

/// Up to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ShiftBounds {
    /// At most, of the latency target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<ShareText>,
}

/// How a change reaches the pods.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutSpec {
    /// All at once, in steps, or as an experiment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Word<Strategy>>,
    /// The steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
    /// The arms and how pods are given to them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub experiment: Option<Experiment>,
    /// What counts as worse.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub analysis: Option<Analysis>,
    /// What follows when it is worse.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<Word<OnFailure>>,
    /// Revisions kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history_limit: Option<u32>,
}

/// Steps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Canary {
    /// One after the other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<Vec<CanaryStep>>,
}

/// A step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CanaryStep {
    /// Share of the pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<u32>,
    /// How long before the next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold: Option<DurationText>,
}

/// An experiment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Experiment {
    /// What is compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arms: Option<Vec<Arm>>,
    /// By pod, or switching back and forth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub assignment: Option<Word<Assignment>>,
    /// Time between switches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<DurationText>,
    /// Calls per arm before a verdict.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_samples: Option<u32>,
}

/// An arm of an experiment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Arm {
    /// Its profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile_ref: Option<NameRef>,
    /// Its share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
}

/// What counts as worse.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Analysis {
    /// Rise of the 99th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_p99_regression: Option<ShareText>,
    /// Rise of the error rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_rate_regression: Option<ShareText>,
    /// Time between looks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<DurationText>,
}

/// How the sidecar is added to a pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InjectionSpec {
    /// How traffic is led through it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture: Option<Word<Capture>>,
    /// Which ports; empty: the workload's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ports: Option<Vec<Port>>,
    /// A variable or an argument by which the application listens on loopback: an address or a port, nothing else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_listen: Option<String>,
    /// The recipe by which a known server is moved off its ports: `Auto`, `None` or its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recipe: Option<String>,
    /// CPU request of the sidecar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_request: Option<String>,
    /// Memory request of the sidecar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_request: Option<String>,
    /// Memory limit of the sidecar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<String>,
    /// Log level of the sidecar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_level: Option<String>,
    /// Time to drain; absent: the pod's grace less 5 s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_timeout: Option<DurationText>,
    /// A sidecar in the sense of Kubernetes, or a plain container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub native_sidecar: Option<Word<NativeSidecar>>,
}

/// A captured port, by number or by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Port {
    /// By number.
    Number(u16),
    /// By name.
    Name(String),
}
