//! Counters of a simulated server: atomics that its calls increment, their snapshot with the
//! difference to an earlier one, and the guard of a call in the server.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// Counters of a simulated server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStats {
    /// Number of connections accepted.
    pub connections: u64,
    /// Number of calls answered with 200.
    pub calls: u64,
    /// Number of items in those calls.
    pub items: u64,
    /// Number of calls answered with 503 because the queue was full.
    pub refused: u64,
    /// Number of calls with more items than the limit.
    pub too_large: u64,
    /// Number of calls that were malformed or poisoned.
    pub failed: u64,
    /// Number of calls that were refused because they contained more than one item.
    #[serde(default)]
    pub lists: u64,
    /// Maximum number of calls that were in the server at once, running or waiting.
    #[serde(default)]
    pub in_flight_max: u64,
    /// Numbers of calls answered with 200, indexed by their number of items.
    pub sizes: Vec<u64>,
}

/// Counters that are incremented while the server runs.
#[derive(Debug, Default)]
pub(super) struct ServerCounters {
    pub(super) connections: AtomicU64,
    pub(super) items: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) too_large: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) lists: AtomicU64,
    in_flight: AtomicU64,
    pub(super) in_flight_max: AtomicU64,
}

/// Guard that counts a call as in the server until it is dropped.
pub(super) struct InFlightGuard<'a>(&'a ServerCounters);

// === impl ServerStats ===

impl ServerStats {
    /// Returns the mean number of items in a call.
    #[must_use]
    pub fn items_per_call(&self) -> f64 {
        if self.calls == 0 { 0.0 } else { self.items as f64 / self.calls as f64 }
    }

    /// Returns the difference between these counters and `earlier` ones. The maximum in flight stays
    /// that since the start.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |size: usize| earlier.sizes.get(size).copied().unwrap_or_default();
        Self {
            connections: self.connections - earlier.connections,
            calls: self.calls - earlier.calls,
            items: self.items - earlier.items,
            refused: self.refused - earlier.refused,
            too_large: self.too_large - earlier.too_large,
            failed: self.failed - earlier.failed,
            lists: self.lists - earlier.lists,
            in_flight_max: self.in_flight_max,
            sizes: self.sizes.iter().enumerate().map(|(size, count)| count - before(size)).collect(),
        }
    }
}

// === impl InFlightGuard ===

impl<'a> InFlightGuard<'a> {
    pub(super) fn new(counts: &'a ServerCounters) -> Self {
        let now = counts.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        counts.in_flight_max.fetch_max(now, Ordering::Relaxed);
        Self(counts)
    }
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}
