//! Text generation and chat: calls that are queued and sent one by one, never merged.
//!
//! Engines for text generation batch by themselves, token by token, so a shared call has nothing to
//! save there, and all of its answers wait for the longest one. Such calls are recognised so that
//! priorities, deadlines, shares of tenants and limits apply to them, and so that their tokens are
//! measured. Their bytes are never changed. Completions and the batch form of chat are merged on a
//! route that names their protocol, and completions also before a server that is known not to batch
//! text by itself (`openai`, `engines`).

mod meter;
mod request;

use crate::dialect::Dialect;
use crate::shape::{Payload, ProtocolShape, StreamRule};

pub use meter::{OutputMeter, TokenCounts};
pub(crate) use request::read;

/// The format of calls whose path has one ending.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GenerationFormat {
    /// Last steps of the path.
    suffix: &'static str,
    pub(crate) dialect: Dialect,
    streams: StreamRule,
    /// `true` if the server keeps no state of a call, so that one whose connection broke before the
    /// response may be sent again.
    pub(crate) idempotent: bool,
}

/// The formats, longer endings before their own endings.
pub(crate) static FORMATS: [GenerationFormat; 11] = [
    GenerationFormat::new("/chat/completions", Dialect::OpenAi),
    GenerationFormat::new("/completions", Dialect::OpenAi),
    // The response can be stored, and be continued by a later call.
    GenerationFormat { idempotent: false, ..GenerationFormat::new("/v1/responses", Dialect::OpenAi) },
    // Anthropic.
    GenerationFormat::new("/v1/messages", Dialect::Problem),
    // llama.cpp.
    GenerationFormat::new("/completion", Dialect::OpenAi),
    GenerationFormat::new("/infill", Dialect::OpenAi),
    // Ollama streams lines of JSON.
    GenerationFormat { streams: StreamRule::UnlessDeclined, ..GenerationFormat::new("/api/generate", Dialect::Error) },
    GenerationFormat { streams: StreamRule::UnlessDeclined, ..GenerationFormat::new("/api/chat", Dialect::Error) },
    // Cohere.
    GenerationFormat::new("/chat", Dialect::Problem),
    // TGI, SGLang, and the generation extension of the Open Inference Protocol.
    GenerationFormat { streams: StreamRule::Always, ..GenerationFormat::new("/generate_stream", Dialect::Tei) },
    GenerationFormat::new("/generate", Dialect::Tei),
];

// === impl GenerationFormat ===

impl GenerationFormat {
    const fn new(suffix: &'static str, dialect: Dialect) -> Self {
        Self { suffix, dialect, streams: StreamRule::IfRequested, idempotent: true }
    }

    /// Returns the format of a raw path. Servers are often reached behind a prefix, so any prefix is
    /// accepted.
    pub(crate) fn of_path(path: &str) -> Option<&'static Self> {
        FORMATS.iter().find(|format| path.ends_with(format.suffix))
    }
}

/// Returns `true` if the server reports all tokens of a prompt. Anthropic leaves out those that it had
/// cached, and Ollama the beginning that a prompt has in common with the one before.
pub(crate) fn reports_whole_prompt(path: &str) -> bool {
    !["/v1/messages", "/api/generate", "/api/chat"].iter().any(|suffix| path.ends_with(suffix))
}

/// Returns the shape of calls that are never merged.
pub(crate) fn shape(format: &GenerationFormat) -> ProtocolShape {
    ProtocolShape { payload: Payload::Generation(format.streams), ..ProtocolShape::plain("", "") }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::route::{ProtocolLabel, RouteProtocol};
    use crate::tests::routes_of;

    #[test]
    fn text_is_generated_on_any_route_unless_the_route_merges_it() {
        let label = |protocol, path: &str| {
            let written = [("/*", protocol)];
            routes_of(&written).recognise(&Method::POST, path).map(|endpoint| endpoint.label)
        };
        for protocol in [RouteProtocol::Auto, RouteProtocol::OpenAi, RouteProtocol::LlamaCpp, RouteProtocol::Ollama] {
            assert_eq!(label(protocol, "/v1/chat/completions"), Some(ProtocolLabel::Generation), "{protocol:?}");
        }
        assert_eq!(label(RouteProtocol::Vllm, "/v1/chat/completions"), Some(ProtocolLabel::OpenAi));
        assert_eq!(label(RouteProtocol::Auto, "/v1/completions"), Some(ProtocolLabel::Generation));
        assert_eq!(label(RouteProtocol::Vllm, "/v1/completions"), Some(ProtocolLabel::OpenAi));
        assert_eq!(label(RouteProtocol::LlamaCpp, "/v1/embeddings"), None);
        assert_eq!(label(RouteProtocol::PassThrough, "/v1/chat/completions"), None);
        assert_eq!(label(RouteProtocol::MlFlow, "/v1/chat/completions"), None);
    }

    #[test]
    fn a_path_has_the_format_of_its_ending() {
        for (path, dialect, streams) in [
            ("/v1/chat/completions", Dialect::OpenAi, StreamRule::IfRequested),
            ("/openai/v1/completions", Dialect::OpenAi, StreamRule::IfRequested),
            ("/v2/models/m/versions/1/generate_stream", Dialect::Tei, StreamRule::Always),
            ("/api/chat", Dialect::Error, StreamRule::UnlessDeclined),
            ("/v2/chat", Dialect::Problem, StreamRule::IfRequested),
        ] {
            let format = GenerationFormat::of_path(path).expect(path);
            assert_eq!((format.dialect, format.streams), (dialect, streams), "{path}");
        }
        for path in ["/v1/embeddings", "/generated", "/messages", "/predict", "/v1/completions/"] {
            assert!(GenerationFormat::of_path(path).is_none(), "{path}");
        }
    }
}
