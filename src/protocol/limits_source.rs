//! The documents in which model servers publish their limits.

use crate::call::UnmergeableReason;
use crate::published::{NotJson, PublishedLimits};
use crate::route::{Endpoint, ProtocolLabel, RouteProtocol};
use crate::{tei, v2};

/// A document with the limits of a server or of one of its models.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum LimitsSource {
    /// `GET /info` of Text Embeddings Inference.
    Info,
    /// `GET` of this path, `/v2/models/{model}/config` of the Open Inference Protocol.
    ModelConfig(String),
}

// === impl LimitsSource ===

impl LimitsSource {
    /// Returns the path of the document.
    #[must_use]
    pub fn path(&self) -> &str {
        match self {
            Self::Info => "/info",
            Self::ModelConfig(path) => path,
        }
    }

    /// Parses the document. Returns `None` if it names no limits.
    ///
    /// # Errors
    /// [`NotJson`] if the response is not JSON, as that of a gateway or of a page for all paths.
    pub fn parse(&self, body: &[u8]) -> Result<Option<PublishedLimits>, NotJson> {
        match self {
            Self::Info => tei::parse_info(body),
            Self::ModelConfig(_) => v2::config::parse_model_config(body),
        }
    }
}

// === impl Endpoint ===

impl Endpoint {
    /// Returns the document with the limits that apply to a call to `path`; `None` if the protocol
    /// has none.
    #[must_use]
    pub fn limits_source(&self, path: &str) -> Option<LimitsSource> {
        match self.label {
            ProtocolLabel::Tei => Some(LimitsSource::Info),
            ProtocolLabel::OpenInferenceV2 => v2::config_path(path).map(LimitsSource::ModelConfig),
            _ => None,
        }
    }

    /// Returns `true` if calls are merged only where the server publishes that the first dimension of
    /// the model's tensors is the batch ([`LimitsSource::ModelConfig`]).
    fn needs_model_config(&self) -> bool {
        self.label == ProtocolLabel::OpenInferenceV2 && self.rules.protocol == RouteProtocol::Auto
    }

    /// Returns the reason why calls to a model are not merged without a route that names their
    /// protocol: the first dimension of its tensors is not known to be the batch, or the server forms
    /// batches by itself.
    #[must_use]
    pub fn unmergeable_model(&self, published: Option<PublishedLimits>) -> Option<UnmergeableReason> {
        if !self.needs_model_config() {
            return None;
        }
        match published {
            None => Some(UnmergeableReason::OpenInference),
            Some(limits) => limits.batches_itself.then_some(UnmergeableReason::NoGain),
        }
    }
}
