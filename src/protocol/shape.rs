//! A protocol as data: where items and results stand, and how they are to be cut and joined.
//!
//! Every adapter is a [`Shape`]; the machinery that reads, merges and splits knows no protocol by name. `generic` makes one from a policy, the
//! others are constants of their module.

use crate::protocol::json::Scalars;
use crate::protocol::pointer::Pointer;

/// One protocol.
#[expect(clippy::struct_excessive_bools, reason = "a table of switches that do not bear on each other")]
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    /// Parallel arrays of items.
    pub(crate) items: Vec<Pointer>,
    /// A field that holds one item instead of `items[0]`.
    pub(crate) single: Option<Pointer>,
    /// `items` may hold a bare value.
    pub(crate) bare: Bare,
    pub(crate) item_is: ItemIs,
    pub(crate) class: Class,
    pub(crate) results: Results,
    /// The name that the result takes for a caller of the single form.
    pub(crate) single_result: Option<String>,
    /// A caller of a scalar form gets its result bare, not as a list of one.
    pub(crate) unwrap: bool,
    /// The results come sorted, not in the order of the items.
    pub(crate) sorted: bool,
    pub(crate) index: Option<Index>,
    /// What each result must be.
    pub(crate) element: Element,
    pub(crate) per_item_error: Option<(Pointer, u16)>,
    /// Ids of the whole answer.
    pub(crate) ids: Vec<Pointer>,
    /// An id is a prefix and the caller's own `x-request-id` where it sent one (vLLM).
    pub(crate) id_from_request: bool,
    pub(crate) counters: Counters,
    /// How an item counts in shares of a counter.
    pub(crate) share_by: Measure,
    /// How an item counts in the weight of a batch.
    pub(crate) weight: Measure,
    /// Fields that the protocol knows; a twin in another case is ambiguous.
    pub(crate) known: &'static [&'static str],
    /// Fields that keep a call alone.
    pub(crate) alone: &'static [(&'static str, AloneIf)],
    /// The field that names the model.
    pub(crate) model: Option<Pointer>,
    /// `NaN` and `Infinity` are numbers in a request.
    pub(crate) lenient: bool,
    /// Top-level members of an answer, besides results, ids and counters, whose scalars every
    /// member of a shared call may see.
    pub(crate) envelope: &'static [&'static str],
    /// Where a shared call goes, if not to the path of its members.
    pub(crate) upstream_path: Option<String>,
}

/// When a bare value stands for a list of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bare {
    Never,
    Strings,
    Always,
}

/// What a flat list is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ItemIs {
    /// A list of items.
    Element,
    /// One item, if it is of numbers.
    Numbers,
    /// One item, if it is of integers: token ids.
    Tokens,
}

/// What items must have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Rule G7.
    Strict(Scalars),
    /// Strings, lists of token ids, or (where allowed) objects of the same keys.
    Text { objects: bool },
    /// Nothing.
    None,
}

/// Where the results stand.
#[derive(Debug, Clone)]
pub(crate) enum Results {
    /// Parallel arrays, one element for each item.
    Lists(Vec<Pointer>),
    /// A map by a field of the item.
    Map { at: Pointer, key: Pointer },
}

/// Where a result says which item it belongs to.
#[derive(Debug, Clone)]
pub(crate) struct Index {
    pub(crate) at: Pointer,
    /// An answer without any is taken in order.
    pub(crate) optional: bool,
}

/// What each result must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Element {
    Any,
    Object,
    Array,
}

/// Counters of the whole answer.
#[derive(Debug, Clone)]
pub(crate) enum Counters {
    None,
    /// Everything numeric below this object; `prompt_tokens` plus `completion_tokens` make `total_tokens`.
    Usage(Pointer),
    /// These.
    Totals {
        at: Vec<Pointer>,
        share: Share,
    },
}

/// What becomes of a counter on a shared answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Share {
    /// Split by the largest remainder.
    Proportional,
    /// Split only where the parts are known.
    Exact,
    /// Cut.
    Drop,
}

/// How much an item is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Measure {
    /// One.
    Items,
    /// Bytes, where an escaped character counts as in UTF-8.
    Bytes,
    /// Code points of its strings.
    Chars,
    /// Length of its list.
    ListLen,
    /// The number there.
    At(Pointer),
    /// Code points of a string or of the `text` of an object, length of a list of token ids, else one: what usage is split by.
    Text,
    /// About its tokens: length of a list of token ids, else a quarter of its bytes.
    Tokens,
}

/// When a field keeps a call alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AloneIf {
    /// It is there.
    Present,
    /// It is there and not null.
    Set,
    /// It is there and not `false`.
    NotFalse,
    /// It is one of these strings, as written.
    OneOf(&'static [&'static str]),
}

// === impl Shape ===

impl Shape {
    /// A shape with one list of items and one of results, and nothing else said.
    pub(crate) fn plain(items: &str, results: &str) -> Self {
        Self {
            items: vec![Pointer::known(items)],
            single: None,
            bare: Bare::Never,
            item_is: ItemIs::Element,
            class: Class::Strict(Scalars::Plain),
            results: Results::Lists(vec![Pointer::known(results)]),
            single_result: None,
            unwrap: false,
            sorted: false,
            index: None,
            element: Element::Any,
            per_item_error: None,
            ids: Vec::new(),
            id_from_request: false,
            counters: Counters::None,
            share_by: Measure::Items,
            weight: Measure::Items,
            known: &[],
            alone: &[],
            model: None,
            lenient: false,
            envelope: &[],
            upstream_path: None,
        }
    }
}
