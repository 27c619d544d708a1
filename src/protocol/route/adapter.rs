//! Adapters: which of them reads the calls at a path, and in which format.

use super::{MergeRule, ProtocolLabel, RouteProtocol, RouteRules};
use crate::dialect::Dialect;
use crate::generation::{self, GenerationFormat};
use crate::generic::GenericOptions;
use crate::kserve::{self, V1Variant, V1Verb};
use crate::openai::completions::{self, CompletionsVariant};
use crate::openai::{self, chat, contextual, moderations};
use crate::pooling::PoolingRoute;
use crate::shape::ProtocolShape;
use crate::tei::TeiRoute;
use crate::{bentoml, cohere, mlflow, ollama, sagemaker, seldon, sglang, tei, v2};

/// Adapters of a route without a named protocol.
const AUTOMATIC: [Adapter; 5] =
    [Adapter::Embeddings, Adapter::V1(V1Verb::Predict), Adapter::Tei(TeiRoute::Embed), Adapter::V2, Adapter::V2Grpc];

/// The adapter for one type of path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Adapter {
    Embeddings,
    Completions,
    Chat,
    Moderations,
    Tei(TeiRoute),
    /// A path of TEI whose format depends on the model.
    TeiModel,
    /// Calls with `documents` at a path of TEI for rerankers.
    TeiDocuments,
    V1(V1Verb),
    V2,
    V2Grpc,
    MlFlow,
    Seldon,
    SageMaker,
    SageMakerTensors,
    BentoMl,
    Ollama,
    SgLang,
    Cohere,
    Contextual,
    Pooling(PoolingRoute),
    Generation(&'static GenerationFormat),
    Generic,
}

// === impl Adapter ===

impl Adapter {
    /// Returns the adapters that a route may need.
    pub(super) fn of(rules: &RouteRules) -> Vec<Self> {
        let pooling = |routes: &'static [PoolingRoute]| routes.iter().copied().map(Self::Pooling);
        let generation = || generation::FORMATS.iter().map(Self::Generation);
        match rules.protocol {
            RouteProtocol::Auto => AUTOMATIC.into_iter().chain([Self::Completions]).chain(generation()).collect(),
            RouteProtocol::PassThrough => Vec::new(),
            RouteProtocol::LlamaCpp => generation().collect(),
            RouteProtocol::Generic => rules.generic.iter().map(|_| Self::Generic).collect(),
            RouteProtocol::KServeV1 => vec![Self::V1(V1Verb::Predict), Self::V1(V1Verb::Explain)],
            RouteProtocol::OpenInferenceV2 => vec![Self::V2, Self::V2Grpc],
            RouteProtocol::TfServing => {
                [V1Verb::Predict, V1Verb::Explain, V1Verb::Regress, V1Verb::Classify].map(Self::V1).to_vec()
            }
            RouteProtocol::Tei => {
                let others = [Self::Embeddings, Self::TeiModel, Self::TeiDocuments];
                TeiRoute::ALL.into_iter().map(Self::Tei).chain(others).collect()
            }
            RouteProtocol::MlFlow => vec![Self::MlFlow],
            RouteProtocol::Seldon => vec![Self::Seldon],
            RouteProtocol::SageMaker => vec![Self::SageMaker, Self::SageMakerTensors],
            RouteProtocol::BentoMl => vec![Self::BentoMl],
            RouteProtocol::Tgi => generation().chain([Self::Completions]).collect(),
            RouteProtocol::Cohere => vec![Self::Cohere],
            RouteProtocol::Ollama => generation().chain([Self::Embeddings, Self::Ollama]).collect(),
            RouteProtocol::Voyage => vec![Self::Embeddings, Self::Contextual],
            RouteProtocol::OpenAi => {
                generation().chain([Self::Embeddings, Self::Completions, Self::Moderations]).collect()
            }
            RouteProtocol::Vllm => pooling(&PoolingRoute::VLLM)
                .chain([Self::Embeddings, Self::Completions, Self::Chat])
                .chain(generation())
                .collect(),
            RouteProtocol::SgLang => pooling(&PoolingRoute::SGLANG)
                .chain([Self::Embeddings, Self::Completions, Self::SgLang])
                .chain(generation())
                .collect(),
            RouteProtocol::Infinity => pooling(&PoolingRoute::INFINITY).chain([Self::Embeddings]).collect(),
            RouteProtocol::Jina => vec![Self::Embeddings],
        }
    }

