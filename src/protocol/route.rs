//! Recognition of calls and selection of their adapter.
//!
//! Paths are matched raw, without decoding or normalisation: a path that a server might interpret
//! as another one is simply a different path.

mod adapter;
mod rules;
mod unrecognised;

use std::sync::Arc;

use http::Method;
use http::header::{CONTENT_TYPE, HeaderMap};
use strum::{IntoStaticStr, VariantArray};

use crate::dialect::Dialect;
use crate::generic::{OnMismatch, TooLargeSign};
use crate::published::ModelKind;
use crate::shape::{Payload, ProtocolShape};
use crate::tei::TeiRoute;
use crate::v2::binary;

use adapter::Adapter;
use rules::for_tensors;

pub use rules::{DIVISIBLE_ITEMS_MAX, MergeRule, PathPattern, RouteRules, SharedHeaderRules};
pub use unrecognised::{UnrecognisedCall, UnrecognisedCause};

/// Protocol of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RouteProtocol {
    /// Any adapter that recognises the path.
    Auto,
    /// No adapter: calls are passed through.
    PassThrough,
    /// The protocol that the route declares.
    Generic,
    /// KServe V1.
    KServeV1,
    /// Open Inference Protocol (KServe V2).
    OpenInferenceV2,
    /// TF Serving.
    TfServing,
    /// OpenAI.
    OpenAi,
    /// Text Embeddings Inference.
    Tei,
    /// vLLM.
    Vllm,
    /// SGLang.
    SgLang,
    /// infinity.
    Infinity,
    /// Ollama.
    Ollama,
    /// MLflow.
    MlFlow,
    /// Version 0 of the protocol of Seldon Core.
    Seldon,
    /// The Hugging Face toolkit of `SageMaker`.
    SageMaker,
    /// Cohere.
    Cohere,
    /// Voyage.
    Voyage,
    /// Jina.
    Jina,
    /// llama.cpp. Its totals count only the first prompt, so no calls are merged.
    LlamaCpp,
    /// Text Generation Inference.
    Tgi,
    /// A batchable API of BentoML.
    BentoMl,
}

/// The compiled routes.
#[derive(Debug)]
pub struct Routes {
    common: Arc<SharedHeaderRules>,
    routes: Vec<Route>,
}

/// A compiled route.
#[derive(Debug)]
struct Route {
    rules: Arc<RouteRules>,
    /// One endpoint for each adapter that the rules allow.
    endpoints: Vec<(Adapter, Arc<Endpoint>)>,
    /// `true` if the route matches every path that an adapter recognises.
    any_path: bool,
    /// [`Endpoint::generation`] of its endpoints.
    generation: u64,
}

/// The `protocol` label of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum ProtocolLabel {
    /// OpenAI embeddings, moderations, and merged completions and chat, on any server.
    #[strum(serialize = "openai")]
    OpenAi,
    /// KServe V1.
    #[strum(serialize = "kserve_v1")]
    KServeV1,
    /// The Open Inference Protocol (KServe V2) over REST.
    #[strum(serialize = "open_inference_v2")]
    OpenInferenceV2,
    /// The Open Inference Protocol (KServe V2) over gRPC.
    OpenInferenceGrpc,
    /// The row format of TF Serving.
    TfServing,
    /// TEI's own routes.
    Tei,
    /// MLflow.
    #[strum(serialize = "mlflow")]
    MlFlow,
    /// Version 0 of the protocol of Seldon Core.
    Seldon,
    /// The Hugging Face toolkit of `SageMaker`.
    #[strum(serialize = "sagemaker")]
    SageMaker,
    /// Ollama's own routes.
    Ollama,
    /// Cohere.
    Cohere,
    /// Classification, pooling, scores and reranking of vLLM, SGLang and infinity.
    Pooling,
    /// Text generation of SGLang's own route, merged.
    #[strum(serialize = "sglang")]
    SgLang,
    /// Text generation and chat that is not merged.
    Generation,
    /// A batchable API of BentoML.
    #[strum(serialize = "bentoml")]
    BentoMl,
    /// The protocol that a route declares.
    Generic,
    /// No adapter recognised the path.
    None,
}

