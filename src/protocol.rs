//! Wire protocols as pure functions on bytes: which calls are recognised, what may share a batch, how calls are joined and answers cut.
//!
//! The way of a call: [`Routes::recognise`] finds its [`Endpoint`], [`Endpoint::read`] makes a [`Call`] of head and body, [`Endpoint::write_batch`]
//! makes one [`Outgoing`] of several calls with equal keys, and [`Endpoint::split_batch`] gives each its own [`Reply`]. What cannot be merged is
//! never an error: it is [`Merge::Alone`], with the reason.
//!
//! # Promises
//! * Items and results are spliced as raw bytes; no number is printed that was not counted here.
//! * Calls have equal keys only if everything but their items is equal; who calls stands in a key as a keyed digest only.
//! * Nobody gets a byte of an answer before all of it is validated.
//!
//! What it leaves out: sockets, time, tasks, and what is decided from a call (`batching`, `scheduler`, `upstream`).

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

pub use apart::{ClassName, KeyPart, PartKind, class_name};
pub(crate) use call::is_overload;
pub use call::{Call, Head, Merge, Mismatch, MismatchKind, Outgoing, Reason, Reply, TooLarge};
pub use dialect::Dialect;
pub use differ::{Differs, KEY_BYTES_MAX, Keys, PARTS_MAX, PartDigest};
pub use evidence::LoneEvidence;
pub use pointer::Pointer;
pub use route::{Common, Endpoint, Label, Named, PathPattern, RouteRules, Routes};
pub use secret::{Peer, Secret, Tenant};
pub use split::SharedAnswer;
pub use tei::{Published, model_named, published};

#[cfg(test)]
mod tests;