    /// Returns the label, the error format and the shape of calls on a route.
    pub(super) fn format(self, rules: &RouteRules) -> (ProtocolLabel, Dialect, ProtocolShape) {
        let named = rules.protocol;
        match self {
            Self::Embeddings => {
                (ProtocolLabel::OpenAi, Dialect::OpenAi, openai::embeddings(named == RouteProtocol::Vllm))
            }
            Self::Completions => {
                let variant = match named {
                    RouteProtocol::Vllm => CompletionsVariant::Vllm,
                    RouteProtocol::SgLang => CompletionsVariant::SgLang,
                    RouteProtocol::Tgi => CompletionsVariant::Tgi,
                    _ => CompletionsVariant::OpenAi,
                };
                (ProtocolLabel::OpenAi, Dialect::OpenAi, completions::completions(variant))
            }
            Self::Chat => (ProtocolLabel::OpenAi, Dialect::OpenAi, chat::completions()),
            Self::Moderations => (ProtocolLabel::OpenAi, Dialect::OpenAi, moderations::moderations()),
            Self::Tei(route) => (ProtocolLabel::Tei, Dialect::Tei, route.shape()),
            Self::TeiModel => (ProtocolLabel::Tei, Dialect::Tei, tei::unknown_model()),
            Self::TeiDocuments => (ProtocolLabel::Tei, Dialect::Tei, tei::documents()),
            Self::V1(verb) if named == RouteProtocol::TfServing => {
                (ProtocolLabel::TfServing, Dialect::Error, kserve::shape(verb, V1Variant::TfServing))
            }
            Self::V1(verb) => (ProtocolLabel::KServeV1, Dialect::Error, kserve::shape(verb, V1Variant::KServe)),
            Self::V2 => (ProtocolLabel::OpenInferenceV2, Dialect::Error, v2::shape()),
            Self::V2Grpc => (ProtocolLabel::OpenInferenceGrpc, Dialect::Grpc, v2::grpc::shape()),
            Self::MlFlow => (ProtocolLabel::MlFlow, Dialect::MlFlow, mlflow::invocations()),
            Self::Seldon => (ProtocolLabel::Seldon, Dialect::Problem, seldon::predictions()),
            Self::SageMaker => (ProtocolLabel::SageMaker, Dialect::Problem, sagemaker::invocations()),
            Self::SageMakerTensors => (ProtocolLabel::SageMaker, Dialect::Problem, sagemaker::tensors()),
            Self::BentoMl => (ProtocolLabel::BentoMl, Dialect::Problem, bentoml::batchable_api()),
            Self::Ollama => (ProtocolLabel::Ollama, Dialect::Error, ollama::embed()),
            Self::SgLang => (ProtocolLabel::SgLang, Dialect::OpenAi, sglang::generate()),
            Self::Cohere => (ProtocolLabel::Cohere, Dialect::Cohere, cohere::embed()),
            Self::Contextual => (ProtocolLabel::OpenAi, Dialect::OpenAi, contextual::embeddings()),
            Self::Pooling(route) => (ProtocolLabel::Pooling, Dialect::OpenAi, route.shape()),
            Self::Generation(format) => {
                (ProtocolLabel::Generation, generation_dialect(format, named), generation::shape(format))
            }
            Self::Generic => {
                let shape = rules.generic.as_ref().map_or_else(|| ProtocolShape::plain("", ""), GenericOptions::shape);
                (ProtocolLabel::Generic, Dialect::Problem, shape)
            }
        }
    }

    /// Returns `true` if a path is recognised without a route that names its protocol.
    pub(super) fn is_automatic(path: &str) -> bool {
        Self::recognise(RouteProtocol::Auto, path)
            .is_some_and(|adapter| AUTOMATIC.contains(&adapter) || matches!(adapter, Self::Generation(_)))
    }

