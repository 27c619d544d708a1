//! Which calls are recognised, and by which adapter.
//!
//! Paths are matched raw, never decoded or normalised: a path that a server might read as another is simply another path.

use std::sync::Arc;

use http::Method;
use http::header::HeaderName;

use crate::protocol::dialect::Dialect;
use crate::protocol::generic::{OnMismatch, Spec, TooLargeSign};
use crate::protocol::kserve::{self, Flavour, Verb};
use crate::protocol::pointer::Pointer;
use crate::protocol::shape::Shape;
use crate::protocol::{openai, tei};

/// A route's `protocol`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Named {
    /// Whatever adapter recognises the path.
    Auto,
    /// None.
    PassThrough,
    /// As the route declares.
    Generic,
    /// KServe V1.
    KServeV1,
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
    /// Voyage.
    Voyage,
    /// Jina.
    Jina,
    /// llama.cpp, whose totals count the first prompt only: passes through.
    LlamaCpp,
}

/// A path as a route writes it: exact, or a prefix ending in `/*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathPattern {
    text: String,
    prefix: bool,
}

/// One written route, or the one that stands for all where none is written.
#[derive(Debug, Clone)]
pub struct RouteRules {
    /// Which paths.
    pub path: PathPattern,
    /// Which method.
    pub method: Method,
    /// Which adapter.
    pub protocol: Named,
    /// Headers that must be equal although ignored otherwise.
    pub merge_on_headers: Vec<HeaderName>,
    /// Fields that must be equal although dropped.
    pub merge_on_fields: Vec<Pointer>,
    /// Headers that need not be equal, and are dropped from a shared call. Identity cannot be merged over.
    pub merge_over_headers: Vec<HeaderName>,
    /// Fields that need not be equal, and are dropped from a shared call.
    pub merge_over_fields: Vec<Pointer>,
    /// Answer headers that every member may see, besides those of the reference.
    pub respond_with_headers: Vec<HeaderName>,
    /// Members of an answer that every member may see, besides those of the reference.
    pub respond_with_fields: Vec<Pointer>,
    /// What a Generic route declares.
    pub generic: Option<Spec>,
    /// Whether a failed batch's members may be sent again; none: known inference routes yes, Generic no.
    pub idempotent: Option<bool>,
    /// Largest body that is merged.
    pub item_bytes_max: usize,
    /// Deepest nesting that is merged.
    pub item_nesting_max: usize,
    /// Most items of a call that is merged.
    pub item_count_max: usize,
}

/// What all routes share.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Common {
    /// The header that names the tenant; none: the identity headers do.
    pub tenant_header: Option<HeaderName>,
    /// Headers that tell a deadline in milliseconds.
    pub deadline_headers: Vec<HeaderName>,
    /// The header that names the priority class: for us, so calls that differ in it may share, and no shared call has it.
    pub priority_header: Option<HeaderName>,
}

/// All routes, compiled.
#[derive(Debug)]
pub struct Routes {
    common: Arc<Common>,
    routes: Vec<Route>,
}

#[derive(Debug)]
struct Route {
    rules: Arc<RouteRules>,
    endpoints: Vec<(Adapter, Arc<Endpoint>)>,
    /// Stands for every path that an adapter recognises by itself.
    any_path: bool,
    generation: u64,
}

/// One adapter's treatment of one kind of path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Adapter {
    Embeddings,
    Embed,
    V1(Verb),
    Generic,
}

/// The `protocol` label of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Label {
    /// OpenAI embeddings, whoever serves them.
    OpenAi,
    /// KServe V1.
    KServeV1,
    /// TF Serving's row form.
    TfServing,
    /// TEI's own routes.
    Tei,
    /// As a route declared.
    Generic,
    /// No adapter matched.
    None,
}

/// How calls of one route and one adapter are read, merged and split.
#[derive(Debug)]
pub struct Endpoint {
    /// Index into the rules; the default route comes after the written ones.
    pub route: usize,
    /// The metrics' label.
    pub label: Label,
    /// How its callers expect an error to look.
    pub dialect: Dialect,
    /// Whether a failed batch's members may be sent again alone.
    pub idempotent: bool,
    /// Merge only if `GET /info` does not say that the server batches by itself ([`tei::published`]).
    pub needs_info: bool,
    /// Whether a mismatch is isolated, or failed with 502.
    pub on_mismatch_isolates: bool,
    pub(crate) rules: Arc<RouteRules>,
    pub(crate) common: Arc<Common>,
    pub(crate) shape: Shape,
    pub(crate) too_large: Vec<TooLargeSign>,
    /// Told apart from endpoints of other rules, so that a reload never mixes calls read by different ones ([`Routes::after`]).
    pub(crate) generation: u64,
}

