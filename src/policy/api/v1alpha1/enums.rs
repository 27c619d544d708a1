//! Enumerations of the API, and [`OpenEnum`], which also holds unknown values.

use serde::{Deserialize, Serialize};

/// A value of an enumeration, or a value that this version does not know.
///
/// A newer object may contain an unknown value. Rejecting the whole object would make its other
/// keys unreadable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum OpenEnum<T> {
    /// A known value.
    Known(T),
    /// An unknown value.
    Other(String),
}

/// Operating mode for calls that an adapter recognises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mode {
    /// Merges calls into batches.
    Batch,
    /// Passes calls through and predicts the effect of batching.
    Observe,
    /// Passes calls through.
    Passthrough,
}

/// Handling of a call that can no longer meet its SLO.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LateHandling {
    /// Served after all calls that can meet their SLO.
    Serve,
    /// Refused while it is queued.
    Refuse,
}

/// Protocol of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Protocol {
    /// Any adapter that recognises the path.
    Auto,
    /// Passed through without parsing.
    PassThrough,
    /// A JSON protocol that the policy declares.
    Generic,
    /// KServe V1 inference protocol.
    KServeV1,
    /// Open Inference Protocol, version 2.
    OpenInferenceV2,
    /// REST API of TensorFlow Serving.
    TFServing,
    /// OpenAI API.
    OpenAI,
    /// Hugging Face Text Embeddings Inference.
    TEI,
    /// MLflow model server.
    MLflow,
    /// Seldon Core.
    Seldon,
    /// Amazon `SageMaker`.
    SageMaker,
    /// BentoML.
    BentoML,
    /// Infinity embedding server.
    Infinity,
    /// vLLM.
    VLLM,
    /// SGLang.
    SGLang,
    /// Hugging Face Text Generation Inference.
    TGI,
    /// llama.cpp server.
    LlamaCpp,
    /// Ollama.
    Ollama,
    /// Cohere API.
    Cohere,
    /// Voyage AI API.
    Voyage,
    /// Jina AI API.
    Jina,
}

/// Rule for merging the calls of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MergeRule {
    /// Merged where that is measured to pay.
    Auto,
    /// Merged without such a measurement.
    Always,
    /// Queued, and sent one by one.
    Never,
}

/// Permission to retry a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Idempotent {
    /// Allowed on known routes of pure inference.
    Auto,
    /// Always allowed.
    Always,
    /// Never allowed.
    Never,
}

/// Items that can share a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ItemClass {
    /// Items with equal JSON types, and equal fields in the same order.
    Strict,
    /// Any strings.
    Text,
    /// Any items.
    None,
}

/// Form of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ItemForm {
    /// An element of the list of items.
    Element,
    /// A flat list of numbers.
    ArrayOfNumbers,
}

/// Form of the response to a bare value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ResultForm {
    /// A bare result.
    None,
    /// A list of one result.
    List,
}

/// Order of results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ResultOrder {
    /// Results in the order of the items.
    None,
    /// Sorted results that carry an index.
    Sorted,
}

/// Method of dividing a counter among callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CostShare {
    /// In proportion to a weight.
    Proportional,
    /// By the number in each result.
    Exact,
    /// Not divided: the counter is removed.
    Drop,
}

/// Handling of a batch response that cannot be split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OnMismatch {
    /// Retries the members that may be retried.
    Isolate,
    /// Answers all members with 502.
    Fail,
}

/// Scheduling policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SchedulingPolicy {
    /// Learns the batch size, the dispatch time and the number of slots.
    Adaptive,
    /// Dispatches when a slot is idle, and collects calls while all slots are busy.
    WorkConserving,
    /// Dispatches at a number of items, or after a delay since an item and a free slot were
    /// available.
    Window,
    /// Dispatches at a number of items, or after a delay since the arrival of the oldest item.
    Static,
}

/// Order of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CallOrder {
    /// By deadline, or by arrival.
    Deadline,
    /// Short calls first, for a limited time.
    ShortFirst,
}

/// Objective of adaptive scheduling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Preset {
    /// Spends none of the latency target on larger batches while the server is idle.
    #[serde(rename = "latency")]
    Latency,
    /// Spends up to a tenth of it.
    #[serde(rename = "balanced")]
    Balanced,
    /// Spends up to four tenths of it.
    #[serde(rename = "throughput")]
    Throughput,
}

/// Extent of automatic tuning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TuningMode {
    /// Applies tuned values.
    #[default]
    Auto,
    /// Publishes tuned values in the status only.
    Recommend,
    /// Disables tuning.
    Manual,
}

/// Set of pods that share tuned values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TuningGranularity {
    /// Each pod has its own values.
    #[default]
    Pod,
    /// The pods on the same kind of accelerator or machine share values.
    NodeClass,
    /// All pods of the workload share values.
    Workload,
}

/// Rollout strategy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RolloutStrategy {
    /// Changes all pods at once.
    Immediate,
    /// Changes the pods in steps.
    Canary,
    /// Compares several profiles.
    Experiment,
}

/// Assignment of pods to the arms of an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ArmAssignment {
    /// Each pod serves one arm.
    Pod,
    /// Each pod switches between all arms.
    Switchback,
}

/// Reaction to a regression.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OnFailure {
    /// Restores the previous profile on all pods.
    #[default]
    Rollback,
    /// Leaves the rollout unchanged.
    Pause,
}

/// Method that directs the traffic of a port to the sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CaptureMode {
    /// The first method that is possible for the port.
    Auto,
    /// The name of the port is moved to the sidecar.
    Named,
    /// The application listens on loopback, and the sidecar on the addresses of the pod.
    Loopback,
    /// Packets are redirected in the kernel.
    Redirect,
}

/// Container type of the sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NativeSidecar {
    /// A native sidecar on Kubernetes 1.33 and later, otherwise a regular container.
    Auto,
    /// A native sidecar.
    Always,
    /// A regular container.
    Never,
}

/// Use of HTTP/2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Http2Mode {
    /// Used if it is detected.
    Auto,
    /// Always used.
    Always,
    /// Never used.
    Never,
}

/// Reuse of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ConnectionReuse {
    /// A new connection for each batch.
    Never,
    /// Connections are reused.
    Always,
}

/// Format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LogFormat {
    /// One JSON object per line.
    Json,
    /// Human-readable text.
    Pretty,
}

// === impl OpenEnum ===

impl<T: Copy> OpenEnum<T> {
    /// Returns the value if it is known.
    #[must_use]
    pub const fn as_known(&self) -> Option<T> {
        match self {
            Self::Known(word) => Some(*word),
            Self::Other(_) => None,
        }
    }
}
