//! Statistics of decisions and their causes, for metrics and for reports of the limits that bind.
//!
//! Totals since the start are exported as counters. The limits that bind *now* are derived from the
//! counts of a cost class. These are halved now and then (exponential decay), so they cover the
//! last one to two thousand batches or the last one to two minutes, whichever is less, and a change
//! shows within that time.
//!
//! No decision depends on these numbers. The learned state of the upstream is in `adaptive`.

use std::collections::BTreeMap;
use std::time::Duration;

use super::batch::{DispatchCause, ExpiryReason, UnbatchedReason};
use super::call::{CostClassId, RejectionReason};
use super::tick::{Tick, nanos};

/// Minimum number of recent batches that the counts of a class cover; they are halved at twice this
/// number.
const RECENT: u64 = 1000;
/// Minimum time that the counts of a class cover, unless there are more than [`RECENT`] batches in
/// it; they are halved at twice this time.
const RECENT_TIME: Duration = Duration::from_secs(60);
/// Counts of fewer than twice this number of batches are kept whatever their age: means of less are
/// not significant.
const RECENT_MIN: u64 = 32;
/// Maximum number of cost classes with counts: the number of cost curves. Beyond it the least
/// recently used one is dropped.
const CLASSES_MAX: usize = 64;

/// The reason for holding a key's queue, deliberately or for lack of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HoldReason {
    /// Arrivals are expected: clients that return, or the rest of a burst.
    Gather,
    /// The plan waits for the next arrival.
    Plan,
    /// The preset spends a part of the SLO on a larger batch.
    Preset,
    /// Every slot is busy.
    SlotBusy,
}

/// Totals since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DispatchTotals {
    /// Executions, in the order of [`DispatchCause::ALL`].
    pub causes: [u64; DispatchCause::ALL.len()],
    /// Holds, in the order of [`HoldReason::ALL`]. A queue that is held for several reasons in turn
    /// counts once for each.
    pub holds: [u64; HoldReason::ALL.len()],
    /// Rejected items, in the order of [`RejectionReason::ALL`].
    pub rejected: [u64; RejectionReason::ALL.len()],
    /// Expired items, in the order of [`ExpiryReason::ALL`].
    pub expired: [u64; ExpiryReason::ALL.len()],
}

/// Counts of one cost class over its last one to two thousand batches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClassStats {
    /// Start of the covered period. It moves along as the counts are halved, so that counts over
    /// time are rates.
    pub since: Tick,
    /// Batches of mergeable calls, including those of one call.
    pub batches: u64,
    /// Calls of these batches.
    pub calls: u64,
    /// Items of these batches.
    pub items: u64,
    /// Batches of more than one call.
    pub shared: u64,
    /// Batches that were dispatched while others were in flight.
    pub concurrent: u64,
    /// Batches that were not full while calls of another merge key were queued.
    pub other_keys_waiting: u64,
    /// Total waiting time of the calls, in nanoseconds.
    pub waited_nanos: u64,
    /// Batches in the order of [`DispatchCause::ALL`].
    pub causes: [u64; DispatchCause::ALL.len()],
    /// Calls that could not be merged.
    pub unbatched: u64,
    /// Calls forwarded one by one because merging does not pay.
    pub passed: u64,
    /// Rejected items.
    pub rejected: u64,
    /// Expired items, in the order of [`ExpiryReason::ALL`].
    pub expired: [u64; ExpiryReason::ALL.len()],
    /// Items of the last batch.
    pub last_items: u32,
    /// Configured maximum number of items in a batch.
    pub items_max: u32,
    /// SLO of the last call that had one.
    pub slo: Option<Duration>,
}

/// A dispatched batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct DispatchEvent {
    pub(super) now: Tick,
    pub(super) class: CostClassId,
    pub(super) cause: DispatchCause,
    pub(super) unbatched_reason: Option<UnbatchedReason>,
    /// `true` if its only call must not be merged.
    pub(super) unbatched: bool,
    pub(super) calls: usize,
    pub(super) items: u32,
    pub(super) items_max: u32,
    /// `true` if other batches are in flight.
    pub(super) concurrent: bool,
    /// `true` if the batch is not full while calls of another merge key are queued.
    pub(super) other_keys_waiting: bool,
    /// Total waiting time of its calls.
    pub(super) waited: Duration,
    pub(super) slo: Option<Duration>,
}

/// Counts of all classes, and the totals.
#[derive(Debug, Clone, Default)]
pub(super) struct DispatchStats {
    /// Counts of each class, with the value of `uses` at their last update.
    classes: BTreeMap<CostClassId, (u64, ClassStats)>,
    totals: DispatchTotals,
    /// Number of updates of counts, by which the least recently used class is found.
    uses: u64,
}

