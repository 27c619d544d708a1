//! Protocols as data: the positions of items and results, and the rules for merging and splitting
//! them.
//!
//! Every adapter is a [`ProtocolShape`]; the code that parses, merges and splits is independent of
//! the protocol. `generic` creates a shape from a policy, and the other adapters define constant
//! ones. Positions are JSON Pointers (RFC 6901) in the body of a call or of its response.

use crate::json::Base64Form;
use crate::pointer::Pointer;

/// The description of a protocol.
#[expect(clippy::struct_excessive_bools, reason = "a table of independent switches")]
#[derive(Debug, Clone)]
pub(crate) struct ProtocolShape {
    pub(crate) payload: Payload,
    /// Position of the items: a list, or several parallel lists that each have one part of every
    /// item, such as the first and the second text of pairs.
    pub(crate) items: Vec<Pointer>,
    /// Other positions in place of `items`. A call has items at one position only.
    pub(crate) alternatives: Vec<Vec<Pointer>>,
    /// `true` if a single value in the first list is combined with every value of the second one.
    pub(crate) repeats_first: bool,
    /// A field that holds a single item instead of `items[0]`.
    pub(crate) single: Option<Pointer>,
    /// Values that `items` may have in place of a list of one.
    pub(crate) bare: BareValue,
    /// Interpretation of a list at the position of the items.
    pub(crate) item_is: ItemIs,
    /// Property that the items of a batch must have in common.
    pub(crate) class: Class,
    pub(crate) results: ResultLayout,
    /// A tensor that a call may have in place of its items, and a response in place of its results.
    pub(crate) tensor: Option<TensorPointers>,
    /// Name of the results, in place of that of their list, for a client with a bare item or with
    /// `single`.
    pub(crate) single_result: Option<String>,
    /// `true` if a client with a bare item receives its result bare rather than as a list of one.
    pub(crate) unwrap: bool,
    /// `true` if the server sorts the results, for example by score. They keep that order.
    pub(crate) sorted: bool,
    /// The index of its item in each result; `None` if results have none.
    pub(crate) index: Option<ResultIndex>,
    /// A text that the server reads beside the items; `None` if there is none.
    pub(crate) shared_text: Option<SharedText>,
    /// Several results for each item; `None` if each item has one.
    pub(crate) generation: Option<TextGeneration>,
    /// Type that each result must have.
    pub(crate) element: ResultType,
    /// Position in a result of the error of an item that failed, and the status of the response to
    /// a call that consists of such an item.
    pub(crate) per_item_error: Option<(Pointer, u16)>,
    /// Ids of the whole response.
    pub(crate) ids: Vec<Pointer>,
    /// An id that a call may have, and that its response repeats. It is removed from shared calls.
    pub(crate) call_id: Option<Pointer>,
    /// The names of columns in a response, a list that every member of a shared call may receive.
    pub(crate) names: Option<Pointer>,
    /// `true` if an id consists of a prefix and the client's `x-request-id`, if it sent one (vLLM).
    pub(crate) id_from_request: bool,
    /// Counters of the whole response, which are divided among the members of a batch or removed.
    pub(crate) counters: Counters,
    /// Measure by which counters are divided.
    pub(crate) share_by: Measure,
    /// Measure of the weight of a batch.
    pub(crate) weight: Measure,
    /// Fields that the protocol defines. A key that differs from one of them only in case is
    /// ambiguous. Empty if the fields are unknown.
    pub(crate) known: &'static [&'static str],
    /// Fields that prevent merging.
    pub(crate) unbatched_fields: &'static [(&'static str, UnbatchedIf)],
    /// Positions of nested members that prevent merging if they are present.
    pub(crate) unbatched_members: &'static [&'static str],
    /// The field that names the model.
    pub(crate) model: Option<Pointer>,
    /// `true` if requests may have `NaN` and `Infinity` as numbers.
    pub(crate) lenient: bool,
    /// Members of a response, besides results, ids and counters, as names separated by slashes. Every
    /// member of a shared call may receive their scalar values.
    pub(crate) envelope: &'static [&'static str],
    /// Path of shared calls, if it differs from the path of their members.
    pub(crate) upstream_path: Option<ListPath>,
    /// `true` if the document of a call has one member, of any name, with the items as its value.
    pub(crate) is_sole_member: bool,
    /// `true` if the content type has the length of the document before tensors in binary form,
    /// instead of a header of its own (`SageMaker`).
    pub(crate) is_framed_by_type: bool,
}

