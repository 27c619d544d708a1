//! Reporting of invariant violations.

use std::collections::BTreeMap;

use groupage::batching::InvariantId;

/// A violated invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Broken {
    pub(crate) promise: InvariantId,
    pub(crate) how: String,
}

/// Result of a check.
pub(crate) type Held = Result<(), Broken>;

/// Checks an invariant; `how` describes the violation.
pub(crate) fn promise(promise: InvariantId, held: bool, how: impl FnOnce() -> String) -> Held {
    if held { Ok(()) } else { Err(Broken { promise, how: how() }) }
}

/// Number of occurrences of each situation, so that a run can be checked for coverage.
pub(crate) type Tally = BTreeMap<&'static str, u64>;