// === impl HoldReason ===

impl HoldReason {
    /// All reasons.
    pub const ALL: [Self; 4] = [Self::Gather, Self::Plan, Self::Preset, Self::SlotBusy];

    /// Returns the name used in reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gather => "gather",
            Self::Plan => "plan",
            Self::Preset => "preset",
            Self::SlotBusy => "slot_busy",
        }
    }
}

// === impl ClassStats ===

impl ClassStats {
    fn halve(&mut self, now: Tick) {
        self.since = Tick(self.since.0 + now.0.saturating_sub(self.since.0) / 2);
        let Self {
            batches,
            calls,
            items,
            shared,
            concurrent,
            other_keys_waiting,
            waited_nanos,
            unbatched,
            passed,
            rejected,
            ..
        } = self;
        for count in
            [batches, calls, items, shared, concurrent, other_keys_waiting, waited_nanos, unbatched, passed, rejected]
        {
            *count /= 2;
        }
        self.causes.iter_mut().chain(&mut self.expired).for_each(|count| *count /= 2);
    }
}

// === impl DispatchStats ===

impl DispatchStats {
    /// Discards the counts of the classes, because they describe another upstream.
    pub(super) fn forget(&mut self) {
        self.classes.clear();
    }

    /// Returns the totals since the start. `holds` is left zero here: holds are counted by
    /// `Adaptive`.
    pub(super) fn totals(&self) -> DispatchTotals {
        self.totals
    }

    /// Iterates over the classes with counts.
    pub(super) fn classes(&self) -> impl Iterator<Item = (CostClassId, ClassStats)> {
        self.classes.iter().map(|(id, (_, tally))| (*id, *tally))
    }

    pub(super) fn on_dispatch(&mut self, sent: DispatchEvent) {
        *slot(&mut self.totals.causes, DispatchCause::ALL.iter().position(|cause| *cause == sent.cause)) += 1;
        let tally = self.stats_mut(sent.class);
        if tally.batches + tally.unbatched + tally.passed == 0 {
            tally.since = sent.now;
        }
        tally.items_max = sent.items_max;
        tally.slo = sent.slo.or(tally.slo);
        if sent.unbatched {
            tally.unbatched += 1;
        } else if sent.unbatched_reason == Some(UnbatchedReason::NoGain) {
            tally.passed += 1;
        } else {
            tally.batches += 1;
            tally.calls += u64::try_from(sent.calls).unwrap_or(u64::MAX);
            tally.items += u64::from(sent.items);
            tally.shared += u64::from(sent.calls > 1);
            tally.concurrent += u64::from(sent.concurrent);
            tally.other_keys_waiting += u64::from(sent.other_keys_waiting);
            tally.waited_nanos = tally.waited_nanos.saturating_add(nanos(sent.waited));
            tally.last_items = sent.items;
            *slot(&mut tally.causes, DispatchCause::ALL.iter().position(|cause| *cause == sent.cause)) += 1;
        }
        let dispatches = tally.batches.max(tally.unbatched).max(tally.passed);
        let is_old = dispatches >= 2 * RECENT_MIN && sent.now.since(tally.since) >= 2 * RECENT_TIME;
        if dispatches >= 2 * RECENT || is_old {
            tally.halve(sent.now);
        }
    }

    pub(super) fn on_rejection(&mut self, class: CostClassId, reason: RejectionReason, items: u32) {
        let items = u64::from(items);
        *slot(&mut self.totals.rejected, RejectionReason::ALL.iter().position(|known| *known == reason)) += items;
        self.stats_mut(class).rejected += items;
    }

    pub(super) fn on_expiry(&mut self, class: CostClassId, reason: ExpiryReason, items: u32) {
        let (items, at) = (u64::from(items), ExpiryReason::ALL.iter().position(|known| *known == reason));
        *slot(&mut self.totals.expired, at) += items;
        *slot(&mut self.stats_mut(class).expired, at) += items;
    }

    fn stats_mut(&mut self, class: CostClassId) -> &mut ClassStats {
        self.uses += 1;
        if !self.classes.contains_key(&class) && self.classes.len() >= CLASSES_MAX {
            let oldest = self.classes.iter().min_by_key(|(_, (used, _))| *used).map(|(id, _)| *id);
            if let Some(oldest) = oldest {
                self.classes.remove(&oldest);
            }
        }
        let (used, tally) = self.classes.entry(class).or_default();
        *used = self.uses;
        tally
    }
}

/// Returns the counter at this index, or the first one.
fn slot<const N: usize>(counts: &mut [u64; N], at: Option<usize>) -> &mut u64 {
    &mut counts[at.unwrap_or(0)]
}

#[cfg(test)]
mod tests;