/// The parser, merger and splitter for calls of one route and one adapter.
#[derive(Debug)]
pub struct Endpoint {
    /// Index of the rules. The default route comes after those of the policy.
    pub route: usize,
    /// Label in metrics.
    pub label: ProtocolLabel,
    /// Error format expected by its clients.
    pub dialect: Dialect,
    /// `true` if the members of a failed batch may be retried.
    pub idempotent: bool,
    /// `true` if calls are merged only while `GET /info` does not show that the server batches by
    /// itself ([`crate::LimitsSource::Info`]).
    pub needs_info: bool,
    /// `true` if a batch with a mismatched response is isolated, `false` if it fails with 502.
    pub on_mismatch_isolates: bool,
    pub(crate) rules: Arc<RouteRules>,
    pub(crate) common: Arc<SharedHeaderRules>,
    pub(crate) shape: ProtocolShape,
    pub(crate) too_large: Vec<TooLargeSign>,
    /// A random number that is part of merge keys. It differs between endpoints with different
    /// rules, so that calls parsed before and after a change of the rules never share a batch
    /// ([`Routes::after`]).
    pub(crate) generation: u64,
}

// === impl RouteProtocol ===

impl RouteProtocol {
    /// Returns `true` if an adapter of this protocol accepts calls to `path`.
    #[must_use]
    pub fn is_recognised(self, path: &str) -> bool {
        Adapter::recognise(self, path).is_some()
    }
}

// === impl Routes ===

impl Routes {
    /// Compiles `rules`. Without any, `default` applies to every path that an adapter recognises.
    #[must_use]
    pub fn new(rules: Vec<RouteRules>, default: RouteRules, common: SharedHeaderRules) -> Self {
        Self::after(None, rules, default, common)
    }

    /// Compiles `rules` to replace `earlier`. A route keeps its keys if calls are parsed, merged
    /// and split as before, so that new calls may share a batch with queued ones. The maxima of a
    /// route may change, since they decide which calls may be merged rather than how.
    #[must_use]
    pub fn after(
        earlier: Option<&Self>,
        rules: Vec<RouteRules>,
        default: RouteRules,
        common: SharedHeaderRules,
    ) -> Self {
        let common = Arc::new(common);
        let any_path = rules.is_empty();
        let rules = if any_path { vec![default] } else { rules };
        let route = |(index, rules): (usize, RouteRules)| {
            // Equivalent rules keep their generation, and with it their merge keys.
            let unchanged = earlier.and_then(|earlier| earlier.generation((index, any_path), &rules, &common));
            let generation = unchanged.unwrap_or_else(rand::random);
            let rules = Arc::new(rules);
            let endpoint = |adapter| Endpoint::new(index, adapter, &rules, &common, generation);
            let endpoints =
                Adapter::of(&rules).into_iter().map(|adapter| (adapter, Arc::new(endpoint(adapter)))).collect();
            Route { rules, endpoints, any_path, generation }
        };
        Self { common: Arc::clone(&common), routes: rules.into_iter().enumerate().map(route).collect() }
    }

    /// Returns the endpoint for a call, or `None` if it is passed through. The first route that
    /// matches decides.
    #[must_use]
    pub fn recognise(&self, method: &Method, path: &str) -> Option<Arc<Endpoint>> {
        let matches =
            |route: &&Route| route.rules.method == *method && (route.any_path || route.rules.path.matches(path));
        let route = self.routes.iter().find(matches)?;
        let adapter = Adapter::recognise(route.rules.protocol, path)?;
        // The rule for merging may select another adapter for calls for text, which the protocol
        // may not have.
        route.endpoint(adapter.under(route.rules.merge, path)).or_else(|| route.endpoint(adapter))
    }

    /// Returns the endpoint that merges the calls at a path for which [`Routes::recognise`] returns
    /// `queued`, before a server that is known not to batch them by itself. `None` if they are not
    /// merged there either.
    #[must_use]
    pub fn merging_form(&self, queued: &Endpoint, path: &str) -> Option<Arc<Endpoint>> {
        let is_auto = queued.rules.protocol == RouteProtocol::Auto && queued.rules.merge == MergeRule::Auto;
        let route = self.routes.get(queued.route).filter(|_| queued.is_generation() && is_auto)?;
        route.endpoint(Adapter::merged_text(path)?)
    }

    /// Returns the endpoint that queues calls for text without merging them, for a call that the
    /// endpoint `merging` cannot merge. `None` if `merging` is not for text.
    #[must_use]
    pub fn queued_form(&self, merging: &Endpoint, path: &str) -> Option<Arc<Endpoint>> {
        let route = self.routes.get(merging.route).filter(|_| merging.shape.generation.is_some())?;
        route.endpoint(Adapter::generation(path)?)
    }

    /// Returns the endpoint for calls with tensors at a path for which [`Routes::recognise`] returns
    /// `endpoint`. `None` if the head is that of another call.
    #[must_use]
    pub fn tensor_form(&self, endpoint: &Endpoint, headers: &HeaderMap) -> Option<Arc<Endpoint>> {
        let is_framed = || headers.get(CONTENT_TYPE).is_some_and(binary::is_framing_type);
        let is_other = endpoint.label != ProtocolLabel::SageMaker || !is_framed();
        self.routes.get(endpoint.route).filter(|_| !is_other)?.endpoint(Adapter::SageMakerTensors)
    }