/// Path of shared calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ListPath {
    /// This path.
    Whole(String),
    /// The path of the members with this suffix.
    Below(&'static str),
}

/// Form of the inputs and results of a protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Payload {
    /// Lists of items in one JSON document.
    Items,
    /// Tensors whose first dimension is the batch (`v2`). The positions of items and results in the
    /// shape are unused.
    Tensors,
    /// Such tensors in a message of gRPC (`v2::grpc`).
    GrpcTensors,
    /// A prompt, which is never merged (`generation`). The positions of items and results in the
    /// shape are unused.
    Generation(StreamRule),
}

/// Condition under which the response to a call for text is streamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamRule {
    /// The call requests a stream.
    IfRequested,
    /// The call does not decline a stream.
    UnlessDeclined,
    /// Always.
    Always,
}

/// Condition under which a bare value represents a list of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BareValue {
    Never,
    Strings,
    Always,
}

/// Interpretation of a list at the position of the items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ItemIs {
    /// A list of items.
    Element,
    /// A list of items, each of which is a list.
    Row,
    /// A single item if it consists of numbers, otherwise a list of items that are lists.
    Numbers,
    /// A single item if it consists of integers, which are token ids, otherwise a list of items.
    Tokens,
    /// A single item, which consists of one or two texts. Any other list holds such items.
    TextOrPair,
    /// A single item, always: the list is a conversation.
    Conversation,
}

/// Properties that the items of a batch must have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// The same types and shapes, recursively, as written by `json::class`.
    Strict(Base64Form),
    /// Strings, lists of token ids, or (if allowed) objects with the same keys.
    Text { objects: bool },
    /// Strings.
    Strings,
    /// Lists of strings.
    StringLists,
    /// Lists of objects.
    Conversations,
    /// No common property.
    None,
}

/// Position of the results.
#[derive(Debug, Clone)]
pub(crate) enum ResultLayout {
    /// Parallel arrays, one element for each item.
    Lists(Vec<Pointer>),
    /// The list at `at`, or, if there is an object, the lists in its members, which must have
    /// one of `names`; and the list at `echo` if it is present.
    Columns { at: Pointer, names: &'static [&'static str], echo: Pointer },
    /// A map at `at`, with the value at `key` of each item as the key of its result.
    Map { at: Pointer, key: Pointer },
}

/// Positions in a tensor without a name: an object with a shape and a flat list of numbers. Its
/// rows along the first dimension are items or results.
#[derive(Debug, Clone)]
pub(crate) struct TensorPointers {
    /// The object.
    pub(crate) at: Pointer,
    /// The list of dimensions.
    pub(crate) shape: Pointer,
    /// The list of numbers, row by row.
    pub(crate) values: Pointer,
}

/// Position of the item index inside a result.
#[derive(Debug, Clone)]
pub(crate) struct ResultIndex {
    pub(crate) at: Pointer,
    /// `true` if a response without any index has its results in the order of the items.
    pub(crate) optional: bool,
}

/// A text that the server reads beside the items, such as the query of a reranker.
#[derive(Debug, Clone)]
pub(crate) struct SharedText {
    pub(crate) at: Pointer,
    /// `true` if the server reads the text with each item, `false` if once in a call.
    pub(crate) with_each: bool,
}

