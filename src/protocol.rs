//! Wire protocol adapters as pure functions on bytes: route recognition, parsing, merge keys,
//! merging of requests and splitting of responses.
//!
//! A call takes four steps. [`Routes::recognise`] finds its [`Endpoint`], [`Endpoint::read`] turns
//! head and body into a [`Call`], [`Endpoint::write_batch`] writes one [`SharedRequest`] for
//! several calls with equal merge keys, and [`Endpoint::split_batch`] produces one [`Reply`] for
//! each of them. A call that cannot be merged is never an error: it is [`MergeEligibility::Alone`],
//! with the reason.
//!
//! # Guarantees
//! * Items and results are spliced as raw bytes. The only numbers that are written anew are
//!   counters and indexes computed here.
//! * Two calls have equal keys only if everything except their items is equal. The identity of the
//!   client enters a key only as a keyed digest.
//! * No byte of a batch response reaches a client before the whole response is validated.
//!
//! Sockets, timers and tasks are left out, and so are the decisions that are made about a call
//! (`batching`, `scheduler`, `upstream`).

mod apart;
mod call;
mod dialect;
mod differ;
mod evidence;
mod fresh;
pub mod generic;
mod head;
pub mod headers;
mod items;
mod json;
mod key;
mod kserve;
mod limits;
mod merge;
mod openai;
mod pointer;
mod read;
mod route;
mod secret;
mod shape;
mod split;
mod tei;
mod usage;

pub use apart::{CostClassName, KeyPart, PartKind, class_name};
pub(crate) use call::is_overload;
pub use call::{
    BatchTooLarge, Call, MergeEligibility, MismatchKind, Reply, RequestHead, ResponseMismatch, SharedRequest,
    UnmergeableReason,
};
pub use dialect::Dialect;
pub use differ::{DifferingPart, KEY_BYTES_MAX, PARTS_MAX, PartDigest, RecentKeys};
pub use evidence::UnbatchedEvidence;
pub use pointer::Pointer;
pub use route::{Endpoint, PathPattern, ProtocolLabel, RouteProtocol, RouteRules, Routes, SharedHeaderRules};
pub use secret::{DigestKey, PeerIdentity, Tenant};
pub use split::BatchResponse;
pub use tei::{PublishedLimits, model_named, published};

#[cfg(test)]
mod tests;
