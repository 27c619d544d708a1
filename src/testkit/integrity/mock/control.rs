//! Run-time changes of the ledger's upstream, and a log of arrived calls from which a test can
//! determine when the proxy noticed a change.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::LedgerMock;
use crate::refusal::ListResponse;
use crate::time::{elapsed_since, now};

/// Maximum number of logged arrivals, which is some minutes of what two cores can send. Later
/// arrivals are not logged.
const ARRIVALS_MAX: usize = 1 << 17;

/// A call as it arrived upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpstreamArrival {
    /// Time of arrival since the start of the upstream.
    pub at: Duration,
    /// Number of items in the call.
    pub items: usize,
    /// Number of client calls that it contains.
    pub members: usize,
    /// Number of other calls that were being computed or waiting at that time.
    pub beside: u64,
    /// `true` if the call was refused because it had too many items.
    pub refused: bool,
}

/// Changeable state behind the methods of [`LedgerMock`].
#[derive(Debug)]
pub(super) struct MockSettings {
    started: Instant,
    /// Number of the current model release. Each release produces different results.
    pub(super) release: AtomicU64,
    /// Maximum number of items in one call. Larger calls are answered with 413 without a message.
    pub(super) items_max: AtomicUsize,
    /// Response to calls that contain several client calls; `None` to accept them.
    shared_refusal: Mutex<Option<ListResponse>>,
    /// `true` if the clients make no further calls.
    pub(super) enough: AtomicBool,
    arrivals: Mutex<Vec<UpstreamArrival>>,
}

// === impl MockSettings ===

impl MockSettings {
    pub(super) fn new() -> Self {
        Self {
            started: now(),
            release: AtomicU64::new(0),
            items_max: AtomicUsize::new(usize::MAX),
            shared_refusal: Mutex::default(),
            enough: AtomicBool::new(false),
            arrivals: Mutex::default(),
        }
    }

    pub(super) fn shared_refusal(&self) -> Option<ListResponse> {
        *self.shared_refusal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn record_arrival(&self, items: usize, members: usize, beside: u64, refused: bool) {
        let arrival = UpstreamArrival { at: elapsed_since(self.started), items, members, beside, refused };
        let mut arrivals = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        if arrivals.len() < ARRIVALS_MAX {
            arrivals.push(arrival);
        }
    }
}

// === impl LedgerMock ===

impl LedgerMock {
    /// Replaces a and b of t(n) = a + b·n for executions that start from now on.
    pub fn set_curve(&self, base: Duration, per_item: Duration) {
        self.shared.model.set_curve(base, per_item);
    }

    /// Changes the number of calls computed concurrently. Running computations are not interrupted.
    pub fn set_slots(&self, slots: usize) {
        self.shared.model.set_slots(slots);
    }

    /// Changes the maximum number of items in one call. Larger calls are answered with 413 without
    /// a message. `None` removes the limit.
    pub fn set_items_max(&self, items_max: Option<usize>) {
        self.shared.changes.items_max.store(items_max.unwrap_or(usize::MAX), Ordering::Relaxed);
    }

    /// Refuses calls that contain several client calls from now on, like a server that accepts what
    /// one client sends but nothing larger. `None` accepts them again.
    pub fn refuse_shared(&self, how: Option<ListResponse>) {
        *self.shared.changes.shared_refusal.lock().unwrap_or_else(PoisonError::into_inner) = how;
    }

    /// Replaces the model from now on, which changes the correct result of every item. Calls in
    /// flight may receive the result of either model.
    pub fn replace_model(&self) {
        self.shared.changes.release.fetch_add(1, Ordering::SeqCst);
    }

    /// Signals the clients of the run to make no further calls.
    pub fn stop_clients(&self) {
        self.shared.changes.enough.store(true, Ordering::Relaxed);
    }

    /// Returns the current time on the clock of [`LedgerMock::arrivals`].
    #[must_use]
    pub fn clock(&self) -> Duration {
        elapsed_since(self.shared.changes.started)
    }

    /// Returns the calls that arrived within `span`.
    #[must_use]
    pub fn arrivals(&self, span: std::ops::Range<Duration>) -> Vec<UpstreamArrival> {
        let arrivals = self.shared.changes.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        arrivals.iter().filter(|arrival| span.contains(&arrival.at)).copied().collect()
    }
}
