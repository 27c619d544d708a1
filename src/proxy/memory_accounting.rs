//! Accounting of memory that a client connection holds in addition to its calls: an incomplete
//! HTTP/1 head, and response bytes that are not written to the client yet.
//!
//! hyper and `h2` buffer these bytes without exposing their number. They are counted where bytes
//! are read from the client and written to it, and charged to the memory budget beyond
//! [`FREE_BYTES`]. If the budget is exhausted, the connection that has held most of it for longest
//! is closed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

use super::activity::ConnectionActivity;
use crate::memory::{BufferBudget, BufferGuard, HoldPhase};

/// Bytes covered by the fixed share of each connection (`memory`): hyper's first read buffer and a
/// typical response.
const FREE_BYTES: usize = 8 << 10;
/// Granularity of charges, so that a small call does not change the charge.
const CHARGE_STEP: usize = 16 << 10;

/// Memory accounting of one client connection.
#[derive(Debug)]
pub(super) struct ConnectionMemory {
    activity: Arc<ConnectionActivity>,
    budget: BufferBudget,
    /// Closes the connection when its charge is evicted.
    evictor: Waker,
    /// Number of bytes in `charge`.
    charged: AtomicUsize,
    charge: Mutex<Option<BufferGuard>>,
}

// === impl ConnectionMemory ===

impl ConnectionMemory {
    pub(super) fn new(budget: &BufferBudget, activity: &Arc<ConnectionActivity>) -> Arc<Self> {
        Arc::new(Self {
            activity: activity.clone(),
            budget: budget.clone(),
            evictor: activity.eviction_waker(),
            charged: AtomicUsize::new(0),
            charge: Mutex::new(None),
        })
    }

    /// Registers the charge of a response for eviction, which closes the connection. Small charges
    /// are not worth an entry in the list.
    pub(super) fn register_for_eviction(&self, held: &mut BufferGuard) {
        if held.bytes() <= FREE_BYTES {
            return;
        }
        held.register_waker(&self.evictor);
        held.set_phase(HoldPhase::Client);
    }

    /// Returns the maximum number of bytes of one read.
    pub(super) fn read_max(&self) -> usize {
        self.budget.read_max()
    }

    /// Records response bytes passed to hyper. On HTTP/2 these are the last of a response, which
    /// has a charge of its own until then.
    pub(super) fn on_passed_to_hyper(&self, bytes: usize) {
        self.activity.unsent().fetch_add(bytes, Ordering::Relaxed);
        self.update_charge();
    }

    pub(super) fn on_written(&self, bytes: usize) {
        let unsent = self.activity.unsent();
        if unsent.load(Ordering::Relaxed) > 0 {
            let lower = |before: usize| Some(before.saturating_sub(bytes));
            unsent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lower).ok();
            self.update_charge();
        }
    }

    /// Adjusts the charge to the bytes held.
    pub(super) fn update_charge(&self) {
        if self.target_charge() == self.charged.load(Ordering::Relaxed) {
            return;
        }
        let mut charge = self.charge.lock().unwrap_or_else(PoisonError::into_inner);
        // HTTP/2 streams run in tasks of their own, so the value may have changed in the meantime.
        let target = self.target_charge();
        self.charged.store(target, Ordering::Relaxed);
        if target == 0 {
            *charge = None;
            return;
        }
        let held = charge.get_or_insert_with(|| self.budget.empty());
        held.register_waker(&self.evictor);
        held.on_move();
        held.set_bytes(target);
    }

    /// Returns the number of bytes to charge.
    fn target_charge(&self) -> usize {
        let holds = self.activity.head_bytes() + self.activity.unsent().load(Ordering::Relaxed);
        if holds <= FREE_BYTES { 0 } else { holds.next_multiple_of(CHARGE_STEP) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batching::Tick;
    use crate::clock::Clock;

    fn accounting(max: usize) -> (Arc<ConnectionMemory>, BufferBudget, Arc<ConnectionActivity>) {
        let clock = Clock::start();
        let (budget, activity) = (BufferBudget::new(max, clock), ConnectionActivity::new(clock));
        (ConnectionMemory::new(&budget, &activity), budget, activity)
    }

    #[test]
    fn held_bytes_are_charged_in_steps_and_released() {
        let (accounting, budget, _) = accounting(1 << 20);
        accounting.on_passed_to_hyper(100);
        assert_eq!(budget.held(), 0);
        accounting.on_passed_to_hyper(100_000);
        accounting.on_written(50_000);
        assert_eq!(budget.held(), 4 * CHARGE_STEP);
        accounting.on_written(60_000);
        assert_eq!(budget.held(), 0);
    }

    #[test]
    fn heads_of_http1_are_charged_until_their_call_begins() {
        let (accounting, budget, activity) = accounting(1 << 20);
        activity.on_read(&[b'a'; 30_000]);
        accounting.update_charge();
        assert_eq!(budget.held(), 2 * CHARGE_STEP);
        let (_call, head_bytes, _) = activity.on_call_start(false);
        accounting.update_charge();
        assert_eq!((budget.held(), head_bytes), (0, 30_000));
    }

    #[test]
    fn the_connection_that_holds_most_is_closed_if_the_budget_is_full() {
        let (large, budget, ending) = accounting(100 << 10);
        large.on_passed_to_hyper(90_000);
        let activity = ConnectionActivity::new(Clock::start());
        let small = ConnectionMemory::new(&budget, &activity);
        small.on_passed_to_hyper(20_000);
        let limits = crate::activity::tests::limits();
        assert_eq!(ending.next_timeout(&limits), crate::activity::TimeoutAction::Close(Tick(0)));
        assert_ne!(activity.next_timeout(&limits), crate::activity::TimeoutAction::Close(Tick(0)));
    }
}