/// Properties of a protocol that generates texts. The results of an item are consecutive, and
/// `completion_tokens` counts results rather than items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TextGeneration {
    /// Pointer to the number of results for each item.
    pub(crate) count: &'static str,
    pub(crate) token_ids: TokenIds,
    /// `true` if a result has the token ids of its item as well.
    pub(crate) has_prompt_ids: bool,
    /// `true` if the server can stream the results of several items.
    pub(crate) streams: bool,
    /// `true` if the last chunk of each result has the numbers of its tokens, requested or not.
    pub(crate) ends_with_counts: bool,
}

/// Token ids in the results of a server. A shared call requests them, because they show how many
/// tokens each member used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenIds {
    /// Not available.
    Unavailable,
    /// The members for them are null in a response to a call that did not request them (vLLM).
    NullUnlessRequested,
    /// The members for them are absent from such a response (SGLang).
    AbsentUnlessRequested,
}

/// Type that each result must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResultType {
    Any,
    Object,
    Array,
    String,
    Number,
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
        share: CostShare,
    },
}

/// Rule for dividing the counters of the response to a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CostShare {
    /// Counters are always divided, by the largest remainder method, and marked as estimated.
    #[default]
    Proportional,
    /// Counters are divided only if the shares are known. Calls for which they cannot be determined
    /// exactly do not share a batch.
    Exact,
    /// Counters are removed from batch responses.
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
    /// Number of code points of a string, of a list of strings, or of the `text` of an object,
    /// length of a list of token ids, else one. Usage counters are divided by it.
    Text,
    /// Number of tokens: length of a list of token ids, else estimated from the code points or counted
    /// (`tokens`).
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
    /// The field is set and differs from another one. Both are one by default.
    UnlessEqual(&'static str),
    /// The field is set and is not one.
    UnlessOne,
    /// The field is a list, with one value for each item.
    List,
    /// The field is one of these strings, as written.
    OneOf(&'static [&'static str]),
}

// === impl ProtocolShape ===

impl ProtocolShape {
    /// Returns all positions of the items.
    pub(crate) fn positions(&self) -> impl Iterator<Item = &[Pointer]> {
        std::iter::once(self.items.as_slice()).chain(self.alternatives.iter().map(Vec::as_slice))
    }

    /// Returns `true` if calls that request a stream may be merged.
    pub(crate) fn merges_streams(&self) -> bool {
        self.generation.is_some_and(|generation| generation.streams)
    }

    /// Creates a shape with one list of items, one list of results, and defaults for everything
    /// else.
    pub(crate) fn plain(items: &str, results: &str) -> Self {
        Self {
            payload: Payload::Items,
            items: vec![Pointer::from_static(items)],
            alternatives: Vec::new(),
            repeats_first: false,
            single: None,
            bare: BareValue::Never,
            item_is: ItemIs::Element,
            class: Class::Strict(Base64Form::Plain),
            results: ResultLayout::Lists(vec![Pointer::from_static(results)]),
            tensor: None,
            single_result: None,
            unwrap: false,
            sorted: false,
            index: None,
            shared_text: None,
            generation: None,
            element: ResultType::Any,
            per_item_error: None,
            ids: Vec::new(),
            call_id: None,
            names: None,
            id_from_request: false,
            counters: Counters::None,
            share_by: Measure::Items,
            weight: Measure::Items,
            known: &[],
            unbatched_fields: &[],
            unbatched_members: &[],
            model: None,
            lenient: false,
            envelope: &[],
            upstream_path: None,
            is_sole_member: false,
            is_framed_by_type: false,
        }
    }
}

// === impl TensorPointers ===

impl TensorPointers {
    /// Creates the positions in a tensor with the members `shape` and `values`.
    pub(crate) fn new(at: &str) -> Self {
        Self {
            at: Pointer::from_static(at),
            shape: Pointer::from_static(&format!("{at}/shape")),
            values: Pointer::from_static(&format!("{at}/values")),
        }
    }

    /// Returns the members of the object.
    pub(crate) fn members(&self) -> [&Pointer; 2] {
        [&self.shape, &self.values]
    }
}
