//! Metrics of calls and their items: outcomes, reasons, and whether SLOs were met.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{Counter, SharedString};
use strum::VariantArray as _;

use super::names::{EXPIRE_REASONS, Metric, Outcome, REJECT_REASONS, WaitReason};
use super::registry::Metrics;
use crate::error::FailureKind;

/// Counters of one protocol's calls.
#[derive(Clone)]
pub struct CallCounters {
    outcomes: [Counter; Outcome::VARIANTS.len()],
}

/// Counter of calls that were not merged for one reason.
#[derive(Clone)]
pub struct UnmergedCounter(Counter, Arc<AtomicU64>);

/// Counter of calls that no adapter recognised, for one cause. It has no series of its own, because
/// the causes only matter for advice.
#[derive(Debug, Clone)]
pub struct UnrecognisedCounter(Arc<AtomicU64>);

// === impl Metrics ===

impl Metrics {
    /// Returns the call counters of one protocol.
    #[must_use]
    pub fn call_counters(&self, protocol: &'static str) -> CallCounters {
        let outcomes = std::array::from_fn(|at| {
            let policy = self.shared.policy.clone();
            let values: [SharedString; 3] = [policy.into(), protocol.into(), Outcome::VARIANTS[at].as_str().into()];
            self.shared.recorder.counter(Metric::Calls, &values)
        });
        CallCounters { outcomes }
    }

    /// Returns the counter of calls that were not merged for `reason`.
    #[must_use]
    pub fn unmerged_counter(&self, reason: &'static str) -> UnmergedCounter {
        let counter = self.shared.recorder.counter(Metric::CallsPassed, &[reason.into()]);
        UnmergedCounter(counter, self.shared.passed.get_or_insert(reason))
    }

    /// Returns the number of calls that were not merged, by reason.
    #[must_use]
    pub fn unmerged_counts(&self) -> Vec<(&'static str, u64)> {
        self.shared.passed.counts()
    }

    /// Returns the counter of calls that no adapter recognised for `cause`.
    #[must_use]
    pub fn unrecognised_counter(&self, cause: &'static str) -> UnrecognisedCounter {
        UnrecognisedCounter(self.shared.unrecognised.get_or_insert(cause))
    }

    /// Returns the number of calls that no adapter recognised, by cause.
    #[must_use]
    pub fn unrecognised_counts(&self) -> Vec<(&'static str, u64)> {
        self.shared.unrecognised.counts()
    }

    /// Returns the number of calls that a route of the policy passed through, by route.
    #[must_use]
    pub fn passing_route_counts(&self) -> Vec<(String, u64)> {
        self.shared.passing_routes.counts()
    }

    /// Records calls that are dispatched after they waited for `reason`.
    pub fn record_held_calls(&self, reason: WaitReason, calls: u64) {
        self.shared.calls.held[reason as usize].increment(calls);
    }

    /// Records a call that is sent in parts.
    pub fn record_division(&self, parts: usize) {
        self.shared.calls.divided.increment(1);
        self.shared.calls.parts.increment(parts as u64);
    }

    /// Records the outcome of items.
    pub fn record_items(&self, outcome: Outcome, items: u32) {
        self.shared.calls.items[outcome as usize].increment(u64::from(items));
    }

    /// Records items that were rejected or expired, by reason.
    pub fn record_unserved_items(&self, outcome: Outcome, kind: FailureKind, items: u32) {
        let place = |kinds: &[FailureKind]| kinds.iter().position(|known| *known == kind);
        let counter = match outcome {
            Outcome::Rejected => place(&REJECT_REASONS).and_then(|at| self.shared.calls.rejected.get(at)),
            Outcome::Expired => place(&EXPIRE_REASONS).and_then(|at| self.shared.calls.expired.get(at)),
            _ => None,
        };
        if let Some(counter) = counter {
            counter.increment(u64::from(items));
        }
    }

    /// Records a completed call with an SLO.
    pub fn record_slo(&self, met: bool) {
        self.shared.calls.slo[usize::from(!met)].increment(1);
    }
}

// === impl CallCounters ===

impl CallCounters {
    /// Records the outcome of a call.
    pub fn record(&self, outcome: Outcome) {
        self.outcomes[outcome as usize].increment(1);
    }
}

impl fmt::Debug for CallCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CallCounters")
    }
}

// === impl UnmergedCounter ===

impl UnmergedCounter {
    /// Records one call.
    pub fn count(&self) {
        self.0.increment(1);
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for UnmergedCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UnmergedCounter")
    }
}

// === impl UnrecognisedCounter ===

impl UnrecognisedCounter {
    /// Records one call.
    pub fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
