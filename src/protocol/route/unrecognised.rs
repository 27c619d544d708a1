//! Causes for which no adapter recognises a call, more specific than the reason `not_recognised` of
//! the metrics. They decide which advice helps, so they are counted for `groupage explain`. Errors
//! of such calls have the format of the protocol that their route names.

use http::Method;
use strum::{IntoStaticStr, VariantArray};

use super::adapter::Adapter;
use super::{RouteProtocol, Routes};
use crate::dialect::Dialect;
use crate::generation::GenerationFormat;
use crate::tei::TeiRoute;
use crate::v2;

/// Part of the paths of Ollama's own routes. Its others are those of OpenAI.
const OLLAMA_OWN: &str = "/api/";
/// Last step of the paths of reranking: `OpenAI`-compatible servers, TEI, Cohere.
const RERANKING: &str = "/rerank";

/// Cause for which no adapter recognises a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum UnrecognisedCause {
    /// The method is not POST: the call is no inference.
    Method,
    /// A route of the policy passes the call through.
    Route,
    /// The call is reranking.
    Reranking,
    /// The path is one of the Open Inference Protocol, but not of inference.
    Management,
    /// An adapter recognises the path, but the policy lists routes and none of them matches.
    Unlisted,
    /// An adapter supports the path only on a route that names its protocol.
    Unnamed,
    /// No adapter supports the path.
    NoAdapter,
}

/// A call that no adapter recognises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnrecognisedCall {
    /// The cause.
    pub cause: UnrecognisedCause,
    /// Index of the route of the policy that matches the call; `None` if none does.
    pub route: Option<usize>,
    /// Error format expected by its client.
    pub dialect: Dialect,
}

// === impl UnrecognisedCause ===

impl UnrecognisedCause {
    /// Returns the name used in reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Returns the cause for a POST call that no route passes through. `is_unlisted`: the policy
    /// has routes, and none of them matches.
    fn for_path(path: &str, is_unlisted: bool) -> Self {
        if let Some(cause) = Self::for_unmerged_path(path) {
            return cause;
        }
        if is_unlisted && Adapter::is_automatic(path) {
            return Self::Unlisted;
        }
        let by_name =
            [RouteProtocol::OpenAi, RouteProtocol::KServeV1, RouteProtocol::TfServing, RouteProtocol::OpenInferenceV2];
        // The names of the other routes of TEI are common, and have another format on other
        // servers.
        let route = TeiRoute::of_path(path);
        let is_tei = matches!(route, Some(TeiRoute::Embed | TeiRoute::EmbedAll | TeiRoute::EmbedSparse));
        let is_supported = is_tei || by_name.into_iter().any(|protocol| protocol.is_recognised(path));
        if is_supported { Self::Unnamed } else { Self::NoAdapter }
    }

    /// Returns the cause for a path with calls that are never merged, or only on a route that names
    /// their protocol. Servers are often reached behind a prefix (`/seldon/NAMESPACE/NAME`), so any
    /// prefix is accepted.
    fn for_unmerged_path(path: &str) -> Option<Self> {
        if path.contains(v2::grpc::SERVICE) {
            return (!path.ends_with(v2::grpc::PATH)).then_some(Self::Management);
        }
        if path.contains("/v2/repository/") || path.contains("/v2/models/") {
            let is_inference = v2::model(path).is_some() || GenerationFormat::of_path(path).is_some();
            return (!is_inference).then_some(Self::Management);
        }
        path.ends_with(RERANKING).then_some(Self::Reranking)
    }
}

// === impl RouteProtocol ===

impl RouteProtocol {
    /// Returns the error format of the calls at a path without an adapter, on a route with this
    /// protocol. They reach the same client library as the calls that an adapter recognises.
    fn unrecognised_dialect(self, path: &str) -> Dialect {
        match self {
            Self::Auto | Self::PassThrough | Self::Generic | Self::Seldon | Self::SageMaker | Self::BentoMl => {
                Dialect::Problem
            }
            Self::OpenInferenceV2 if path.contains(v2::grpc::SERVICE) => Dialect::Grpc,
            Self::Ollama if !path.contains(OLLAMA_OWN) => Dialect::OpenAi,
            Self::KServeV1 | Self::OpenInferenceV2 | Self::TfServing | Self::Ollama => Dialect::Error,
            Self::Tei | Self::Tgi => Dialect::Tei,
            Self::MlFlow => Dialect::MlFlow,
            Self::Cohere => Dialect::Cohere,
            Self::OpenAi | Self::Vllm | Self::SgLang | Self::Infinity | Self::Voyage | Self::Jina | Self::LlamaCpp => {
                Dialect::OpenAi
            }
        }
    }
}

