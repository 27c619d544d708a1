//! The kinds `BatchPolicy` and `BatchProfile`, version `v1alpha1`: the complete schema, in which
//! every key is optional.
//!
//! Durations, sizes and shares keep the text that the user wrote, and an enumeration keeps a value
//! it does not know, so reading and writing an object never changes it. The doc comments of the
//! fields are the user-facing reference: the descriptions of the CRDs and `docs/configuration.md`
//! are generated from them.

#![expect(clippy::duplicated_attributes, reason = "columns of the same type repeat its attribute")]

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Declares structs in which every key is optional. A key is omitted from the JSON if it is absent
/// or an empty list.
macro_rules! optional_keys {
    ($(
        $(#[$attribute:meta])*
        pub struct $name:ident { $($(#[$key_attribute:meta])* pub $key:ident: $value:ty,)* }
    )*) => {$(
        $(#[$attribute])*
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "camelCase", default)]
        pub struct $name {
            $(
                $(#[$key_attribute])*
                #[serde(skip_serializing_if = "crate::api::v1alpha1::is_absent")]
                pub $key: $value,
            )*
        }
    )*};
}

mod cluster;
mod engine;
mod lengths;
mod proxy;
mod route;
mod schema;
mod status;
mod enums;

pub use cluster::{
    AnalysisSpec, ArmSpec, CanarySpec, CanaryStep, ExperimentSpec, InjectionSpec, LabelSelector,
    LabelSelectorRequirement, LocalObjectReference, NumberBounds, PortRef, RolloutSpec, ShiftBounds, TargetRef,
    TuningBounds, TuningSpec,
};
pub use engine::{EngineDevice, EngineSpec};
pub use enums::{
    ArmAssignment, CallOrder, CaptureMode, ConnectionReuse, CostShare, Http2Mode, Idempotent, ItemClass, ItemForm,
    LateHandling, LogFormat, MergeRule, Mode, NativeSidecar, OnFailure, OnMismatch, OpenEnum, Preset, Protocol,
    ResultForm, ResultOrder, RolloutStrategy, SchedulingPolicy, TuningGranularity, TuningMode,
};
pub use lengths::{ARMS_MAX, CONDITIONS_MAX, CURVE_MAX, LEARNED_MAX, POD_TUNINGS_MAX, USED_BY_MAX};
pub use proxy::{
    AdminSpec, ClientHttp2Spec, ClientSpec, ConnectionSpec, DrainSpec, LogSpec, ProcessSpec, ProxySpec, TlsSpec,
    UpstreamTlsSpec,
};
pub use route::{CostSpec, GenericSpec, MergeFields, PerItemError, ResponseParts, RouteSpec, SingleSpec, TooLargeSpec};
pub use status::{
    ArmStatus, BatchPolicyStatus, BatchProfileStatus, BatchingSummary, CurvePoint, LearnedState, PodCounts, PodTuning,
    ProfileVerdict, Quantiles, RolloutPhase, RolloutStatus, VerdictOutcome,
};

/// `apiVersion` of both kinds.
pub const API_VERSION: &str = "groupage.dev/v1alpha1";

/// A duration as written, such as `5ms` or `1m30s`. Units: `us ms s m h`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct DurationText(pub String);

/// A share as written, such as `0.1%`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct ShareText(pub String);

/// A size as written: a number of bytes, or text with the suffix `Ki`, `Mi` or `Gi`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SizeText {
    /// A number of bytes.
    Bytes(u64),
    /// Text with a suffix.
    Text(String),
}

/// A single value or a list of values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum OneOrMany {
    /// A single value.
    One(String),
    /// A list of values.
    Many(Vec<String>),
}

/// Specification of a `BatchPolicy`: the batching of calls to the workloads that it selects.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "groupage.dev",
    version = "v1alpha1",
    kind = "BatchPolicy",
    plural = "batchpolicies",
    shortname = "bpol",
    category = "groupage",
    namespaced,
    status = "BatchPolicyStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "Batching of the calls to the selected workloads. A target and a latency SLO are enough for a useful policy.",
    printcolumn(
        name = "Target",
        type_ = "string",
        json_path = ".status.target",
        description = "Target of the policy."
    ),
    printcolumn(
        name = "Mode",
        type_ = "string",
        json_path = ".status.mode",
        description = "Mode in force: Batch, Observe or Passthrough."
    ),
    printcolumn(
        name = "SLO",
        type_ = "string",
        json_path = ".spec.slo.latencyP99",
        description = "Latency target (99th percentile)."
    ),
    printcolumn(
        name = "P99",
        type_ = "string",
        json_path = ".status.summary.latencyP99",
        description = "Measured latency (99th percentile)."
    ),
    printcolumn(
        name = "Batch",
        type_ = "integer",
        json_path = ".status.summary.batchItems.p50",
        description = "Median number of items in a batch."
    ),
    printcolumn(
        name = "Saved",
        type_ = "string",
        json_path = ".status.summary.saved",
        description = "Share of upstream calls that batching saved."
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "Status of the condition Ready."
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Profile",
        type_ = "string",
        json_path = ".status.currentProfile",
        description = "The profile in force.",
        priority = 1
    ),
    printcolumn(
        name = "Pods",
        type_ = "integer",
        json_path = ".status.pods.connected",
        description = "Pods whose sidecar is connected.",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase", default)]
pub struct BatchPolicySpec {
    /// Workloads to which the policy applies. At most 16. Mutually exclusive with `selector`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_refs: Option<Vec<TargetRef>>,
    /// Label selector of the pods to which the policy applies. Mutually exclusive with
    /// `targetRefs`. A policy with neither is the default policy of its namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Operating mode. `Batch` merges calls. `Observe` passes calls through and reports the effect
    /// that batching would have. `Passthrough` turns the sidecar into a plain proxy and overrides
    /// the modes of all routes, so it serves as a kill switch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<OpenEnum<Mode>>,
    /// Latency objective. Calls that can still meet it are served first. With `late: Refuse`, all
    /// other calls are refused in the queue, never in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slo: Option<Slo>,
    /// Share of batched calls that are also sent unbatched to compare the responses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verify: Option<ShareText>,
    /// Routes to batch. The first match applies, and calls that match no route pass through. If
    /// absent or empty, all routes that an adapter recognises are batched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routes: Option<Vec<RouteSpec>>,
    /// Hard limits. They also bound all learned values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<LimitsSpec>,
    /// Scheduling of batches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduling: Option<SchedulingSpec>,
    /// Sources of the deadlines of calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<DeadlineSpec>,
    /// Priority classes and their weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<PrioritySpec>,
    /// Tenants that share the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenants: Option<TenantsSpec>,
    /// Handling of failed batches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureSpec>,
    /// Reference to a measured profile that provides `limits` and `scheduling`. Mutually exclusive
    /// with these keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile_ref: Option<LocalObjectReference>,
    /// Automatic tuning by the controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tuning: Option<TuningSpec>,
    /// Rollout of changes to the pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutSpec>,
    /// Injection of the sidecar into pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub injection: Option<InjectionSpec>,
    /// A model that the sidecar or the proxy executes itself. It takes effect at its start, in a
    /// cluster for new pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineSpec>,
    /// Settings of the proxy process. They take effect at its start. In an injected pod, `listen`,
    /// `upstream`, `tls`, `upstreamTls`, `admin`, `log` and `state` are set by the injection
    /// instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy: Option<ProxySpec>,
}

impl BatchPolicySpec {
    /// Returns `true` if the policy, one of its routes or one of its priority classes has a latency
    /// target.
    #[must_use]
    pub fn has_latency_target(&self) -> bool {
        let all = self.slo.iter().map(|slo| &slo.latency_p99);
        let routes = self.routes.iter().flatten().filter_map(|route| route.slo.as_ref()).map(|slo| &slo.latency_p99);
        let classes = self.priority.iter().flat_map(|priority| priority.classes.iter().flatten());
        all.chain(routes).chain(classes.map(|class| &class.latency_p99)).any(Option::is_some)
    }
}

/// Specification of a `BatchProfile`: measured limits and scheduling that policies can reference.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "groupage.dev",
    version = "v1alpha1",
    kind = "BatchProfile",
    plural = "batchprofiles",
    shortname = "bprof",
    category = "groupage",
    namespaced,
    status = "BatchProfileStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "A named, immutable set of limits and scheduling settings that policies refer to. Other values need another profile.",
    printcolumn(name = "Policy", type_ = "string", json_path = ".status.policy", description = "Scheduling policy."),
    printcolumn(
        name = "Items",
        type_ = "integer",
        json_path = ".spec.limits.batchItemsMax",
        description = "Maximum number of items in a batch."
    ),
    printcolumn(
        name = "Slots",
        type_ = "integer",
        json_path = ".spec.limits.slotsMax",
        description = "Maximum number of batches in flight."
    ),
    printcolumn(
        name = "Samples",
        type_ = "integer",
        json_path = ".status.samples",
        description = "Number of calls answered under the profile."
    ),
    printcolumn(
        name = "Verdict",
        type_ = "string",
        json_path = ".status.verdict.outcome",
        description = "Result of the last comparison."
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Used-By",
        type_ = "string",
        json_path = ".status.usedBy[0]",
        description = "A policy that uses it.",
        priority = 1
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.verdict.reason",
        description = "Reason for the verdict.",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase", default)]
pub struct BatchProfileSpec {
    /// Hard limits. They also bound all learned values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<LimitsSpec>,
    /// Scheduling of batches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduling: Option<SchedulingSpec>,
}

optional_keys! {
    /// A latency objective.
    pub struct Slo {
        /// Target for the 99th percentile of the time from the arrival of a call at the proxy to
        /// its response.
        pub latency_p99: Option<DurationText>,
        /// Handling of a call that can no longer meet the target. `Serve` serves it after all calls
        /// that can. `Refuse` answers it in the queue with 503 or 504.
        pub late: Option<OpenEnum<LateHandling>>,
    }

    /// Hard limits of batches, queues and concurrency.
    pub struct LimitsSpec {
        /// Maximum number of items in a batch. A limit that the server publishes, or that is
        /// learned from its errors, applies as well. The smallest limit takes precedence.
        pub batch_items_max: Option<u32>,
        /// Maximum weight of a batch: in tokens for text, in rows for tensors, or in the unit of
        /// `generic.weight`. If absent, the weight is not limited.
        pub batch_weight_max: Option<u64>,
        /// Maximum size of the request of a batch.
        pub batch_bytes_max: Option<SizeText>,
        /// Maximum size of a call that can be batched. Larger calls pass through.
        pub item_bytes_max: Option<SizeText>,
        /// Maximum nesting depth of JSON in a call. Deeper calls are forwarded unbatched.
        pub item_nesting_max: Option<u32>,
        /// Maximum time for which a call is held while a slot is free. The wait for a slot is
        /// limited by the deadline of the call instead.
        pub queue_delay_max: Option<DurationText>,
        /// Maximum number of queued items. Further calls are answered with 503.
        pub queue_items_max: Option<u32>,
        /// Maximum size of all queued calls together. Further calls are answered with 503.
        pub queue_bytes_max: Option<SizeText>,
        /// Hard limit on the number of concurrent upstream calls. If absent, `Adaptive` learns the
        /// number, and the other policies use `scheduling.slots`.
        pub slots_max: Option<u32>,
        /// Maximum number of concurrent upstream calls to a server that forms batches itself, for
        /// which calls are forwarded unbatched.
        pub stand_aside_max: Option<u32>,
    }

    /// Scheduling of batches.
    pub struct SchedulingSpec {
        /// Scheduling policy. `Adaptive` learns the batch size, the dispatch time and the number of
        /// slots. `WorkConserving` dispatches when a slot is idle and collects calls while all
        /// slots are busy. `Window` and `Static` dispatch a batch of `items`, or after `delay`.
        pub policy: Option<OpenEnum<SchedulingPolicy>>,
        /// Objective of `Adaptive`: the share of the latency target that it may spend on larger
        /// batches while the server is idle. `latency` spends none of it, `balanced` a tenth, and
        /// `throughput` four tenths.
        pub preset: Option<OpenEnum<Preset>>,
        /// Order of calls of one priority class and tenant. `Deadline`: by deadline with
        /// `Adaptive`, else by arrival. `ShortFirst`: short calls pass longer ones that arrived
        /// shortly before, at most four times the latency target of their class, or 2 s without
        /// one.
        pub order: Option<OpenEnum<CallOrder>>,
        /// Boundaries between length buckets, in the unit of `limits.batchWeightMax`: the largest
        /// weight of an item in each bucket. Calls with their heaviest items in different buckets
        /// never share a batch.
        pub length_buckets: Option<Vec<u64>>,
        /// Number of concurrent upstream calls for `WorkConserving`, `Window` and `Static`. It is
        /// limited by `limits.slotsMax`, if set.
        pub slots: Option<u32>,
        /// Number of items at which `Window` and `Static` dispatch a batch.
        pub items: Option<u32>,
        /// Time after which `Window` and `Static` dispatch an incomplete batch. `Window` measures
        /// it from the time at which both an item and a free slot are available, `Static` from the
        /// arrival of the oldest item. It is limited by `limits.queueDelayMax`.
        pub delay: Option<DurationText>,
    }

    /// Sources of the deadlines of calls.
    pub struct DeadlineSpec {
        /// Names of request headers that contain the client's timeout in milliseconds. The header
        /// `grpc-timeout` is always evaluated as well.
        pub headers: Option<Vec<String>>,
    }

    /// Priority classes of calls.
    pub struct PrioritySpec {
        /// Name of the request header that contains the name of the class. Calls of different
        /// classes can share a batch, and the header is not sent with a shared call.
        pub header: Option<String>,
        /// The priority classes. The first class applies to every call that names none of them.
        pub classes: Option<Vec<PriorityClass>>,
    }

    /// A priority class.
    pub struct PriorityClass {
        /// Name of the class.
        pub name: Option<String>,
        /// Share of the upstream's time relative to the other classes, while calls of several
        /// classes wait.
        pub weight: Option<u32>,
        /// Latency target of the class. It replaces `slo.latencyP99`.
        pub latency_p99: Option<DurationText>,
        /// Serves the calls of this class before all others, except calls that have waited 4 times
        /// their latency target, or 2s if they have none.
        pub strict: Option<bool>,
        /// Restricts the calls of this class to free room in batches that are dispatched anyway.
        /// They are dispatched on their own only while no other call waits.
        pub filler: Option<bool>,
    }

    /// Tenants that share the queue.
    pub struct TenantsSpec {
        /// Name of the request header that identifies the tenant. If absent, all identity headers
        /// together identify it. Calls with different identities never share a batch.
        pub header: Option<String>,
        /// Weights of tenants, by the value of `tenants.header`. All other tenants have weight 1.
        pub weights: Option<BTreeMap<String, u32>>,
    }

    /// Handling of failed batches.
    pub struct FailureSpec {
        /// Number of members above which a failed batch is bisected repeatedly. The members of
        /// batches up to this size are retried one by one.
        pub isolate_above: Option<u32>,
        /// Number of upstream calls that may exceed the number of client calls, as a share of the
        /// client calls over 10 s. In addition, 3 calls per second are always allowed. If it is
        /// used up, the calls of a failed batch are retried one by one, which is never refused, and
        /// not in smaller batches.
        pub replay_budget: Option<ShareText>,
        /// Time for which calls are not merged after failed batches: those of one merge key, or all
        /// of a route and model. It doubles with each failure, up to 1h.
        pub quarantine: Option<DurationText>,
    }
}

/// Returns `true` for an absent value and an empty list.
fn is_absent<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
