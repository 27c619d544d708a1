//! The rules of a route as a policy states them: which calls it matches, which of them share a
//! batch, and how large they may be.
//!
//! The rules of all routes are compiled by [`Routes`](super::Routes).

use std::sync::Arc;

use http::Method;
use http::header::HeaderName;

use super::RouteProtocol;
use crate::generic::GenericOptions;
use crate::pointer::Pointer;
use crate::tokens::TokenCounter;
use crate::v2::binary;

/// Rule for merging the calls of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MergeRule {
    /// Merged where that is measured to pay. Calls for text to a server that is known to batch by
    /// itself are merged only on a route that names their protocol.
    Auto,
    /// Merged without such a measurement, and also before a server that batches by itself.
    Always,
    /// Queued, and sent one by one.
    Never,
}

/// A path pattern of a route: an exact path, or a prefix ending in `/*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathPattern {
    text: String,
    prefix: bool,
}

/// Maximum number of items of a call that may be divided: twice the number of inputs that OpenAI
/// accepts. Their positions occupy 64 KiB.
pub const DIVISIBLE_ITEMS_MAX: usize = 4096;

/// A route of the policy, or the default route if the policy has none.
#[derive(Debug, Clone)]
pub struct RouteRules {
    /// Paths that the route matches.
    pub path: PathPattern,
    /// HTTP method that the route matches.
    pub method: Method,
    /// Protocol of the route.
    pub protocol: RouteProtocol,
    /// Headers that must be equal although they are otherwise ignored.
    pub merge_on_headers: Vec<HeaderName>,
    /// Fields that must be equal although they are otherwise removed.
    pub merge_on_fields: Vec<Pointer>,
    /// Headers that may differ, and are removed from shared calls. Identity headers cannot be
    /// listed.
    pub merge_over_headers: Vec<HeaderName>,
    /// Fields that may differ, and are removed from shared calls.
    pub merge_over_fields: Vec<Pointer>,
    /// Response headers that every member may receive, in addition to those of the protocol.
    pub respond_with_headers: Vec<HeaderName>,
    /// Response members that every member may receive, in addition to those of the protocol.
    pub respond_with_fields: Vec<Pointer>,
    /// The declaration of a Generic route.
    pub generic: Option<GenericOptions>,
    /// Rule for merging the calls.
    pub merge: MergeRule,
    /// Allows the members of a failed batch to be retried. By default, this is `true` for known
    /// inference routes and `false` for Generic ones.
    pub idempotent: Option<bool>,
    /// Largest body of a merged call, in bytes.
    pub item_bytes_max: usize,
    /// Deepest nesting of a merged call.
    pub item_nesting_max: usize,
    /// Maximum number of items of a merged call.
    pub item_count_max: usize,
    /// Tokenizer of the model, which counts the tokens of texts.
    pub tokenizer: Option<Arc<dyn TokenCounter>>,
}

/// Settings shared by all routes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SharedHeaderRules {
    /// The header that names the tenant. Without it, the identity headers do.
    pub tenant_header: Option<HeaderName>,
    /// Headers that carry a deadline in milliseconds.
    pub deadline_headers: Vec<HeaderName>,
    /// The header that names the priority class. It is addressed to the proxy, so calls that differ
    /// in it may share a batch, and shared calls do not carry it.
    pub priority_header: Option<HeaderName>,
}

/// Returns the rules of a route for calls with tensors. The header that frames a body and the id of
/// a call are written anew for a shared call, so they need not be equal, whether or not the policy
/// lists them.
pub(super) fn for_tensors(rules: &RouteRules) -> RouteRules {
    let mut own = rules.clone();
    own.merge_over_headers.push(binary::HEADER_LENGTH);
    own.merge_on_headers.retain(|name| *name != binary::HEADER_LENGTH);
    own.merge_over_fields.retain(|field| *field.tokens() != ["id"]);
    own
}

// === impl PathPattern ===

impl PathPattern {
    /// Parses a pattern as written in a policy.
    ///
    /// # Errors
    /// Returns a message that describes the syntax error.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (path, prefix) = text.strip_suffix('*').map_or((text, false), |path| (path, true));
        if prefix && !path.ends_with('/') {
            return Err(format!("'*' is allowed only after the last '/': {text:?}"));
        }
        if !path.starts_with('/') {
            return Err(format!("a path must start with '/': {text:?}"));
        }
        if path.bytes().any(|byte| byte <= b' ' || byte == 0x7f || matches!(byte, b'?' | b'#' | b'*')) {
            return Err(format!("a path must not contain '?', '#', '*', spaces or control characters: {text:?}"));
        }
        Ok(Self { text: path.to_owned(), prefix })
    }

    /// Returns the parts of the pattern as written in a policy.
    pub(crate) fn as_parts(&self) -> [&str; 2] {
        [&self.text, if self.prefix { "*" } else { "" }]
    }

    /// Returns `true` if the pattern matches a raw path.
    #[must_use]
    pub fn matches(&self, path: &str) -> bool {
        if self.prefix { path.starts_with(&self.text) } else { path == self.text }
    }
}

// === impl RouteRules ===

impl RouteRules {
    /// Creates the rules of a route without settings, for POST requests: calls of at most 1 MiB and
    /// [`DIVISIBLE_ITEMS_MAX`] items, with at most 64 levels of nesting.
    #[must_use]
    pub fn new(path: PathPattern, protocol: RouteProtocol) -> Self {
        Self {
            path,
            method: Method::POST,
            protocol,
            merge_on_headers: Vec::new(),
            merge_on_fields: Vec::new(),
            merge_over_headers: Vec::new(),
            merge_over_fields: Vec::new(),
            respond_with_headers: Vec::new(),
            respond_with_fields: Vec::new(),
            generic: None,
            merge: MergeRule::Auto,
            idempotent: None,
            item_bytes_max: 1 << 20,
            item_nesting_max: 64,
            item_count_max: DIVISIBLE_ITEMS_MAX,
            tokenizer: None,
        }
    }

    /// Returns `true` if calls are parsed, merged and split in the same way. The maxima are
    /// ignored, and so is the tokenizer, which only weighs.
    pub(super) fn is_equivalent(&self, other: &Self) -> bool {
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
            merge,
            idempotent,
            item_bytes_max: _,
            item_nesting_max: _,
            item_count_max: _,
            tokenizer: _,
        } = self;
        (path, method, protocol, generic, idempotent)
            == (&other.path, &other.method, &other.protocol, &other.generic, &other.idempotent)
            && *merge == other.merge
            && (merge_on_headers, merge_on_fields) == (&other.merge_on_headers, &other.merge_on_fields)
            && (merge_over_headers, merge_over_fields) == (&other.merge_over_headers, &other.merge_over_fields)
            && (respond_with_headers, respond_with_fields) == (&other.respond_with_headers, &other.respond_with_fields)
    }
}

// === impl SharedHeaderRules ===

impl SharedHeaderRules {
    /// Returns `true` if a header identifies the client.
    pub(crate) fn is_identity(&self, name: &HeaderName) -> bool {
        crate::headers::is_identity(name) || self.tenant_header.as_ref() == Some(name)
    }
}
