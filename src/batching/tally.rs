//! What was decided and why, counted: for whoever asks what binds.
//!
//! Totals since the start are for counters. What binds *now* is in the counts of a cost class: they
//! are halved now and then, so they cover its last one to two thousand batches or its last one to
//! two minutes, whichever is less, and a change shows within as much.
//!
//! What it leaves out: any say in a decision, and what is learned of the upstream (`adaptive`).

use std::collections::BTreeMap;
use std::time::Duration;

use super::batch::{Cause, Expiry, Lone};
use super::call::{CostClassId, RejectionReason};
use super::tick::Tick;

/// Batches that the counts of a class tell of, at least; they are halved at twice as many.
const RECENT: u64 = 1000;
/// The time that the counts of a class cover, at least, unless there are more batches in it than
/// [`RECENT`]; they are halved at twice as much.
const RECENT_TIME: Duration = Duration::from_secs(60);
/// Fewer batches than this are kept whatever their age: means of less say little.
const RECENT_MIN: u64 = 32;
/// Cost classes counted at once: as many as have a curve (`scheduling.md` §1). Beyond it the one unused for longest goes.
const CLASSES_MAX: usize = 64;

/// Why a line was kept waiting on purpose, or for want of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hold {
    /// Company was on its way: clients that come back, the rest of a burst.
    Gather,
    /// The plan waits for the next arrival.
    Plan,
    /// The preset spends a part of the SLO on a larger batch.
    Preset,
    /// Every slot was taken.
    SlotBusy,
}

/// Everything since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Executions, in the order of [`Cause::ALL`].
    pub causes: [u64; Cause::ALL.len()],
    /// Waits, in the order of [`Hold::ALL`]; a line that waits for one reason after another counts for each.
    pub holds: [u64; Hold::ALL.len()],
    /// Items refused, in the order of [`RejectionReason::ALL`].
    pub rejected: [u64; RejectionReason::ALL.len()],
    /// Items ended early, in the order of [`Expiry::ALL`].
    pub expired: [u64; Expiry::ALL.len()],
}

/// Counts of one cost class, of its last one to two thousand batches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// From when on: it moves along as the counts are halved, so that counts over time are rates.
    pub since: Tick,
    /// Batches of calls that may be merged, those of one call among them.
    pub batches: u64,
    /// Their calls.
    pub calls: u64,
    /// Their items.
    pub items: u64,
    /// Batches of more than one call.
    pub shared: u64,
    /// Batches that left while others were in flight.
    pub beside: u64,
    /// Batches with room left beside which calls of another merge key waited.
    pub apart: u64,
    /// How long their calls waited, in nanoseconds, summed.
    pub waited_nanos: u64,
    /// Batches in the order of [`Cause::ALL`].
    pub causes: [u64; Cause::ALL.len()],
    /// Calls that could not be merged.
    pub alone: u64,
    /// Calls sent one by one since the server batches better.
    pub passed: u64,
    /// Items refused.
    pub rejected: u64,
    /// Items ended early, in the order of [`Expiry::ALL`].
    pub expired: [u64; Expiry::ALL.len()],
    /// Items of the last batch.
    pub last_items: u32,
    /// Most items in a batch, as the policy says it.
    pub items_max: u32,
    /// The SLO of the last call that had one.
    pub slo: Option<Duration>,
}

/// A batch that leaves.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    pub(super) now: Tick,
    pub(super) class: CostClassId,
    pub(super) cause: Cause,
    pub(super) lone: Option<Lone>,
    /// Its one call may not be merged.
    pub(super) alone: bool,
    pub(super) calls: usize,
    pub(super) items: u32,
    pub(super) items_max: u32,
    pub(super) beside: bool,
    pub(super) apart: bool,
    /// Of all its calls.
    pub(super) waited: Duration,
    pub(super) slo: Option<Duration>,
}

/// The counts of all classes, and the totals.
#[derive(Debug, Clone, Default)]
pub(super) struct Tallies {
    classes: BTreeMap<CostClassId, (u64, Tally)>,
    totals: Totals,
    uses: u64,
}

// === impl Hold ===

impl Hold {
    /// Every reason.
    pub const ALL: [Self; 4] = [Self::Gather, Self::Plan, Self::Preset, Self::SlotBusy];

    /// The word in reports.
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

// === impl Tally ===

impl Tally {
    fn halve(&mut self, now: Tick) {
        self.since = Tick(self.since.0 + now.0.saturating_sub(self.since.0) / 2);
        let Self { batches, calls, items, shared, beside, apart, waited_nanos, alone, passed, rejected, .. } = self;
        for count in [batches, calls, items, shared, beside, apart, waited_nanos, alone, passed, rejected] {
            *count /= 2;
        }
        self.causes.iter_mut().chain(&mut self.expired).for_each(|count| *count /= 2);
    }
}

// === impl Tallies ===

impl Tallies {
    /// What was decided of late was decided for another upstream.
    pub(super) fn forget(&mut self) {
        self.classes.clear();
    }

    /// Everything since the start; `holds` is counted where it is decided.
    pub(super) fn totals(&self) -> Totals {
        self.totals
    }

    /// Every class that is counted.
    pub(super) fn classes(&self) -> impl Iterator<Item = (CostClassId, Tally)> {
        self.classes.iter().map(|(id, (_, tally))| (*id, *tally))
    }