    /// Returns the endpoint for calls to a model of this type at a path for which [`Routes::recognise`]
    /// returns `endpoint`. `None` if the format at that path does not depend on the model.
    #[must_use]
    pub fn model_form(&self, endpoint: &Arc<Endpoint>, kind: ModelKind) -> Option<Arc<Endpoint>> {
        let route = self.routes.get(endpoint.route).filter(|_| self.depends_on_model(endpoint))?;
        route.endpoint(Adapter::Tei(TeiRoute::of_model(kind)))
    }

    /// Returns the endpoint for calls with `documents` at a path for which [`Routes::recognise`], or
    /// [`Routes::model_form`], returns `endpoint`. It is for a server that executes each member of a
    /// batch with its own body. `None` if the path is not that of a reranker.
    #[must_use]
    pub fn documents_form(&self, endpoint: &Arc<Endpoint>) -> Option<Arc<Endpoint>> {
        let route = self.routes.get(endpoint.route).filter(|_| endpoint.label == ProtocolLabel::Tei)?;
        let own = route.endpoint(Adapter::Tei(TeiRoute::Rerank)).filter(|own| Arc::ptr_eq(own, endpoint));
        own.and_then(|_| route.endpoint(Adapter::TeiDocuments))
    }

    /// Returns `true` if the format of calls depends on the model, which
    /// [`LimitsSource::Info`](crate::LimitsSource::Info) names.
    #[must_use]
    pub fn depends_on_model(&self, endpoint: &Arc<Endpoint>) -> bool {
        let route = self.routes.get(endpoint.route).filter(|_| endpoint.label == ProtocolLabel::Tei);
        route.and_then(|route| route.endpoint(Adapter::TeiModel)).is_some_and(|own| Arc::ptr_eq(&own, endpoint))
    }

    /// Returns the generation of the route at this index if its rules are equivalent.
    fn generation(
        &self,
        (index, any_path): (usize, bool),
        rules: &RouteRules,
        common: &SharedHeaderRules,
    ) -> Option<u64> {
        let route =
            self.routes.get(index).filter(|route| route.any_path == any_path && route.rules.is_equivalent(rules))?;
        (*self.common == *common).then_some(route.generation)
    }
}

// === impl Route ===

impl Route {
    /// Returns the endpoint of an adapter, if the route has it.
    fn endpoint(&self, adapter: Adapter) -> Option<Arc<Endpoint>> {
        self.endpoints.iter().find(|(own, _)| *own == adapter).map(|(_, endpoint)| Arc::clone(endpoint))
    }
}

// === impl ProtocolLabel ===

impl ProtocolLabel {
    /// Returns the name used in metrics and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

// === impl Endpoint ===

impl Endpoint {
    /// Returns `true` if its calls generate text and are never merged.
    #[must_use]
    pub fn is_generation(&self) -> bool {
        self.label == ProtocolLabel::Generation
    }

    /// Returns `true` if its calls generate text, merged or not.
    #[must_use]
    pub fn generates_text(&self) -> bool {
        self.is_generation() || self.shape.generation.is_some()
    }

    /// Returns the path of its route as written in the policy; `/*` for the default route.
    #[must_use]
    pub fn route_path(&self) -> String {
        self.rules.path.as_parts().concat()
    }

    fn new(
        route: usize,
        adapter: Adapter,
        rules: &Arc<RouteRules>,
        common: &Arc<SharedHeaderRules>,
        generation: u64,
    ) -> Self {
        let (label, dialect, shape) = adapter.format(rules);
        let generic = rules.generic.as_ref().filter(|_| adapter == Adapter::Generic);
        Self {
            route,
            label,
            dialect,
            idempotent: rules.idempotent.unwrap_or(adapter.is_idempotent()),
            needs_info: adapter.is_automatic_tei()
                && rules.protocol == RouteProtocol::Auto
                && rules.merge == MergeRule::Auto,
            on_mismatch_isolates: generic.is_none_or(|spec| spec.on_mismatch == OnMismatch::Isolate),
            rules: if shape.payload == Payload::Tensors { Arc::new(for_tensors(rules)) } else { Arc::clone(rules) },
            common: Arc::clone(common),
            shape,
            too_large: generic.map(|spec| spec.too_large.clone()).unwrap_or_default(),
            generation,
        }
    }
}

#[cfg(test)]
mod tests;