// === impl Routes ===

impl Routes {
    /// Returns why [`Routes::recognise`] has no endpoint for a call, and the format of its errors.
    #[must_use]
    pub fn unrecognised(&self, method: &Method, path: &str) -> UnrecognisedCall {
        let matches =
            |route: &super::Route| !route.any_path && route.rules.method == *method && route.rules.path.matches(path);
        let route = self.routes.iter().position(matches);
        let protocol = route.and_then(|index| self.routes.get(index)).map(|route| route.rules.protocol);
        let cause = match protocol {
            Some(RouteProtocol::PassThrough | RouteProtocol::LlamaCpp) => UnrecognisedCause::Route,
            _ if *method != Method::POST => UnrecognisedCause::Method,
            _ => {
                let lists_routes = self.routes.iter().any(|route| !route.any_path);
                UnrecognisedCause::for_path(path, lists_routes && route.is_none())
            }
        };
        let dialect = protocol.map_or(Dialect::Problem, |protocol| protocol.unrecognised_dialect(path));
        UnrecognisedCall { cause, route, dialect }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::routes_of;

    fn cause(written: &[(&str, RouteProtocol)], method: &Method, path: &str) -> (UnrecognisedCause, Option<usize>) {
        let routes = routes_of(written);
        assert!(routes.recognise(method, path).is_none(), "{path}");
        let found = routes.unrecognised(method, path);
        (found.cause, found.route)
    }

    #[test]
    fn each_situation_without_a_route_has_a_cause_of_its_own() {
        let of = |method: &Method, path| cause(&[], method, path).0;
        assert_eq!(of(&Method::GET, "/health"), UnrecognisedCause::Method);
        assert_eq!(of(&Method::GET, "/v1/embeddings"), UnrecognisedCause::Method);
        for (path, cause) in [
            ("/rerank", UnrecognisedCause::Reranking),
            ("/v2/repository/index", UnrecognisedCause::Management),
            ("/v1/models/m:explain", UnrecognisedCause::Unnamed),
            ("/ns/v1/embeddings", UnrecognisedCause::Unnamed),
            ("/v1/moderations", UnrecognisedCause::Unnamed),
            ("/ns/embed", UnrecognisedCause::Unnamed),
            ("/v2/embed", UnrecognisedCause::Unnamed),
            ("/custom/infer", UnrecognisedCause::Unnamed),
            ("/predict", UnrecognisedCause::NoAdapter),
        ] {
            assert_eq!(of(&Method::POST, path), cause, "{path}");
        }
    }

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
            assert_eq!(UnrecognisedCause::for_unmerged_path(path), None, "{path}");
        }
        assert_eq!(UnrecognisedCause::for_unmerged_path("/inference.GRPCInferenceService/ModelInfer"), None);
        let stream = UnrecognisedCause::for_unmerged_path("/inference.GRPCInferenceService/ModelStreamInfer");
        assert_eq!(stream, Some(UnrecognisedCause::Management));
        for path in ["/v2/models/m", "/v2/models/m/ready", "/ns/v2/models/m/config", "/v2/repository/index"] {
            assert_eq!(UnrecognisedCause::for_unmerged_path(path), Some(UnrecognisedCause::Management), "{path}");
        }
    }

    #[test]
    fn reranking_is_recognised_by_the_end_of_the_path() {
        for path in ["/rerank", "/v1/rerank", "/v2/rerank"] {
            assert_eq!(UnrecognisedCause::for_unmerged_path(path), Some(UnrecognisedCause::Reranking), "{path}");
        }
        for path in ["/predict", "/v1/embeddings", "/v1/models/m:predict", "/v1/chat/completions"] {
            assert_eq!(UnrecognisedCause::for_unmerged_path(path), None, "{path}");
        }
    }

    #[test]
    fn a_route_that_passes_the_call_through_is_the_cause_before_any_other() {
        let written = [
            ("/predict", RouteProtocol::PassThrough),
            ("/health", RouteProtocol::Auto),
            ("/c/*", RouteProtocol::LlamaCpp),
        ];
        assert_eq!(cause(&written, &Method::POST, "/predict"), (UnrecognisedCause::Route, Some(0)));
        assert_eq!(cause(&written, &Method::POST, "/c/v1/embeddings"), (UnrecognisedCause::Route, Some(2)));
        assert_eq!(cause(&written, &Method::POST, "/health"), (UnrecognisedCause::NoAdapter, Some(1)));
        assert_eq!(cause(&written, &Method::GET, "/predict"), (UnrecognisedCause::Method, None));
    }

    #[test]
    fn errors_of_a_route_that_names_a_protocol_have_its_format_at_every_path() {
        let grpc = "/inference.GRPCInferenceService/ModelStreamInfer";
        for (path, protocol, dialect) in [
            ("/v2/rerank", RouteProtocol::Cohere, Dialect::Cohere),
            ("/v1/rerank", RouteProtocol::Voyage, Dialect::OpenAi),
            ("/v1/rerank", RouteProtocol::Jina, Dialect::OpenAi),
            ("/v1/audio/transcriptions", RouteProtocol::OpenAi, Dialect::OpenAi),
            ("/v1/embeddings", RouteProtocol::LlamaCpp, Dialect::OpenAi),
            ("/api/embeddings", RouteProtocol::Ollama, Dialect::Error),
            ("/v1/rerank", RouteProtocol::Ollama, Dialect::OpenAi),
            ("/v1/models/m", RouteProtocol::KServeV1, Dialect::Error),
            ("/v2/models/m/ready", RouteProtocol::OpenInferenceV2, Dialect::Error),
            (grpc, RouteProtocol::OpenInferenceV2, Dialect::Grpc),
            ("/x", RouteProtocol::Tei, Dialect::Tei),
            ("/x", RouteProtocol::MlFlow, Dialect::MlFlow),
            ("/x", RouteProtocol::Seldon, Dialect::Problem),
            ("/v1/embeddings", RouteProtocol::PassThrough, Dialect::Problem),
            ("/x", RouteProtocol::Auto, Dialect::Problem),
        ] {
            let routes = routes_of(&[(path, protocol)]);
            assert!(routes.recognise(&Method::POST, path).is_none(), "{path} with {protocol:?}");
            assert_eq!(routes.unrecognised(&Method::POST, path).dialect, dialect, "{path} with {protocol:?}");
            assert_eq!(routes.unrecognised(&Method::POST, "/elsewhere").dialect, Dialect::Problem, "{protocol:?}");
        }
    }

    #[test]
    fn a_path_with_an_adapter_that_the_policy_does_not_list_is_reported_as_unlisted() {
        let written = [("/predict", RouteProtocol::PassThrough)];
        for path in ["/v1/embeddings", "/embed", "/v1/models/m:predict", "/v2/models/m/infer", "/v1/chat/completions"] {
            assert_eq!(cause(&written, &Method::POST, path), (UnrecognisedCause::Unlisted, None), "{path}");
        }
        assert_eq!(cause(&written, &Method::POST, "/v1/models/m:explain").0, UnrecognisedCause::Unnamed);
        assert_eq!(cause(&written, &Method::POST, "/x").0, UnrecognisedCause::NoAdapter);
    }

    #[test]
    fn the_default_route_of_a_port_that_no_route_applies_to_is_no_route_of_the_policy() {
        let relay = crate::tests::rules("/*", RouteProtocol::PassThrough);
        let routes = Routes::new(Vec::new(), relay, super::super::SharedHeaderRules::default());
        let found = routes.unrecognised(&Method::POST, "/predict");
        assert_eq!((found.cause, found.route), (UnrecognisedCause::NoAdapter, None));
    }
}
