//! What can be changed of the ledger's upstream while it runs, and the calls that it has seen, so that a test can tell when a change was noticed.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::LedgerMock;
use crate::standin::refusal::ListRefusal;
use crate::standin::time::{now, since};

/// Arrivals that are kept: minutes of what two cores can send. Later ones are not.
const ARRIVALS_MAX: usize = 1 << 17;

/// A call as it arrived upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Since the start of the upstream.
    pub at: Duration,
    /// Its items.
    pub items: usize,
    /// The clients' calls that it is made of.
    pub members: usize,
    /// Other calls in the house at that moment, computing or waiting.
    pub beside: u64,
    /// It had too many items.
    pub refused: bool,
}

/// The state behind the handles of [`LedgerMock`].
#[derive(Debug)]
pub(super) struct Changes {
    started: Instant,
    /// Which model answers: every release gives other results.
    pub(super) release: AtomicU64,
    /// Items that one call may have; more are answered a bare 413.
    pub(super) items_max: AtomicUsize,
    /// How calls that are made of several clients' calls are refused.
    lists: Mutex<Option<ListRefusal>>,
    /// The clients send nothing more.
    pub(super) enough: AtomicBool,
    arrivals: Mutex<Vec<Arrival>>,
}

// === impl Changes ===

impl Changes {
    pub(super) fn new() -> Self {
        Self {
            started: now(),
            release: AtomicU64::new(0),
            items_max: AtomicUsize::new(usize::MAX),
            lists: Mutex::default(),
            enough: AtomicBool::new(false),
            arrivals: Mutex::default(),
        }
    }

    pub(super) fn lists(&self) -> Option<ListRefusal> {
        *self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn arrived(&self, items: usize, members: usize, beside: u64, refused: bool) {
        let arrival = Arrival { at: since(self.started), items, members, beside, refused };
        let mut arrivals = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        if arrivals.len() < ARRIVALS_MAX {
            arrivals.push(arrival);
        }
    }
}

// === impl LedgerMock ===

impl LedgerMock {
    /// Another a and b of t(n) = a + b·n, for what starts from now on.
    pub fn set_curve(&self, base: Duration, per_item: Duration) {
        self.shared.model.set_curve(base, per_item);
    }

    /// Another number of calls computed at once; what is being computed goes on.
    pub fn set_slots(&self, slots: usize) {
        self.shared.model.set_slots(slots);
    }

    /// Another limit for the items of one call, told by a bare 413; `None`: any number.
    pub fn set_items_max(&self, items_max: Option<usize>) {
        self.shared.changes.items_max.store(items_max.unwrap_or(usize::MAX), Ordering::Relaxed);
    }

    /// From now on a call that is made of several clients' calls is refused in this way, as a
    /// server does that takes what one client sends and nothing larger; `None`: it is taken.
    pub fn refuse_shared(&self, how: Option<ListRefusal>) {
        *self.shared.changes.lists.lock().unwrap_or_else(PoisonError::into_inner) = how;
    }

    /// Another model from now on: the right answer to every item is another one. Calls that are on their way may get either.
    pub fn replace_model(&self) {
        self.shared.changes.release.fetch_add(1, Ordering::SeqCst);
    }

    /// The clients of the run make no further call.
    pub fn enough(&self) {
        self.shared.changes.enough.store(true, Ordering::Relaxed);
    }

    /// The time on the clock of [`LedgerMock::arrivals`].
    #[must_use]
    pub fn clock(&self) -> Duration {
        since(self.shared.changes.started)
    }

    /// The calls that arrived in this span of time.
    #[must_use]
    pub fn arrivals(&self, span: std::ops::Range<Duration>) -> Vec<Arrival> {
        let arrivals = self.shared.changes.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        arrivals.iter().filter(|arrival| span.contains(&arrival.at)).copied().collect()
    }
}
