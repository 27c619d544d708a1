//! Reporting of invariant violations.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use groupage::batching::{CallId, InvariantId};

/// A violated invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) invariant: InvariantId,
    pub(crate) how: String,
}

/// Result of a check.
pub(crate) type CheckResult = Result<(), Violation>;

/// Checks an invariant; `how` describes the violation.
pub(crate) fn ensure_invariant(invariant: InvariantId, held: bool, how: impl FnOnce() -> String) -> CheckResult {
    if held { Ok(()) } else { Err(Violation { invariant, how: how() }) }
}

/// Runs a simulation and turns a panic of the core into a violated invariant, so that the record of
/// the events up to it is kept.
pub(crate) fn catch_panic(run: impl FnOnce() -> CheckResult) -> CheckResult {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let how = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_default();
        Err(Violation { invariant: InvariantId::Ends, how: format!("panicked: {how}") })
    })
}

/// Checks that no call and no batch is left: `fates` has the end of each accepted call.
pub(crate) fn check_all_ended(fates: &BTreeMap<CallId, Option<&'static str>>, batches_in_flight: usize) -> CheckResult {
    let stuck: Vec<_> = fates.iter().filter(|(_, fate)| fate.is_none()).map(|(id, _)| id.0).collect();
    ensure_invariant(InvariantId::LeavesOnce, stuck.is_empty(), || {
        format!("calls {stuck:?} were accepted and never ended")
    })?;
    ensure_invariant(InvariantId::Balanced, batches_in_flight == 0, || {
        format!("{batches_in_flight} batches never ended")
    })
}

/// Number of occurrences of each situation, so that a run can be checked for coverage.
pub(crate) type Coverage = BTreeMap<&'static str, u64>;

/// Abort of a batch in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AbortState {
    /// A member still waits, or all were answered.
    No,
    /// The last waiting member was cancelled, so that the core must abort the batch.
    Due,
    /// The core has aborted the batch.
    Reported,
}
