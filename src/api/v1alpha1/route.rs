//! The keys of one route: `routes[]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    CostShare, DurationText, Idempotent, ItemClass, ItemIs, LimitsSpec, Mode, OnMismatch, OneOrMany, Port, Protocol,
    ResultWrap, Select, Slo, Word,
};

/// One route and how it is batched.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RouteSpec {
    /// The path, exact, or a prefix ending in `/*`. Required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The method.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Captured ports by number or name; empty: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ports: Option<Vec<Port>>,
    /// What is spoken there. Naming one is the opt-in where `Auto` only passes through; `Generic` needs `generic`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Word<Protocol>>,
    /// As `mode` above, for this route; absent: the policy's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Word<Mode>>,
    /// As `slo` above, for this route; absent: the policy's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slo: Option<Slo>,
    /// As `limits` above, for this route; a key that is absent: the policy's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<LimitsSpec>,
    /// What must be equal to share a batch, although it is ignored otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merge_on: Option<Fields>,
    /// What need not be equal to share a batch; it is dropped from a shared call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merge_over: Option<Fields>,
    /// What else of a shared answer every member may see.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub respond_with: Option<AnswerParts>,
    /// May the members of a failed batch be sent again alone: `Auto` says yes for known pure-inference routes and no for `Generic`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotent: Option<Word<Idempotent>>,
    /// From dispatch to the last byte of a shared or buffered answer (to the first byte of a stream), and the longest wait in the queue; 504 after it.
    /// Absent: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<DurationText>,
    /// How items and results are found in the JSON bodies; with protocol `Generic` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generic: Option<GenericSpec>,
}

/// Headers and body fields.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Fields {
    /// Header names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers: Option<Vec<String>>,
    /// JSON Pointers into the body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fields: Option<Vec<String>>,
}

/// Parts of the upstream's answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AnswerParts {
    /// Header names of the upstream's answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers: Option<Vec<String>>,
    /// JSON Pointers into the upstream's answer: members that are the same for every caller, such as a version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fields: Option<Vec<String>>,
}

/// A JSON protocol declared by pointers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GenericSpec {
    /// Where a batch is sent; absent: the path of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream_path: Option<String>,
    /// JSON Pointer to the list of items, or a list of pointers for parallel lists. Required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub items: Option<OneOrMany>,
    /// The form of a call with one item, where it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub single: Option<SingleSpec>,
    /// Which items may share a batch: `Strict` compares JSON types and fields, `Text` takes any strings, `None` compares nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item_class: Option<Word<ItemClass>>,
    /// JSON Pointer to the list of results, or a list of pointers; `""` is the whole answer. Required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub results: Option<OneOrMany>,
    /// JSON Pointer inside a result to the number of its item.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<String>,
    /// Results are a map by this field of the item; each value once in a batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result_key: Option<String>,
    /// `None`: the answer to a bare value is a bare result. `List`: it is a list of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result_wrap: Option<Word<ResultWrap>>,
    /// `Sorted`: results come sorted and carry an index, as from a reranker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub select: Option<Word<Select>>,
    /// How a result says that its item failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_item_error: Option<PerItemError>,
    /// JSON Pointers to ids of the batch that each caller gets afresh.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<Vec<String>>,
    /// Counters of the answer that are divided among the callers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<CostSpec>,
    /// What `batchWeightMax` counts: `Items`, `Bytes`, `Chars`, `ListLen`, or a JSON Pointer inside the item.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<String>,
    /// Answers that mean "batch too large", besides 413: a status, or `{status, bodyContains}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub too_large: Option<Vec<TooLargeSpec>>,
    /// Take `NaN` and `Infinity` as bare words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lenient_numbers: Option<bool>,
    /// When the answer to a batch cannot be split: `Isolate` sends again what may be sent again, `Fail` answers 502.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_mismatch: Option<Word<OnMismatch>>,
}

/// The form of a call with one item.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SingleSpec {
    /// JSON Pointer to the field that holds the one item.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub items: Option<String>,
    /// JSON Pointer to the field that holds the one result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub results: Option<String>,
    /// `items` may hold a bare value instead of a list. Needs `resultWrap`, or `single.results`: callers of the bare form expect the answer that the server
    /// gives to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wrap_scalar: Option<bool>,
    /// `ArrayOfNumbers`: a flat list of numbers is one item.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item_is: Option<Word<ItemIs>>,
}

/// How a result says that its item failed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PerItemError {
    /// JSON Pointer inside the result; where it is present, the item failed. Required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Status for the caller of that item.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
}

/// Counters of the answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CostSpec {
    /// JSON Pointers to counters that are totals over the batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub totals: Option<Vec<String>>,
    /// By what they are divided: `Bytes`, `Chars`, `ListLen`, or a JSON Pointer inside the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
    /// `Proportional` by weight; `Exact` where each result carries its own number; `Drop` leaves them out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<Word<CostShare>>,
}

/// An answer that means "batch too large".
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TooLargeSpec {
    /// Any answer with this status.
    Status(u16),
    /// An answer with this status whose body contains a text.
    #[serde(rename_all = "camelCase")]
    Body {
        /// The status.
        status: u16,
        /// What the body contains.
        body_contains: Option<String>,
    },
}
