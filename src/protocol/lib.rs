//! Wire protocol adapters as pure functions on bytes: route recognition, parsing, merge keys,
//! merging of requests and splitting of responses.
//!
//! A call takes four steps. [`Routes::recognise`] finds its [`Endpoint`], [`Endpoint::parse_call`] turns
//! head and body into a [`Call`], [`Endpoint::write_batch`] writes one [`SharedRequest`] for
//! several calls with equal merge keys, and [`Endpoint::split_batch`] produces one [`Reply`] for
//! each of them; the streamed response to a shared call is split by [`StreamSplit`], chunk by chunk.
//! A call that cannot be merged is never an error: it is [`MergeEligibility::Unbatched`], with the
//! reason. A call that is too large is divided ([`Endpoint::divide_call`]), and the responses to its
//! parts are joined ([`Endpoint::join_answers`]).
//!
//! # Guarantees
//! * Items and results are spliced as raw bytes. The only numbers that are written anew are
//!   counters and indexes computed here.
//! * Two calls have equal keys only if everything except their items is equal. The identity of the
//!   client enters a key only as a keyed digest.
//! * No byte of a batch response reaches a client before the whole response is validated; of a
//!   stream, before the chunk is validated.
//!
//! Sockets, timers and tasks are left out, and so are the decisions that are made about a call
//! (`batching`, `scheduler`, `upstream`).

pub mod error;

use groupage_batching as batching;

mod key_parts;
mod attachment;
mod call;
mod bentoml;
mod cohere;
mod call_form;
mod comparison;
mod dialect;
mod division;
mod key_diff;
mod engines;
mod evidence;
mod ids;
mod generation;
pub mod generic;
mod head;
pub mod headers;
mod items;
mod json;
mod merge_key;
mod kserve;
mod mlflow;
mod ollama;
mod limit_errors;
mod merge;
mod openai;
mod pointer;
mod pooling;
mod parse;
mod published;
mod limits_source;
mod response_status;
mod route;
mod identity;
mod sagemaker;
mod seldon;
mod sglang;
mod shape;
mod spacing;
mod split;
mod stream_options;
mod tei;
mod tokens;
mod usage;
mod v2;

pub use attachment::CallAttachment;
pub use call::is_overload;
pub use call::{
    BatchTooLarge, Call, MergeEligibility, MismatchKind, Reply, RequestHead, ResponseMismatch, SharedRequest,
    UnmergeableReason,
};
pub use call_form::CallForm;
pub use comparison::{AnswerComparison, AnswerContent, AnswerDifference, DifferenceKind, ROUNDING_MAX};
pub use dialect::Dialect;
pub use division::{CALL_PARTS_MAX, DivisionPlan};
pub use engines::is_engine;
pub use evidence::UnbatchedEvidence;
pub use generation::{OutputMeter, TokenCounts};
pub use identity::{DigestKey, PeerIdentity, Tenant};
pub use key_diff::{DifferingPart, KEY_BYTES_MAX, PARTS_MAX, PartDigest, RecentKeys};
pub use key_parts::{CostClassName, KeyPart, PartKind, decode_cost_class};
pub use limits_source::LimitsSource;
pub use pointer::Pointer;
pub use published::{ModelKind, NotJson, PublishedLimits};
pub use route::{
    DIVISIBLE_ITEMS_MAX, Endpoint, MergeRule, PathPattern, ProtocolLabel, RouteProtocol, RouteRules, Routes,
    SharedHeaderRules, UnrecognisedCall, UnrecognisedCause,
};
pub use split::{BatchResponse, FirstChunk, PartAnswer, StreamSplit, StreamStep};
pub use tei::parse_info_model;
pub use tokens::{TokenCalibration, TokenCounter, TokenSample};

#[cfg(test)]
mod tests;
