//! The words of the enumerations, and [`Word`], which keeps one that is not known.

use serde::{Deserialize, Serialize};

/// A word of an enumeration, or one that this version does not know.
///
/// A newer object may hold it; refusing the whole object would leave its other keys unread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Word<T> {
    /// A known word.
    Known(T),
    /// Any other.
    Other(String),
}

/// What the proxy does with calls it recognises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mode {
    /// `Batch`.
    Batch,
    /// `Observe`.
    Observe,
    /// `Passthrough`.
    Passthrough,
}

/// What becomes of a call that cannot meet its SLO any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Late {
    /// `Serve`.
    Serve,
    /// `Refuse`.
    Refuse,
}

/// What is spoken on a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Protocol {
    /// `Auto`.
    Auto,
    /// `PassThrough`.
    PassThrough,
    /// `Generic`.
    Generic,
    /// `KServeV1`.
    KServeV1,
    /// `OpenInferenceV2`.
    OpenInferenceV2,
    /// `TFServing`.
    TFServing,
    /// `OpenAI`.
    OpenAI,
    /// `TEI`.
    TEI,
    /// `MLflow`.
    MLflow,
    /// `Seldon`.
    Seldon,
    /// `SageMaker`.
    SageMaker,
    /// `BentoML`.
    BentoML,
    /// `Infinity`.
    Infinity,
    /// `VLLM`.
    VLLM,
    /// `SGLang`.
    SGLang,
    /// `TGI`.
    TGI,
    /// `LlamaCpp`.
    LlamaCpp,
    /// `Ollama`.
    Ollama,
    /// `Cohere`.
    Cohere,
    /// `Voyage`.
    Voyage,
    /// `Jina`.
    Jina,
}

/// Whether a call may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Idempotent {
    /// `Auto`.
    Auto,
    /// `Always`.
    Always,
    /// `Never`.
    Never,
}

/// Which items may share a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ItemClass {
    /// `Strict`.
    Strict,
    /// `Text`.
    Text,
    /// `None`.
    None,
}

/// What one item looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ItemIs {
    /// `Element`.
    Element,
    /// `ArrayOfNumbers`.
    ArrayOfNumbers,
}

/// How the answer to a bare value looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ResultWrap {
    /// `None`.
    None,
    /// `List`.
    List,
}

/// In which order results come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Select {
    /// `None`.
    None,
    /// `Sorted`.
    Sorted,
}

/// How a counter is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CostShare {
    /// `Proportional`.
    Proportional,
    /// `Exact`.
    Exact,
    /// `Drop`.
    Drop,
}

/// What follows an answer that cannot be split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OnMismatch {
    /// `Isolate`.
    Isolate,
    /// `Fail`.
    Fail,
}

/// When a batch leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SchedulingPolicy {
    /// `Adaptive`.
    Adaptive,
    /// `WorkConserving`.
    WorkConserving,
    /// `Window`.
    Window,
    /// `Static`.
    Static,
}

/// What learning prefers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Preset {
    /// `latency`.
    #[serde(rename = "latency")]
    Latency,
    /// `balanced`.
    #[serde(rename = "balanced")]
    Balanced,
    /// `throughput`.
    #[serde(rename = "throughput")]
    Throughput,
}

/// What the controller may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TuningMode {
    /// `Auto`.
    Auto,
    /// `Recommend`.
    Recommend,
    /// `Manual`.
    Manual,
}

/// What shares one set of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Granularity {
    /// `Pod`.
    Pod,
    /// `NodeClass`.
    NodeClass,
    /// `Workload`.
    Workload,
}

/// How a change reaches the pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Strategy {
    /// `Immediate`.
    Immediate,
    /// `Canary`.
    Canary,
    /// `Experiment`.
    Experiment,
}

/// How pods are given to arms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Assignment {
    /// `Pod`.
    Pod,
    /// `Switchback`.
    Switchback,
}

/// What follows when a change is worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OnFailure {
    /// `Rollback`.
    Rollback,
    /// `Pause`.
    Pause,
}

/// How traffic is led through the sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Capture {
    /// `Auto`.
    Auto,
    /// `Named`.
    Named,
    /// `Loopback`.
    Loopback,
    /// `Redirect`.
    Redirect,
}

/// Which kind of container the sidecar is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NativeSidecar {
    /// `Auto`.
    Auto,
    /// `Always`.
    Always,
    /// `Never`.
    Never,
}

/// Whether HTTP/2 is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Http2 {
    /// `Auto`.
    Auto,
    /// `Always`.
    Always,
    /// `Never`.
    Never,
}

/// Whether connections are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reuse {
    /// `Never`.
    Never,
    /// `Always`.
    Always,
}

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LogFormat {
    /// `Json`.
    Json,
    /// `Pretty`.
    Pretty,
}

// === impl Word ===

impl<T: Copy> Word<T> {
    /// The word, where it is known.
    #[must_use]
    pub const fn known(&self) -> Option<T> {
        match self {
            Self::Known(word) => Some(*word),
            Self::Other(_) => None,
        }
    }
}
