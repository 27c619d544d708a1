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
    /// A part of the path that precedes the suffix; empty if any path may.
    under: &'static str,
    /// Last steps of the path.
    suffix: &'static str,
    /// Error format, unless the protocol of the route has another one.
    pub(crate) dialect: Dialect,
    streams: StreamRule,
    /// `true` if the server keeps no state of a call, so that one whose connection broke before the
    /// response may be sent again.
    pub(crate) idempotent: bool,
}

/// Path of the models of the Open Inference Protocol.
const MODELS: &str = "/v2/models/";

/// The formats, longer endings before their own endings, and those under a path first.
pub(crate) static FORMATS: [GenerationFormat; 15] = [
    GenerationFormat::new("/chat/completions", Dialect::OpenAi),
    GenerationFormat::new("/completions", Dialect::OpenAi),
    // The response can be stored, and be continued by a later call.
    GenerationFormat { idempotent: false, ..GenerationFormat::new("/v1/responses", Dialect::OpenAi) },
    // Anthropic.
    GenerationFormat::new("/v1/messages", Dialect::Anthropic),
    // llama.cpp.
    GenerationFormat::new("/completion", Dialect::OpenAi),
    GenerationFormat::new("/infill", Dialect::OpenAi),
    // Ollama streams lines of JSON.
    GenerationFormat { streams: StreamRule::UnlessDeclined, ..GenerationFormat::new("/api/generate", Dialect::Error) },
    GenerationFormat { streams: StreamRule::UnlessDeclined, ..GenerationFormat::new("/api/chat", Dialect::Error) },
    // Cohere.
    GenerationFormat::new("/v1/chat", Dialect::Cohere),
    GenerationFormat::new("/v2/chat", Dialect::Cohere),
    // Servers of other kinds.
    GenerationFormat::new("/chat", Dialect::Problem),
    // The generation extension of the Open Inference Protocol.
    GenerationFormat {
        under: MODELS,
        streams: StreamRule::Always,
        ..GenerationFormat::new("/generate_stream", Dialect::Error)
    },
    GenerationFormat { under: MODELS, ..GenerationFormat::new("/generate", Dialect::Error) },
    // TGI, and SGLang with other errors (`route::adapter`).
    GenerationFormat { streams: StreamRule::Always, ..GenerationFormat::new("/generate_stream", Dialect::Tei) },
    GenerationFormat::new("/generate", Dialect::Tei),
];

// === impl GenerationFormat ===

impl GenerationFormat {
    const fn new(suffix: &'static str, dialect: Dialect) -> Self {
        Self { under: "", suffix, dialect, streams: StreamRule::IfRequested, idempotent: true }
    }

    /// Returns the format of a raw path. Servers are often reached behind a prefix, so any prefix is
    /// accepted.
    pub(crate) fn of_path(path: &str) -> Option<&'static Self> {
        FORMATS
            .iter()
            .find(|format| path.strip_suffix(format.suffix).is_some_and(|before| before.contains(format.under)))
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
    use crate::route::{MergeRule, ProtocolLabel, RouteProtocol, RouteRules, Routes, SharedHeaderRules};
    use crate::tests::{routes_of, rules};

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
            ("/v2/models/m/versions/1/generate_stream", Dialect::Error, StreamRule::Always),
            ("/ns/v2/models/m/generate", Dialect::Error, StreamRule::IfRequested),
            ("/generate_stream", Dialect::Tei, StreamRule::Always),
            ("/generate", Dialect::Tei, StreamRule::IfRequested),
            ("/api/chat", Dialect::Error, StreamRule::UnlessDeclined),
            ("/v1/messages", Dialect::Anthropic, StreamRule::IfRequested),
            ("/chat", Dialect::Problem, StreamRule::IfRequested),
            ("/v1/chat", Dialect::Cohere, StreamRule::IfRequested),
            ("/v2/chat", Dialect::Cohere, StreamRule::IfRequested),
        ] {
            let format = GenerationFormat::of_path(path).expect(path);
            assert_eq!((format.dialect, format.streams), (dialect, streams), "{path}");
        }
        for path in ["/v1/embeddings", "/generated", "/messages", "/predict", "/v1/completions/"] {
            assert!(GenerationFormat::of_path(path).is_none(), "{path}");
        }
    }

    #[test]
    fn errors_have_the_format_of_the_protocol_of_the_route() {
        let dialect = |protocol, merge, path: &str| {
            let route = RouteRules { merge, ..rules("/*", protocol) };
            let routes = Routes::new(vec![route], rules("/*", RouteProtocol::Auto), SharedHeaderRules::default());
            routes.recognise(&Method::POST, path).map(|endpoint| endpoint.dialect)
        };
        let (auto, sglang, tgi) = (RouteProtocol::Auto, RouteProtocol::SgLang, RouteProtocol::Tgi);
        for merge in [MergeRule::Auto, MergeRule::Never] {
            assert_eq!(dialect(sglang, merge, "/generate"), Some(Dialect::OpenAi), "{merge:?}");
            assert_eq!(dialect(tgi, merge, "/generate"), Some(Dialect::Tei), "{merge:?}");
            assert_eq!(dialect(auto, merge, "/generate_stream"), Some(Dialect::Tei), "{merge:?}");
            assert_eq!(dialect(auto, merge, "/v2/models/m/generate"), Some(Dialect::Error), "{merge:?}");
        }
    }
}