    /// Returns the adapter for a path on a route with this protocol. If the policy names the
    /// protocol, the operator has chosen the path, so only its suffix is checked. With `Auto`, the
    /// path must be one that the protocol defines.
    pub(super) fn recognise(protocol: RouteProtocol, path: &str) -> Option<Self> {
        match protocol {
            RouteProtocol::PassThrough => None,
            RouteProtocol::Generic => Some(Self::Generic),
            RouteProtocol::Auto if openai::PATHS.contains(&path) => Some(Self::Embeddings),
            RouteProtocol::Auto if path == TeiRoute::Embed.path() => Some(Self::Tei(TeiRoute::Embed)),
            // A prefix before the protocol's path is accepted, because the configuration of the model
            // below the same prefix shows that the protocol is the one of the server.
            RouteProtocol::Auto if v2::model(path).is_some() => Some(Self::V2),
            RouteProtocol::Auto if path == v2::grpc::PATH => Some(Self::V2Grpc),
            RouteProtocol::OpenInferenceV2 if path.ends_with(v2::grpc::PATH) => Some(Self::V2Grpc),
            RouteProtocol::OpenInferenceV2 => path.ends_with(v2::SUFFIX).then_some(Self::V2),
            RouteProtocol::Auto => {
                let verb = kserve::verb(path).filter(|_| kserve::is_model_path(path));
                verb.map(Self::V1).or_else(|| Self::generation(path))
            }
            RouteProtocol::KServeV1 | RouteProtocol::TfServing => kserve::verb(path).map(Self::V1),
            RouteProtocol::MlFlow => path.ends_with(mlflow::SUFFIX).then_some(Self::MlFlow),
            RouteProtocol::Seldon => path.ends_with(seldon::SUFFIX).then_some(Self::Seldon),
            RouteProtocol::SageMaker => path.ends_with(sagemaker::SUFFIX).then_some(Self::SageMaker),
            RouteProtocol::BentoMl => Some(Self::BentoMl),
            RouteProtocol::Cohere => path.ends_with(cohere::SUFFIX).then_some(Self::Cohere),
            RouteProtocol::Ollama if path.ends_with(ollama::SUFFIX) => Some(Self::Ollama),
            RouteProtocol::Ollama if path.ends_with(ollama::OLDER_SUFFIX) => None,
            RouteProtocol::Voyage if path.ends_with(contextual::SUFFIX) => Some(Self::Contextual),
            RouteProtocol::OpenAi | RouteProtocol::Vllm | RouteProtocol::SgLang | RouteProtocol::Tgi
                if completions::is_path(path) =>
            {
                Some(Self::Completions)
            }
            RouteProtocol::Vllm if path.ends_with(chat::SUFFIX) => Some(Self::Chat),
            // SageMaker reaches all routes of vLLM at one path. Calls without `input` are for text, and
            // are sent one by one, without metrics of their tokens.
            RouteProtocol::Vllm if path.ends_with(sagemaker::SUFFIX) => Some(Self::Embeddings),
            RouteProtocol::SgLang if path.ends_with(sglang::SUFFIX) => Some(Self::SgLang),
            RouteProtocol::LlamaCpp | RouteProtocol::Tgi => Self::generation(path),
            RouteProtocol::OpenAi if path.ends_with(moderations::SUFFIX) => Some(Self::Moderations),
            RouteProtocol::OpenAi | RouteProtocol::Vllm | RouteProtocol::SgLang | RouteProtocol::Ollama
                if GenerationFormat::of_path(path).is_some() =>
            {
                Self::generation(path)
            }
            RouteProtocol::Tei if tei::is_model_path(path) => Some(Self::TeiModel),
            RouteProtocol::Tei => TeiRoute::of_path(path).map(Self::Tei).or_else(|| Self::embeddings(path)),
            RouteProtocol::Vllm => Self::pooling(&PoolingRoute::VLLM, path),
            RouteProtocol::SgLang => Self::pooling(&PoolingRoute::SGLANG, path),
            RouteProtocol::Infinity => Self::pooling(&PoolingRoute::INFINITY, path),
            RouteProtocol::OpenAi | RouteProtocol::Ollama | RouteProtocol::Voyage | RouteProtocol::Jina => {
                Self::embeddings(path)
            }
        }
    }

    /// Returns `true` if a call whose connection broke may be sent again, unless the policy decides.
    pub(super) fn is_idempotent(self) -> bool {
        match self {
            Self::Generation(format) => format.idempotent,
            // APIs that a user writes may have effects.
            Self::Generic | Self::BentoMl => false,
            _ => true,
        }
    }

    /// Returns the adapter of a route with this rule for merging: calls for text are merged or only
    /// queued.
    pub(super) fn under(self, merge: MergeRule, path: &str) -> Self {
        let other = match (self, merge) {
            (Self::Completions | Self::Chat | Self::SgLang, MergeRule::Never) => Self::generation(path),
            (Self::Generation(_), MergeRule::Always) => completions::PATHS.contains(&path).then_some(Self::Completions),
            _ => None,
        };
        other.unwrap_or(self)
    }

    /// Returns the adapter that merges calls for text at a path which no policy names, once the server
    /// is known not to batch them by itself.
    pub(super) fn merged_text(path: &str) -> Option<Self> {
        (path == completions::PATH).then_some(Self::Completions)
    }

    pub(super) fn generation(path: &str) -> Option<Self> {
        GenerationFormat::of_path(path).map(Self::Generation)
    }

    /// Returns `true` for the routes of TEI that are merged without a named protocol.
    pub(super) fn is_automatic_tei(self) -> bool {
        matches!(self, Self::Embeddings | Self::Tei(TeiRoute::Embed))
    }

    fn pooling(routes: &[PoolingRoute], path: &str) -> Option<Self> {
        PoolingRoute::of_path(routes, path).map(Self::Pooling).or_else(|| Self::embeddings(path))
    }

    fn embeddings(path: &str) -> Option<Self> {
        path.ends_with(openai::SUFFIX).then_some(Self::Embeddings)
    }
}

/// Returns the error format of calls for text on a route. TGI and SGLang have a path in common, and
/// different errors.
fn generation_dialect(format: &GenerationFormat, named: RouteProtocol) -> Dialect {
    match (named, format.dialect) {
        (RouteProtocol::SgLang, Dialect::Tei) => Dialect::OpenAi,
        (_, dialect) => dialect,
    }
}
