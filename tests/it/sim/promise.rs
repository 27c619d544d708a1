//! How a broken promise is told.

use std::collections::BTreeMap;

use groupage::batching::InvariantId;

/// A promise that did not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Broken {
    pub(crate) promise: InvariantId,
    pub(crate) how: String,
}

/// Whether a promise held.
pub(crate) type Held = Result<(), Broken>;

/// Holds a promise against what was seen.
pub(crate) fn promise(promise: InvariantId, held: bool, how: impl FnOnce() -> String) -> Held {
    if held { Ok(()) } else { Err(Broken { promise, how: how() }) }
}

/// How often a thing happened, so that a run can be asked what it touched.
pub(crate) type Tally = BTreeMap<&'static str, u64>;