    pub(super) fn sent(&mut self, sent: Sent) {
        *slot(&mut self.totals.causes, Cause::ALL.iter().position(|cause| *cause == sent.cause)) += 1;
        let tally = self.of(sent.class);
        if tally.batches + tally.alone + tally.passed == 0 {
            tally.since = sent.now;
        }
        tally.items_max = sent.items_max;
        tally.slo = sent.slo.or(tally.slo);
        if sent.alone {
            tally.alone += 1;
        } else if sent.lone == Some(Lone::NoGain) {
            tally.passed += 1;
        } else {
            tally.batches += 1;
            tally.calls += u64::try_from(sent.calls).unwrap_or(u64::MAX);
            tally.items += u64::from(sent.items);
            tally.shared += u64::from(sent.calls > 1);
            tally.beside += u64::from(sent.beside);
            tally.apart += u64::from(sent.apart);
            tally.waited_nanos = tally.waited_nanos.saturating_add(super::tick::nanos(sent.waited));
            tally.last_items = sent.items;
            *slot(&mut tally.causes, Cause::ALL.iter().position(|cause| *cause == sent.cause)) += 1;
        }
        let most = tally.batches.max(tally.alone).max(tally.passed);
        let old = most >= 2 * RECENT_MIN && sent.now.since(tally.since) >= 2 * RECENT_TIME;
        if most >= 2 * RECENT || old {
            tally.halve(sent.now);
        }
    }

    pub(super) fn rejected(&mut self, class: CostClassId, reason: RejectionReason, items: u32) {
        let items = u64::from(items);
        *slot(&mut self.totals.rejected, RejectionReason::ALL.iter().position(|known| *known == reason)) += items;
        self.of(class).rejected += items;
    }

    pub(super) fn expired(&mut self, class: CostClassId, reason: Expiry, items: u32) {
        let (items, at) = (u64::from(items), Expiry::ALL.iter().position(|known| *known == reason));
        *slot(&mut self.totals.expired, at) += items;
        *slot(&mut self.of(class).expired, at) += items;
    }

    fn of(&mut self, class: CostClassId) -> &mut Tally {
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

/// The count at a place that a list of all words has.
fn slot<const N: usize>(counts: &mut [u64; N], at: Option<usize>) -> &mut u64 {
    &mut counts[at.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASS: CostClassId = CostClassId(1);

    fn batch(calls: usize, items: u32) -> Sent {
        Sent {
            now: Tick(0),
            class: CLASS,
            cause: Cause::Idle,
            lone: None,
            alone: false,
            calls,
            items,
            items_max: 64,
            beside: false,
            apart: false,
            waited: Duration::ZERO,
            slo: None,
        }
    }

    fn of(tallies: &Tallies) -> Tally {
        tallies.classes().find(|(id, _)| *id == CLASS).unwrap().1
    }

    #[test]
    fn a_class_tells_of_its_last_batches_and_the_totals_of_all() {
        let mut tallies = Tallies::default();
        for at in 0..10_000 {
            tallies.sent(Sent { now: Tick::from_millis(at), ..batch(1, 1) });
        }
        for at in 10_000..14_000 {
            tallies.sent(Sent { now: Tick::from_millis(at), ..batch(8, 8) });
        }
        let tally = of(&tallies);
        let millis = 14_000 - tally.since.0 / 1_000_000;
        assert!(millis.abs_diff(tally.batches) <= 10, "a batch a millisecond: {tally:?}");
        assert!((RECENT..2 * RECENT).contains(&tally.batches), "{tally:?}");
        assert!(tally.items / tally.batches >= 7, "what was long ago has faded: {tally:?}");
        assert_eq!(tallies.totals().causes.iter().sum::<u64>(), 14_000);
    }

    #[test]
    fn a_slow_class_covers_its_last_minutes() {
        let mut tallies = Tallies::default();
        // One batch a second: an hour of batches of one, then three minutes of batches of eight.
        for second in 0..3600 {
            tallies.sent(Sent { now: Tick::from_millis(1000 * second), ..batch(1, 1) });
        }
        for second in 3600..3780 {
            tallies.sent(Sent { now: Tick::from_millis(1000 * second), ..batch(8, 8) });
        }
        let tally = of(&tallies);
        assert!(tally.items / tally.batches >= 6, "{tally:?}");
        assert!((RECENT_MIN..=120).contains(&tally.batches), "{tally:?}");
    }

    #[test]
    fn what_cannot_be_merged_says_nothing_about_sizes() {
        let mut tallies = Tallies::default();
        tallies.sent(batch(4, 8));
        tallies.sent(Sent { alone: true, ..batch(1, 1) });
        tallies.sent(Sent { lone: Some(Lone::NoGain), ..batch(1, 1) });
        let tally = of(&tallies);
        assert_eq!((tally.batches, tally.calls, tally.items, tally.alone, tally.passed), (1, 4, 8, 1, 1));
    }

    #[test]
    fn the_classes_counted_are_bounded() {
        let mut tallies = Tallies::default();
        for id in 0..1000 {
            tallies.rejected(CostClassId(id), RejectionReason::QueueFull, 2);
        }
        assert_eq!(tallies.classes().count(), CLASSES_MAX);
        assert_eq!(tallies.totals().rejected, [2000, 0, 0]);
    }
}
