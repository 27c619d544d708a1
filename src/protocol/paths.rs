//! Paths of inference protocols whose calls are not merged unless a route of the policy names their
//! protocol. They are recognised only to explain why such calls pass through.

use crate::generation::GenerationFormat;
use crate::v2;

/// Last step of the paths of reranking: `OpenAI`-compatible servers, TEI, Cohere.
const RERANKING: &str = "/rerank";

/// Kind of a path with calls that are never merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnmergedPath {
    /// Reranking of documents by one query.
    Reranking,
    /// Any other path of the Open Inference Protocol, such as that of a model's metadata.
    Management,
}

// === impl UnmergedPath ===

impl UnmergedPath {
    /// Returns the kind of a raw path, or `None` if it is of none of these protocols. Servers are
    /// often reached behind a prefix (`/seldon/NAMESPACE/NAME`), so any prefix is accepted.
    pub(crate) fn classify(path: &str) -> Option<Self> {
        if path.contains(v2::grpc::SERVICE) {
            return (!path.ends_with(v2::grpc::PATH)).then_some(Self::Management);
        }
        if path.contains("/v2/repository/") || path.contains("/v2/models/") {
            return Self::open_inference(path);
        }
        path.ends_with(RERANKING).then_some(Self::Reranking)
    }

    /// Returns the kind of a path of the Open Inference Protocol,
    /// `/v2/models/{model}[/versions/{version}]/{verb}`; `None` for inference and generation.
    fn open_inference(path: &str) -> Option<Self> {
        let is_inference = v2::model(path).is_some() || GenerationFormat::of_path(path).is_some();
        (!is_inference).then_some(Self::Management)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inference_and_generation_of_open_inference_are_no_management() {
        for path in [
            "/v2/models/m/infer",
            "/v2/models/m/versions/1/infer",
            "/seldon/ns/dep/v2/models/m/infer",
            "/myns/v2/models/m/versions/2/infer",
            "/v2/models/m/generate",
            "/ns/v2/models/m/versions/1/generate_stream",
        ] {
            assert_eq!(UnmergedPath::classify(path), None, "{path}");
        }
        assert_eq!(UnmergedPath::classify("/inference.GRPCInferenceService/ModelInfer"), None);
        let stream = UnmergedPath::classify("/inference.GRPCInferenceService/ModelStreamInfer");
        assert_eq!(stream, Some(UnmergedPath::Management));
        for path in ["/v2/models/m", "/v2/models/m/ready", "/ns/v2/models/m/config", "/v2/repository/index"] {
            assert_eq!(UnmergedPath::classify(path), Some(UnmergedPath::Management), "{path}");
        }
    }

    #[test]
    fn reranking_is_recognised_by_the_end_of_the_path() {
        for path in ["/rerank", "/v1/rerank", "/v2/rerank"] {
            assert_eq!(UnmergedPath::classify(path), Some(UnmergedPath::Reranking), "{path}");
        }
        for path in ["/predict", "/v1/embeddings", "/v1/models/m:predict", "/v1/chat/completions"] {
            assert_eq!(UnmergedPath::classify(path), None, "{path}");
        }
    }
}
