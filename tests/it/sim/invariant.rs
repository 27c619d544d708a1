//! Reporting of invariant violations.

use std::collections::BTreeMap;

use groupage::batching::InvariantId;

/// A violated invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) promise: InvariantId,
    pub(crate) how: String,
}

/// Result of a check.
pub(crate) type CheckResult = Result<(), Violation>;

/// Checks an invariant; `how` describes the violation.
pub(crate) fn ensure_invariant(promise: InvariantId, held: bool, how: impl FnOnce() -> String) -> CheckResult {
    if held { Ok(()) } else { Err(Violation { promise, how: how() }) }
}

/// Number of occurrences of each situation, so that a run can be checked for coverage.
pub(crate) type Coverage = BTreeMap<&'static str, u64>;