// === impl Named ===

impl Named {
    /// Whether an adapter of this protocol takes calls to that path.
    #[must_use]
    pub fn takes(self, path: &str) -> bool {
        Adapter::recognise(self, path).is_some()
    }
}

// === impl PathPattern ===

impl PathPattern {
    /// Reads a pattern as a policy writes it.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (path, prefix) = text.strip_suffix('*').map_or((text, false), |path| (path, true));
        if prefix && !path.ends_with('/') {
            return Err(format!("'*' stands only after a last '/': {text:?}"));
        }
        if !path.starts_with('/') {
            return Err(format!("a path starts with '/': {text:?}"));
        }
        if path.bytes().any(|byte| byte <= b' ' || byte == 0x7f || matches!(byte, b'?' | b'#' | b'*')) {
            return Err(format!("a path holds no '?', '#', '*', spaces or controls: {text:?}"));
        }
        Ok(Self { text: path.to_owned(), prefix })
    }

    /// As a policy writes it.
    pub(crate) fn written(&self) -> [&str; 2] {
        [&self.text, if self.prefix { "*" } else { "" }]
    }

    /// Whether a raw path is one of these.
    #[must_use]
    pub fn matches(&self, path: &str) -> bool {
        if self.prefix { path.starts_with(&self.text) } else { path == self.text }
    }
}

// === impl Routes ===

impl Routes {
    /// Compiles `rules`; where there are none, `default` stands for every path that an adapter recognises by itself.
    #[must_use]
    pub fn new(rules: Vec<RouteRules>, default: RouteRules, common: Common) -> Self {
        Self::after(None, rules, default, common)
    }

    /// The same in the place of `earlier`: a route whose calls are read, merged and split as before keeps its keys, so that who comes now may share a
    /// batch with who is queued. Its caps may have changed: they say which calls may be merged, not how.
    #[must_use]
    pub fn after(earlier: Option<&Self>, rules: Vec<RouteRules>, default: RouteRules, common: Common) -> Self {
        let common = Arc::new(common);
        let any_path = rules.is_empty();
        let rules = if any_path { vec![default] } else { rules };
        let route = |(index, rules): (usize, RouteRules)| {
            let kept = earlier.and_then(|earlier| earlier.generation((index, any_path), &rules, &common));
            let generation = kept.unwrap_or_else(rand::random);
            let rules = Arc::new(rules);
            let endpoint = |adapter| Endpoint::new(index, adapter, &rules, &common, generation);
            let endpoints =
                Adapter::of(&rules).into_iter().map(|adapter| (adapter, Arc::new(endpoint(adapter)))).collect();
            Route { rules, endpoints, any_path, generation }
        };
        Self { common: Arc::clone(&common), routes: rules.into_iter().enumerate().map(route).collect() }
    }

    /// How a call is to be treated; none: it passes through. The first route that matches decides.
    #[must_use]
    pub fn recognise(&self, method: &Method, path: &str) -> Option<Arc<Endpoint>> {
        let matches =
            |route: &&Route| route.rules.method == *method && (route.any_path || route.rules.path.matches(path));
        let route = self.routes.iter().find(matches)?;
        let adapter = Adapter::recognise(route.rules.protocol, path)?;
        route.endpoints.iter().find(|(own, _)| *own == adapter).map(|(_, endpoint)| Arc::clone(endpoint))
    }

    /// The generation of a route at this place that reads as these rules do.
    fn generation(&self, (index, any_path): (usize, bool), rules: &RouteRules, common: &Common) -> Option<u64> {
        let route = self.routes.get(index).filter(|route| route.any_path == any_path && route.rules.reads_as(rules))?;
        (*self.common == *common).then_some(route.generation)
    }
}

// === impl RouteRules ===

impl RouteRules {
    /// Whether calls are read, merged and split alike, caps aside.
    fn reads_as(&self, other: &Self) -> bool {
        let Self {
            path,
            method,
            protocol,
            merge_on_headers,
            merge_on_fields,
            merge_over_headers,
            merge_over_fields,
            respond_with_headers,
            respond_with_fields,
            generic,
            idempotent,
            item_bytes_max: _,
            item_nesting_max: _,
            item_count_max: _,
        } = self;
        (path, method, protocol, generic, idempotent)
            == (&other.path, &other.method, &other.protocol, &other.generic, &other.idempotent)
            && (merge_on_headers, merge_on_fields) == (&other.merge_on_headers, &other.merge_on_fields)
            && (merge_over_headers, merge_over_fields) == (&other.merge_over_headers, &other.merge_over_fields)
            && (respond_with_headers, respond_with_fields) == (&other.respond_with_headers, &other.respond_with_fields)
    }
}

