//! Keys that apply only in a cluster: targets, tuning, rollout and injection.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    ArmAssignment, CaptureMode, DurationText, NativeSidecar, OnFailure, OpenEnum, RolloutStrategy, ShareText,
    TuningGranularity, TuningMode,
};

optional_keys! {
    /// Reference to a workload.
    pub struct TargetRef {
        /// API group of the workload. Empty for the core group.
        pub group: Option<String>,
        /// Kind of the workload: `Deployment`, `StatefulSet`, `DaemonSet`, `Service`,
        /// `InferenceService` or `InferencePool`.
        pub kind: Option<String>,
        /// Name of the workload.
        pub name: Option<String>,
    }

    /// Label selector of pods.
    pub struct LabelSelector {
        /// Labels that a pod must have.
        pub match_labels: Option<BTreeMap<String, String>>,
        /// Requirements that the labels of a pod must satisfy.
        pub match_expressions: Option<Vec<LabelSelectorRequirement>>,
    }

    /// A requirement of a label selector.
    pub struct LabelSelectorRequirement {
        /// Label key to which the requirement applies.
        pub key: Option<String>,
        /// Relation of the key to the values: `In`, `NotIn`, `Exists` or `DoesNotExist`.
        pub operator: Option<String>,
        /// Values for `In` and `NotIn`.
        pub values: Option<Vec<String>>,
    }

    /// Reference to an object in the same namespace.
    pub struct LocalObjectReference {
        /// Name of the object.
        pub name: Option<String>,
    }

    /// Automatic tuning by the controller.
    pub struct TuningSpec {
        /// Tuning mode. `Auto` applies tuned values, `Recommend` only publishes them in the status,
        /// and `Manual` disables tuning.
        pub mode: Option<OpenEnum<TuningMode>>,
        /// Set of pods that share one set of tuned values: each pod (`Pod`), the pods on the same
        /// kind of accelerator or machine (`NodeClass`), or all pods (`Workload`).
        pub granularity: Option<OpenEnum<TuningGranularity>>,
        /// Bounds of the tuned values. They never exceed `limits`.
        pub bounds: Option<TuningBounds>,
    }

    /// Bounds of the tuned values.
    pub struct TuningBounds {
        /// Bounds of `limits.slotsMax`.
        pub slots_max: Option<NumberBounds>,
        /// Bounds of `limits.batchWeightMax`.
        pub batch_weight_max: Option<NumberBounds>,
        /// Bounds of the deadline shift.
        pub deadline_shift: Option<ShiftBounds>,
    }

    /// Lower and upper bound of a number.
    pub struct NumberBounds {
        /// Minimum.
        pub min: Option<u64>,
        /// Maximum.
        pub max: Option<u64>,
    }

    /// Upper bound of the deadline shift.
    pub struct ShiftBounds {
        /// Maximum, as a share of the latency target.
        pub max: Option<ShareText>,
    }

    /// Rollout of changes to the pods.
    pub struct RolloutSpec {
        /// Rollout strategy. `Immediate` changes all pods at once, `Canary` changes them in steps,
        /// and `Experiment` compares several profiles.
        pub strategy: Option<OpenEnum<RolloutStrategy>>,
        /// Steps of a `Canary` rollout.
        pub canary: Option<CanarySpec>,
        /// Arms of an `Experiment`, and their assignment to pods.
        pub experiment: Option<ExperimentSpec>,
        /// Criteria for a regression.
        pub analysis: Option<AnalysisSpec>,
        /// Reaction to a regression. `Rollback` restores the previous profile on all pods. `Pause`
        /// leaves the rollout unchanged until the policy is changed.
        pub on_failure: Option<OpenEnum<OnFailure>>,
        /// Maximum number of unused generated profiles that are kept for the policy. If there are
        /// more, the oldest are deleted.
        pub history_limit: Option<u32>,
    }

    /// Steps of a canary rollout.
    pub struct CanarySpec {
        /// The steps, in order. Each must reach more pods than the one before it.
        pub steps: Option<Vec<CanaryStep>>,
    }

    /// A step of a canary rollout.
    pub struct CanaryStep {
        /// Percentage of pods that run the new profile.
        pub percent: Option<u32>,
        /// Minimum duration of the step.
        pub hold: Option<DurationText>,
    }

    /// An experiment that compares several profiles.
    pub struct ExperimentSpec {
        /// Profiles to compare, at least two. The first is the baseline.
        pub arms: Option<Vec<ArmSpec>>,
        /// Assignment of pods to arms. `Pod` assigns each pod to one arm. `Switchback` switches
        /// each pod between all arms.
        pub assignment: Option<OpenEnum<ArmAssignment>>,
        /// Interval between two switches.
        pub period: Option<DurationText>,
        /// Minimum number of calls in each arm before a verdict.
        pub min_samples: Option<u32>,
    }

    /// An arm of an experiment.
    pub struct ArmSpec {
        /// Reference to the profile of the arm.
        pub profile_ref: Option<LocalObjectReference>,
        /// Share of the arm relative to the other arms.
        pub weight: Option<u32>,
    }

    /// Criteria for a regression.
    pub struct AnalysisSpec {
        /// Allowed increase of the 99th percentile of latency, relative to the baseline.
        pub latency_p99_regression: Option<ShareText>,
        /// Allowed increase of the error rate, in percentage points of all calls.
        pub error_rate_regression: Option<ShareText>,
        /// Interval between two comparisons.
        pub interval: Option<DurationText>,
    }

    /// Injection of the sidecar into pods.
    pub struct InjectionSpec {
        /// Method that directs the traffic of a port to the sidecar. `Named` moves the name of the
        /// port to the sidecar, `Loopback` makes the application listen on loopback, `Redirect`
        /// redirects packets in the kernel, and `Auto` selects the first method that is possible
        /// for the port.
        pub capture: Option<OpenEnum<CaptureMode>>,
        /// Ports to capture, by number or name. If empty, the ports of the workload are captured.
        pub ports: Option<Vec<PortRef>>,
        /// Environment variable or argument that makes the application listen on loopback. Its
        /// value must be a loopback address or a port.
        pub app_listen: Option<String>,
        /// Recipe that moves a known server from its ports: `Auto`, `None` or the name of a recipe.
        pub recipe: Option<String>,
        /// CPU request of the sidecar.
        pub cpu_request: Option<String>,
        /// Memory request of the sidecar.
        pub memory_request: Option<String>,
        /// Memory limit of the sidecar.
        pub memory_limit: Option<String>,
        /// Log level of the sidecar.
        pub log_level: Option<String>,
        /// Maximum time to drain the sidecar. If absent, it is the termination grace period of the
        /// pod less 5 s.
        pub drain_timeout: Option<DurationText>,
        /// Container type of the sidecar. `Always` uses a native sidecar (an init container with
        /// `restartPolicy: Always`), `Never` a regular container, and `Auto` a native sidecar on
        /// Kubernetes 1.33 and later.
        pub native_sidecar: Option<OpenEnum<NativeSidecar>>,
    }
}

/// A captured port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PortRef {
    /// Port number.
    Number(u16),
    /// Port name.
    Name(String),
}
