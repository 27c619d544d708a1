//! Protocols as data: the positions of items and results, and the rules for joining and splitting
//! them.
//!
//! Every adapter is a [`ProtocolShape`]; the code that parses, merges and splits is independent of
//! the protocol. `generic` creates a shape from a policy, and the other adapters define constant
//! ones.

use crate::json::Base64Form;
use crate::pointer::Pointer;

/// The description of a protocol.
#[expect(clippy::struct_excessive_bools, reason = "a table of independent switches")]
#[derive(Debug, Clone)]
pub(crate) struct ProtocolShape {
    pub(crate) payload: Payload,
    /// Parallel arrays of items.
    pub(crate) items: Vec<Pointer>,
    /// A field that holds a single item instead of `items[0]`.
    pub(crate) single: Option<Pointer>,
    /// Bare values that `items` may hold.
    pub(crate) bare: BareValue,
    pub(crate) item_is: ItemIs,
    pub(crate) class: Class,
    pub(crate) results: ResultLayout,
    /// Name of the result for a client that uses the single form.
    pub(crate) single_result: Option<String>,
    /// A client with a scalar item receives its result bare rather than as a list.
    pub(crate) unwrap: bool,
    /// The results are sorted by the server rather than in the order of the items.
    pub(crate) sorted: bool,
    pub(crate) index: Option<ResultIndex>,
    /// Type that each result must have.
    pub(crate) element: ResultType,
    pub(crate) per_item_error: Option<(Pointer, u16)>,
    /// Ids of the whole response.
    pub(crate) ids: Vec<Pointer>,
    /// An id consists of a prefix and the client's `x-request-id`, if it sent one (vLLM).
    pub(crate) id_from_request: bool,
    pub(crate) counters: Counters,
    /// Measure by which counters are divided.
    pub(crate) share_by: Measure,
    /// Measure of the weight of a batch.
    pub(crate) weight: Measure,
    /// Fields that the protocol defines. A key that differs only in case is ambiguous.
    pub(crate) known: &'static [&'static str],
    /// Fields that prevent merging.
    pub(crate) unbatched_fields: &'static [(&'static str, UnbatchedIf)],
    /// The field that names the model.
    pub(crate) model: Option<Pointer>,
    /// Accepts `NaN` and `Infinity` as numbers in a request.
    pub(crate) lenient: bool,
    /// Top-level members of a response, besides results, ids and counters. Every member of a shared
    /// call may receive their scalar values.
    pub(crate) envelope: &'static [&'static str],
    /// Path of shared calls, if it differs from the path of their members.
    pub(crate) upstream_path: Option<String>,
}

/// Form of the inputs and results of a protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Payload {
    /// Lists of items in one JSON document.
    Items,
    /// Tensors whose first dimension is the batch (`v2`). The positions of items and results in the
    /// shape are unused.
    Tensors,
}

/// Condition under which a bare value represents a list of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BareValue {
    Never,
    Strings,
    Always,
}

/// Interpretation of a flat list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ItemIs {
    /// A list of items.
    Element,
    /// A single item if it consists of numbers.
    Numbers,
    /// A single item if it consists of integers, which are token ids.
    Tokens,
}

/// Properties that the items of a batch must have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// The same types and shapes, recursively, as written by `json::class`.
    Strict(Base64Form),
    /// Strings, lists of token ids, or (if allowed) objects with the same keys.
    Text { objects: bool },
    /// No common property.
    None,
}

/// Position of the results.
#[derive(Debug, Clone)]
pub(crate) enum ResultLayout {
    /// Parallel arrays, one element for each item.
    Lists(Vec<Pointer>),
    /// A map with a field of the item as its key.
    Map { at: Pointer, key: Pointer },
}

/// Position of the item index inside a result.
#[derive(Debug, Clone)]
pub(crate) struct ResultIndex {
    pub(crate) at: Pointer,
    /// A response without any index is taken in order.
    pub(crate) optional: bool,
}

/// Type that each result must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResultType {
    Any,
    Object,
    Array,
}

/// Counters of the whole response.
#[derive(Debug, Clone)]
pub(crate) enum Counters {
    None,
    /// All numbers below this object. `total_tokens` is the sum of `prompt_tokens` and
    /// `completion_tokens`.
    Usage(Pointer),
    /// The counters at these positions.
    Totals {
        at: Vec<Pointer>,
        share: CounterRule,
    },
}

/// Treatment of a counter in a batch response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CounterRule {
    /// Divided by the largest remainder method.
    Proportional,
    /// Divided only if the shares are known.
    Exact,
    /// Removed.
    Drop,
}

/// Measure of an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Measure {
    /// One per item.
    Items,
    /// Bytes, where an escaped character counts as in UTF-8.
    Bytes,
    /// Number of code points in its strings.
    Chars,
    /// Length of its list.
    ListLen,
    /// The number at this position.
    At(Pointer),
    /// Number of code points of a string or of the `text` of an object, length of a list of token
    /// ids, else one. Usage counters are divided by it.
    Text,
    /// Estimated number of tokens: length of a list of token ids, else a quarter of the bytes.
    Tokens,
}

/// Condition under which a field prevents merging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnbatchedIf {
    /// The field is present.
    Present,
    /// The field is present and not null.
    Set,
    /// The field is present and not `false`.
    NotFalse,
    /// The field is one of these strings, as written.
    OneOf(&'static [&'static str]),
}

// === impl ProtocolShape ===

impl ProtocolShape {
    /// Creates a shape with one list of items, one list of results, and defaults for everything
    /// else.
    pub(crate) fn plain(items: &str, results: &str) -> Self {
        Self {
            payload: Payload::Items,
            items: vec![Pointer::from_static(items)],
            single: None,
            bare: BareValue::Never,
            item_is: ItemIs::Element,
            class: Class::Strict(Base64Form::Plain),
            results: ResultLayout::Lists(vec![Pointer::from_static(results)]),
            single_result: None,
            unwrap: false,
            sorted: false,
            index: None,
            element: ResultType::Any,
            per_item_error: None,
            ids: Vec::new(),
            id_from_request: false,
            counters: Counters::None,
            share_by: Measure::Items,
            weight: Measure::Items,
            known: &[],
            unbatched_fields: &[],
            model: None,
            lenient: false,
            envelope: &[],
            upstream_path: None,
        }
    }
}
