//! Paths of inference protocols whose calls are not merged unless a route of the policy names their
//! protocol. They are recognised only to explain why such calls pass through.

use crate::v2;

/// Last steps of the paths of text generation and chat: `OpenAI`, Anthropic, TGI, Ollama and
/// llama.cpp.
const GENERATION: [&str; 8] = [
    "/completions",
    "/completion",
    "/generate",
    "/generate_stream",
    "/chat",
    "/infill",
    "/v1/messages",
    "/v1/responses",
];
/// Last step of the paths of reranking: `OpenAI`-compatible servers, TEI, Cohere.
const RERANKING: &str = "/rerank";

/// Kind of a path whose calls are never merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnmergedPath {
    /// Text generation or chat, of any protocol.
    Generation,
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
            return (!v2::grpc::is_path(path)).then_some(Self::Management);
        }
        if path.contains("/v2/repository/") || path.contains("/v2/models/") {
            return Self::open_inference(path);
        }
        if GENERATION.iter().any(|last| path.ends_with(last)) {
            return Some(Self::Generation);
        }
        path.ends_with(RERANKING).then_some(Self::Reranking)
    }

    /// Returns the kind of a path of the Open Inference Protocol,
    /// `/v2/models/{model}[/versions/{version}]/{verb}` with the verbs of its generation extension;
    /// `None` for inference.
    fn open_inference(path: &str) -> Option<Self> {
        if v2::is_model_path(path) {
            return None;
        }
        let is_generation = ["/generate", "/generate_stream"].iter().any(|last| path.ends_with(last));
        Some(if is_generation { Self::Generation } else { Self::Management })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_inference_of_open_inference_may_be_merged() {
        for path in [
            "/v2/models/m/infer",
            "/v2/models/m/versions/1/infer",
            "/seldon/ns/dep/v2/models/m/infer",
            "/myns/v2/models/m/versions/2/infer",
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
    fn generation_and_reranking_are_recognised_by_the_end_of_the_path() {
        for path in [
            "/v1/chat/completions",
            "/openai/v1/completions",
            "/v2/models/m/generate",
            "/ns/v2/models/m/versions/1/generate_stream",
            "/generate",
            "/api/chat",
            "/v1/messages",
        ] {
            assert_eq!(UnmergedPath::classify(path), Some(UnmergedPath::Generation), "{path}");
        }
        for path in ["/rerank", "/v1/rerank", "/v2/rerank"] {
            assert_eq!(UnmergedPath::classify(path), Some(UnmergedPath::Reranking), "{path}");
        }
        for path in ["/predict", "/v1/embeddings", "/v1/models/m:predict", "/generated", "/messages"] {
            assert_eq!(UnmergedPath::classify(path), None, "{path}");
        }
    }
}
