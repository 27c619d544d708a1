//! The documents in which model servers publish their limits.

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, Uri};

use crate::call::{Call, UnmergeableReason, is_overload};
use crate::published::{NotJson, PublishedLimits};
use crate::route::{Endpoint, MergeRule, ProtocolLabel, RouteProtocol};
use crate::v2::grpc;
use crate::{engines, tei, v2};

/// Maximum number of bytes of the name of a model: that of the folder in which a server keeps it.
const NAME_BYTES_MAX: usize = 255;

/// A document with the limits of a server or of one of its models.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum LimitsSource {
    /// `GET /info` of Text Embeddings Inference and Text Generation Inference.
    Info,
    /// `GET /v1/models` of the `OpenAI` API, in which engines name themselves.
    Models,
    /// `GET /version` of vLLM.
    Version,
    /// `GET` of this path, `/v2/models/{model}/config` of the Open Inference Protocol.
    ModelConfig(String),
    /// The method `ModelConfig` of the Open Inference Protocol over gRPC.
    ModelConfigMethod {
        /// Name of the model.
        model: Bytes,
        /// Its version; empty for the one that the server chooses.
        version: Bytes,
    },
}

// === impl LimitsSource ===

impl LimitsSource {
    /// The documents that show whether a server batches text generation by itself.
    pub const OF_ENGINES: [Self; 3] = [Self::Models, Self::Version, Self::Info];

    /// Returns `true` if the document shows whether the first dimension of a model's tensors is the
    /// batch.
    #[must_use]
    pub const fn is_model_config(&self) -> bool {
        matches!(self, Self::ModelConfig(_) | Self::ModelConfigMethod { .. })
    }

    /// Returns the request for the document, without a host. One with version HTTP/2 cannot be sent
    /// in another version.
    #[must_use]
    pub fn request(&self) -> Request<Bytes> {
        let path = match self {
            Self::Info => "/info",
            Self::Models => "/v1/models",
            Self::Version => "/version",
            Self::ModelConfig(path) => path,
            Self::ModelConfigMethod { model, version } => return grpc::config::request(model, version),
        };
        let mut request = Request::new(Bytes::new());
        // The path is a part of one that was received.
        *request.uri_mut() = path.parse().unwrap_or_else(|_| Uri::from_static("/"));
        request
    }

    /// Returns the status by which a response is judged.
    #[must_use]
    pub fn response_status(&self, status: StatusCode, headers: &HeaderMap, trailers: Option<&HeaderMap>) -> StatusCode {
        match self {
            Self::Info | Self::Models | Self::Version | Self::ModelConfig(_) => status,
            Self::ModelConfigMethod { .. } => grpc::status::as_http(status, headers, trailers).0,
        }
    }

    /// Returns `true` if a response with an error of the client shows that the server has no such
    /// document. A list of models may be for callers with a key only.
    #[must_use]
    pub fn is_absent(&self, status: StatusCode) -> bool {
        let is_protected = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        status == StatusCode::NOT_IMPLEMENTED
            || status.is_client_error() && !is_overload(status) && !(*self == Self::Models && is_protected)
    }

    /// Parses the document. Returns `None` if it names no limits.
    ///
    /// # Errors
    /// [`NotJson`] if the response is not of the expected format, as that of a gateway or of a page
    /// for all paths.
    pub fn parse(&self, body: &[u8]) -> Result<Option<PublishedLimits>, NotJson> {
        match self {
            Self::Info => tei::parse_info(body),
            Self::Models => engines::parse_models(body),
            Self::Version => engines::parse_version(body),
            Self::ModelConfig(_) => v2::config::parse_model_config(body),
            Self::ModelConfigMethod { .. } => grpc::config::parse_response(body),
        }
    }
}

// === impl Endpoint ===

impl Endpoint {
    /// Returns the document with the limits that apply to a call; `None` if the protocol has none.
    /// `publishes_info`: a response of the server showed that it publishes [`LimitsSource::Info`].
    #[must_use]
    pub fn limits_source(&self, call: &Call, publishes_info: bool) -> Option<LimitsSource> {
        if self.rules.merge == MergeRule::Never {
            return None;
        }
        match self.label {
            ProtocolLabel::Tei => Some(LimitsSource::Info),
            ProtocolLabel::OpenAi => self.has_info(publishes_info).then_some(LimitsSource::Info),
            ProtocolLabel::OpenInferenceV2 => v2::config_path(call.head.uri.path()).map(LimitsSource::ModelConfig),
            ProtocolLabel::OpenInferenceGrpc => {
                let message = call.message.as_ref()?;
                let (model, version) = (message.model.clone(), message.version.clone());
                let is_name = !model.is_empty() && model.len().max(version.len()) <= NAME_BYTES_MAX;
                is_name.then_some(LimitsSource::ModelConfigMethod { model, version })
            }
            _ => None,
        }
    }

    /// Returns `true` if the server of calls in the format of `OpenAI` is TEI, which has embeddings, or
    /// TGI, which has completions. Most servers of embeddings are neither, so that one which shows
    /// no sign of it receives no request for the document.
    fn has_info(&self, publishes_info: bool) -> bool {
        match self.rules.protocol {
            RouteProtocol::Auto => publishes_info && !self.generates_text(),
            RouteProtocol::Tei => !self.generates_text(),
            RouteProtocol::Tgi => true,
            _ => false,
        }
    }

    /// Returns the maximum number of items in a call within the limits that the server publishes. The
    /// server may count a text beside the items too.
    #[must_use]
    pub fn published_items_max(&self, published: PublishedLimits) -> Option<u32> {
        published.items_max.map(|items| self.item_limit(items))
    }

    /// Returns `true` if calls are merged only where the server publishes that the first dimension of
    /// the model's tensors is the batch ([`LimitsSource::ModelConfig`]).
    fn needs_model_config(&self) -> bool {
        matches!(self.label, ProtocolLabel::OpenInferenceV2 | ProtocolLabel::OpenInferenceGrpc)
            && self.rules.protocol == RouteProtocol::Auto
    }

    /// Returns the reason why calls to a model are not merged: the first dimension of its tensors is
    /// not the batch; or, without a route that names their protocol, it is not known to be the batch,
    /// or the server forms batches by itself.
    #[must_use]
    pub fn unmergeable_model(&self, published: Option<PublishedLimits>) -> Option<UnmergeableReason> {
        if published.is_some_and(|limits| limits.has_no_batch) {
            return Some(UnmergeableReason::OpenInference);
        }
        if !self.needs_model_config() {
            return None;
        }
        match published {
            None => Some(UnmergeableReason::OpenInference),
            Some(limits) => {
                let is_left = limits.batches_itself && self.rules.merge != MergeRule::Always;
                is_left.then_some(UnmergeableReason::NoGain)
            }
        }
    }
}
