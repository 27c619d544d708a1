//! `BatchPolicy` and `BatchProfile`, version `v1alpha1`: the whole schema, every key optional.
//!
//! Durations, sizes and shares stay the text that the user wrote, and an enumeration keeps a word it does not know, so reading and writing an
//! object never changes it. The doc comments are the users' reference: `docs/configuration.md` is written from them.

#![expect(clippy::duplicated_attributes, reason = "columns are of few types, and each says its own")]

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{CustomResource, CustomResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod cluster;
mod proxy;
mod route;
mod schema;
mod status;
mod words;

pub use cluster::{
    Analysis, Arm, Bounds, Canary, CanaryStep, Experiment, InjectionSpec, NameRef, NumberBounds, Port, RolloutSpec,
    Selector, SelectorTerm, ShiftBounds, TargetRef, TuningSpec,
};
pub use proxy::{
    AdminSpec, ClientHttp2Spec, ClientSpec, ConnectionSpec, DrainSpec, LogSpec, ProcessSpec, ProxySpec, TlsSpec,
    UpstreamTlsSpec,
};
pub use route::{AnswerParts, CostSpec, Fields, GenericSpec, PerItemError, RouteSpec, SingleSpec, TooLargeSpec};
pub use status::{
    ARMS_MAX, ArmStatus, BatchPolicyStatus, BatchProfileStatus, CONDITIONS_MAX, CURVE_MAX, CurvePoint, LEARNED_MAX,
    Learned, Outcome, POD_TUNINGS_MAX, PodCounts, PodTuning, Quantiles, RolloutPhase, RolloutStatus, Summary,
    USED_BY_MAX, Verdict,
};
pub use words::{
    Assignment, Capture, CostShare, Granularity, Http2, Idempotent, ItemClass, ItemIs, Late, LogFormat, Mode,
    NativeSidecar, OnFailure, OnMismatch, Preset, Protocol, ResultWrap, Reuse, SchedulingPolicy, Select, Strategy,
    TuningMode, Word,
};

/// `apiVersion` of both kinds.
pub const API_VERSION: &str = "groupage.dev/v1alpha1";

/// A duration as written: `5ms`, `1m30s`; units `us ms s m h`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct DurationText(pub String);

/// A share as written: `0.1%`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct ShareText(pub String);

/// A size as written: bytes, or text with `Ki`, `Mi` or `Gi`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SizeText {
    /// Plain bytes.
    Bytes(u64),
    /// With its unit.
    Text(String),
}

/// One value, or a list of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum OneOrMany {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

/// How calls of the workloads it selects are batched.
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
    doc = "How calls of the workloads it selects are batched. A useful policy is a target and a latency target, nothing more.",
    printcolumn(name = "Target", type_ = "string", json_path = ".status.target", description = "Whom it is for."),
    printcolumn(
        name = "Mode",
        type_ = "string",
        json_path = ".status.mode",
        description = "Whether it batches, observes or passes through."
    ),
    printcolumn(
        name = "SLO",
        type_ = "string",
        json_path = ".spec.slo.latencyP99",
        description = "The latency that is promised."
    ),
    printcolumn(
        name = "P99",
        type_ = "string",
        json_path = ".status.summary.latencyP99",
        description = "The latency that there is."
    ),
    printcolumn(
        name = "Batch",
        type_ = "integer",
        json_path = ".status.summary.batchItems.p50",
        description = "Items in a batch, the median."
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
        description = "Whether all is as it should be."
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
    /// The workloads this policy is for. At most 16; not beside `selector`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_refs: Option<Vec<TargetRef>>,
    /// The pods this policy is for, by label. Not beside `targetRefs`; neither means the namespace's default policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<Selector>,
    /// `Batch`; `Observe` passes through and reports what batching would have done; `Passthrough` is a plain proxy, the kill switch: it overrides the routes' own mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Word<Mode>>,
    /// The latency you promise: calls that can be in time go first. With `late: Refuse` the others end in the queue, never in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slo: Option<Slo>,
    /// Share of batched calls that are also sent alone and compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verify: Option<ShareText>,
    /// What is batched, first match wins, the rest passes through. Absent or empty: every route that an adapter recognises.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routes: Option<Vec<RouteSpec>>,
    /// Walls that nothing learned passes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<LimitsSpec>,
    /// When a batch leaves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduling: Option<SchedulingSpec>,
    /// How callers say until when an answer is of use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<DeadlineSpec>,
    /// Classes of calls with weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<PrioritySpec>,
    /// Who shares the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenants: Option<TenantsSpec>,
    /// What happens when a batch fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureSpec>,
    /// A measured profile to take limits and scheduling from. Not beside `limits` or `scheduling`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile_ref: Option<NameRef>,
    /// What the controller may tune.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tuning: Option<TuningSpec>,
    /// How a change reaches the pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutSpec>,
    /// How the sidecar is added to a pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub injection: Option<InjectionSpec>,
    /// The process itself: fixed at start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy: Option<ProxySpec>,
}