// === impl Common ===

impl Common {
    /// Whether a header says who calls.
    pub(crate) fn is_identity(&self, name: &HeaderName) -> bool {
        crate::protocol::headers::is_identity(name) || self.tenant_header.as_ref() == Some(name)
    }
}

// === impl Adapter ===

impl Adapter {
    /// The adapters that a route may need.
    fn of(rules: &RouteRules) -> Vec<Self> {
        match rules.protocol {
            Named::Auto => vec![Self::Embeddings, Self::V1(Verb::Predict), Self::Embed],
            Named::PassThrough | Named::LlamaCpp => Vec::new(),
            Named::Generic => rules.generic.iter().map(|_| Self::Generic).collect(),
            Named::KServeV1 => vec![Self::V1(Verb::Predict), Self::V1(Verb::Explain)],
            Named::TfServing => [Verb::Predict, Verb::Explain, Verb::Regress, Verb::Classify].map(Self::V1).to_vec(),
            Named::Tei => vec![Self::Embeddings, Self::Embed],
            Named::OpenAi
            | Named::Vllm
            | Named::SgLang
            | Named::Infinity
            | Named::Ollama
            | Named::Voyage
            | Named::Jina => vec![Self::Embeddings],
        }
    }

    /// The adapter for a path under a route of this protocol. A written protocol is the operator's word for where the model is served, so a
    /// path then only has to end right; unasked, it has to be the protocol's own.
    fn recognise(protocol: Named, path: &str) -> Option<Self> {
        match protocol {
            Named::PassThrough | Named::LlamaCpp => None,
            Named::Generic => Some(Self::Generic),
            Named::Auto if openai::PATHS.contains(&path) => Some(Self::Embeddings),
            Named::Auto if path == tei::PATH => Some(Self::Embed),
            Named::Auto => kserve::verb(path).filter(|_| kserve::is_model_path(path)).map(Self::V1),
            Named::KServeV1 | Named::TfServing => kserve::verb(path).map(Self::V1),
            Named::Tei if path.ends_with(tei::PATH) => Some(Self::Embed),
            Named::Tei
            | Named::OpenAi
            | Named::Vllm
            | Named::SgLang
            | Named::Infinity
            | Named::Ollama
            | Named::Voyage
            | Named::Jina => path.ends_with(openai::SUFFIX).then_some(Self::Embeddings),
        }
    }
}

// === impl Label ===

impl Label {
    /// Every label.
    pub const ALL: [Self; 6] = [Self::OpenAi, Self::KServeV1, Self::TfServing, Self::Tei, Self::Generic, Self::None];

    /// The word in metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::KServeV1 => "kserve_v1",
            Self::TfServing => "tf_serving",
            Self::Tei => "tei",
            Self::Generic => "generic",
            Self::None => "none",
        }
    }
}

// === impl Endpoint ===

impl Endpoint {
    fn new(route: usize, adapter: Adapter, rules: &Arc<RouteRules>, common: &Arc<Common>, generation: u64) -> Self {
        let named = rules.protocol;
        let (label, dialect, shape) = match adapter {
            Adapter::Embeddings => (Label::OpenAi, Dialect::OpenAi, openai::embeddings(named == Named::Vllm)),
            Adapter::Embed => (Label::Tei, Dialect::Tei, tei::embed()),
            Adapter::V1(verb) if named == Named::TfServing => {
                (Label::TfServing, Dialect::Error, kserve::shape(verb, Flavour::TfServing))
            }
            Adapter::V1(verb) => (Label::KServeV1, Dialect::Error, kserve::shape(verb, Flavour::KServe)),
            Adapter::Generic => {
                let shape = rules.generic.as_ref().map_or_else(|| Shape::plain("", ""), Spec::shape);
                (Label::Generic, Dialect::Problem, shape)
            }
        };
        let generic = rules.generic.as_ref().filter(|_| adapter == Adapter::Generic);
        Self {
            route,
            label,
            dialect,
            idempotent: rules.idempotent.unwrap_or(adapter != Adapter::Generic),
            needs_info: adapter == Adapter::Embed && named == Named::Auto,
            on_mismatch_isolates: generic.is_none_or(|spec| spec.on_mismatch == OnMismatch::Isolate),
            rules: Arc::clone(rules),
            common: Arc::clone(common),
            shape,
            too_large: generic.map(|spec| spec.too_large.clone()).unwrap_or_default(),
            generation,
        }
    }
}
