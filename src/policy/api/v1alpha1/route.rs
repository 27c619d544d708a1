//! Keys of a route: `routes[]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    CostShare, DurationText, Idempotent, ItemClass, ItemForm, LimitsSpec, MergeRule, Mode, OnMismatch, OneOrMany,
    OpenEnum, PortRef, Protocol, ResultForm, ResultOrder, Slo,
};

optional_keys! {
    /// A route and the batching of its calls.
    pub struct RouteSpec {
        /// Path of the route: an exact path, or a prefix that ends in `/*`. Required.
        pub path: Option<String>,
        /// HTTP method of the route.
        pub method: Option<String>,
        /// Captured ports to which the route applies, by number or name. If empty, it applies to
        /// all.
        pub ports: Option<Vec<PortRef>>,
        /// Protocol of the route. Some routes are only batched if their protocol is named here,
        /// because `Auto` passes them through. `Generic` requires `generic`.
        pub protocol: Option<OpenEnum<Protocol>>,
        /// Operating mode of the route, see `mode`. If absent, the mode of the policy applies.
        pub mode: Option<OpenEnum<Mode>>,
        /// Latency objective of the route, see `slo`. If absent, the objective of the policy
        /// applies.
        pub slo: Option<Slo>,
        /// Limits of the route, see `limits`. Absent keys are taken from the limits of the policy.
        pub limits: Option<LimitsSpec>,
        /// Headers and fields that must be equal in calls that share a batch, although they are
        /// ignored by default.
        pub merge_on: Option<MergeFields>,
        /// Headers and fields that may differ in calls that share a batch. They are removed from
        /// shared calls.
        pub merge_over: Option<MergeFields>,
        /// Headers and fields of a shared response that every member receives, in addition to its
        /// own results.
        pub respond_with: Option<ResponseParts>,
        /// Rule for merging calls of the route. `Auto` merges where that is measured to pay.
        /// `Always` needs no measurement, and also merges before a server that batches by itself.
        /// `Never` queues calls and sends them one by one.
        pub merge: Option<OpenEnum<MergeRule>>,
        /// Permission to retry the members of a failed batch individually. `Auto` allows it on
        /// known routes of pure inference, but not with the protocols `Generic` and `BentoML`.
        pub idempotent: Option<OpenEnum<Idempotent>>,
        /// Maximum time from dispatch to the last byte of a shared or buffered response, or to the
        /// first byte of a stream. It is also the maximum time in the queue. Calls that exceed it
        /// are answered with 504. If absent, the time is not limited.
        pub timeout: Option<DurationText>,
        /// Path of the model's `tokenizer.json`, with which the tokens of texts are counted. If
        /// absent, they are estimated from the tokens that responses report. It requires a binary
        /// that is built with the feature `tokenizer` or `engine`, as that of the image.
        pub tokenizer: Option<String>,
        /// Locations of items and results in JSON bodies. Only valid with the protocol `Generic`.
        pub generic: Option<GenericSpec>,
    }

    /// Request headers and body fields.
    pub struct MergeFields {
        /// Names of request headers.
        pub headers: Option<Vec<String>>,
        /// JSON Pointers into the request body.
        pub fields: Option<Vec<String>>,
    }

    /// Headers and fields of the upstream response.
    pub struct ResponseParts {
        /// Names of response headers.
        pub headers: Option<Vec<String>>,
        /// JSON Pointers into the response body, to fields that are identical for all callers, such
        /// as a version.
        pub fields: Option<Vec<String>>,
    }

    /// A JSON protocol that is declared by JSON Pointers (RFC 6901).
    pub struct GenericSpec {
        /// Path to which batches are sent. If absent, it is the path of the call.
        pub upstream_path: Option<String>,
        /// JSON Pointer to the list of items, or a list of pointers to parallel lists. Required.
        pub items: Option<OneOrMany>,
        /// Form of calls with a single item, if it differs.
        pub single: Option<SingleSpec>,
        /// Items that can share a batch. `Strict` requires equal JSON types, and equal fields in
        /// the same order, `Text` accepts any strings, and `None` does not compare items.
        pub item_class: Option<OpenEnum<ItemClass>>,
        /// JSON Pointer to the list of results, or a list of pointers. `""` is the whole response.
        /// Required.
        pub results: Option<OneOrMany>,
        /// JSON Pointer, inside a result, to the index of its item.
        pub index: Option<String>,
        /// Field of an item by which results are keyed, if they are a map. Each value occurs once
        /// in a batch.
        pub result_key: Option<String>,
        /// Form of the response to a bare value. `None` returns a bare result, `List` a list of one
        /// result.
        pub result_wrap: Option<OpenEnum<ResultForm>>,
        /// Order of results. `Sorted` means that results are sorted and carry an index, as from a
        /// reranker.
        pub select: Option<OpenEnum<ResultOrder>>,
        /// Representation of the failure of a single item.
        pub per_item_error: Option<PerItemError>,
        /// JSON Pointers to IDs of the batch. Each caller receives newly generated IDs.
        pub id: Option<Vec<String>>,
        /// Counters in the response that are divided among the callers.
        pub cost: Option<CostSpec>,
        /// Unit of `batchWeightMax`: `Items`, `Bytes`, `Chars`, `ListLen`, or a JSON Pointer inside
        /// the item.
        pub weight: Option<String>,
        /// Responses that mean that the batch is too large, in addition to 413: a status, or a map
        /// of `status` and `bodyContains`.
        pub too_large: Option<Vec<TooLargeSpec>>,
        /// Acceptance of `NaN` and `Infinity` as numbers.
        pub lenient_numbers: Option<bool>,
        /// Handling of a batch response that cannot be split. `Isolate` retries the members that
        /// may be retried, `Fail` answers them with 502.
        pub on_mismatch: Option<OpenEnum<OnMismatch>>,
    }

    /// Form of calls with a single item.
    pub struct SingleSpec {
        /// JSON Pointer to the field that contains the item.
        pub items: Option<String>,
        /// JSON Pointer to the field that contains the result.
        pub results: Option<String>,
        /// Permission for `items` to contain a bare value instead of a list. Requires `resultWrap`
        /// or `single.results`, because callers that send a bare value expect the response form
        /// that the server uses for it.
        pub wrap_scalar: Option<bool>,
        /// Form of an item. With `ArrayOfNumbers`, a flat list of numbers is one item.
        pub item_is: Option<OpenEnum<ItemForm>>,
    }

    /// Representation of the failure of a single item.
    pub struct PerItemError {
        /// JSON Pointer inside the result. If the field is present, the item failed. Required.
        pub field: Option<String>,
        /// Status code of the response to the caller of the failed item.
        pub status: Option<u16>,
    }

    /// Division of the counters in a response.
    pub struct CostSpec {
        /// JSON Pointers to counters that are totals of the batch.
        pub totals: Option<Vec<String>>,
        /// Weight by which the counters are divided: `Bytes`, `Chars`, `ListLen`, or a JSON Pointer
        /// inside the result.
        pub weights: Option<String>,
        /// Method of division. `Proportional` divides by weight, `Exact` uses the number in each
        /// result, and `Drop` removes the counters.
        pub share: Option<OpenEnum<CostShare>>,
    }
}

/// A response that means that the batch is too large.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TooLargeSpec {
    /// Any response with this status.
    Status(u16),
    /// A response with this status and a body that contains a text.
    #[serde(rename_all = "camelCase")]
    Body {
        /// Status code.
        status: u16,
        /// Text that the body contains.
        body_contains: Option<String>,
    },
}