impl BatchPolicySpec {
    /// Whether any call is promised a latency: of all, by route, or by priority class.
    #[must_use]
    pub fn promises_latency(&self) -> bool {
        let all = self.slo.iter().map(|slo| &slo.latency_p99);
        let routes = self.routes.iter().flatten().filter_map(|route| route.slo.as_ref()).map(|slo| &slo.latency_p99);
        let classes = self.priority.iter().flat_map(|priority| priority.classes.iter().flatten());
        all.chain(routes).chain(classes.map(|class| &class.latency_p99)).any(Option::is_some)
    }
}

/// Measured limits and scheduling that policies can refer to.
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
    doc = "Limits and scheduling under a name, for policies to refer to. A profile never changes: another set of values is another profile.",
    printcolumn(
        name = "Policy",
        type_ = "string",
        json_path = ".status.policy",
        description = "How batches are made."
    ),
    printcolumn(
        name = "Items",
        type_ = "integer",
        json_path = ".spec.limits.batchItemsMax",
        description = "Items in a batch, at most."
    ),
    printcolumn(
        name = "Slots",
        type_ = "integer",
        json_path = ".spec.limits.slotsMax",
        description = "Batches side by side, at most."
    ),
    printcolumn(
        name = "Samples",
        type_ = "integer",
        json_path = ".status.samples",
        description = "Calls answered under it."
    ),
    printcolumn(
        name = "Verdict",
        type_ = "string",
        json_path = ".status.verdict.outcome",
        description = "How it did when it was last compared."
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
        description = "Why the verdict is so.",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase", default)]
pub struct BatchProfileSpec {
    /// Walls that nothing learned passes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<LimitsSpec>,
    /// When a batch leaves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduling: Option<SchedulingSpec>,
}

/// A latency target.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Slo {
    /// 99th percentile from a call's arrival to its answer, at the proxy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_p99: Option<DurationText>,
    /// What becomes of a call that cannot be in time any more: `Serve` moves it behind those that can, `Refuse` ends it in the queue with 503 or 504.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late: Option<Word<Late>>,
}

/// Caps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LimitsSpec {
    /// Items in a batch. The server's own published or learned limit is taken too; the smallest wins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_items_max: Option<u32>,
    /// Weight of a batch: tokens, or what `generic.weight` says. Absent: not limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_weight_max: Option<u64>,
    /// Request bytes of a batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_bytes_max: Option<SizeText>,
    /// A larger call passes through.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item_bytes_max: Option<SizeText>,
    /// Depth of JSON nesting; a deeper call goes alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item_nesting_max: Option<u32>,
    /// Longest deliberate wait beside a free slot; waiting for a slot is bounded by the deadline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_delay_max: Option<DurationText>,
    /// Items waiting; 503 above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_items_max: Option<u32>,
    /// Bytes waiting; 503 above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_bytes_max: Option<SizeText>,
    /// Calls to the upstream at once: a wall. Absent: none; `Adaptive` finds the number, the other policies use `scheduling.slots`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots_max: Option<u32>,
    /// Calls at once while standing aside from a server that batches by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stand_aside_max: Option<u32>,
}

/// When a batch leaves.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SchedulingSpec {
    /// `Adaptive` learns size, moment and slots; `WorkConserving` sends when a slot is idle and collects while all are busy; `Window` and `Static` send at `items` or after `delay`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Word<SchedulingPolicy>>,
    /// What `Adaptive` prefers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<Word<Preset>>,
    /// Calls to the upstream at once (`WorkConserving`, `Window`, `Static`); never above `limits.slotsMax` where that is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// Send at this many (`Window`, `Static`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub items: Option<u32>,
    /// … or after this long: `Window` since an item and a free slot were both there, `Static` since the oldest came; never beyond `limits.queueDelayMax`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<DurationText>,
}

/// Deadlines of callers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DeadlineSpec {
    /// Headers with a caller's timeout in milliseconds; `grpc-timeout` always counts too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers: Option<Vec<String>>,
}

/// Classes of calls.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PrioritySpec {
    /// The header that names the class. Calls that differ in it may share a batch, and no shared call has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// The classes; the first is for every call that names none of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classes: Option<Vec<PriorityClass>>,
}

/// A class of calls.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PriorityClass {
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its share of the upstream's time while others wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Its own latency target, instead of `slo.latencyP99`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_p99: Option<DurationText>,
    /// Goes before all others that have not waited 4 times their target, or 2s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
    /// Takes the room that others leave in a batch, and leaves by itself only while nobody else waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filler: Option<bool>,
}

/// Who shares the queue.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TenantsSpec {
    /// The header that names the tenant; absent: the identity headers together. Identity always separates batches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// Shares by tenant, as `tenants.header` names it; 1 for all others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<BTreeMap<String, u32>>,
}

/// What happens when a batch fails.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FailureSpec {
    /// A failed batch of more members is halved again and again, one of so many or fewer is sent again one by one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolate_above: Option<u32>,
    /// Upstream calls beyond the number of client calls, and 3 a second, over 10 s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay_budget: Option<ShareText>,
    /// No merging in a cost class after an answer that could not be split; doubles up to 1h.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quarantine: Option<DurationText>,
}

/// Both kinds as their types declare them. Ranges, words and rules are not in it: `config` adds them.
#[must_use]
pub fn definitions() -> [CustomResourceDefinition; 2] {
    [BatchPolicy::crd(), BatchProfile::crd()]
}
